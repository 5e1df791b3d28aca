"""Profiles: shipped ones load, and a wrong one is named."""

import json

import pytest
from questioning_fakes import LocalDesk, Tutor

from task_manager.profile import EnvProfile, ProfileError, load_profile, save_profile, shipped_profile
from task_manager.synthesize import draft_profile
from task_manager.world import SeedWorld

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


def test_the_profile_of_an_installed_environment_lies_beside_its_class(tmp_path, monkeypatch):
    (tmp_path / "moon_base").mkdir()
    (tmp_path / "moon_base" / "__init__.py").touch()
    (tmp_path / "moon_base" / "profile.json").write_text(json.dumps({**DATA, "name": "Moon"}))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(
        "task_manager.profile.known_environments", lambda: {"moon": "moon_base.env:MoonEnv", "gone": "no_such.env:Env"}
    )
    assert shipped_profile("moon").name == "Moon"
    with pytest.raises(ProfileError, match="no profile is shipped for the environment 'gone'"):
        shipped_profile("gone")


def test_a_profile_survives_its_file_and_files_that_are_none_are_named(tmp_path):
    with pytest.raises(ProfileError, match="cannot be read"):
        load_profile(tmp_path / "no.json")
    (tmp_path / "p.json").write_text("{")
    with pytest.raises(ProfileError, match="not valid JSON"):
        load_profile(tmp_path / "p.json")
    save_profile(PROFILE, tmp_path / "p.json")
    assert load_profile(tmp_path / "p.json") == PROFILE


async def test_an_unknown_environments_profile_is_drafted_from_an_exploration():
    tutor = Tutor({"synthesiser/profile": [json.dumps(DATA)]})
    profile = await draft_profile(LocalDesk(), tutor, SeedWorld("pocket", "note_add.k3.7"), steps=3)
    assert profile == PROFILE and len(tutor.asked("explorer/act")) == 3
    assert tutor.asked("synthesiser/profile")[0]["transcript"].count("action:") == 3
