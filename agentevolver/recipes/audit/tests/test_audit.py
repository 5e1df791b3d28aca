"""The audit's arithmetic, what it records of PocketWorld, models without judgement over HTTP, and what obeys it."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from agentevolver.config.checks import load
from agentevolver.llm.prompts import read_sections, read_task
from agentevolver.recipes.audit.__main__ import main
from agentevolver.recipes.audit.findings import Agreement, judged, labelled, over, shown, warnings
from agentevolver.recipes.audit.rollouts import half_and_half, oracle_of, recorded
from agentevolver.utils.errors import ConfigError
from env_service.local import LocalClient


def agreement(right_yes: int, yes: int, right_no: int, no: int) -> Agreement:
    return Agreement(right_yes, yes, right_no, no)


def test_agreement_counts_both_kinds() -> None:
    found = Agreement()
    for said, truth in [(True, True), (True, False), (False, False), (False, False), (False, True)]:
        found.add(said, truth)
    assert (found.count, found.share, found.false_positives) == (5, 0.6, pytest.approx(1 / 3))


@pytest.mark.parametrize(
    ("counts", "is_off"),
    [
        ((17, 20, 20, 20), False),
        ((20, 20, 18, 20), False),
        ((20, 20, 17, 20), True),  # a false-positive rate of .15
        ((13, 20, 20, 20), True),  # 33 of 40 agree
    ],
)
def test_a_judge_is_held_to_both_bounds(counts: tuple[int, int, int, int], is_off: bool) -> None:
    assert bool(judged(agreement(*counts)).off) is is_off


def test_a_labeller_is_worth_more_than_one_label_for_all() -> None:
    assert not labelled(agreement(40, 50, 40, 50)).off
    assert labelled(agreement(30, 50, 39, 50)).off
    assert labelled(agreement(0, 20, 80, 80)).off, ".8 is what BAD for all has"


def test_what_was_not_answered_is_not_measured_and_no_zero() -> None:
    lost = Agreement()
    lost.lose("LLMRefused: no such model")
    assert lost.share is None and lost.false_positives is None
    for found in (judged(lost), labelled(lost)):
        assert "no such model" in found.missing and not found.off
    few = Agreement(2, 2, 2, 2, {"LLMTimeout": 5})
    assert judged(few).missing and labelled(few).missing, "5 of 9 were not answered"
    assert judged(agreement(9, 10, 0, 0)).missing, "without failures there is no rate of false positives"


@pytest.mark.thorough
async def test_recorded_rollouts_have_the_worlds_verdict_and_every_steps_label() -> None:
    client = LocalClient(["pocket"])
    groups = await recorded(client, "pocket", "dev", {}, 0)
    await client.close()
    assert len(groups) == 144
    for group in groups:
        assert group[0].success and all(group[0].good), "the reference"
        assert all(len(one.good) == len(one.rollout.steps) for one in group)
    chosen = half_and_half(groups, 60, 0)
    assert (len(chosen), sum(one.success for one in chosen)) == (60, 30)


def test_an_environment_without_an_oracle_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"calc cannot be audited.*oracle"):
        oracle_of("calc")


class _Model(BaseHTTPRequestHandler):
    """Says yes to everything, or nothing that can be used."""

    said_yes = True

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        text = self.answer(body["messages"]) if self.said_yes else "I cannot say."
        reply = {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}
        payload = json.dumps({"id": "x", "object": "chat.completion", "created": 0, "model": "m", **reply}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def answer(self, messages: list[dict[str, Any]]) -> str:
        asked = read_task(messages[0]["content"])
        sections = next(filter(None, (read_sections(message["content"]) for message in reversed(messages))))
        if asked == "explorer/act":
            return f"note.add tea{len(messages)}{sections['steps_left']} home"
        if asked == "synthesiser/tasks":
            good, bad = ["note.add tea home", "done"], ["note.add tea nowhere", "done"]
            tasks = [{"query": "write down tea", "solution": good}, {"query": "note tea", "solution": bad}]
            return json.dumps({"tasks": tasks})
        if asked == "attributor/steps":
            first, last = map(int, sections["indices"].split("-"))
            return json.dumps({"steps": [{"index": i, "label": "GOOD"} for i in range(first, last + 1)]})
        if asked == "summariser/validate":
            count = sections["experience"].count("when_to_use:")
            return json.dumps({"judgements": [{"number": i + 1, "valid": True, "score": 1} for i in range(count)]})
        if asked.startswith("summariser/"):
            lesson = {"when_to_use": "before a note is deleted", "content": "Find it first: the call needs its id."}
            return json.dumps({"experiences": [lesson]})
        return json.dumps({"relevant": True, "achieved": True, "score": 90})

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def model() -> Iterator[list[str]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield [
        "data.val_splits=[dev]",
        f"llm.base_url=http://127.0.0.1:{server.server_port}/v1",
        "llm.model=m",
        "llm.api_key_env=null",
        "llm.cache=false",
        "env_service.env_type=pocket",
    ]
    server.shutdown()
    server.server_close()


SIZES = ["--verdicts", "20", "--labels", "40", "--explorations", "2", "--pairs", "2"]


@pytest.mark.thorough
def test_a_model_that_always_says_yes_is_no_judge_and_a_training_obeys(
    model: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "audit.json"
    assert main([*model[:2], *SIZES, "--out", str(out), *model[2:]]) == 0
    said = capsys.readouterr().out
    assert "10 of 20 verdicts agree" in said and "10 of 10 failures called successes (1.000, bound 0.1)" in said
    assert "1 of 2 proposed tasks can be carried out" in said or "2 of 4 proposed tasks can be carried out" in said
    assert "lift is not measured" in said

    wanted = ["task_manager.n=1", "task_manager.mixture.synthetic_data_ratio=1", "task_manager.verification.judge=true"]
    found = load(None, [*model, *wanted, f"recipes.audit.result={out}"])
    tasks = found.settings.task_manager
    assert not tasks.verification.judge and tasks.grader.synthetic_grader == "state"
    assert tasks.mixture.synthetic_data_ratio == 1, "the explorer is not below its bound"
    (line,) = [line for line in warnings(found.settings, found.config) if line.startswith("judge")]
    assert "judge is off" in line and "bound 0.1" in line and "task_manager.verification.judge=false" in line


@pytest.mark.thorough
def test_a_model_without_usable_answers_is_not_measured(
    model: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_Model, "said_yes", False)
    out = tmp_path / "audit.json"
    assert main([*SIZES, "--roles", "judge,labeller,distiller", "--out", str(out), *model]) == 1
    assert capsys.readouterr().out.count("NOT MEASURED") == 3
    assert json.loads(out.read_text())["roles"] == {}


def test_a_result_that_is_none_is_refused(tmp_path: Path) -> None:
    for text in ("", "{}", '{"roles": {"judge": {}}}', '{"roles": {"cook": {"off": "x"}}}'):
        (tmp_path / "audit.json").write_text(text)
        with pytest.raises(ConfigError, match=r"recipes\.audit\.result"):
            load(None, [f"recipes.audit.result={tmp_path / 'audit.json'}"])


def test_credit_and_graders_that_ask_no_model_stay(tmp_path: Path) -> None:
    out = tmp_path / "audit.json"
    out.write_text('{"roles": {"judge": {"off": "x"}, "labeller": {"off": "x"}, "explorer": {"off": ""}}}')
    written: dict[str, Any] = {
        "recipes": {"audit": {"result": str(out)}},
        "attribution_driven_credit_assignment": {"attributor": "gigpo"},
        "task_manager": {"grader": {"original_grader": "my.grader:Own", "synthetic_grader": "env"}},
    }
    kept = {"verification": {"judge": False}, "grader": {"fallback_grader": "state"}}
    assert over([written]) == [{"task_manager": kept}, {}]
    written["task_manager"]["grader"]["original_grader"] = "llm"
    assert over([written])[0]["task_manager"]["grader"]["original_grader"] == "env"
    assert over([{}]) == []


def test_every_role_can_be_switched_off_by_the_keys_that_are_shown() -> None:
    for role in ("judge", "labeller", "explorer", "distiller"):
        load(None, shown(role).split())
