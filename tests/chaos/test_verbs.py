"""Every verb that works on a run, for real and in the order of a person's first hour: one short training of
examples/basic.yaml in an empty folder, then what is done with it, each as a command of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentevolver.trainer.monitor.results import validations
from agentevolver.utils.files import read_jsonl
from tests.agentevolver.evaluation.servers import chat_server, notes_alone
from tests.e2e.runs import ROOT, SMALL, free_port

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(900)]

NAME = "pocket/verbs"
STEPS = 2
COMMAND = (sys.executable, "-m", "agentevolver")
VALIDATED = ("trainer.save_freq=1", "trainer.test_freq=1")


def environ() -> dict[str, str]:
    beside = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    return os.environ | {"PYTHONPATH": os.pathsep.join(beside), "COLUMNS": "160"}


class Place:
    """A person's folder: what is typed in it, and what was started there and has not ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[bytes]] = []

    @property
    def run(self) -> Path:
        return self.folder / "experiments" / NAME

    def start(self, *arguments: str, log: str = "log") -> subprocess.Popen[bytes]:
        """Type a command that goes on for a while; what it says goes into `log`."""
        with (self.folder / log).open("wb") as said:
            process = subprocess.Popen(
                [*COMMAND, *arguments],
                cwd=self.folder,
                env=environ(),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def say(self, *arguments: str, code: int = 0, timeout_s: float = 300) -> str:
        """Type a command and wait for its end; returns what it printed, both streams."""
        done = subprocess.run(
            [*COMMAND, *arguments],
            cwd=self.folder,
            env=environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == code, f"{arguments} ended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    def status(self) -> str:
        """Return what `agentevolver status` says of this folder's runs; runs of others may be there, too."""
        blocks = re.split(r"^(?=\S)", self.say("status"), flags=re.MULTILINE)
        return "".join(block for block in blocks if str(self.folder) in block)

    def await_status(self, pattern: str, of: subprocess.Popen[bytes], log: str = "log", timeout_s: float = 240) -> str:
        deadline = time.monotonic() + timeout_s
        while not re.search(pattern, said := self.status()):
            assert of.poll() is None, f"it ended before {pattern!r}:\n{(self.folder / log).read_text()}"
            assert time.monotonic() < deadline, f"no {pattern!r}, but\n{said}"
            time.sleep(1)
        return said

    def steps(self) -> list[int]:
        return [record["step"] for record in read_jsonl(self.run / "metrics.jsonl")]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("verbs"))
    yield made
    for process in made.started:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture(scope="module")
def trained(place: Place) -> Place:
    """The folder after `agentevolver run`, whose progress `agentevolver status` told meanwhile."""
    keys = (*SMALL, *VALIDATED, f"trainer.total_training_steps={STEPS}", "trainer.experiment_name=verbs")
    port = f"env_service.env_url=http://127.0.0.1:{free_port()}"
    run = place.start("run", str(ROOT / "examples" / "basic.yaml"), *keys, port, log="run.log")
    said = place.await_status(rf"step \d of {STEPS}", run, "run.log")
    assert "running (launcher pid" in said and re.search(r"main: pid \d+$", said, re.MULTILINE), said
    assert run.wait(400) == 0, (place.folder / "run.log").read_text()
    return place


def test_a_run_says_in_the_end_what_it_reached_and_what_comes_next(trained: Place) -> None:
    said = (trained.folder / "run.log").read_text()
    assert trained.steps() == [0, 1, 2] and trained.status() == ""
    assert f"{NAME} finished after" in said and "checkpoint: experiments/pocket/verbs/checkpoints/global_step_2" in said
    for verb in ("view", "eval", "chat", "export", f"resume {NAME} trainer.total_training_steps={2 * STEPS}"):
        assert f"agentevolver {verb}" in said


def test_export_writes_what_transformers_loads_and_a_card_with_its_figures(trained: Place) -> None:
    said = trained.say("export", NAME, "--to", "policy")
    assert len(said.splitlines()) == 3, said
    assert f"{NAME} step 2: " in said and "AutoModelForCausalLM.from_pretrained('policy')" in said
    folder = trained.folder / "policy"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.generate(**tokenizer("note", return_tensors="pt"), max_new_tokens=2).shape[0] == 1
    card = (folder / "README.md").read_text()
    (row,) = re.findall(r"^\| pocket \| 2 \|.*$", card, re.MULTILINE)
    steps = validations(trained.run)["pocket"]
    for one in (steps[0], steps[-1]):
        assert re.search(rf"{one.average:.3f} \[[\d.]+, [\d.]+\] \({one.step}\)", row), card
    assert (folder / "agentevolver.yaml").is_file()


def test_eval_measures_a_checkpoint_and_an_api_model_beside_it(trained: Place) -> None:
    how = ("--split", "dev", "data.val_filter.n=12", "--n", "2")  # the run validated on eight
    first = trained.say("eval", NAME, *how, "--out", "own.json")
    assert "Writing model shards" not in first, "what libraries say of their work is for nobody"
    assert f"{NAME} step 2 on pocket/dev: 24 episodes" in first
    assert re.search(r"success avg@2 +│ [\d.]+ \[[\d.]+, [\d.]+\]", first) and "pass@2" in first
    with chat_server(notes_alone) as (url, requests):
        second = trained.say(
            *("eval", "--api", url, "--model", "notes", "--key-env", "none", "device=cpu", *how),
            *("--beside", "own.json", "--out", "api.json"),
        )
    own, api = (json.loads((trained.folder / name).read_text()) for name in ("own.json", "api.json"))
    assert own["figures"].keys() == api["figures"].keys() and own["tasks"].keys() == api["tasks"].keys()
    assert own["failed"] == api["failed"] == {} and own["step"] == 2 and api["spent"]["calls"] == len(requests) >= 24
    row = next(line for line in second.splitlines() if "success avg@2" in line)
    for one in (api, own):
        figure = one["figures"]["success avg@2"]
        assert f"{figure['mean']:.3f} [{figure['interval_95'][0]:.3f}, {figure['interval_95'][1]:.3f}]" in row
    assert "success minus the first" in second and "(12 tasks)" in second


def test_resume_goes_on_and_stop_ends_it_in_order(trained: Place) -> None:
    before: list[Any] = trained.steps()
    run = trained.start("resume", NAME, "trainer.total_training_steps=60", log="resume.log")
    # The step that is told is being done: one of this launch is behind it.
    trained.await_status(r"step ([4-9]|\d\d) of 60", run, "resume.log")
    assert trained.say("stop", NAME).count("stopped") == 1
    assert run.wait(120) not in (0, 1, 2), (trained.folder / "resume.log").read_text()
    assert trained.status() == "" and trained.steps()[: len(before)] == before
    reached = trained.steps()[-1]
    said = (trained.folder / "resume.log").read_text()
    assert f"{NAME} was stopped after" in said and f"agentevolver resume {NAME}" in said
    assert STEPS < reached < 60
    again = trained.start("resume", NAME, f"trainer.total_training_steps={reached + 1}", log="again.log")
    assert again.wait(400) == 0, (trained.folder / "again.log").read_text()
    assert trained.steps() == list(range(reached + 2)), "each step stands once"
