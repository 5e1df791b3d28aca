"""Profiles: shipped ones load, and a wrong one is named."""

import copy
import json

import pytest

from task_manager.profile import EnvProfile, ProfileError, load_profile, profile_for, save_profile, shipped_profile

DATA = {
    "name": "Keeper",
    "background": "Somebody with a garden.",
    "entities": [
        {"name": "Bed", "description": "A bed.", "attrs": {"size": "in feet"}, "opts": []},
        {"name": "Seed", "description": "A seed.", "attrs": {}, "opts": [{"name": "sow", "description": "Sow it."}]},
    ],
    "task_preference": {"num_entities": 2, "num_opts": 3, "relation_difficulty": 2},
    "rubrics": ["Name the bed."],
}
PROFILE = EnvProfile.model_validate(DATA)


def test_the_instruction_holds_every_entity_and_operation():
    text = PROFILE.instruction()
    assert PROFILE.background in text and "- size: in feet" in text and "- sow: Sow it." in text
    assert all(f"## {entity.name}\n{entity.description}" in text for entity in PROFILE.entities)


def test_the_profile_of_an_installed_environment_lies_beside_its_class(tmp_path, monkeypatch):
    (tmp_path / "moon_base").mkdir()
    (tmp_path / "moon_base" / "__init__.py").touch()
    data = DATA
    (tmp_path / "moon_base" / "profile.json").write_text(json.dumps({**data, "name": "Moon"}))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(
        "task_manager.profile.known_environments", lambda: {"moon": "moon_base.env:MoonEnv", "gone": "no_such.env:Env"}
    )
    assert shipped_profile("moon").name == "Moon"
    with pytest.raises(ProfileError, match="no profile is shipped for the environment 'gone'"):
        shipped_profile("gone")


def test_an_environment_of_a_shared_package_may_have_a_profile_of_its_own(tmp_path, monkeypatch):
    package = tmp_path / "two_moons"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "profile.json").write_text(json.dumps(DATA))
    (package / "profile.far.json").write_text(json.dumps({**DATA, "name": "Far"}))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(
        "task_manager.profile.known_environments", lambda: dict.fromkeys(("near", "far"), "two_moons.env:Env")
    )
    assert (shipped_profile("near").name, shipped_profile("far").name) == ("Keeper", "Far")


def test_a_profile_survives_its_file_rubrics_included(tmp_path):
    save_profile(PROFILE, tmp_path / "p.json")
    assert load_profile(tmp_path / "p.json") == PROFILE


@pytest.mark.parametrize("field", ["name", "background", "entities", "task_preference"])
def test_a_missing_field_is_named(tmp_path, field):
    data = copy.deepcopy(DATA)
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
    data = copy.deepcopy(DATA)
    change(data)
    (tmp_path / "p.json").write_text(json.dumps(data))
    with pytest.raises(ProfileError, match=message):
        load_profile(tmp_path / "p.json")


def test_files_that_are_none_and_environments_without_one(tmp_path):
    with pytest.raises(ProfileError, match="cannot be read"):
        load_profile(tmp_path / "no.json")
    (tmp_path / "p.json").write_text("{")
    with pytest.raises(ProfileError, match="not valid JSON"):
        load_profile(tmp_path / "p.json")
    with pytest.raises(ProfileError, match="no profile is shipped for the environment 'moon'"):
        profile_for("moon", None)


def test_preferences_move_within_what_can_be_asked_for():
    wanted = PROFILE.task_preference
    assert wanted.shifted(1).relation_difficulty == 3 and wanted.shifted(1).num_opts == wanted.num_opts + 1
    easiest = wanted.shifted(-1).shifted(-1).shifted(-1).shifted(-1)
    assert (easiest.num_entities, easiest.num_opts, easiest.relation_difficulty) == (1, 1, 1)


def test_the_wish_and_the_rubrics_are_part_of_the_preference():
    text = PROFILE.preference_instruction("  only shoes ")
    assert text.splitlines()[-1] == "- only shoes"
    assert all(f"- {rubric}" in text for rubric in PROFILE.rubrics)
    assert PROFILE.fingerprint != PROFILE.model_copy(update={"rubrics": []}).fingerprint
