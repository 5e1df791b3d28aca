"""The golden set of prompts: what it holds, how replies are checked, and what the report says of a model."""

import contextlib
import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from agentevolver.builtin.teacher.prompt import Rates
from agentevolver.builtin.teacher.service import Teacher
from agentevolver.commands.task_manager import main
from agentevolver.errors import ConfigError
from agentevolver.golden.cases import Check, read_cases, shipped_cases, values_at
from agentevolver.golden.report import FORM, Answered, GoldenAsker, Quality, evaluate, print_quality, write_quality
from agentevolver.llm.errors import LLMFiltered, LLMReplyError, Reply
from agentevolver.llm.reply import NoAnswer, read_reply
from agentevolver.llm.settings import LLMSettings, Role

CASES = shipped_cases()


class Model:
    """A language model that is a function of the messages; stands for `LLM`."""

    def __init__(self, answer, **llm):
        self._answer = answer
        self.settings = LLMSettings.model_validate({"base_url": "http://127.0.0.1:9/v1", "api_key_env": None, **llm})

    async def structured(self, role, messages, schema, **_):
        text = self._answer(messages)
        try:
            return read_reply(text, schema)
        except NoAnswer as error:
            raise LLMReplyError(str(error), text) from error

    async def chat(self, role, messages, tools=None, **_):
        return Reply(self._answer(messages), 1, 1, 0.0, False)

    def context_limit(self, role):
        return None

    def metrics(self):
        return {
            "llm/judge/calls": 2.0,
            "llm/judge/prompt_tokens": 1200.0,
            "llm/judge/completion_tokens": 80.0,
            "llm/judge/cost": 0.0125,
        }


def teacher(**rates):
    return Teacher(rates=Rates(**{**dict.fromkeys(Rates.__dataclass_fields__, 0.0), **rates})).answer


async def asked(model, cases, **options):
    return await evaluate(model, GoldenAsker(model), cases, **options)


# What proposals are worth is measured in every round, by playing them.
ASKED = [role for role in Role if role is not Role.PROPOSER]


def test_every_role_has_cases_of_the_pocket_world_and_of_others():
    for role in ASKED:
        of = [case for case in CASES if case.role is role]
        assert len([case for case in of if case.world == "pocket"]) >= 2 and len({case.world for case in of}) >= 3, role
    assert len({case.asked for case in CASES}) == 13


@pytest.mark.thorough
async def test_the_offline_teacher_passes_the_pocket_worlds_cases():
    quality = await asked(Model(teacher()), [case for case in CASES if case.world == "pocket"], repeats=3)
    failed = {
        (one.case, name): one.reply for one in quality.answered for name, passed in one.passed.items() if not passed
    }
    assert not failed


GOOD = yaml.safe_load((Path(__file__).parent / "golden_replies.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", [case for case in CASES if case.world != "pocket"], ids=lambda case: case.name)
def test_a_good_reply_passes_each_other_case_and_an_empty_or_a_strange_one_does_not(case):
    assert all(check.holds(GOOD[case.name]) for check in case.checks)
    others = [reply for name, reply in GOOD.items() if name.partition("-")[0] != case.name.partition("-")[0]]
    strangers = [reply for reply in others if all(check.holds(reply) for check in case.checks)]
    # That there is nothing to learn is a good reply to some, and a refusal is one to many.
    assert case.asked.startswith(("judge/", "attributor/", "summariser/")) or not strangers
    assert not all(check.holds({}) for check in case.checks) or case.name == "bfcl-lesson-with-an-order"


@pytest.mark.thorough
async def test_a_model_that_babbles_or_says_the_same_to_everything_passes_little():
    for said in (
        "As an AI language model I would say that it depends.",
        json.dumps({"action": "done", "thought": ""}),
        "{}",
    ):
        quality = await asked(Model(lambda _, said=said: said), CASES)
        assert [one.case for one in quality.answered if all(one.passed.values())] in (
            [],
            ["pocket-verifier-is-done"],
        ), said
        assert print_quality(quality, least=0.8) == 1


WRONG = {
    "hallucinated": Role.SYNTHESISER,
    "wrong_labels": Role.ATTRIBUTOR,
    "wrong_grades": Role.JUDGE,
    "wrong_experiences": Role.SUMMARISER,
    "slips": Role.VERIFIER,
}


@pytest.mark.parametrize("mistake", WRONG)
async def test_a_model_that_is_wrong_in_one_way_is_found_out_in_that_role(mistake):
    pocket = [case for case in CASES if case.world == "pocket" and case.role is WRONG[mistake]]
    more = {"wrong_accepts": 1.0} if mistake == "wrong_grades" else {}
    quality = await asked(Model(teacher(**{mistake: 1.0}, **more)), pocket, repeats=3)
    assert quality.share_of(WRONG[mistake].value) < 0.95
    assert sum(all(one.passed.values()) for one in quality.answered) <= 0.75 * len(quality.answered)


async def test_a_call_that_fails_fails_its_checks_and_says_why_and_no_others(capsys):
    def answer(messages):
        if "summariser/validate" in messages[0]["content"]:
            raise LLMFiltered("the content filter\nof the server")
        return teacher()(messages)

    quality = await asked(
        Model(answer), [case for case in CASES if case.world == "pocket" and case.role is Role.SUMMARISER]
    )
    lost = [one for one in quality.answered if one.problem]
    assert [one.case for one in lost] == ["pocket-judged-experiences"] and not any(lost[0].passed.values())
    assert lost[0].problem == "LLMFiltered: the content filter of the server"
    assert sum(all(one.passed.values()) for one in quality.answered) == len(quality.answered) - 1
    print_quality(quality, least=0.5)
    assert "pocket-judged-experiences: not answers in form" in capsys.readouterr().out


async def test_where_the_teacher_plays_a_role_other_worlds_are_not_asked_and_it_says_so(capsys):
    model = Model(teacher(), base_url="offline")
    quality = await asked(model, [case for case in CASES if case.role is Role.JUDGE])
    assert quality.skipped and {one.case.partition("-")[0] for one in quality.answered} == {"pocket"}
    assert print_quality(quality, least=0.9) == 0
    assert f"{len(quality.skipped)} cases were not asked" in capsys.readouterr().out


def test_the_report_shows_shares_tokens_and_cost_and_the_status_follows_the_worst_role(capsys, tmp_path):
    rows = [
        Answered("a", "judge", {FORM: True, "accepts": True}, {"accepted": True}),
        Answered("b", "judge", {FORM: True, "accepts": False}, {"accepted": False}),
        Answered("c", "explorer", {FORM: True}, {}),
    ]
    quality = Quality(rows, metrics={"llm/judge/calls": 2, "llm/judge/prompt_tokens": 1200, "llm/judge/cost": 0.0125})
    assert quality.shares() == {("judge", FORM): (2, 2), ("judge", "accepts"): (1, 2), ("explorer", FORM): (1, 1)}
    assert quality.share_of("judge") == 0.75
    assert print_quality(quality, least=0.75) == 0 and print_quality(quality, least=0.76) == 1
    out = capsys.readouterr().out
    assert "1/2" in out and "1,200" in out and "0.0125" in out and "below 76%" in out and "judge b: not accepts" in out
    write_quality(quality, tmp_path / "q.json")
    written = json.loads((tmp_path / "q.json").read_text())
    assert [one["case"] for one in written["answered"]] == ["a", "b", "c"] and ["judge", "accepts", 1, 2] in written[
        "shares"
    ]
    assert print_quality(Quality(), least=0.5) == 1


@pytest.mark.parametrize(
    ("check", "reply", "holds"),
    [
        ({"at": "a.*.b", "some": "X"}, {"a": [{"b": "ax"}, {"b": "c"}, {}]}, True),
        ({"at": "a.*", "every": "^x"}, {"a": ["x1", "X2"]}, True),
        ({"at": "a.*", "every": "^x"}, {"a": ["x1", "y"]}, False),
        ({"at": "a.*", "every": "x"}, {"a": []}, False),
        ({"at": "a.*", "none": "x"}, {"a": []}, True),
        ({"at": "a", "is": True}, {"a": True}, True),
        ({"at": "a", "is": True}, {}, False),
        ({"at": "a.-1", "is": ["p", "q"]}, {"a": [1, "q"]}, True),
        ({"at": "a.5", "is": "q"}, {"a": ["q"]}, False),
        ({"at": "s", "between": [60, 100]}, {"s": 60}, True),
        ({"at": "s", "between": [60, 100]}, {"s": True}, False),
        ({"at": "a.*", "count": [1, 2]}, {"a": [1, 2, 3]}, False),
        ({"at": "a", "some": "x", "none": "y"}, {"a": "xy"}, False),
        ({"at": "j.0.valid", "is": True}, {"j": [None]}, False),
        ({"some": "x"}, "ax", True),
    ],
)
def test_a_check_looks_at_its_place(check, reply, holds):
    assert Check.model_validate({"name": "n", **check}).holds(reply) is holds


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner),
)


@given(JSON, st.lists(st.sampled_from(["a", "b", "*", "0", "-1", "9"]), max_size=4).map(".".join))
def test_a_path_that_leads_nowhere_finds_nothing_and_never_fails(reply, path):
    assert isinstance(values_at(reply, path), list)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "cases: [{name: a, asked: judge/accept, world: x, checks: [{name: n}]}]",
            "case a: checks.0: value error, asks nothing: give one of",
        ),
        (
            "cases: [{name: a, asked: judge/accept, world: x, checks: []}]",
            "case a: checks: list should have at least 1",
        ),
        (
            "cases: [{name: a, asked: judge/accept, world: x, opening: $no, checks: []}]",
            "case a: there is no text 'no' in `texts`",
        ),
        ("cases: [{name: a, asked: judge/nothing, world: x}]", "case a: asked: input should be 'explorer/act'"),
        (
            "cases: [{name: a, asked: judge/accept, world: x, checks: [{name: n, some: '('}]}]",
            "is no regular expression",
        ),
        ("cases: [{asked: 1}]", "case 0: name: field required"),
        ("[]", "golden cases are a mapping with a list `cases`"),
        ("cases: [", "cannot be read"),
    ],
)
def test_a_case_that_cannot_be_read_is_named(tmp_path, text, words):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError) as error:
        read_cases(tmp_path / "c.yaml")
    assert words in str(error.value) and "\n" not in str(error.value) and "c.yaml" in str(error.value)


@pytest.mark.service
def test_the_command_asks_the_offline_teacher_over_http_and_its_status_is_the_verdict(tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    rates = [f"--{name.replace('_', '-')}=0" for name in Rates.__dataclass_fields__]
    command = [sys.executable, "-m", "agentevolver.builtin.teacher", f"--port={port}", *rates]
    teacher_process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (tmp_path / "s.yaml").write_text(
        f"llm: {{base_url: offline, teacher: {{url: 'http://127.0.0.1:{port}/v1'}}, price_in: 1.0}}\n"
    )
    asked = ["evaluate-llm", "--settings", str(tmp_path / "s.yaml"), "--out", str(tmp_path / "q.json")]
    try:
        wait_for(port)
        assert main(asked) == 0
        out = capsys.readouterr().out
        assert (
            all(role.value in out for role in ASKED)
            and "cases were not asked: the built-in teacher knows the pocket world only" in out
        )
        written = json.loads((tmp_path / "q.json").read_text())
        assert {one["case"].partition("-")[0] for one in written["answered"]} == {"pocket"}
        assert written["metrics"]["llm/judge/cost"] > 0
        assert main([*asked, "--roles", "judge", "--worlds", "bfcl"]) == 1
        assert "nothing was asked" in capsys.readouterr().out
    finally:
        teacher_process.kill()
        teacher_process.wait()
    assert main([*asked, "--roles", "judge", "llm.tries=1", "llm.max_wait_s=1"]) == 1
    assert "LLMUnavailable" in capsys.readouterr().out
    assert main([*asked, "--cases", str(tmp_path / "none.yaml")]) == main([*asked, "--roles", "judge,poet"]) == 2
    assert "there is no role 'poet'; roles are explorer" in capsys.readouterr().err


def wait_for(port):
    """Return when somebody listens there."""
    for _ in range(300):
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        time.sleep(0.1)
    raise AssertionError(f"nothing came up at port {port}")
