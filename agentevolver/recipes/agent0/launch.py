"""What rounds add to a launch: the server of frozen policies, the environment `propose`, the main job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentevolver.config import devices
from agentevolver.config.schema import Settings
from agentevolver.launcher.options import DEFAULT_TARGET
from agentevolver.launcher.stack import Launch, Services, player_service
from agentevolver.recipes.agent0.settings import PROPOSE_ENV, ExecutorSettings, settings_of
from agentevolver.utils.recipes import written


def layer(device: str, layers: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the number of GPUs for training: those that the frozen policies' server leaves, at least 1."""
    if device != "cuda" or not written(layers, "recipes.agent0.enable"):
        return None
    own = written(layers, "recipes.agent0.executor.gpus")
    frozen = ExecutorSettings().gpus if own is None else int(own)
    return {"trainer": {"n_gpus_per_node": max(1, devices.visible_gpus() - frozen)}}


def serves(settings: Settings) -> Sequence[str]:
    return (PROPOSE_ENV,) if settings_of(settings).enable else ()


def main(settings: Settings) -> str | None:
    return "agentevolver.recipes.agent0" if settings_of(settings).enable else None


def frozen_gpus(section: Mapping[str, Any]) -> int | None:
    return int(section["executor"]["gpus"]) if section["enable"] else None


def services(launch: Launch) -> Services | None:
    """Return the server of frozen policies; its own GPUs, if any, are the last visible ones."""
    section = settings_of(launch.settings)
    if not section.enable or launch.target in (None, DEFAULT_TARGET):
        return None
    gpus, split = section.executor.gpus, None
    if launch.settings.device != "cpu":
        split = devices.gpus_of(gpus, int(launch.config.trainer.n_gpus_per_node))
    url, spec = player_service(
        section.url,
        launch.folder / "config.yaml",
        "recipes.agent0.url",
        gpus if split is not None else 0,
        logs=launch.logs,
        env={} if split is None else {"CUDA_VISIBLE_DEVICES": split[1]},
    )
    told = {"recipes": {"agent0": {"url": url}}}
    return Services((spec,), told, {} if split is None else {"CUDA_VISIBLE_DEVICES": split[0]})
