"""Profiles: shipped ones load, and a wrong one is named."""

import json

import pytest

from env_service.registry import known_environments
from task_manager.profile import EnvProfile, ProfileError, load_profile, profile_for, save_profile, shipped_profile


@pytest.mark.parametrize("env_type", sorted(known_environments()))
def test_the_shipped_profiles_say_what_there_is(env_type):
    profile = shipped_profile(env_type)
    text = profile.instruction()
    assert profile.background in text
    for entity in profile.entities:
        assert f"## {entity.name}" in text
        assert all(opt.description in text for opt in entity.opts)


def test_the_profile_of_an_installed_environment_lies_beside_its_class(tmp_path, monkeypatch):
    (tmp_path / "moon_base").mkdir()
    (tmp_path / "moon_base" / "__init__.py").touch()
    data = shipped_profile("pocket").model_dump()
    (tmp_path / "moon_base" / "profile.json").write_text(json.dumps({**data, "name": "Moon"}))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(
        "task_manager.profile.known_environments", lambda: {"moon": "moon_base.env:MoonEnv", "gone": "no_such.env:Env"}
    )
    assert shipped_profile("moon").name == "Moon"
    with pytest.raises(ProfileError, match="no profile is shipped for the environment 'gone'"):
        shipped_profile("gone")


def test_environments_of_one_package_may_have_profiles_of_their_own():
    usual, long, app = (shipped_profile(name) for name in ("pocket", "pocket_long", "pocket_app"))
    assert usual == long and usual.task_preference.num_entities == 2
    assert app.entities == usual.entities and app.background.startswith(usual.background)
    assert app.task_preference.num_entities == 4


def test_a_profile_survives_its_file_rubrics_included(tmp_path):
    profile = shipped_profile("webshop")
    assert profile.rubrics
    save_profile(profile, tmp_path / "p.json")
    assert load_profile(tmp_path / "p.json") == profile


@pytest.mark.parametrize("field", ["name", "background", "entities", "task_preference"])
def test_a_missing_field_is_named(tmp_path, field):
    data = shipped_profile("pocket").model_dump()
    del data[field]
    (tmp_path / "p.json").write_text(json.dumps(data))
    with pytest.raises(ProfileError, match=rf"p\.json: {field}: field required"):
        load_profile(tmp_path / "p.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda d: d["entities"][1]["opts"][0].pop("description"),
            r"entities\.1\.opts\.0\.description: field required",
        ),
        (lambda d: d["task_preference"].update(relation_difficulty=4), r"task_preference\.relation_difficulty"),
        (lambda d: d.update(entities=[]), "entities: list should have at least 1 item"),
        (lambda d: d.update(colour="red"), "colour: extra inputs are not permitted"),
    ],
)
def test_what_is_wrong_inside_is_named(tmp_path, change, message):
    data = shipped_profile("pocket").model_dump()
    change(data)
    (tmp_path / "p.json").write_text(json.dumps(data))
    with pytest.raises(ProfileError, match=message):
        load_profile(tmp_path / "p.json")


def test_files_that_are_none_and_environments_without_one(tmp_path):
    with pytest.raises(ProfileError, match="cannot be read"):
        load_profile(tmp_path / "no.json")
    (tmp_path / "p.json").write_text("{")
    with pytest.raises(ProfileError, match="is not JSON"):
        load_profile(tmp_path / "p.json")
    with pytest.raises(ProfileError, match="no profile is shipped for the environment 'moon'"):
        profile_for("moon", None)


def test_preferences_move_within_what_can_be_asked_for():
    wanted = shipped_profile("pocket").task_preference
    assert wanted.shifted(1).relation_difficulty == 3 and wanted.shifted(1).num_opts == wanted.num_opts + 1
    easiest = wanted.shifted(-1).shifted(-1).shifted(-1).shifted(-1)
    assert (easiest.num_entities, easiest.num_opts, easiest.relation_difficulty) == (1, 1, 1)


def test_the_wish_and_the_rubrics_are_part_of_the_preference():
    profile = shipped_profile("webshop")
    text = profile.preference_instruction("  only shoes ")
    assert text.splitlines()[-1] == "- only shoes"
    assert all(f"- {rubric}" in text for rubric in profile.rubrics)
    assert isinstance(profile, EnvProfile) and profile.fingerprint != shipped_profile("pocket").fingerprint
