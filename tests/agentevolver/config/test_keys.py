"""Keys of ours: each is described and read by code, any other one is refused, and the reference page has them all."""

import ast
import re
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest
from omegaconf import OmegaConf
from pydantic import BaseModel, ValidationError

from agentevolver.config import removed
from agentevolver.config.load import compose_defaults, refuse_unknown
from agentevolver.config.reference import sections
from agentevolver.config.schema import Settings
from agentevolver.config.trees import FREE_FORM, nested, paths, select
from agentevolver.utils.errors import ConfigError
from agentevolver.utils.recipes import FOLDER

ROOT = Path(__file__).parents[3]
KEYS = [key for section in sections() for key in section.keys]
PACKAGES = ("agentevolver", "task_manager", "experience_manager", "advantage_processor", "context_manager")
# Names of several keys: who reads one of them is looked for among the modules that know its section.
SHARED = {name for name, count in Counter(key.name for key in KEYS).items() if count > 1}
# Of these, the ones that are read by a property of their own model.
PROPERTIES = {"llm.api_key_env": "key_variable", "llm.teacher.malformed": "rates"}
# Read before the models are made.
READ_BEFORE = {"exp_manager.preset", "attribution_driven_credit_assignment.evaluation_type"}
# Read by the backend of a recipe, whose folder may be removed.
if not FOLDER.is_dir():
    READ_BEFORE.add("exp_manager.reme.base_url")


@pytest.fixture(scope="module")
def cpu():
    return compose_defaults("cpu")


@pytest.fixture(scope="module")
def modules():
    """The attributes that each module of ours loads, and the names that it imports or has; checks are no readers."""
    found = {}
    for path in (path for folder in PACKAGES for path in (ROOT / folder).rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        loaded = {n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)}
        imported = {alias.name for n in nodes if isinstance(n, ast.ImportFrom) for alias in n.names}
        found[path.relative_to(ROOT).as_posix()] = loaded, imported | {n.id for n in nodes if isinstance(n, ast.Name)}
    del found["agentevolver/config/checks.py"]
    return found


def is_read(modules, key):
    """Whether a key's name is accessed; one that several keys have, in a module that mentions its section or model."""
    name = PROPERTIES.get(key.path, key.name)
    readers = [module for module, (loaded, _) in modules.items() if name in loaded]
    if key.name not in SHARED or key.path in PROPERTIES:
        return bool(readers)
    section = key.path.rpartition(".")[0].rpartition(".")[2]
    known = {one.__name__ for one in key.model.__mro__ if key.name in getattr(one, "model_fields", ())}
    return any(f"/{section}/" in one or section in modules[one][0] or known & modules[one][1] for one in readers)


@pytest.mark.thorough
def test_every_key_is_read_by_code(modules):
    assert [key.path for key in KEYS if key.path not in READ_BEFORE and not is_read(modules, key)] == []


@pytest.mark.thorough
def test_an_unknown_key_is_refused_in_every_section_at_every_depth(cpu):
    whole = OmegaConf.to_container(cpu, resolve=False)
    free = [f"{name}." for name in FREE_FORM]
    places = ["", *(path for path in paths(whole) if isinstance(select(whole, path), dict) and select(whole, path))]
    closed = [place for place in places if not f"{place}.".startswith(tuple(free))]
    assert len(closed) > 100 and max(place.count(".") for place in closed) >= 3
    for place in closed:
        path = f"{place}.no_such_key".lstrip(".")
        with pytest.raises(ConfigError, match=re.escape(f"unknown key `{path}`")):
            refuse_unknown(nested(path, 1), cpu, "mine.yaml")


def test_a_misspelt_key_is_told_its_name_and_a_section_takes_no_value(cpu):
    with pytest.raises(
        ConfigError, match=r"^x: unknown key `trainer.dump_sample`, did you mean `trainer\.dump_samples`"
    ):
        refuse_unknown({"trainer": {"dump_sample": True}}, cpu, "x")
    for section in (section.path for section in sections() if section.path and select(cpu, section.path) is not None):
        with pytest.raises(ConfigError, match=re.escape(f"`{section}` is a section, write {section}.<key>")):
            refuse_unknown(nested(section, 1), cpu, "x")


def models(model, found):
    """Every model of the configuration, those inside lists and mappings included."""
    found.append(model)
    for field in model.model_fields.values():
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel) and kind not in found:
                models(kind, found)
    return found


def test_no_model_takes_a_key_that_it_does_not_know_or_another_value_later():
    for model in models(Settings, []):
        if model.model_config.get("extra") == "allow":
            continue
        assert model.model_config.get("extra") == "forbid" and model.model_config.get("frozen") is True
        with pytest.raises(ValidationError, match="no_such_key"):
            model.model_validate({"no_such_key": 1})


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("task_manager.grader.samples", "it is fixed at 3; remove it"),
        ("old.section.key", "it is now `new.place.section.key`"),
        ("elsewhere", None),
    ],
)
def test_a_key_that_left_says_what_to_do(key, words, monkeypatch, cpu):
    monkeypatch.setitem(removed.table()["renamed"], "old", "new.place")
    assert removed.explanation(key) == words
    if words is not None and key != "old.section.key":
        with pytest.raises(ConfigError, match=re.escape(f"mine: unknown key `{key}`: {words}")):
            refuse_unknown(nested(key, 1), cpu, "mine")


def test_no_key_that_left_is_known(cpu):
    known = set(paths(OmegaConf.to_container(cpu, resolve=False)))
    assert not known & {*removed.table()["removed"], *removed.table()["renamed"]}
