"""`agentevolver eval`: measures a policy or a chat model on a split of an environment."""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentevolver.cli.commands.players import add_player, contestant, game, refuse_unclear
from agentevolver.cli.commands.verbs import PROG, VerbParser, carried_out, positive
from agentevolver.utils.errors import UsageError
from agentevolver.utils.secrets import read_dotenv

if TYPE_CHECKING:
    from agentevolver.evaluation.report import Evaluation

# Number of progress lines without a terminal.
LINES = 10


def parser() -> VerbParser:
    made = VerbParser(
        "eval",
        "Plays a split of an environment with a checkpoint, a Hugging Face folder or a model behind an API, and says "
        "what it reached: avg@k, unbiased pass@k, 95 % intervals.",
    )
    add_player(made)
    add = made.add_argument
    add("--split", help="of the environment (default: the first of data.val_splits)")
    add("--n", type=positive, default=4, help="episodes of a task (default: %(default)s)")
    add("--tasks", type=positive, metavar="N", help="draw so many tasks, of each family its share (default: all)")
    add("--at-once", type=positive, default=32, metavar="N", help="episodes in flight (default: %(default)s)")
    add("--name", help="what the table calls it")
    add(
        "--beside",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="an evaluation of --out to show beside it; may be repeated",
    )
    add("--out", type=Path, metavar="FILE", help="write the evaluation as JSON")
    add("--trajectories", type=Path, metavar="FILE", help="write every episode as a line of JSON")
    return made


def main(arguments: Sequence[str], root: Path) -> int:
    return carried_out("eval", lambda: _evaluate(parser().read(arguments), list(arguments), root))


def _evaluate(options: argparse.Namespace, arguments: list[str], root: Path) -> int:
    from agentevolver.utils.rich_console import TerminalConsole

    read_dotenv(root)
    refuse_unclear(options)
    # Checked first: an evaluation takes minutes, and its results would be lost.
    for path in filter(None, (options.out, options.trajectories)):
        if not path.absolute().parent.is_dir():
            raise UsageError(f"{path}: there is no folder {path.absolute().parent}")
        if path.is_dir():
            raise UsageError(f"{path} is a folder: give a file")
    if not options.what and not options.api and not options.beside:
        raise UsageError("name a RUN, a CHECKPOINT or a folder of weights, or give --api URL --model NAME (see --help)")
    from agentevolver.evaluation.report import read_evaluation, table

    others = [read_evaluation(path) for path in options.beside]
    own = [asyncio.run(_played(options, arguments))] if options.what or options.api else []
    TerminalConsole().print(table([*own, *others]))
    for one in own:
        if options.out is not None:
            options.out.write_text(json.dumps(one.to_dict(), indent=1) + "\n", encoding="utf-8")
            print(f"written to {options.out}; beside another one: {PROG} eval ... --beside {options.out}")
        one.measured.check()
    return 0


async def _played(options: argparse.Namespace, arguments: list[str]) -> Evaluation:
    from agentevolver.evaluation.play import list_tasks, play
    from agentevolver.evaluation.report import Evaluation
    from agentevolver.evaluation.worlds import open_world
    from agentevolver.utils.secrets import masked_arguments
    from task_manager.tasks import family_of, stratified

    source, played = game(options)
    settings = played.settings
    env_type = settings.env_service.env_types[0]
    split = options.split or (settings.environment(env_type).val_splits or ("dev",))[0]
    seed = settings.data.seed if options.seed is None else options.seed
    began = time.monotonic()
    async with open_world(settings.env_service.env_types, options.env_modules, options.env_url) as world:
        listed = await list_tasks(world, settings, env_type, split)
        tasks = listed if options.tasks is None else stratified(listed, options.tasks, seed)
        kinds = [len({family_of(task.task_id, task.metadata) for task in some}) for some in (tasks, listed)]
        drawn = f"{len(tasks)} of {len(listed)} tasks"
        if kinds[1] < len(listed):
            drawn += f", {kinds[0]} of {kinds[1]} kinds"
        async with contestant(options, source, played) as player:
            name = options.name or player.name
            runner = player.runner(world)
            with (
                _Progress(f"{name} on {env_type}/{split} ({drawn})", len(tasks) * options.n) as progress,
                _Kept(options.trajectories) as kept,
            ):
                episodes = await play(
                    runner,
                    tasks,
                    options.n,
                    settings,
                    player.sampling,
                    seed=seed,
                    at_once=min(options.at_once, settings.rollout.max_env_worker),
                    told=progress.tell,
                    kept=kept.write,
                )
            spent = dict(player.spent())
    errors = [episode.error for episode in episodes if episode.score is None]
    facts: dict[str, Any] = {
        "command": shlex.join([PROG, "eval", *masked_arguments(arguments)]),
        "weights": None if source is None else source.weights.folder,
        "step": None if source is None else source.step,
        "endpoint": options.api,
        "model": options.model,
        "sampling": dict(player.sampling),
        "seed": seed,
        "drawn": drawn,
        "seconds": round(time.monotonic() - began, 1),
        "spent": spent,
        "first_error": errors[0] if errors else None,
    }
    return Evaluation.of(name, env_type, split, options.n, episodes, facts)


class _Progress:
    """Progress bar with the success rate and the time left, or lines without a terminal."""

    def __init__(self, what: str, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        from agentevolver.trainer.monitor.measured import Measured
        from agentevolver.utils.rich_console import TerminalConsole, escape

        self._what, self._label, self._total = what, escape(what), total
        self._done = self._graded = self._won = 0
        self._measured = Measured()
        self._told = 0
        self._began = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=TerminalConsole(),
        )
        self._task = self._bar.add_task(self._label, total=total)
        self._live = self._bar.console.is_terminal

    def __enter__(self) -> _Progress:
        print(f"{self._what}: {self._total} episodes", flush=True)
        if self._live:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            self._bar.stop()

    def tell(self, episode: Any) -> None:
        self._done += 1
        self._graded += episode.score is not None
        self._won += episode.success
        self._measured += episode.measured
        remark = self._measured.remark()
        share = f"{self._won / self._graded:.3f}" if self._graded and not self._measured.unmeasured else "-"
        share += f" ({remark})" if remark else ""
        if self._live:
            self._bar.update(self._task, completed=self._done, description=f"{self._label}  success {share}")
        elif self._done * LINES // self._total > self._told:
            self._told = self._done * LINES // self._total
            left = (time.monotonic() - self._began) / self._done * (self._total - self._done)
            print(f"  {self._done} of {self._total}, success {share}, about {left:.0f} s left", flush=True)


class _Kept:
    """Writes trajectories to a file. Without a path, `write` does nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def __enter__(self) -> _Kept:
        self._file = None if self._path is None else self._path.open("w", encoding="utf-8")
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, trajectory: Any) -> None:
        if self._file is not None:
            # Written one by one, so an evaluation that fails later keeps its episodes.
            self._file.write(json.dumps(trajectory.to_dict()) + "\n")
