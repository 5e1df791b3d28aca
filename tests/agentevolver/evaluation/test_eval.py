"""`agentevolver eval` on the built-in world: an API model, a policy with a fake engine, others beside it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from rich.console import Console

from agentevolver import cli
from agentevolver.config.checks import load
from agentevolver.config.load import resolved_tree
from agentevolver.evaluation.play import PlayedEpisode
from agentevolver.evaluation.report import Evaluation, table
from agentevolver.utils.ownership import sign
from tests.agentevolver.evaluation.conftest import ScriptedEngine
from tests.agentevolver.evaluation.servers import chat_server, notes_alone
from tests.tiny_model import tiny_model_path

ON_CPU = ("device=cpu", "env_service.env_type=pocket")
pocket = pytest.mark.environment("pocket")


def refused(capfd: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    assert cli.main(["eval", *arguments]) == code
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("agentevolver eval: error: ")
    return line


@pocket
@pytest.mark.service
def test_a_model_behind_an_api_is_measured_and_shown_beside_another(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "k-1234")
    monkeypatch.setenv("COLUMNS", "160")
    out, lines = tmp_path / "notes.json", tmp_path / "episodes.jsonl"
    with chat_server(notes_alone, "k-1234") as (url, requests):
        how = [
            "--api",
            url,
            "--model",
            "notes",
            "--key-env",
            "MY_KEY",
            "--split",
            "dev",
            "--tasks",
            "30",
            "--n",
            "2",
            "--seed",
            "1",
        ]
        how += ["--seed", "2"]
        first = [*how, "--temperature", "0", "--out", str(out), "--trajectories", str(lines), *ON_CPU]
        assert cli.main(["eval", *first]) == 0
        assert cli.main(["eval", *how, "--name", "again", "--beside", str(out), *ON_CPU]) == 0
    printed = capfd.readouterr().out
    assert (
        "notes on pocket/dev (30 of 144 tasks, 24 of 24 kinds): 60 episodes" in printed
        and "60 of 60" in printed
        and "+0.000 ± 0.000 (30 tasks)" in printed
    )
    assert "again" in printed and "pass@2" in printed and "success avg@2" in printed
    assert all(request["temperature"] == 0 for request in requests[:60]) and requests[0]["model"] == "notes"
    written, episodes = json.loads(out.read_text()), [json.loads(line) for line in lines.read_text().splitlines()]
    solved = [task for task, own in written["tasks"].items() if all(own["successes"])]
    assert solved and all(task.startswith("note_add") for task in solved) and len(solved) < 30
    assert written["figures"]["success avg@2"]["mean"] == pytest.approx(len(solved) / 30)
    assert written["figures"]["pass@2"]["mean"] == pytest.approx(len(solved) / 30)
    assert written["spent"]["calls"] == len(requests) / 2 and written["failed"] == {}
    assert len(episodes) == 60 and {one["task"]["metadata"]["split"] for one in episodes} == {"dev"}


@pocket
@pytest.mark.service
def test_an_endpoint_that_refuses_is_one_line_with_its_reason(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "wrong")
    with chat_server(notes_alone, "right") as (url, _):
        line = refused(
            capfd, "--api", url, "--model", "m", "--key-env", "MY_KEY", "--tasks", "1", "--n", "1", *ON_CPU, code=1
        )
    assert "no episode could be graded" in line and "HTTP 401" in line


@pocket
@pytest.mark.service
def test_where_no_episode_began_or_acted_there_is_no_figure_and_the_line_says_why(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    began, acted, good = (tmp_path / f"{name}.json" for name in ("began", "acted", "good"))
    long = "env_service.env_params.verbose=true"
    with chat_server(lambda messages: "I would add the note") as (url, requests):
        how = ["--api", url, "--model", "m", "--key-env", "none", "--tasks", "2", "--n", "2"]
        line = refused(capfd, *how, "--out", str(began), *ON_CPU, long, "data.max_prompt_length=64", code=3)
        assert "4 never began (the opening messages have" in line and "data.max_prompt_length allows 64" in line
        assert not requests and cli.main(["chat", *how[:6], "--auto", *ON_CPU, long, "data.max_prompt_length=64"]) == 3
        assert "no episode could" not in (told := capfd.readouterr()).out and "score 0" not in told.out
        assert cli.main(["eval", *how, "--out", str(acted), *ON_CPU]) == 3
    told = capfd.readouterr()
    assert "success - (4 never acted of 4)" in told.out and "every action refused (the first answer: err" in told.err
    with chat_server(notes_alone) as (url, _):
        beside = ["--beside", str(began), "--beside", str(acted)]
        assert cli.main(["eval", "--api", url, *how[2:], "--out", str(good), *beside, *ON_CPU]) == 0
    rows = {line.split("│")[1].strip(): line for line in capfd.readouterr().out.splitlines() if line.startswith("│")}
    assert rows["success avg@2"].count("not measured") == rows["success minus the first"].count("not measured") == 2
    for path, what in ((began, "never_began"), (acted, "never_acted")):
        written = json.loads(path.read_text())
        assert set(written["figures"].values()) == {None} and written["counts"][what] == 4 and not written["tasks"]


@pocket
@pytest.mark.thorough
def test_a_folder_of_weights_is_played_as_validation_plays(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], engines: list[ScriptedEngine]
) -> None:
    out = tmp_path / "seed.json"
    arguments = [str(tiny_model_path()), "--tasks", "3", "--n", "4", "--out", str(out), *ON_CPU]
    assert cli.main(["eval", *arguments]) == 0
    (engine,) = engines
    written = json.loads(out.read_text())
    assert engine.closed and written["figures"]["success avg@4"]["mean"] == 0.0 and len(written["tasks"]) == 3
    assert set(written["figures"]) == {"success avg@4", "pass@2", "pass@4", "reward avg@4", "steps an episode"}
    assert len({sampled["seed"] for sampled in engine.sampled}) == len(engine.sampled), "each call draws by itself"


@pocket
@pytest.mark.thorough
def test_a_run_is_played_as_it_was_launched(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], engines: list[ScriptedEngine]
) -> None:
    """Its own configuration, and the environment's class that the launch was told of."""
    own, run = "mine=env_service.environments.pocket.env:PocketEnv", tmp_path / "pocket" / "run"
    (run / "launches").mkdir(parents=True)
    (run / "launches" / "1.json").write_text(json.dumps({"argv": ["x.yaml", "--env-module", own]}))
    config = resolved_tree(load(None, [ON_CPU[0], "env_service.env_type=mine", "data.val_splits=[test]"]).config)
    (run / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(config)))
    shutil.copytree(tiny_model_path(), run / "checkpoints" / "global_step_3" / "actor" / "huggingface")
    checkpoint, out = run / "checkpoints" / "global_step_3", tmp_path / "run.json"
    assert "--trust-run" in refused(capfd, str(checkpoint))
    sign(run / "config.yaml")
    assert cli.main(["eval", str(checkpoint), "--tasks", "2", "--n", "1", "--out", str(out)]) == 0
    written = json.loads(out.read_text())
    assert (written["environment"], written["split"], written["step"]) == ("mine", "test", 3)
    assert written["name"] == "pocket/run step 3"
    assert (
        cli.main(["eval", str(checkpoint), "--tasks", "2", "--n", "1", "data.val_splits=[dev]", "--out", str(out)]) == 0
    )
    assert json.loads(out.read_text())["split"] == "dev"
    assert "actor_rollout_ref.rollout.x" in refused(capfd, str(checkpoint), "actor_rollout_ref.rollout.x=1")


def episodes(task: str, *scores: float | None) -> list[PlayedEpisode]:
    return [
        PlayedEpisode(task, i, s, s == 1.0, 2, "finished" if s is not None else "env_error")
        for i, s in enumerate(scores)
    ]


def test_the_figures_are_unbiased_and_leave_out_what_failed() -> None:
    one = Evaluation.of("a", "pocket", "dev", 4, [*episodes("t", 1.0, 0.0, 0.0, 1.0), *episodes("u", 0.5, None)], {})
    found = one.measures()
    assert found["success avg@4"].mean == 0.25 and found["reward avg@4"].mean == 0.5
    assert found["pass@2"].mean == pytest.approx(1 - 1 / 6) and found["pass@2"].n == 1
    assert one.failed == {"env_error": 1}
    other = Evaluation.of("b", "pocket", "dev", 2, [*episodes("t", 1.0, 1.0), *episodes("v", 0.0)], {})
    console = Console(width=120, record=True)
    console.print(table([one, other]))
    text = console.export_text()
    assert "+0.500 (1 tasks)" in text and "failed, not counted" in text
