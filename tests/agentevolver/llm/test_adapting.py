"""Servers that refuse a grammar or the length of a reply, over HTTP: they are asked as they allow it from then on."""

import json
import logging

import pytest
from pydantic import BaseModel

from advantage_processor.labels import LabelReply
from agentevolver.llm import LLM, LLMRefused, LLMSettings, Role
from agentevolver.llm.examples import with_examples
from agentevolver.llm.prompts import messages, read_sections
from agentevolver.llm.reply import read_reply
from experience_manager.prompts import Judgements, Proposals
from task_manager.replies import AcceptReply, ActReply, GradeReply, TasksReply
from tests.agentevolver.llm.faulty_server import FaultyServer, Said

ASKED = [{"role": "user", "content": "How much is 2 + 3?"}]


class Total(BaseModel):
    reason: str = ""
    total: int


def settings_of(server: FaultyServer, **keys: object) -> LLMSettings:
    given = {"base_url": f"http://127.0.0.1:{server.port}/v1", "model": "m", "api_key_env": None, "cache": False}
    return LLMSettings.model_validate({**given, **keys})


def refused(message: str) -> Said:
    return Said(status=400, body=json.dumps({"error": {"message": message, "code": 400}}).encode())


async def test_a_refused_grammar_is_left_out_from_then_on_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    def answer(number: int, body: dict[str, object]) -> Said:
        return refused("no grammar backend") if "response_format" in body else Said('{"total": 5}')

    async with FaultyServer(answer) as server, LLM(settings_of(server)) as llm:
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                assert (await llm.structured(Role.JUDGE, ASKED, Total)).total == 5
        sent = ["response_format" in request.body for request in server.requests]
    assert sent == [True, False, False]
    assert [record.message for record in caplog.records if "no grammar backend" in record.message].__len__() == 1


async def test_a_request_that_is_refused_anyway_raises_the_first_refusal_and_the_grammar_stays() -> None:
    async with FaultyServer([refused("there is no model m")]) as server, LLM(settings_of(server)) as llm:
        for _ in range(2):
            with pytest.raises(LLMRefused, match="no model m"):
                await llm.structured(Role.JUDGE, ASKED, Total)
        assert ["response_format" in request.body for request in server.requests] == [True, False] * 2


async def test_the_usual_max_tokens_leaves_room_in_a_short_context(caplog: pytest.LogCaptureFixture) -> None:
    def answer(number: int, body: dict[str, int]) -> Said:
        if body["max_tokens"] < 4096:
            return Said()
        return refused(
            "This model's maximum context length is 4096 tokens. However, you requested 4096 output tokens and your "
            "prompt contains 1510 characters."
        )

    async with FaultyServer(answer) as server, LLM(settings_of(server)) as llm:
        for _ in range(2):
            await llm.chat(Role.JUDGE, ASKED)
        assert [request.body["max_tokens"] for request in server.requests] == [4096, 1024, 1024]
    assert sum("limited to 1024 tokens" in record.message for record in caplog.records) == 1


async def test_a_grammar_requires_every_key_and_no_other() -> None:
    class Many(BaseModel):
        parts: list[Total]

    form = LLMSettings(base_url="http://h/v1").response_format(Many)["response_format"]["json_schema"]["schema"]
    part = form["$defs"]["Total"]
    assert part["required"] == ["reason", "total"] and not part["additionalProperties"]
    assert LLMSettings().response_format(Many) == {}, "the stand-in takes none"


async def test_a_reply_that_was_cut_is_asked_for_again_with_less_to_say() -> None:
    cut, whole = Said('{"reason": "on and', finish_reason="length"), Said('{"total": 5}')
    async with FaultyServer([cut, whole]) as server, LLM(settings_of(server)) as llm:
        assert (await llm.structured(Role.JUDGE, ASKED, Total)).total == 5
        assert "it was cut, say less" in server.requests[1].body["messages"][-1]["content"]


async def test_examples_stand_between_the_rules_and_the_prompt_and_go_to_models_alone() -> None:
    prompt = messages("judge/grade", "Grade. Reply with JSON.", {"task": "find milk", "transcript": "step 0"})
    async with FaultyServer([Said()]) as server, LLM(settings_of(server)) as llm:
        await llm.chat(Role.JUDGE, prompt)
        (request,) = server.requests
    sent = request.body["messages"]
    assert (sent[0], sent[-1]) == (prompt[0], prompt[-1])
    assert [message["role"] for message in sent[1:-1]] == ["user", "assistant"] * (len(sent) // 2 - 1) != []
    assert with_examples(ASKED) == ASKED


def test_every_example_is_a_reply_that_its_role_may_give() -> None:
    kinds: dict[str, type[BaseModel]] = {
        "explorer/act": ActReply,
        "judge/grade": GradeReply,
        "judge/accept": AcceptReply,
        "attributor/steps": LabelReply,
        "synthesiser/tasks": TasksReply,
        "summariser/validate": Judgements,
        **dict.fromkeys(("summariser/success", "summariser/failure", "summariser/comparative"), Proposals),
    }
    for task, kind in kinds.items():
        _, *shown, _ = with_examples(messages(task, "Reply with JSON.", {"task": "x", "reference": "y"}))
        assert shown
        for question, reply in zip(shown[::2], shown[1::2], strict=True):
            assert read_sections(question["content"])
            read_reply(reply["content"], kind)
