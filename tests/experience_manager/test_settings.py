"""The section `exp_manager`: presets, what is refused, and the verl keys that a preset brings."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from experience_manager.settings import PRESETS, ExperienceSettings


def read(settings, name):
    value = settings
    for part in name.split("."):
        value = getattr(value, part)
    return value


@settings(deadline=None)
@given(
    st.sampled_from(sorted(PRESETS)),
    st.sampled_from(sorted(PRESETS)),
    st.sampled_from(sorted(PRESETS["paper"])),
    st.booleans(),
)
def test_a_key_that_is_given_wins_over_the_preset_and_a_null_does_not(preset, other, name, null):
    value = None if null else PRESETS[other][name]
    section, _, key = name.rpartition(".")
    tree = {section: {key: value}} if section else {key: value}
    settings = ExperienceSettings(preset=preset, **tree)
    assert read(settings, name) == (PRESETS[preset][name] if value is None else value)
    for rest in PRESETS[preset].keys() - {name}:
        assert read(settings, rest) == PRESETS[preset][rest]


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"train_rollout_mode": "mixed"}, r"train_rollout_mode = mixed needs reme\.enable_context_generator = true"),
        ({"reme": {"updated_freq": 5}}, r"reme\.updated_freq = 5 needs reme\.enable_summarizer = true"),
        ({"init_exp_only": True}, "needs init_exp_before_training = true"),
        ({"experience_template": "no place"}, "experience_template must hold {} once"),
        ({"retrieval": {"item_template": "{nothing}"}}, "its fields are index, when_to_use, content, scope"),
        (
            {"backend": "experience_manager.per_environment:BackendPerEnvironment", "store": "x.sqlite"},
            "store has no effect under backend",
        ),
        ({"encoder": {"kind": "path"}}, "needs model"),
    ],
)
def test_what_cannot_be_or_would_have_no_effect_is_refused(tree, words):
    with pytest.raises(ValidationError, match=words):
        ExperienceSettings(**tree)
