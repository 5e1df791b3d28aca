"""A questioning run of its own process, slow enough to be killed: `python questioning_driver.py FOLDER PAUSE_S`.

Every call of the model is noted in FOLDER/calls before it is answered, and the tasks are written when the run is through.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

from questioning_fakes import LocalDesk, Tutor
from test_questioning import questioner, settings_of

from task_manager.journal import Journal
from task_manager.tasks import write_objectives

SEEDS = tuple(f"note_add.k{site}.{seed}" for site in range(4) for seed in range(3))


class SlowTutor(Tutor):
    """Thinks for a while about everything."""

    def __init__(self, calls: Path, pause_s: float) -> None:
        super().__init__()
        self._calls = calls
        self._pause_s = pause_s

    async def _said(self, role, messages, sampling):
        with self._calls.open("a") as file:
            file.write(json.dumps([messages[0]["content"].splitlines()[0], sampling.get("seed"), messages[1]["content"]]) + "\n")
        await asyncio.sleep(self._pause_s)
        return await super()._said(role, messages, sampling)


def main() -> None:
    folder, pause_s = Path(sys.argv[1]), float(sys.argv[2])
    tutor = SlowTutor(folder / "calls", pause_s)
    with Journal(folder / "store") as journal:
        tasks = asyncio.run(questioner(journal, tutor, LocalDesk(), settings=settings_of(), seeds=SEEDS).run())
    write_objectives(folder / "tasks.jsonl", tasks)
    print(len(tasks), time.process_time())


if __name__ == "__main__":
    main()
