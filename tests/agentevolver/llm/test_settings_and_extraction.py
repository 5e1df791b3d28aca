"""The section `llm`, and the JSON in replies."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from agentevolver.llm import LLMSettings, Role
from agentevolver.llm.reply import NoAnswer, read_reply


class Note(BaseModel):
    text: str
    tags: list[str]


def test_a_role_has_the_defaults_keys_and_its_own_over_them() -> None:
    made = LLMSettings.model_validate(
        {
            "base_url": "https://api.example.com/v1/",
            "model": "small",
            "sampling": {"temperature": 0.5, "max_tokens": 100},
            "roles": {
                "judge": {"model": "big", "sampling": {"temperature": 0.0, "max_tokens": None}},
                "verifier": {"base_url": "policy"},
            },
        }
    )
    assert made.endpoint(Role.EXPLORER).base_url == "https://api.example.com/v1"
    assert made.endpoint(Role.JUDGE).model == "big"
    assert made.endpoint(Role.JUDGE).sampling == {"temperature": 0.0}
    assert made.endpoint(Role.EXPLORER).sampling == {"temperature": 0.5, "max_tokens": 100}
    assert not made.needs_teacher
    variables = {role: made.endpoint(role).key_variable for role in Role}
    assert variables == {**dict.fromkeys(Role, "OPENAI_API_KEY"), Role.VERIFIER: None}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"base_url": "https://me:pass@example.com/v1"}, "must not hold a user name"),
        ({"api_key_env": "sk-proj-abcdef"}, "not the key itself"),
        ({"sampling": {"temprature": 1}}, "unknown sampling parameter 'temprature'"),
        ({"roles": {"judge": {"modle": "x"}}}, "roles.judge.modle"),
        ({"omit": ["temprature"]}, "'temprature' cannot be left out"),
    ],
)
def test_a_mistake_is_named(values: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        LLMSettings.model_validate(values)


_PROSE = st.text(alphabet=st.characters(blacklist_characters='[]{}`<>"', blacklist_categories=("Cs",)), max_size=40)


@settings(deadline=None)
@given(
    st.text(),
    st.lists(st.text(max_size=5), max_size=3),
    _PROSE,
    _PROSE,
    st.sampled_from(["bare", "fence", "named fence"]),
)
def test_an_answer_is_read_whatever_prose_stands_around_it(
    text: str, tags: list[str], before: str, after: str, dress: str
) -> None:
    wanted = Note(text=text, tags=tags)
    body = json.dumps(wanted.model_dump())
    if dress != "bare":
        body = f"\n```{'json' if dress == 'named fence' else ''}\n{body}\n```\n"
    assert read_reply(before + body + after, Note) == wanted


@settings(deadline=None)
@given(st.text(max_size=200))
def test_nothing_but_no_answer_comes_of_arbitrary_text(text: str) -> None:
    with pytest.raises(NoAnswer):
        read_reply(text, Note)


def test_line_breaks_in_strings_and_trailing_commas_are_understood() -> None:
    assert read_reply('{"text": "a\nb, ]", "tags": ["x",],}', Note) == Note(text="a\nb, ]", tags=["x"])
