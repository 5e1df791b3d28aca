"""Every key is described and read by code, every other one is refused, and the page says what is so."""

import ast
import re
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from pydantic import ValidationError

import agentevolver.config.reference as command
from agentevolver.config.checks import load
from agentevolver.config.load import compose_defaults, compose_verl, read_yaml, refuse_unknown
from agentevolver.config.reference import (
    COMMAND,
    PAGE,
    ROOT,
    at,
    main,
    models,
    nested,
    our_paths,
    sections,
    sizes,
    values_of,
    verl_keys,
)
from agentevolver.config.trees import FREE_FORM, paths
from agentevolver.errors import ConfigError

EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
OURS = [key for section in sections() for key in section.keys]
MENTION = re.compile(r"""\.(\w+)|["']([\w-]+)["']|^\s+(\w+)\s*:""", re.MULTILINE)
PACKAGES = ("agentevolver", "task_manager", "experience_manager", "advantage_processor", "context_manager")
# Names of several keys: who reads one of them is looked for among the modules that know its section.
SHARED = {name for name, count in Counter(key.name for key in OURS).items() if count > 1}
# Of these, the ones that are read by a property of their own model.
PROPERTIES = {"llm.api_key_env": "key_variable", "llm.teacher.malformed": "rates"}
# Read before the models are made.
READ_BEFORE = {"exp_manager.preset", "attribution_driven_credit_assignment.evaluation_type"}


def tree(config):
    return OmegaConf.to_container(config, resolve=False)


@pytest.fixture(scope="module")
def modules():
    """The names that each module of our own code accesses as attributes, and those that it imports or has; the checks
    are no readers."""
    found = {}
    for folder in PACKAGES:
        for path in (ROOT / folder).rglob("*.py"):
            nodes = list(ast.walk(ast.parse(path.read_text())))
            loaded = {n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)}
            imported = {alias.name for n in nodes if isinstance(n, ast.ImportFrom) for alias in n.names}
            named = imported | {n.id for n in nodes if isinstance(n, ast.Name)}
            found[path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")] = loaded, named
    del found["agentevolver.config.checks"]
    return found


@pytest.fixture(scope="module")
def cpu():
    return compose_defaults("cpu")


@pytest.fixture(scope="module")
def read_names():
    """The names that Python files of verl, its TransferQueue or ours mention as an attribute, an item or a declared
    field."""
    installed = [Path(find_spec(name).submodule_search_locations[0]) for name in ("verl", "transfer_queue")]
    folders = [*installed, *(ROOT / name for name in ("agentevolver", "task_manager"))]
    sources = (path.read_text(errors="replace") for folder in folders for path in folder.rglob("*.py"))
    return {name for source in sources for found in MENTION.finditer(source) for name in found.groups() if name}


# -- the page
# -----------------------------------------------------------------------------------------------------------------


def test_the_page_is_what_the_settings_and_the_source_say(tmp_path):
    assert main(["--out", str(tmp_path / "fresh.md")]) == 0
    fresh = (tmp_path / "fresh.md").read_text(encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == fresh, (
        f"{PAGE.relative_to(ROOT)} is out of date: run `{COMMAND}` and commit it"
    )


def test_the_page_may_go_to_the_console(monkeypatch, capsys):
    monkeypatch.setattr(command, "page", lambda: "# Configuration\n")
    assert main(["--out", "-"]) == 0 and capsys.readouterr().out == "# Configuration\n"


def test_every_key_is_on_the_page_once_with_a_meaning():
    text = PAGE.read_text(encoding="utf-8")
    for section in sections():
        for key in section.keys:
            assert key.field.description, key.path
            block = text.split(f"`{section.path}`\n")[1] if section.path else text.split("## Single keys\n")[1]
            row = f"| `{key.path.removeprefix(f'{section.path}.')}` |"
            assert block.split("\n## ")[0].split("\n### ")[0].count(row) == 1, key.path


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("trainer.max_failed_rollouts", "number ≥ 0 and ≤ 1"),
        ("exp_manager.scout.tasks", "integer ≥ 1 or null"),
        ("attribution_driven_credit_assignment.attributor", "`llm`, `gigpo`, `env`"),
        ("task_manager.grader.compare_with", "`env`, `state`, `state-llm`, `llm`"),
        ("llm.cache", "`false`, path or null"),
        ("llm.ledger", "path or null"),
        ("data.val_splits", "list"),
        ("llm.roles", "mapping"),
        ("trainer.dump_samples", "true, false"),
    ],
)
def test_what_may_be_written_is_told_in_words(path, words):
    (key,) = [key for key in OURS if key.path == path]
    assert values_of(key.field).startswith(words)


# -- what is accepted is read
# ---------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_every_key_of_ours_is_read_by_code(modules):
    unread = [key.path for key in OURS if key.path not in READ_BEFORE and not is_read(modules, key)]
    assert not unread, f"nobody reads {unread}"
    inner = [
        (model, name) for model in models() for name, field in model.model_fields.items() if nested(field.annotation)
    ]
    assert not [f"{model.__name__}.{name}" for model, name in inner if name != "sizes" and not readers(modules, name)]


def test_the_keys_that_are_read_before_there_is_a_model_change_what_is_composed():
    actor = "actor_rollout_ref.actor.policy_loss.loss_mode"
    paper, usual = (
        load(None, ["device=cpu", f"exp_manager.preset={preset}"]).config for preset in ("paper", "default")
    )
    assert OmegaConf.select(paper, actor) == "trajectory" != OmegaConf.select(usual, actor)
    with pytest.raises(ConfigError, match="evaluation_type = api means attributor = llm"):
        load(
            None,
            [
                "device=cpu",
                *(
                    f"attribution_driven_credit_assignment.{item}"
                    for item in ("evaluation_type=api", "attributor=gigpo")
                ),
            ],
        )


@pytest.mark.thorough
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_defaults_hold_no_key_that_is_neither_ours_nor_verls(device, read_names):
    composed, verl = tree(compose_defaults(device)), set(paths(tree(compose_verl())))
    added = [path for path in paths(composed) if path not in verl and path not in our_paths()]
    strange = [path for path in added if not any(path.startswith(f"{free}.") or path == free for free in FREE_FORM)]
    assert set(strange) <= {
        "actor_rollout_ref.rollout.agent.agent_loop_manager_class",
        "actor_rollout_ref.rollout.enable_sleep_mode",
    }
    for path in strange:
        assert reads(read_names, path), path


def test_what_we_set_of_verls_is_read_by_verl(cpu, read_names):
    verl = tree(compose_verl())
    keys = verl_keys(tree(compose_defaults("cuda")), tree(cpu), verl, {key.path for key in sizes().keys})
    free = [path for path in keys if any(path.startswith(f"{name}.") for name in FREE_FORM)]
    assert len(keys) > 50
    assert not [path for path in keys if path not in free and not reads(read_names, path)]


@pytest.mark.parametrize("conf", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_every_key_of_an_example_is_read_by_code(conf, modules, read_names):
    layer, verl = read_yaml(conf), set(paths(tree(compose_verl())))
    ours = {key.path: key for key in OURS}
    for path in paths(layer):
        if isinstance(at(layer, path), dict) and at(layer, path) and path not in ours:
            continue
        if any(path.startswith(f"{free}.") for free in FREE_FORM):
            continue
        if path == "device":  # which group is composed; the composition refuses a name that is none
            continue
        if path in ours:
            assert path in READ_BEFORE or is_read(modules, ours[path]), path
        else:
            assert path in verl and reads(read_names, path), path


def readers(modules, name):
    """The modules that access a field's name, be it in a property of its own model."""
    return [module for module, (loaded, _) in modules.items() if name in loaded]


def is_read(modules, key):
    """Whether a key's name is accessed; one that several keys have, in a module that mentions its section or model."""
    if key.name not in SHARED or key.path in PROPERTIES:
        return bool(readers(modules, PROPERTIES.get(key.path, key.name)))
    section = key.path.rpartition(".")[0].rpartition(".")[2]
    known = {one.__name__ for one in key.model.__mro__ if key.name in getattr(one, "model_fields", ())}
    return any(section in modules[one][0] or known & modules[one][1] for one in readers(modules, key.name))


def reads(names, path):
    """Whether a key's own name is among those that sources mention."""
    return path.rpartition(".")[2] in names


# -- what is not known is refused
# -------------------------------------------------------------------------------------------------


def places(config):
    """Every section of the composed configuration, verl's included, that takes no keys of others."""
    whole = tree(config)
    return [
        path for path in ["", *paths(whole)] if path == "" or (isinstance(at(whole, path), dict) and at(whole, path))
    ]


def layer_of(path, value):
    for part in reversed(path.split(".")):
        value = {part: value}
    return value


def is_free(path):
    return any(path == free or path.startswith(f"{free}.") for free in FREE_FORM)


@pytest.mark.thorough
def test_an_unknown_key_is_refused_in_every_section_at_every_depth(cpu):
    closed = [place for place in places(cpu) if not is_free(place)]
    assert len(closed) > 100 and max(place.count(".") for place in closed) >= 3
    for place in closed:
        path = f"{place}.no_such_key" if place else "no_such_key"
        with pytest.raises(ConfigError, match=re.escape(f"unknown key `{path}`")) as caught:
            refuse_unknown(layer_of(path, 1), cpu, "mine.yaml")
        assert "\n" not in str(caught.value)


@pytest.mark.thorough
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_misspelt_key_of_ours_is_refused_in_one_line_that_names_it(cpu, data):
    path = data.draw(st.sampled_from([key.path for key in OURS if not is_free(key.path)]))
    at_letter = data.draw(st.integers(path.rfind(".") + 1, len(path) - 1))
    wrong = data.draw(
        st.sampled_from(
            [path[:at_letter] + path[at_letter + 1 :], path[:at_letter] + "x" + path[at_letter:], path + "_"]
        )
    )
    known = set(paths(tree(cpu)))
    if wrong in known or wrong.endswith("."):
        return
    with pytest.raises(ConfigError) as caught:
        refuse_unknown(layer_of(wrong, 1), cpu, "the command line")
    assert str(caught.value).startswith(f"the command line: unknown key `{wrong}`") and "\n" not in str(caught.value)


@pytest.mark.thorough
@settings(max_examples=30, deadline=None)
@given(
    path=st.sampled_from([section.path for section in sections() if section.path]),
    value=st.one_of(st.integers(), st.text(), st.none()),
)
def test_a_value_in_the_place_of_a_section_is_refused(cpu, path, value):
    with pytest.raises(ConfigError, match=re.escape(f"`{path}` is a section, write {path}.<key>")):
        refuse_unknown(layer_of(path, value), cpu, "mine.yaml")


@pytest.mark.parametrize(
    "model",
    [model for model in models() if model.model_config.get("extra") != "allow"],
    ids=lambda model: model.__name__,
)
def test_no_model_takes_a_key_that_it_does_not_know(model):
    assert model.model_config.get("extra") == "forbid" and model.model_config.get("frozen") is True
    with pytest.raises(ValidationError, match="no_such_key"):
        model.model_validate({"no_such_key": 1})


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("llm.roles.judge.no_such_key=1", "no_such_key"),
        ("llm.roles.judge.sampling.no_such_key=1", "unknown sampling parameter 'no_such_key'"),
        ("llm.sampling.no_such_key=1", "unknown sampling parameter 'no_such_key'"),
        ("llm.roles.nobody.model=x", "llm.roles"),
    ],
)
def test_mappings_whose_keys_we_read_are_checked_by_their_models(override, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load(None, ["device=cpu", override])
    assert "\n" not in str(caught.value)
