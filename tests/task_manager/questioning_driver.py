"""A questioning run of its own process, slow enough to be killed: `python questioning_driver.py FOLDER PAUSE_S` or `...
FOLDER URL`.

Every call of the model is noted in FOLDER/calls before it is answered, and the tasks are written when the run is
through. With the URL of a language model's server the roles are played there, over the real client with a cache, in the
real PocketWorld.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

from questioning_fakes import LocalDesk, LocalPocket, Tutor
from test_pipeline import pipeline, settings_of

from agentevolver.llm.client import LLM
from agentevolver.llm.settings import LLMSettings
from task_manager.journal import PipelineJournal
from task_manager.tasks import write_objectives

SEEDS = tuple(f"note_add.k{site}.{seed}" for site in range(4) for seed in range(3))


class SlowTutor(Tutor):
    """Thinks for a while about everything."""

    def __init__(self, calls: Path, pause_s: float) -> None:
        super().__init__()
        self._calls = calls
        self._pause_s = pause_s

    async def _said(self, role, messages, sampling):
        call = json.dumps([messages[0]["content"].splitlines()[0], sampling.get("seed"), messages[1]["content"]])
        with self._calls.open("a") as file:
            file.write(f"\n{call}\n")  # the first line break ends a call that a kill cut off
        await asyncio.sleep(self._pause_s)
        return await super()._said(role, messages, sampling)


async def over_http(journal, folder, url):
    """Make the tasks with the server's model."""
    settings = LLMSettings(base_url=url, model="m", api_key_env=None, cache=folder / "cache.sqlite")
    async with LLM(settings) as llm:
        section = settings_of(verification={"resolve": True})
        return await pipeline(journal, llm, LocalPocket(), settings=section, seeds=SEEDS).run()


def main() -> None:
    folder, how = Path(sys.argv[1]), sys.argv[2]
    with PipelineJournal(folder / "store") as journal:
        if how.startswith("http"):
            tasks = asyncio.run(over_http(journal, folder, how))
        else:
            tutor = SlowTutor(folder / "calls", float(how))
            tasks = asyncio.run(pipeline(journal, tutor, LocalDesk(), settings=settings_of(), seeds=SEEDS).run())
    write_objectives(folder / "tasks.jsonl", tasks)
    print(len(tasks), time.process_time())


if __name__ == "__main__":
    main()
