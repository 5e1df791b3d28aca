"""Every example starts for real and takes two steps on the CPU stack, its sizes made small and nothing else changed.

What a language model would be paid for is answered by the tests' own, which behaves as real ones do
(`tests/llm/hostile_server.py`), what a GPU would be needed for by a random model (`tiny_model`). A tier of its own,
`bash tests/run.sh examples`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agentevolver.recipes.offline.seed.demonstrator import Habits
from agentevolver.recipes.offline.seed.policy import build as build_policy
from agentevolver.recipes.offline.seed.syntax import HERMES
from agentevolver.recipes.offline.seed.training import SeedTraining
from agentevolver.utils.errors import NothingMeasured
from agentevolver.utils.files import read_jsonl
from env_service.environments.appworld.tests import tiny_world
from env_service.environments.textarena import package as textarena
from tests.agents.playing import VENV, need_agents
from tests.e2e.runs import ROOT, Launched
from tests.llm.serving import served
from tests.tiny_model import build

pytestmark = [pytest.mark.e2e, pytest.mark.examples, pytest.mark.timeout(1800)]

FOLDERS = (ROOT / "examples", *(ROOT / "agentevolver" / "recipes").glob("*/examples"))
EXAMPLES = {path.stem: path for folder in FOLDERS for path in folder.glob("*.yaml")}
STEPS = 2
KEY = "sk-of-nobody"
ROLLOUT = "actor_rollout_ref.rollout."
SIZES = (
    "data.train_batch_size=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    f"{ROLLOUT}n=4",
    f"{ROLLOUT}val_kwargs.n=2",
    f"trainer.total_training_steps={STEPS}",
)
FEW_TASKS = ("data.val_filter.n=8",)
FEW_EXPLORATIONS = ("task_manager.max_seed_tasks=8",)
SMALL_POOL = ("exp_manager.init_tasks=8", "exp_manager.init_rollouts=2")
# Replies of a few tokens: a random policy says nothing in more of them.
SHORT = (f"{ROLLOUT}response_length=16", f"{ROLLOUT}multi_turn.max_steps=4", "data.max_response_length=2048")
FEW_OF_A_BENCHMARK = (
    *("task_manager.n=2", "task_manager.max_seed_tasks=8", "task_manager.target_tasks=12"),
    *("task_manager.strategy_args.breadth_steps=1", "task_manager.strategy_args.depth_steps=1"),
    *SMALL_POOL,
)


@dataclass(frozen=True)
class Case:
    """How an example is made small, and which of its parts must have worked (`questioning`, `navigating`, `labels`,
    `loop`, `self_play`)."""

    sizes: tuple[str, ...] = ()
    parts: frozenset[str] = frozenset()
    model: bool = False
    paid: bool = False
    room: int | None = None
    needs: str = ""
    hermes: bool = False
    splits: tuple[str, ...] = field(default=("dev",))

    def overrides(self, model: Path) -> list[str]:
        """Return the example's own command line, but for folders and ports."""
        made = [f"actor_rollout_ref.model.path={model}"] if self.model or self.hermes else []
        if self.room is not None:
            made += [
                f"{ROLLOUT}max_model_len={self.room}",
                f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={self.room}",
            ]
            made += [
                f"{section}.log_prob_max_token_len_per_gpu={self.room}"
                for section in (ROLLOUT[:-1], "actor_rollout_ref.ref")
            ]
        return ["device=cpu", *SIZES, *made, *self.sizes]


ALL = frozenset({"questioning", "navigating", "labels"})
CASES = {
    "basic": Case(FEW_TASKS),
    "async": Case(FEW_TASKS),
    "seeupo": Case(FEW_TASKS),
    "gateway": Case(FEW_TASKS),
    "native_tools": Case(FEW_TASKS, hermes=True),
    "openai_agents": Case(FEW_TASKS, hermes=True, needs="openai-agents"),
    "questioning": Case((*FEW_TASKS, *FEW_EXPLORATIONS), frozenset({"questioning"})),
    "closed_loop": Case(
        (*FEW_TASKS, *FEW_EXPLORATIONS, "recipes.seal.every=1", "recipes.seal.budget_tasks=4"),
        frozenset({"questioning", "loop"}),
    ),
    "attributing": Case(FEW_TASKS, frozenset({"labels"})),
    "navigating": Case(
        (*FEW_TASKS, *SMALL_POOL, "exp_manager.scout.filter.n=16"), frozenset({"navigating"}), splits=("dev", "test")
    ),
    "overall": Case((*FEW_TASKS, *FEW_EXPLORATIONS, *SMALL_POOL), ALL, splits=("dev", "test")),
    "pocket_long": Case(("data.val_filter.n=4", f"{ROLLOUT}multi_turn.max_steps=24")),
    "pocket_app": Case(("data.val_filter.n=4",)),
    "cold_start": Case((*FEW_TASKS, "cold_start.epochs=1")),
    "gpu": Case((*FEW_TASKS, *SHORT), model=True, room=4352),
    "small_model": Case((*FEW_TASKS, *SHORT, "cold_start.epochs=1", "cold_start.files=['reference:16']"), model=True),
    "self_play": Case(
        (
            *("data.val_filter.seeds=2", "data.max_prompt_length=1024", *SHORT),
            *("trainer.val_before_train=true", "trainer.save_freq=1", "recipes.self_play.every=1"),
        ),
        frozenset({"self_play"}),
        model=True,
        room=4352,
        needs="textarena",
    ),
    "bfcl": Case(
        (
            *(*FEW_OF_A_BENCHMARK, *SHORT, "data.val_filter.categories=[multi_turn_base]"),
            # Two steps find little there, and what was found twice is kept once.
            "task_manager.max_seed_tasks=20",
        ),
        ALL,
        model=True,
        paid=True,
        room=8704,
        needs="bfcl",
        splits=("val",),
    ),
    "appworld": Case((*FEW_OF_A_BENCHMARK, *SHORT), ALL, model=True, paid=True, room=6144, needs="appworld"),
}


def test_every_example_has_its_case() -> None:
    # Planned in tests/examples: their sizes want GPUs; the catalogue's policy and index take minutes to build. Those of
    # agent0 are run by its own tests.
    planned = {"tau2", "secret_mafia", "catalogue", "agent0", "agent0_gpu"}
    assert set(EXAMPLES) <= set(CASES) | planned


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = [path.read_text() for folder in ("docs", "env_service") for path in (ROOT / folder).rglob("*.md")]
    if bfcl_is_there():  # so that its openings are about as long as a real tokenizer makes them
        from env_service.environments.bfcl import package, prompts

        docs = {doc["name"]: doc for task in package.load_package().tasks.values() for doc in task.tools}
        texts += [json.dumps(prompts.tool_schema(doc)) for doc in docs.values()] * 4
    return build(tmp_path_factory.mktemp("tiny"), texts)


@pytest.fixture(scope="module")
def hermes_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy of hermes' syntax that has learnt next to nothing: enough to begin a call."""
    folder = tmp_path_factory.mktemp("hermes")
    build_policy(folder, 0, SeedTraining(steps=40), Habits(), "of a test", splits=(), syntax=HERMES)
    return folder


def agents_package(folder: Path) -> dict[str, str]:
    """Return the variables under which this Python imports the openai-agents of the agents' venv, and nothing else of
    it."""
    need_agents()
    site = next((VENV / "lib").glob("python3.*")) / "site-packages"
    for name in ("agents", "griffe", *(path.name for path in site.glob("openai_agents-*.dist-info"))):
        (folder / name).symlink_to(site / name)
    return {"PYTHONPATH": f"{folder}:{ROOT}"}


def bfcl_is_there() -> bool:
    return bool(os.environ.get("BFCL_ROOT")) or importlib.util.find_spec("bfcl_eval") is not None


@pytest.fixture(scope="module")
def paid_model() -> Iterator[str]:
    """The address of a language model that answers as an ordinary paid one does."""
    with served("--key", KEY, "--temper", "mild") as address:
        yield address


def world(needs: str) -> dict[str, str]:
    """Return the variables that name an environment's installation; skips where there is none."""
    if needs == "openai-agents":
        return agents_package(Path(tempfile.mkdtemp(prefix="agents")))
    if needs == "bfcl" and not bfcl_is_there():
        pytest.skip("bfcl-eval is not installed (see env_service/environments/bfcl/README.md)")
    if needs == "textarena" and not textarena.installed():
        pytest.skip(f"textarena is not installed; run `{textarena.SETUP}`")
    if needs != "appworld":
        return {}
    python = tiny_world.interpreter()
    return {"APPWORLD_PYTHON": str(python), "APPWORLD_ROOT": str(tiny_world.build(python))}


def counts(address: str) -> dict[str, int]:
    with urllib.request.urlopen(f"{address}/counts", timeout=10) as response:
        found: dict[str, int] = json.load(response)
    return found


@pytest.mark.parametrize("name", [name for name in CASES if name in EXAMPLES])
def test_the_example_takes_two_steps(name: str, tmp_path: Path, model: Path, request: pytest.FixtureRequest) -> None:
    case = CASES[name]
    if case.hermes:
        model = request.getfixturevalue("hermes_policy")
    env = world(case.needs)
    if case.paid:
        env |= {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{request.getfixturevalue('paid_model')}/v1"}
    launched = Launched(tmp_path, name, (*case.overrides(model), "ray.dashboard=false"), conf=EXAMPLES[name], env=env)
    try:
        # No action of a random policy may be carried out.
        codes = {0, NothingMeasured.exit_code} if case.model or case.hermes else {0}
        assert launched.wait(1500) in codes, launched.output
        assert launched.processes() == launched.left_behind() == set()
        assert launched.steps_done() == list(range(STEPS + 1)), "the first validation, and each step"
        check_rollouts(launched)
        check_validation(launched, case)
        check_parts(launched, case.parts)
    finally:
        launched.end()
    if case.paid:
        asked = counts(request.getfixturevalue("paid_model"))
        assert {entry.partition(" of ")[2] for entry in asked if " of " in entry} == {
            "qwen-plus",
            "qwen3-235b-a22b",
            "qwen-max",
        }, "each role has its model"
        ways = {entry for entry in asked if entry.startswith("way ")}
        assert len(ways) >= 4 and asked["answered"] > 50, "it did behave like a real one"


def check_rollouts(launched: Launched) -> None:
    """No rollout failed, and every one that was trained on has a grade."""
    for step in range(1, STEPS + 1):
        records = read_jsonl(launched.directory / "trajectories" / f"step_{step}.jsonl")
        assert len(records) == 16
        assert [(r["stop_reason"], r["error"]) for r in records if r["outcome"] is None] == []


def check_validation(launched: Launched, case: Case) -> None:
    """Each split was validated, before the first step and after the last, and every task of it counted."""
    for step in (0, STEPS):
        records = read_jsonl(launched.directory / "validation" / f"step_{step}.jsonl")
        assert {record["task"]["metadata"]["split"] for record in records} == set(case.splits)
        assert all(record["outcome"] is not None for record in records)


def check_parts(launched: Launched, parts: frozenset[str]) -> None:
    first = next(metrics for metrics in metrics_of(launched) if metrics["step"] == 1)
    records = [
        record
        for step in range(1, STEPS + 1)
        for record in read_jsonl(launched.directory / "trajectories" / f"step_{step}.jsonl")
    ]
    if "questioning" in parts:
        assert first["questioning/kept"] >= 4 and all(record["task"]["open_query"] for record in records)
    if "loop" in parts:
        last = metrics_of(launched)[-1]
        assert sum(last[f"closed_loop/{name}"] for name in ("uncertain", "stuck", "forgotten", "mastered")) > 0
        asked = json.loads((launched.directory / "tasks" / "rounds" / "rounds.json").read_text())["rounds"]
        assert asked[0]["step"] == 1 and asked[0]["focus"], "what failed in the first step is asked for after it"
    if "self_play" in parts:
        state = json.loads((launched.directory / "self_play.json").read_text())
        assert [member["name"] for member in state["members"]] == ["start", "step_1", "step_2"]
        assert first["self_play/games"] == 16 and first["self_play/elo/opponent"] == 1000
        met = {record["task"]["metadata"]["env_params"]["checkpoint"].rpartition("/")[2] for record in records}
        assert met <= {state["members"][0]["folder"].rpartition("/")[2], "step_1"}
        assert metrics_of(launched)[-1]["val-self_play/games"] == 8
    if "navigating" in parts:
        assert first["exp_manager/pool_size"] > 0
        assert sum(record["guidance_wanted"] for record in records) == len(records) / 2
        assert any(record["guided"] for record in records)
    if "labels" in parts:
        assert sum(record["attribution"]["status"] == "labelled" for record in records) >= 0.8 * len(records)


def metrics_of(launched: Launched) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (launched.directory / "metrics.jsonl").read_text().splitlines()]
