"""What language models that misbehave cost: every activity that asks one, in every world, against a server of every
temper.

The server is `tests/llm/hostile_server.py`: its minds are competent, its manners are set. For each world and temper:

- questioning: worlds are explored and tasks made of them, as `python -m task_manager explore` does. A unit is an
    exploration; it survives
  if its steps were made into proposals.
- judging, attributing, distilling: rollouts that are right and wrong in known ways are graded, labelled step by step,
    and distilled in
  groups. A unit is a rollout, a rollout, a group.

A cell is: units that survived / what was kept of them that is right by the world's own truth / how many were kept, at
how many calls and tokens each. `right` is a task whose solution does what it says when the world's own code carries it
out, a grade and a label that the minds give a server of good manners, an experience that is true. The table is
Markdown. Ends with 1 if a bound of `BOUNDS` is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import sys
import tempfile
import time
import types
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
ROOT = Path(__file__).resolve().parents[1]
# The folder of this file holds a script that is named like a package, and verl installs a package that is called
# `tests`.
sys.path[:] = [
    str(ROOT),
    *(entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent),
]
if "tests" not in sys.modules or not getattr(sys.modules["tests"], "__path__", [""])[0].startswith(str(ROOT)):
    _tests = types.ModuleType("tests")
    _tests.__path__ = [str(ROOT / "tests")]
    sys.modules["tests"] = _tests

from advantage_processor import AttributionSettings  # noqa: E402
from advantage_processor.attributor import Attributor, judge_settings  # noqa: E402
from agentevolver.llm.client import LLM  # noqa: E402
from agentevolver.llm.settings import LLMSettings  # noqa: E402
from agentevolver.types import Outcome, Step, StopReason, Task, Trajectory  # noqa: E402
from agentevolver.utils.openings import replace_query  # noqa: E402
from env_service.client import AsyncEnvClient  # noqa: E402
from experience_manager.attempts import read_attempts  # noqa: E402
from experience_manager.distill import Distiller  # noqa: E402
from experience_manager.settings import DistillationSettings  # noqa: E402
from task_manager import synthetic_tasks  # noqa: E402
from task_manager.actions import format_of  # noqa: E402
from task_manager.graders.base import GradingError  # noqa: E402
from task_manager.graders.judge import JudgeGrader  # noqa: E402
from task_manager.pipeline import QuestioningFailed  # noqa: E402
from task_manager.services import running  # noqa: E402
from task_manager.settings import QuestioningConfiguration, TaskManagerSettings  # noqa: E402
from task_manager.synthetic_tasks import open_run  # noqa: E402
from task_manager.tasks import seed_of, solution_of  # noqa: E402
from task_manager.world import SeedWorld, execute  # noqa: E402
from tests.llm.hostile_server import HostileServer  # noqa: E402
from tests.llm.minds import Minds, world_of_type  # noqa: E402
from tests.llm.temperaments import TEMPERS, Temper, read_temper  # noqa: E402

WORLDS = ("pocket", "bfcl", "appworld", "gymnasium", "mcp", "python")
ACTIVITIES = ("questioning", "distilling", "judging", "attributing")
TEMPER_NAMES = tuple(TEMPERS)
# Splits of worlds that a question may be asked in; BFCL's in one category, since the four tell the same stories.
SPLITS: dict[str, dict[str, Any]] = {
    "bfcl": {"train_filter": {"categories": ["multi_turn_base"]}, "val_splits": ["val"]}
}
# Steps of an exploration; the worlds of a question that takes a way get the longest.
STEPS = {"pocket": 12, "bfcl": 10, "appworld": 6, "gymnasium": 14, "mcp": 10, "python": 6}
# Least share of units that survive, by temper; of what is kept, `RIGHT` must be right everywhere.
BOUNDS = {"mild": 0.98, "limits": 0.95}
RIGHT = 0.9
# A window of a minute lasts this much less, and so do waits and latencies, unless it is asked for real time.
HURRY = 20.0


@dataclass
class Cell:
    """What became of one activity: `units` began, `survived` came to their end, `right` of `kept` things are right."""

    units: int = 0
    survived: int = 0
    kept: int = 0
    right: int = 0
    calls: int = 0
    tokens: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)

    @property
    def survival(self) -> float:
        """The share of the units."""
        return self.survived / self.units if self.units else 0.0

    @property
    def rightness(self) -> float:
        """The share of what was kept; 1 where nothing was."""
        return self.right / self.kept if self.kept else 1.0

    def shown(self) -> str:
        """Return it as a cell of a table."""
        if not self.units:
            return "-"
        cost = (
            f"{self.kept} at {self.calls / self.kept:.1f}, {self.tokens / self.kept / 1000:.1f}k"
            if self.kept
            else "nothing kept"
        )
        return f"{self.survival:.2f} / {self.rightness:.2f} / {cost}"


Table = dict[tuple[str, str, str], Cell]
"""By activity, temper and world."""


def hurried(temper: Temper) -> Temper:
    """Return a temper whose minute and whose latency are `HURRY` times shorter."""
    least, most = temper.latency_s
    return replace(temper, window_s=temper.window_s / HURRY, latency_s=(least / HURRY, most / HURRY))


def settings_of(url: str, folder: Path, *, in_real_time: bool) -> LLMSettings:
    """Return the section `llm` that has all roles played at `url`; a try is as short as the server's minute."""
    hurry = {} if in_real_time else {"timeout_s": 120 / HURRY}
    values = {
        "base_url": url,
        "model": "hostile",
        "api_key_env": None,
        "ledger": folder / "usage.sqlite",
        "price_in": 1.0,
        "price_out": 2.0,
    }
    return LLMSettings.model_validate({**values, **hurry})


def configuration_of(
    world: str, url: str, folder: Path, options: argparse.Namespace, env_url: str
) -> QuestioningConfiguration:
    """Return what questioning reads, for one world and one temper."""
    sections = {
        "env_service": {"env_type": world, "env_url": env_url},
        "data": SPLITS.get(world, {"val_splits": ["dev"]}),
        "llm": settings_of(url, folder, in_real_time=options.real_time).model_dump(),
        "task_manager": {
            "n": 1,
            "max_seed_tasks": options.seeds,
            "train_data_path": str(folder / "tasks.jsonl"),
            "strategy_args": {"breadth_steps": STEPS[world] // 2, "depth_steps": STEPS[world] - STEPS[world] // 2},
        },
    }
    return QuestioningConfiguration.model_validate(sections)


async def measured(server: HostileServer, work: Awaitable[Cell]) -> Cell:
    """Return a cell with what it cost and how long it took."""
    calls, tokens, began = (
        sum(server.asked.values()),
        server.prompt_tokens + server.completion_tokens,
        time.perf_counter(),
    )
    cell = await work
    cell.calls = sum(server.asked.values()) - calls
    cell.tokens = server.prompt_tokens + server.completion_tokens - tokens
    cell.seconds = time.perf_counter() - began
    return cell


async def question(configuration: QuestioningConfiguration, kept: list[Task]) -> Cell:
    """Make tasks and put them into `kept`; a unit is an exploration."""
    world = world_of_type(configuration.env_service.env_type)
    async with (
        LLM(configuration.llm) as llm,
        open_run(configuration, llm) as run,
    ):
        cell = Cell(units=sum(1 for _ in run.plan.jobs()))
        try:
            await run.make_tasks()
        except QuestioningFailed as error:
            cell.failures.append(str(error))
        kept += run.pipeline.tasks
        cell.failures += run.pipeline.failures
        plan, journal = run.plan, run.journal
        asked = (plan.synthesis(plan.exploration(seed, number)) for seed, number in plan.jobs())
        cell.survived = sum(journal.get("synthesis", key) is not None for key in asked)
    cell.kept = len(kept)
    for task in kept:
        is_right = world.right(seed_of(task), str(task.query), solution_of(task))
        cell.right += is_right
        if not is_right:
            cell.failures.append(f"kept and wrong: {task.query} {solution_of(task)}")
    return cell


async def rollouts(world: str, tasks: Sequence[Task], client: AsyncEnvClient) -> list[Trajectory]:
    """Carry out each task as its solution does and in a wrong way, if it has one that is surely wrong."""
    player, fmt, out = world_of_type(world), format_of(world), []
    for number, task in enumerate(tasks):
        solution = solution_of(task)
        ways = [solution, *(way for way in (solution[1:], solution[-1:]) if way and way != solution)][:2]
        for place, actions in enumerate(ways):
            is_right = place == 0
            if not is_right and player.right(seed_of(task), str(task.query), actions):
                continue
            done = await execute(client, SeedWorld(world, seed_of(task)), fmt, actions)
            opening = replace_query(done.opening.messages, str(task.query), {"query": done.opening.query})
            steps = []
            messages = list(opening)
            for index, (action, observation) in enumerate(zip(done.actions, done.observations, strict=True)):
                steps.append(Step(index, action, observation, 0.0, 0, 0, False, 0.0, 0.0))
                messages += [{"role": "assistant", "content": action}, {"role": "user", "content": observation}]
            outcome = Outcome(float(is_right), is_right, "")
            out.append(Trajectory(task, f"g{number}", place, messages, steps, StopReason.FINISHED, outcome))
    return out


async def judge(played: Sequence[Trajectory], settings: LLMSettings) -> Cell:
    """Grade rollouts; a unit is one of them."""
    cell = Cell(units=len(played))

    async def one(grader: JudgeGrader, trajectory: Trajectory) -> None:
        assert trajectory.outcome is not None
        try:
            outcome = await grader.grade(trajectory.task, trajectory, None, "")  # type: ignore[arg-type]
        except GradingError as error:
            cell.failures.append(str(error))
            return
        cell.survived += 1
        cell.kept += 1
        cell.right += outcome.success is trajectory.outcome.success

    async with LLM(settings) as llm:
        grader = JudgeGrader("llm-binary-gt-no_constraint", llm)
        await asyncio.gather(*(one(grader, trajectory) for trajectory in played))
    return cell


async def attribute(played: Sequence[Trajectory], settings: LLMSettings, truth: dict[str, tuple[bool, ...]]) -> Cell:
    """Label rollouts step by step; `truth` holds labels by trajectory and is filled with those found where it is
    empty."""
    section = AttributionSettings(enable=True)
    cell, is_truth = Cell(units=len(played)), not truth
    async with LLM(judge_settings(settings, section)) as llm:
        attributor = Attributor(section, llm, group_size=2)
        found = await asyncio.gather(*(attributor.label_steps(trajectory, step=1) for trajectory in played))
    for trajectory, attribution in zip(played, found, strict=True):
        name = trajectory.trajectory_id
        if not attribution.good:
            cell.failures.append(attribution.reason)
            continue
        if is_truth:
            truth[name] = attribution.good
        cell.survived += 1
        cell.kept += 1
        cell.right += attribution.good == truth.get(name)
    return cell


async def distil(played: Sequence[Trajectory], settings: LLMSettings, world: str) -> Cell:
    """Distil the rollouts of each task; a unit is a task, which survives if none of its calls is lost."""
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in played:
        groups.setdefault(trajectory.group_id, []).append(trajectory)
    cell = Cell(units=len(groups))
    async with LLM(settings) as llm:
        distiller = Distiller(llm, DistillationSettings())
        attempts = [read_attempts(group) for group in groups.values()]
        for result in await asyncio.gather(*(distiller.distil(group, 1) for group in attempts)):
            lost = result.counts["failed_extraction"] + result.counts["failed_validation"]
            cell.survived += lost == 0
            cell.kept += len(result.experiences)
            told = (
                (experience.content, experience.task_ids[0].rpartition("#")[0]) for experience in result.experiences
            )
            cell.right += sum(world_of_type(world).is_true(content, seed) for content, seed in told)
            if lost:
                cell.failures.append(str(dict(result.counts)))
    return cell


@dataclass
class Site:
    """A world whose service runs. `played` and `truth` (labels by trajectory) come of the first temper, which is a calm
    one."""

    world: str
    env_url: str
    options: argparse.Namespace
    folder: Path
    played: list[Trajectory] = field(default_factory=list)
    truth: dict[str, tuple[bool, ...]] = field(default_factory=dict)

    async def suffer(self, name: str) -> dict[str, Cell]:
        """Return the cells of a temper, by activity."""
        options, temper = self.options, read_temper(name)
        server = HostileServer(
            temper if options.real_time else hurried(temper),
            Minds(wrong=options.wrong, seed=options.seed),
            options.seed,
        )
        place = self.folder / name
        place.mkdir()
        async with server.serve() as transport:
            configuration = configuration_of(self.world, transport.url, place, options, self.env_url)
            llm, kept = configuration.llm, list[Task]()
            cells = {"questioning": await measured(server, question(configuration, kept))}
            if not self.played:
                async with AsyncEnvClient(self.env_url) as client:
                    self.played = await rollouts(self.world, kept[: options.rollouts], client)
            cells["distilling"] = await measured(server, distil(self.played, llm, self.world))
            cells["judging"] = await measured(server, judge(self.played, llm))
            cells["attributing"] = await measured(server, attribute(self.played, llm, self.truth))
        return cells


def one_world(world: str, options: argparse.Namespace, folder: Path) -> Table:
    """Return the cells of a world."""
    env_url = f"http://127.0.0.1:{_free_port()}"
    site, table = Site(world, env_url, options, folder), Table()
    with running(configuration_of(world, "http://127.0.0.1:9/v1", folder, options, env_url), folder / "logs"):
        for name in options.tempers:
            for activity, cell in asyncio.run(site.suffer(name)).items():
                table[activity, name, world] = cell
                print(
                    f"{world:10} {name:12} {activity:12} {cell.shown()}  ({cell.seconds:.1f} s)",
                    file=sys.stderr,
                    flush=True,
                )
                for failure in cell.failures[: options.show]:
                    print(f"    {failure[:300]}", file=sys.stderr)
    return table


def markdown(table: Table) -> str:
    """Return the table, one part for each activity: tempers down, worlds across."""
    worlds = [world for world in WORLDS if any(key[2] == world for key in table)]
    tempers = list(dict.fromkeys(key[1] for key in table))
    lines = []
    for activity in ACTIVITIES:
        lines += [f"| {activity} | {' | '.join(worlds)} |", "|---" * (len(worlds) + 1) + "|"]
        for temper in tempers:
            cells = (table.get((activity, temper, world), Cell()).shown() for world in worlds)
            lines.append(f"| {temper} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def missed(table: Table) -> list[str]:
    """Return the bounds that are missed, each over all worlds of a temper together."""
    found = []
    for temper in dict.fromkeys(key[1] for key in table):
        for activity in ACTIVITIES:
            cells = [cell for (a, t, _), cell in table.items() if (a, t) == (activity, temper)]
            units, survived = sum(cell.units for cell in cells), sum(cell.survived for cell in cells)
            kept, right = sum(cell.kept for cell in cells), sum(cell.right for cell in cells)
            if units and survived / units < BOUNDS.get(temper, 0):
                found.append(f"{activity}, {temper}: {survived} of {units} survived, not {BOUNDS[temper]:g}")
            if kept and right / kept < RIGHT:
                found.append(f"{activity}, {temper}: {right} of {kept} kept are right, not {RIGHT:g}")
    return found


def as_json(table: Table) -> Iterable[dict[str, Any]]:
    """Yield the cells as records."""
    for (activity, temper, world), cell in table.items():
        yield {"activity": activity, "temper": temper, "world": world, **vars(cell)}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ready(world: str) -> str:
    """Return why a world cannot be played here, "" if it can."""
    import importlib.util

    if world == "bfcl" and importlib.util.find_spec("bfcl_eval") is None and not os.environ.get("BFCL_ROOT"):
        return "bfcl-eval is not installed"
    if world == "gymnasium" and importlib.util.find_spec("gymnasium") is None:
        return "gymnasium is not installed"
    if world == "mcp" and importlib.util.find_spec("mcp") is None:
        return "the MCP SDK is not installed"
    if world == "appworld":
        from env_service.environments.appworld.tests import tiny_world

        python = os.environ.get("APPWORLD_PYTHON") or str(ROOT / ".venvs" / "appworld" / "bin" / "python")
        if not os.access(python, os.X_OK):
            return "AppWorld is not set up (env_service/environments/appworld/setup.sh)"
        os.environ["APPWORLD_PYTHON"] = python
        os.environ["APPWORLD_ROOT"] = str(tiny_world.build(Path(python)))
    return ""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--worlds", default=",".join(WORLDS))
    parser.add_argument("--tempers", default=",".join(TEMPER_NAMES), help="names, or combinations like limits+mild")
    parser.add_argument("--quick", action="store_true", help="fewer seeds")
    parser.add_argument("--seeds", type=int, default=24, help="explorations of a world")
    parser.add_argument("--rollouts", type=int, default=24, help="tasks that are played rightly and wrongly")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--wrong", type=float, default=0.15, help="share of tasks and experiences that the minds get wrong on purpose"
    )
    parser.add_argument(
        "--real-time", action="store_true", help=f"a minute is a minute; otherwise time goes {HURRY:g} times faster"
    )
    parser.add_argument("--show", type=int, default=0, help="failures of each cell to print")
    parser.add_argument("--out", type=Path, help="write the numbers there as JSON")
    options = parser.parse_args(arguments)
    options.tempers = options.tempers.split(",")
    if "calm" not in options.tempers:
        options.tempers.insert(0, "calm")
    options.seeds = min(options.seeds, 8) if options.quick else options.seeds
    options.worlds = options.worlds.split(",")
    return options


def measure(options: argparse.Namespace) -> Table:
    """Return the table of some worlds and tempers; `--out` is written after each world."""
    table: Table = {}
    for world in options.worlds:
        if why := ready(world):
            print(f"{world} is left out: {why}", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as folder:
            table |= one_world(world, options, Path(folder))
        if options.out is not None:
            options.out.write_text(json.dumps(list(as_json(table)), indent=1))
    return table


def main() -> None:
    """Measure and print."""
    options = parse()
    # What fails is counted, and may be everything; words alone decide what is the same task.
    TaskManagerSettings.max_failed_share = 1.0
    synthetic_tasks.make_encoder = lambda *_: None
    table = measure(options)
    print(markdown(table))
    if found := missed(table):
        raise SystemExit("\n".join(found))


if __name__ == "__main__":
    main()
