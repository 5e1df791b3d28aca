"""A round of proposer and executor of which every part is killed once: in the end it has come to what an undisturbed
one comes to, nothing was made twice, and nobody who could not be asked is a number."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentevolver.utils.files import read_jsonl
from agentevolver.utils.processes import ProcessId, send
from tests.e2e.policies import calc_policy
from tests.e2e.runs import ROOT, Launched, kill

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(2400)]

AGENT0 = Path(__file__).parents[1] / "examples" / "agent0.yaml"
K, LABEL_K, PROPOSALS = 4, 6, 2 * 4 * 4
SMALL = (
    *(
        "device=cpu",
        "ray.dashboard=false",
        "recipes.agent0.rounds=1",
        "trainer.save_freq=1",
        "env_service.timeout_s=60",
    ),
    "watchdog.floor_s=30",
    *("recipes.agent0.proposer.steps=2", "recipes.agent0.proposer.batch_size=4", "recipes.agent0.proposer.n=4"),
    *(
        f"recipes.agent0.executor.k={K}",
        f"recipes.agent0.executor.label_k={LABEL_K}",
        "recipes.agent0.executor.steps=2",
    ),
    *("recipes.agent0.executor.eval_n=2", "data.val_filter.levels=[2,4,6,8]"),
    *("data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.rollout.n=4"),
    *("recipes.agent0.pool=12", "recipes.agent0.draws=48", "recipes.agent0.min_pool=4"),
)
# What tells of the time that something took, not of what came of it.
OF_TIME = ("began", "ended", "seconds")


@pytest.fixture
def started(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Launched]]:
    """Start, or resume, a run by its name; whatever happens, nothing of it stays."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    policy = calc_policy(tmp_path_factory.mktemp("calc") / "policy")
    runs: list[Launched] = []

    def start(name: str) -> Launched:
        runs.append(Launched(tmp_path, name, (f"actor_rollout_ref.model.path={policy}", *SMALL), conf=AGENT0))
        return runs[-1]

    yield start
    for run in runs:
        run.end()


def stage_of(run: Launched, name: str) -> dict[str, Any]:
    """A stage of round 1 as the manifest says it; {} before there is one."""
    try:
        rounds = json.loads((run.directory / "recipes.agent0.json").read_text())["rounds"]
    except (OSError, ValueError):
        return {}
    return rounds[1]["stages"].get(name, {}) if len(rounds) > 1 else {}


def lines(path: Path) -> int:
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def steps_of(run: Launched, training: str) -> int:
    return lines(run.directory / "round_1" / training / "metrics.jsonl")


def player(run: Launched) -> list[ProcessId]:
    return run.victims("agentevolver.trainer.job.frozen", "player")


def kill_everything(run: Launched) -> None:
    """As the power going out would: the launcher first, which would else stop the others in order."""
    run.process.kill()
    run.process.wait()
    for process in run.processes():
        send(process, signal.SIGKILL)


def told(run: Launched) -> dict[str, Any]:
    """All that a finished run says, but the time that it took."""
    manifest = json.loads((run.directory / "recipes.agent0.json").read_text())
    for part in manifest["rounds"]:
        for stage in part["stages"].values():
            for key in OF_TIME:
                stage.pop(key, None)
            stage["metrics"] = {k: v for k, v in stage.get("metrics", {}).items() if not k.startswith("timing_s/")}
    del manifest["config_hash"]  # the addresses and the names of two experiments differ
    folder = run.directory / "round_1"
    journals = {name: by_key(folder / f"{name}.jsonl") for name in ("drawn", "pool")}
    return {"manifest": manifest, **journals, "evaluation": by_key(folder / "evaluation.jsonl", "key")}


def by_key(path: Path, key: str = "task_id") -> dict[str, Any]:
    records = read_jsonl(path)
    found = {record[key]: record for record in records}
    assert len(found) == len(records), f"{path}: something was made twice"
    return found


def test_a_round_of_which_every_part_is_killed_comes_to_what_an_undisturbed_one_comes_to(
    started: Callable[[str], Launched],
) -> None:
    calm = started("calm")
    assert calm.wait(900) == 0, calm.output
    calm.end()

    run = started("killed")
    drawn = run.directory / "round_1" / "drawn.jsonl"
    # Those whose place another one takes while the round goes on.
    run.wait_for(lambda: steps_of(run, "proposer") >= 1, "a step of the proposer")
    kill(player(run), "the player")
    run.wait_for(lambda: stage_of(run, "propose").get("state") == "done", "the proposer's training, the player dead")
    run.wait_for(lambda: lines(drawn) > 0, "a draw")
    kill(run.victims("env_service", "env_service"), "the environment service, and the world's instances with it")
    run.wait_for(lambda: lines(drawn.with_name("pool.jsonl")) >= 4, "labels, the environment service dead")

    # The trainer: the run ends in order, and the same command goes on.
    run.wait_for(lambda: steps_of(run, "solver") >= 1, "a step of the executor")
    kill(run.victims("ray::TaskRunner"), "the trainer")
    assert run.wait(300) not in (0, None), "without its trainer a round cannot go on"
    assert not run.processes() and not run.left_behind() and "Traceback" not in run.output, run.output
    known = lines(drawn)

    run = started("killed")
    run.wait_for(lambda: stage_of(run, "solve").get("state") == "done", "the executor's training, resumed", 600)
    assert lines(drawn) == known, "nothing is drawn twice"
    run.wait_for(lambda: lines(run.directory / "round_1" / "evaluation.jsonl") >= 1, "an evaluated task")
    kill_everything(run)

    run = started("killed")
    assert run.wait(600) == 0, run.output
    assert told(run) == told(calm)
    nobody_unreachable_is_a_number(run.directory / "round_1")


def nobody_unreachable_is_a_number(folder: Path) -> None:
    measured = [record for record in read_jsonl(folder / "pool.jsonl") if record["k"]]
    assert measured
    for record in measured:
        voted = sum(count for _, count in record["votes"])
        assert record["k"] == LABEL_K >= record["n_answered"] == voted, record["task_id"]
    graded = [
        record["outcome"]
        for path in (folder / "proposer" / "trajectories").glob("*.jsonl")
        for record in read_jsonl(path)
    ]
    assert len(graded) == PROPOSALS and None not in graded, "every proposal of the training was graded"
    for outcome in graded:
        facts = outcome["facts"]
        assert facts["refused"] or len(facts["measured"]["answers"]) == K, "p is of k episodes that happened"
