"""Builds a seed policy for your own environment from demonstrations: `python -m agentevolver.recipes.offline.seed --env
my_world.env:MyWorldEnv --demos my_world/demos.jsonl`."""

from __future__ import annotations

import argparse
import json
import logging
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentevolver.recipes.offline.seed.demonstrations import (
    DemonstrationError,
    PlayedTask,
    described,
    played,
    read_demonstrations,
)
from env_service.base import BaseEnv

# A lower mean score of the demonstrations gets a warning.
LEAST_SCORE = 0.05


class BuildError(Exception):
    """A policy cannot be built; the message is one line."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    try:
        _build(options)
    except (BuildError, DemonstrationError) as error:
        print(f"seed: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m agentevolver.recipes.offline.seed",
        description="Build a tiny policy for a world of your own, by imitation, in minutes on a CPU.",
    )
    add = parser.add_argument
    add("--env", required=True, metavar="PKG.MOD:CLASS", help="the world's class")
    add("--demos", type=Path, required=True, metavar="FILE", help='a line: {"task_id": "...", "actions": ["...", ...]}')
    add("--out", type=Path, metavar="DIR", help="folder to write; `policy` beside the demonstrations unless given")
    add("--env-params", type=_object, default={}, metavar="JSON", help="what the world is created with (env_params)")
    add("--split", default="dev", help="what the policy is measured on; tasks of it should not be demonstrated")
    add("--steps", type=_positive, help="training steps")
    add("--seed", type=int, default=0)
    return parser


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object")
    return value


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return number


def _build(options: argparse.Namespace) -> None:
    demonstrations = read_demonstrations(options.demos)
    world = _world(options.env)
    out = options.out or options.demos.parent / "policy"
    _check_folder(out)
    shown = [played(world, one, options.env_params) for one in demonstrations]
    tasks = _tasks(world, options.split)
    _tell(shown, {one.task_id for one in demonstrations}, options.split, tasks)

    import torch
    from transformers.utils import logging as transformers_logging

    from agentevolver.recipes.offline.seed.own_world import RECIPE, build, measure, sizes_of
    from agentevolver.recipes.offline.seed.training import write_facts

    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    recipe = replace(RECIPE, steps=options.steps or RECIPE.steps)
    told = {"--env": options.env, "--demos": options.demos, "--seed": options.seed, "--steps": recipe.steps}
    words = [str(word) for option in told.items() for word in option]
    command = shlex.join(["python", "-m", "agentevolver.recipes.offline.seed", *words])
    model, tokenizer, facts = build(out, shown, seed=options.seed, recipe=recipe, command=command)
    print(
        f"{out}: {facts['parameters'] / 1e6:.1f} M parameters, {facts['tokens']} tokens, "
        f"{facts['train_cpu_seconds']} cpu seconds"
    )
    sizes = sizes_of(tokenizer, shown)
    if world.isolation == "isolated":
        print(f"not measured: {options.env} executes what the policy writes, and only the service isolates that")
    else:
        try:
            score = measure(model, tokenizer, world, tasks, sizes, seed=options.seed, params=options.env_params)
        except Exception as error:
            raise BuildError(
                f"the policy is in {out}, but could not be measured: the world raised {described(error)}"
            ) from error
        facts[f"score on {options.split}"] = round(score, 4)
        write_facts(out, facts)
        print(f"score on {options.split}, sampled at temperature 1: {score:.3f}")
    print(f"a run needs at least: actor_rollout_ref.model.path={out}")
    for key, value in sizes.keys().items():
        print(f"    {key}={value}")


def _world(spec: str) -> type[BaseEnv]:
    from env_service.registry import RegistryError, load

    try:
        return load(spec)
    except RegistryError as error:
        raise BuildError(f"--env: {error}") from error
    except Exception as error:
        raise BuildError(f"--env {spec} cannot be imported: {described(error)}") from error


def _check_folder(out: Path) -> None:
    try:
        if any(out.iterdir()) and not (out / "build.json").is_file():
            raise BuildError(f"--out {out}: the folder holds other things than a seed policy; name another one")
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        raise BuildError(f"--out {out} is not a folder") from error


def _tasks(world: type[BaseEnv], split: str) -> list[str]:
    try:
        return world.get_query_list(split)
    except Exception as error:
        raise BuildError(f"--split {split}: the world cannot list it: {described(error)}") from error


def _tell(shown: Sequence[PlayedTask], demonstrated: set[str], split: str, measured: Sequence[str]) -> None:
    mean = sum(one.score for one in shown) / len(shown)
    print(f"{len(shown)} demonstrations of {len(demonstrated)} tasks, mean score {mean:.3f}")
    if mean < LEAST_SCORE:
        print("warning: hardly any demonstration succeeds, and a policy that imitates them will not either")
    if known := demonstrated & set(measured):
        print(f"warning: tasks of {split} are demonstrated ({len(known)}): its score says little about new tasks")


if __name__ == "__main__":
    sys.exit(main())
