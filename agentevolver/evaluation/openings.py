"""`python -m agentevolver.evaluation.openings`: open an environment's tasks and count the tokens of the openings.

Reads `{"config", "modules", "url", "plain"}` on stdin. The last line of stdout is a `MeasuredOpenings`, or
`{"problem": text}`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from typing import Any

from omegaconf import DictConfig, OmegaConf

from agentevolver.config.checks import from_config
from agentevolver.config.openings import VERBOSE, MeasuredOpenings, with_verbose
from agentevolver.config.schema import Settings
from agentevolver.evaluation.worlds import open_world
from agentevolver.rollout.policy import plain_renderer
from agentevolver.trainer.job.openings import chosen, kinds, lengths, make_renderer
from agentevolver.utils.errors import ConfigError, LaunchError
from task_manager.tasks import environment_tasks


async def _openings(config: DictConfig, modules: Sequence[str], url: str | None, *, plain: bool) -> MeasuredOpenings:
    settings = from_config(config)
    renderer = plain_renderer() if plain else make_renderer(config)
    found: list[int] = []
    verbose: list[str] = []
    async with open_world(settings.env_service.env_types, modules, url) as world:
        for one in settings.environments:
            tasks = []
            if one.weight > 0 and not plain:
                tasks += await environment_tasks(world, one.env_type, one.train_split, params=dict(one.train_filter))
            for split in one.val_splits:
                filtered = dict(one.val_filter)
                tasks += await environment_tasks(world, one.env_type, split, validation=True, params=filtered)
            if settings.task_manager.makes_tasks and one.env_type in settings.questioned:
                tasks += [replace(task, open_query=True) for task in tasks if not task.is_validation]
            asked = [task for kind in kinds(tasks) for task in chosen(kind)]
            if VERBOSE not in one.env_params and asked:
                explained = _explained(config, one.env_type)
                try:
                    found += await lengths(world, explained, asked, renderer)
                    verbose.append(one.env_type)
                    continue
                except ConfigError:
                    pass  # it has no such parameter; another refusal comes again below
            found += await lengths(world, settings, asked, renderer)
    if not found:
        raise ConfigError("the environment lists no task")
    return MeasuredOpenings(len(found), max(found), tuple(verbose), _gflops())


def _explained(config: DictConfig, env_type: str) -> Settings:
    copy: DictConfig = OmegaConf.create(OmegaConf.to_container(config, resolve=False))  # type: ignore[assignment]
    for key, value in with_verbose(from_config(config), [env_type]).items():
        OmegaConf.update(copy, key, value, force_add=True)
    return from_config(copy)


def _gflops() -> float:
    """Measure the bfloat16 products of one core, in GFLOP/s."""
    import torch

    torch.set_num_threads(1)
    left, right = torch.randn(512, 1024).bfloat16(), torch.randn(1024, 4096).bfloat16()
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        left @ right
        best = min(best, time.perf_counter() - began)
    return 2 * 512 * 1024 * 4096 / best / 1e9


def main() -> int:
    request = json.load(sys.stdin)
    answer: dict[str, Any]
    with redirect_stdout(sys.stderr):
        try:
            config: DictConfig = OmegaConf.create(request["config"])
            answer = asdict(asyncio.run(_openings(config, request["modules"], request["url"], plain=request["plain"])))
        except (ConfigError, LaunchError, OSError, ValueError) as error:
            answer = {"problem": " ".join(str(error).split())}
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
