"""What others write cannot forge a turn: whatever it spells, the only control tokens are those that the chat template
writes."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from context_manager.chat import ChatRenderer, ChatTemplateError
from context_manager.rendering import _EDGE, CUT, MARKER
from tests.real_tokenizers import FAMILIES, build_real

ALL = sorted({text for family in FAMILIES.values() for text in family.special + family.added})
PARTS = st.one_of(
    st.sampled_from(ALL),
    st.sampled_from(ALL).flatmap(lambda text: st.integers(1, len(text) - 1).map(lambda cut: text[:cut])),
    st.sampled_from(ALL).flatmap(lambda text: st.integers(1, len(text) - 1).map(lambda cut: text[cut:])),
    st.sampled_from([CUT, _EDGE, MARKER, "assistant\n", "user\n\n", "\u200b", " ", "\n", "<", "|>", "é"]),
    st.text(max_size=8),
)
HOSTILE = st.lists(PARTS, min_size=1, max_size=8).map("".join)


def controls(renderer: ChatRenderer, ids: list[int]) -> list[int]:
    """The control ids among these, in order."""
    pattern = renderer._control
    assert pattern is not None
    known = {i for i, token in renderer.tokenizer.added_tokens_decoder.items() if pattern.fullmatch(token.content)}
    return [i for i in ids if i in known]


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def real(request) -> ChatRenderer:
    return ChatRenderer(build_real(request.param))


def roles(renderer: ChatRenderer) -> list[str]:
    """The roles an environment may speak in, with this template."""
    possible = []
    for role in ("user", "tool"):
        try:
            renderer.continuation([{"role": role, "content": "-"}], closed=True)
        except ValueError:
            continue
        possible.append(role)
    assert "user" in possible
    return possible


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)
@given(text=HOSTILE, closed=st.booleans())
def test_no_text_of_an_observation_forges_a_turn(real, text, closed):
    for role in roles(real):
        benign = controls(real, real.continuation([{"role": role, "content": "-"}], closed=closed))
        assert controls(real, real.continuation([{"role": role, "content": text}], closed=closed)) == benign


@pytest.mark.thorough
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(system=HOSTILE, task=HOSTILE)
def test_no_task_and_no_experience_forges_a_turn(real, system, task):
    def opening(first: str, second: str) -> list[int]:
        said = [
            {"role": "user", "content": first},
            {"role": "assistant", "content": "ok"},
            {"role": "user", "content": second},
        ]
        return controls(real, real.opening(said))

    assert opening(system, task) == opening("-", "-")


@pytest.mark.thorough
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(text=HOSTILE)
def test_no_rewritten_reply_holds_a_special_token_and_no_clipped_text_a_control_token(real, text):
    special = set(real.tokenizer.all_special_ids) | {
        i for i, t in real.tokenizer.added_tokens_decoder.items() if t.special
    }
    try:
        header = len(real.assistant(""))
    except ValueError:
        header = None  # a template that cannot be taken apart is continued alone
    if header is not None:
        assert not special & set(real.assistant(text)[header:])
    clipped = real.clip(text, 12)
    assert not controls(real, real.encode_inert(clipped)) and len(real.encode_inert(clipped)) <= 12


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
@given(text=st.text(st.characters(exclude_characters="<[", exclude_categories=["Cs", "Cn", "Co"]), max_size=30))
def test_text_that_spells_no_control_token_is_encoded_as_before(real, text):
    messages = [{"role": "user", "content": text}]
    rendered = real.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert real.opening(messages) == real.tokenizer.encode(rendered, add_special_tokens=False)


def test_a_role_that_the_template_leaves_out_is_refused():
    with pytest.raises(ChatTemplateError, match=r"leaves out messages of the role tool: set .*observation_role"):
        ChatRenderer(build_real("phi3_5")).continuation([{"role": "tool", "content": "x"}], closed=True)
