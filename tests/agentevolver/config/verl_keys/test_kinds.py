"""The kinds that are read in verl's source are those of the dataclasses that verl makes."""

import subprocess
import sys
import types
import typing
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from agentevolver.config.load import compose_defaults, paths
from agentevolver.config.verl_keys.kinds import Kind, fields_of, kind_of

BASIC = Path(__file__).parents[4] / "examples" / "basic.yaml"
NAMES = {int: "int", float: "float", str: "str", bool: "bool", dict: "mapping", list: "list", tuple: "list"}


def seen(hint):
    """The kind of a type at run time: (names, null); None for any value."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        parts = [seen(part) for part in typing.get_args(hint) if part is not type(None)]
        null = type(None) in typing.get_args(hint)
        return None if None in parts else (frozenset().union(*(names for names, _ in parts)), null)
    if origin is typing.Literal:
        return frozenset(NAMES[type(value)] for value in typing.get_args(hint)), False
    kind = origin or hint
    if kind is typing.Any or not isinstance(kind, type):
        return None
    return frozenset({NAMES.get(kind, "mapping")}), False


def targets():
    config = compose_defaults("cuda")
    tree = OmegaConf.to_container(config, resolve=False)
    return sorted(
        {OmegaConf.select(config, path, throw_on_missing=False) for path in paths(tree) if path.endswith("_target_")}
    )


@pytest.mark.parametrize("target", targets())
def test_a_dataclass_that_is_read_in_source_has_the_fields_that_it_has(target):
    module, _, name = target.rpartition(".")
    model = getattr(import_module(module), name)
    hints, found = typing.get_type_hints(model), fields_of(name)
    assert {field.name for field in fields(model)} <= set(found)
    for field in fields(model):
        kind = found[field.name]
        assert (kind.names, kind.null) == (seen(hints[field.name]) or (frozenset(), kind.null)), (
            f"{target}.{field.name}"
        )


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("actor_rollout_ref.actor.optim.lr", Kind.of("float")),
        ("actor_rollout_ref.actor.optim.betas", Kind.of("list", items=Kind.of("float"))),
        ("actor_rollout_ref.rollout.max_model_len", Kind.of("int", null=True)),
        ("actor_rollout_ref.actor.checkpoint.save_contents", Kind.of("list", items=Kind.of("str"))),
        ("algorithm.rollout_correction.rollout_is_threshold", Kind.of("float", "str")),
        ("trainer.total_epochs", Kind.of("int")),
        ("data.shuffle", Kind.of("bool")),
        ("trainer.total_training_steps", None),
        ("no.such.key", None),
    ],
)
def test_the_kind_of_a_key(path, expected):
    assert kind_of(path, compose_defaults("cuda")) == expected


@pytest.mark.parametrize(
    ("kind", "taken", "refused"),
    [
        (Kind.of("int"), [0, -3], [1.0, True, "1", None, [1]]),
        (Kind.of("float"), [0.5, 3, float("inf")], [float("nan"), False, "0.5", None]),
        (Kind.of("bool"), [True, False], [0, 1, "true"]),
        (Kind.of("str", null=True), ["x", "", None], [3, ["x"]]),
        (Kind.of("list", items=Kind.of("float")), [[], [1, 0.5]], [[None], ["x"], 1, {"a": 1}]),
        (Kind.of("mapping"), [{}, {"a": 1}], [[], "x"]),
        (Kind(), [None, 1, "x", [1]], []),
    ],
)
def test_what_a_kind_takes(kind, taken, refused):
    assert (
        [value for value in taken if not kind.takes(value)] == [] == [value for value in refused if kind.takes(value)]
    )


@pytest.mark.thorough
def test_typed_overrides_cost_no_import_of_torch_and_little_time():
    overrides = [
        "device=cuda",
        "actor_rollout_ref.actor.optim.lr=1e-5",
        "actor_rollout_ref.rollout.seed=3",
        "trainer.save_freq=5",
    ]
    code = (
        "import sys, pathlib, time; from agentevolver.config.checks import load; from agentevolver.config.load import "
        "compose_defaults;"
        "compose_defaults('cuda'); began = time.process_time();"
        f"load(pathlib.Path({str(BASIC)!r}), {overrides!r}); print(time.process_time() - began);"
        "print([m for m in ('torch', 'ray', 'verl', 'vllm') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=BASIC.parents[1]
    )
    seconds, modules = done.stdout.split("\n", 1)
    assert modules.strip() == "[]" and float(seconds) < 2
