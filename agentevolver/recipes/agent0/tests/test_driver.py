"""Rounds with fakes: what each stage makes, and that a kill anywhere changes nothing of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from agentevolver.recipes.agent0.manifest import Manifest
from agentevolver.recipes.agent0.tests.fakes import (
    FileTrainings,
    SumPlayer,
    configuration,
    drive,
    parts,
    start_of,
)
from agentevolver.recipes.agent0.types import Play
from agentevolver.types import Task
from agentevolver.utils.errors import ConfigError, TrainingFailed
from agentevolver.utils.files import parse

TIMES = ("began", "ended", "seconds", "time")


def timeless(value: Any) -> Any:
    """Return JSON-ready data without times."""
    if isinstance(value, dict):
        return {
            key: timeless(inner)
            for key, inner in value.items()
            if key not in TIMES and not key.startswith("coevolve/seconds/")
        }
    return [timeless(inner) for inner in value] if isinstance(value, list) else value


def made(folder: Path) -> dict[str, Any]:
    """Return what an experiment's folder holds, times and the order of unordered journals aside."""
    found: dict[str, Any] = {"best": os.path.relpath((folder / "best").resolve(), folder)}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".jsonl":
            whole = [parse(line) for line in path.read_bytes().splitlines()]
            if path.name != "metrics.jsonl":  # whose torn lines stay, and are passed over
                assert None not in whole, path
            lines = [orjson.dumps(timeless(line)) for line in whole if line is not None]
            ordered = path.name in ("drawn.jsonl", "evaluation.jsonl")
            found[name] = sorted(lines) if ordered else lines
        elif path.suffix == ".json" and path.name != "status.json":
            found[name] = timeless(orjson.loads(path.read_bytes()))
    return found


def folder_of(config: dict[str, Any]) -> Path:
    return Path(config["experiment"]["dir"])


def test_two_rounds_make_pools_checkpoints_and_evaluations(tmp_path: Path) -> None:
    config = configuration(tmp_path)
    lines: list[str] = []
    trainings, player = FileTrainings(), SumPlayer()
    manifest = drive(config, parts(config, trainings, player), lines.append)
    assert manifest.content["state"] == "done"
    assert [line.split("  ")[0].strip() for line in lines[:3]] == ["base", "round 1", "round 2"]
    assert [one.name for one in trainings.begun] == [
        "round 1 proposer",
        "round 1 solver",
        "round 2 proposer",
        "round 2 solver",
    ]
    first, second = manifest.rounds()[1:]
    propose, solve = second["stages"]["propose"], second["stages"]["solve"]
    # Round 2 begins with the weights of round 1.
    assert start_of(trainings.begun[2]).endswith(first["proposer"]) and propose["start"] == first["proposer"]
    assert start_of(trainings.begun[3]).endswith(first["executor"]) and solve["start"] == first["executor"]
    # Proposals are measured by the executor that was frozen before.
    assert trainings.begun[2].overlay["recipes.agent0.frozen"].endswith(first["executor"])
    # Replay: a fifth of what the second round trains on is of the first.
    assert solve["counts"] == {"steps": 3, "tasks": 10, "replayed": 2}
    metrics = [json.loads(line) for line in (folder_of(config) / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics] == [0, 1, 2]
    assert metrics[2]["coevolve/pool/label_right"] == 1.0
    assert metrics[2]["coevolve/val/dev/success"] == second["stages"]["evaluate"]["metrics"]["dev"]["success"]["mean"]
    assert (folder_of(config) / "best").resolve() == Path(manifest.absolute(manifest.content["best"]["checkpoint"]))


@pytest.mark.thorough
def test_every_proposal_is_drawn_once_and_no_task_is_proposed_twice(tmp_path: Path) -> None:
    config = configuration(tmp_path)
    drive(config)
    records = [
        orjson.loads(line)
        for number in (1, 2)
        for line in (folder_of(config) / f"round_{number}" / "pool.jsonl").read_bytes().splitlines()
    ]
    ids = [record["task_id"] for record in records]
    assert len(set(ids)) == len(ids)
    kept = [record["question"] for record in records if record["kept"]]
    assert len(set(kept)) == len(kept)
    assert all(0.3 <= record["p_hat"] <= 0.8 and record["label"] for record in records if record["kept"])
    assert {"k", "n_answered", "votes", "mean_tool_calls", "proposer_ckpt", "executor_ckpt"} <= set(records[0])


def test_a_pool_is_in_the_order_of_its_numbers_in_whatever_order_proposals_came(tmp_path: Path) -> None:
    class FirstOneLast(SumPlayer):
        async def play(
            self, checkpoint: str, task: Task, n: int, name: str, validation: bool = False
        ) -> Sequence[Play]:
            await asyncio.sleep(0.1 if name == "r1.0000.draw" else 0)
            return await super().play(checkpoint, task, n, name, validation)

    config = configuration(tmp_path)
    drive(config, parts(config, player=FirstOneLast()))
    drawn, pool = (
        [orjson.loads(line) for line in (folder_of(config) / "round_1" / name).read_bytes().splitlines()]
        for name in ("drawn.jsonl", "pool.jsonl")
    )
    assert drawn[0]["number"] != 0, "they came in another order"
    assert [record["number"] for record in pool] == list(range(len(pool)))


def test_a_run_that_is_over_is_not_repeated(tmp_path: Path) -> None:
    config = configuration(tmp_path)
    drive(config)
    before = made(folder_of(config))
    trainings, player = FileTrainings(), SumPlayer()
    drive(config, parts(config, trainings, player))
    assert (trainings.begun, player.asked) == ([], [])
    assert made(folder_of(config)) == before


@pytest.mark.thorough
def test_more_rounds_go_on_from_the_last(tmp_path: Path) -> None:
    drive(configuration(tmp_path, **{"recipes.agent0.rounds": 1}))
    config = configuration(tmp_path, **{"recipes.agent0.rounds": 2})
    trainings = FileTrainings()
    drive(config, parts(config, trainings))
    assert [one.name for one in trainings.begun] == ["round 2 proposer", "round 2 solver"]


def ends_by(action: Callable[[], None], run: Callable[[], object]) -> int:
    """Run something in a process of its own in which `action` was done before; returns its wait status."""
    pid = os.fork()
    if pid == 0:
        try:
            action()
            run()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(3)
    return os.waitpid(pid, 0)[1]


def killing(event: int, *, how: str) -> Callable[[], None]:
    """Return what makes the process kill itself at its n-th durable write: `before` it is on the disk, `after`, or with
    half a line written (`torn`)."""

    def install() -> None:
        count, sync, write = 0, os.fsync, os.write

        def die() -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        def fsync(handle: int) -> None:
            nonlocal count
            count += 1
            if count == event and how == "before":
                die()
            sync(handle)
            if count == event and how == "after":
                die()

        def half(handle: int, data: Any) -> int:
            if count + 1 >= event and how == "torn" and len(data) > 20:
                write(handle, bytes(data)[: len(data) // 2])
                die()
            return write(handle, data)

        os.fsync, os.write = fsync, half

    return install


@pytest.mark.chaos
@pytest.mark.service
@pytest.mark.parametrize(("stride", "how"), [(61, "before"), (47, "torn"), (83, "after")])
def test_killed_again_and_again_it_ends_as_if_it_had_not_been(tmp_path: Path, stride: int, how: str) -> None:
    plain, killed = configuration(tmp_path, "plain"), configuration(tmp_path, "killed")
    drive(plain)
    kills = 0
    while status := ends_by(killing(stride, how=how), lambda: drive(killed)):
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        kills += 1
        assert kills < 200
    assert kills > 1
    assert made(folder_of(killed)) == made(folder_of(plain))


@pytest.mark.thorough
def test_another_configuration_is_refused_by_name(tmp_path: Path) -> None:
    drive(configuration(tmp_path, **{"recipes.agent0.rounds": 1}))
    other = configuration(tmp_path, **{"recipes.agent0.rounds": 1, "recipes.agent0.gate": "vote"})
    with pytest.raises(ConfigError, match=r"another configuration: recipes.agent0.gate \(executed -> vote\)"):
        drive(other)
    (folder_of(other) / "coevolve_config.yaml").unlink()
    drive(other)


def test_a_manifest_of_a_newer_release_or_a_torn_one_is_refused(tmp_path: Path) -> None:
    config = configuration(tmp_path)
    path = folder_of(config) / "coevolve.json"
    path.parent.mkdir()
    path.write_text('{"schema": 2}')
    with pytest.raises(TrainingFailed, match="newer release"):
        Manifest.open(path.parent, config)
    path.write_text('{"sch')
    with pytest.raises(TrainingFailed, match="cannot be read"):
        Manifest.open(path.parent, config)


def test_a_round_with_too_few_tasks_trains_nobody_and_keeps_the_executor(tmp_path: Path) -> None:
    config = configuration(
        tmp_path,
        **{
            "recipes.agent0.rounds": 1,
            "recipes.agent0.keep": "[0.49,0.51]",
            "recipes.agent0.draws": 16,
            "recipes.agent0.min_pool": 8,
        },
    )
    lines: list[str] = []
    trainings = FileTrainings()
    manifest = drive(config, parts(config, trainings), lines.append)
    assert [one.name for one in trainings.begun] == ["round 1 proposer"]
    last = manifest.rounds()[1]
    assert last["stages"]["solve"]["state"] == last["stages"]["evaluate"]["state"] == "skipped"
    assert last["executor"] == manifest.rounds()[0]["executor"]
    assert "not trained" in lines[1] and "min_pool is 8" in lines[1]


@pytest.mark.thorough
def test_a_frozen_proposer_is_not_trained(tmp_path: Path) -> None:
    config = configuration(tmp_path, **{"recipes.agent0.rounds": 1, "recipes.agent0.proposer.trained": False})
    trainings = FileTrainings()
    manifest = drive(config, parts(config, trainings))
    assert [one.name for one in trainings.begun] == ["round 1 solver"]
    assert manifest.stage(1, "propose")["reason"] == "proposer.trained = false"


class WorseTrainings(FileTrainings):
    """Trainings after which the executor can do nothing."""

    async def __call__(self, training: Any, told: Any) -> Any:
        trained = await super().__call__(training, told)
        if training.name.endswith("solver"):
            (Path(trained.checkpoint) / "skill.json").write_text('{"skill": -1}')
        return trained


def test_where_success_falls_the_best_is_kept(tmp_path: Path) -> None:
    config = configuration(tmp_path)
    manifest = drive(config, parts(config, WorseTrainings()))
    assert manifest.content["best"]["round"] == 0
    assert (folder_of(config) / "best").resolve() == (tmp_path / "base").resolve()
