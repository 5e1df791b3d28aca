"""The folder itself, tasks, samples and logs."""

import json
import socket
from pathlib import Path

import pytest

from agentevolver.view.experiment import (
    Experiment,
    NotAnExperiment,
    NotThere,
    UnreadableFile,
)
from agentevolver.view.logs import Logs
from agentevolver.view.samples import Samples
from agentevolver.view.tasks import Tasks
from tests.agentevolver.view.runs import HOSTILE, make_plan, make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("experiments") / "pocket" / "demo")


def bare(folder: Path) -> Experiment:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("a: 1\n")
    return Experiment(folder)


def test_a_folder_that_is_no_run_is_refused_with_what_to_give(run: Path, tmp_path: Path) -> None:
    with pytest.raises(NotAnExperiment, match="there is no such folder"):
        Experiment(tmp_path / "missing")
    with pytest.raises(NotAnExperiment, match=r"has no config\.yaml; give the folder of a run"):
        Experiment(tmp_path)


def test_whether_a_run_goes_on_is_asked_of_its_processes(tmp_path: Path) -> None:
    experiment = bare(tmp_path / "e")
    launches = experiment.folder / "launches"
    launches.mkdir()
    record = {"run_id": "no-such-run", "started_at": "2026", "hardware": {"host": socket.gethostname()}}
    (launches / "1.json").write_text(json.dumps(record))
    assert experiment.state()["running"] is False, "it was killed"
    (launches / "1.json").write_text(json.dumps({**record, "hardware": {"host": "elsewhere"}}))
    assert experiment.state()["running"] is None and experiment.ray_dashboard() is None


def test_secrets_of_the_configuration_are_not_shown(run: Path, tmp_path: Path) -> None:
    shown = Experiment(run).shown_config()
    assert "sk-secret" not in shown and "max_tokens: 1000" in shown
    experiment = bare(tmp_path / "e")
    (experiment.folder / "config.yaml").write_text("a: [1\n")
    assert experiment.config() == {}
    with pytest.raises(UnreadableFile, match=r"config\.yaml cannot be read"):
        experiment.shown_config()


def test_the_funnel_counts_what_the_journal_holds(run: Path) -> None:
    overview = Tasks(run / "tasks").overview()
    assert overview["counts"] == {"train": 2, "validation": 1, "synthetic": 1} and overview["complete"] is True
    (plan,) = overview["journals"][0]["plans"]
    assert [plan["stages"][stage] for stage in overview["stages"]] == [1, 4, 3, 2, 2, 1, 1, 1]
    assert plan["explorations"] == 2 and ["parse: no JSON", 1] in plan["dropped"]


def test_proposals_are_found_by_fate_and_text(run: Path) -> None:
    tasks = Tasks(run / "tasks")
    name, plan = "tasks_explored.train.jsonl.d", make_plan().run
    found = tasks.proposals(name, plan)
    assert [row["fate"] for row in found["rows"]] == ["kept", "dropped", "open"] and found["total"] == 3
    assert tasks.proposals(name, plan, fate="dropped")["rows"][0]["reason"] == f"it is wrong {HOSTILE}"
    assert [row["query"][:3] for row in tasks.proposals(name, plan, text="TWO")["rows"]] == ["two"]
    assert tasks.proposals(name, plan, offset=2)["rows"][0]["fate"] == "open"
    assert tasks.exploration(name, plan, 0)[0]["action"] == "note.find milk"
    for journal, other in ((name, "no run"), ("../..", plan), ("rounds/store", plan)):
        with pytest.raises(NotThere):
            tasks.proposals(journal, other)
    with pytest.raises(NotThere):
        tasks.exploration(name, plan, 3)


def test_the_rows_of_a_rollout_have_every_token(run: Path) -> None:
    (row,) = Samples(Experiment(run)).rows(1, "g1-0_0")
    assert row["prompt"] == ["1", "2", "3"] and row["tokens"]["text"] == ["10", "11", "12", "13", "14"]
    assert row["tokens"]["mask"] == [1, 1, 0, 0, 1] and row["tokens"]["advantage"][-1] == 1.25
    assert not row["is_text"] and row["cut"] == 0
    assert Samples(Experiment(run)).rows(1, "g1-0_3") == [], "it did not happen"
    assert Samples(Experiment(run)).rows(99, "g1-0_0") == []


def test_logs_are_followed_from_their_end_without_colours_and_progress(run: Path) -> None:
    logs = Logs(run / "logs")
    found = logs.read("main.log")
    assert found["text"] == f"loading\n100%\n{HOSTILE}\n" and found["start"] == 0
    assert logs.read("main.log", found["next"])["text"] == ""


def test_a_line_that_is_not_whole_waits(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("one\ntw")
    logs = Logs(tmp_path)
    found = logs.read("a.log")
    assert found["text"] == "one\n"
    (tmp_path / "a.log").write_text("one\ntwo\n")
    assert logs.read("a.log", found["next"])["text"] == "two\n"
    (tmp_path / "a.log").write_text("new\n")
    assert logs.read("a.log", found["next"] + 4)["text"] == "new\n", "a new file is read from its beginning"


@pytest.mark.parametrize("name", ["../config.yaml", "/etc/passwd", "secret.log", "config.yaml", ""])
def test_nothing_but_logs_is_read_as_a_log(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("a: 1")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "secret.log").symlink_to("/etc/passwd")
    with pytest.raises(NotThere):
        Logs(tmp_path / "logs").read(name)
