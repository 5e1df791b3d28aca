"""Token limits and parameters that follow from an environment's openings (the first messages of its episodes).

A subprocess, `python -m agentevolver.evaluation.openings`, opens tasks and counts the tokens, because importing an
environment may run anything and the tokenizer's library takes seconds.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from omegaconf import OmegaConf

from agentevolver.config.checks import Resolved, load
from agentevolver.config.layers import Layer, read_layers, written
from agentevolver.config.load import resolved_tree
from agentevolver.config.model import (
    LENGTHS,
    PATH,
    STEPS,
    cpu_step_bytes,
    defaults_of,
    lengths_of,
    ram_bytes,
    read_model,
)
from agentevolver.config.schema import Settings

MODULE = "agentevolver.evaluation.openings"
TIMEOUT_S = 180.0
VERBOSE = "verbose"
# Context of a chat model behind an API, whose own is not known.
API_CONTEXT = 32768
CHARS_PER_TOKEN = 3
# Assumed turns of an episode, and the tokens of a turn, in the estimate of a step.
TURNS, TURN_TOKENS = 4, 40
# Multiply-adds of a training token over those that a large bfloat16 product reaches: measured with 135 M and 0.5 B.
EFFICIENCY = 0.5


@dataclass(frozen=True)
class MeasuredOpenings:
    """Openings of the chosen tasks: how many, the longest in tokens, and what this machine computes."""

    openings: int
    longest: int
    verbose: tuple[str, ...] = ()
    """Environments that write for a language model if they are given `verbose: true`."""
    gflops: float = 0.0
    """Of one core, in bfloat16."""


def load_measured(
    conf: Path | None,
    overrides: Sequence[str],
    *,
    modules: Sequence[str] = (),
    url: str | None = None,
    api: bool = False,
) -> Resolved:
    """Load a configuration. Unless a recipe supplies the model, derive missing token limits from the environment's
    openings.

    Args:
        modules: `NAME=package.module:Class` of unregistered environments.
        url: environment service that runs; None: the environments are opened here.
        api: a chat model behind an API plays, so no tokenizer is known.

    Raises:
        ConfigError, UsageError: one line that says what to change.
    """
    layers = read_layers(conf, overrides)
    fetch_config(written(layers, PATH))
    first = load(conf, list(overrides))
    if first.model is None and not api:
        return first
    given = {key: int(value) for key in LENGTHS if (value := written(layers, key)) is not None}
    if len(given) == len(LENGTHS) and _says_verbose(first.settings):
        return replace(first, derived=_told_sizes(first, layers))
    found = _measure(first, modules, url, plain=api)
    if isinstance(found, str):
        problem = f"WARNING: the limits are those of a large model on GPUs, the openings cannot be measured: {found}"
        return replace(first, derived=(*_told_sizes(first, layers), problem))
    guidance = first.settings.exp_manager
    lengths = lengths_of(
        found.longest,
        API_CONTEXT if first.model is None else first.model.context,
        first.device,
        given,
        steps=30 if api else first.settings.rollout.max_steps,
        guidance=guidance.retrieval.max_chars // CHARS_PER_TOKEN if guidance.guides else 0,
    )
    measured: dict[str, Any] = {**lengths, **with_verbose(first.settings, found.verbose)}
    if api and written(layers, STEPS) is None:
        measured[STEPS] = 30
    told = [f"derived from {found.openings} openings of up to {found.longest} tokens:", *_keys(measured)]
    resolved = load(conf, list(overrides), measured)
    return replace(resolved, derived=(*_told_sizes(resolved, layers), *told, *_estimate(resolved, found)))


def fetch_config(name: str | None) -> None:
    """Fetch `config.json` of a model on the hub, which says its sizes. Without the hub nothing happens."""
    if name is None or "${" in name or name.count("/") != 1 or Path(name).exists():
        return
    if read_model(name) is not None:
        return
    from huggingface_hub import constants, hf_hub_download

    with suppress(Exception):  # any of the hub's and of the network's; the launch says what it needs
        # The hub's client tries for half a minute where there is no network at all.
        if not getproxies():
            socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, 443)
        hf_hub_download(name, "config.json", etag_timeout=5)


def _told_sizes(resolved: Resolved, layers: Sequence[Layer]) -> tuple[str, ...]:
    if resolved.model is None:
        return ()
    lora = bool(written(layers, "actor_rollout_ref.model.lora_rank"))
    derived = defaults_of(resolved.model, resolved.device, lora=lora)
    left = {key: OmegaConf.select(resolved.config, key) for key in derived if written(layers, key) is None}
    return (f"derived from {resolved.model.describe()}:", *_keys(left))


def _keys(values: Mapping[str, Any]) -> Iterable[str]:
    return (f"    {key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in values.items())


def _says_verbose(settings: Settings) -> bool:
    return all(VERBOSE in one.env_params for one in settings.environments)


def with_verbose(settings: Settings, names: Sequence[str]) -> dict[str, Any]:
    """Return `verbose` parameters, by dotted key, for the environments `names`: their texts then suit a language
    model."""
    if not settings.env_service.is_mixture:
        return {f"env_service.env_params.{VERBOSE}": True} if names else {}
    return {
        f"env_service.environments.{one.env_type}.env_params": {**one.env_params, VERBOSE: True}
        for one in settings.environments
        if one.env_type in names
    }


def _estimate(resolved: Resolved, found: MeasuredOpenings) -> list[str]:
    """Return the estimated seconds and memory of a step on a CPU."""
    model, sizes = resolved.model, resolved.settings.sizes
    if model is None or resolved.device != "cpu":
        return []
    rows = sizes.train_batch_size * sizes.n
    tokens = rows * (found.longest + TURNS * TURN_TOKENS)
    cores = len(os.sched_getaffinity(0))
    speed = found.gflops * 1e9 * EFFICIENCY * cores / (2 * model.size.parameters)
    # An update is three forward passes, the old log-probs and the prefill of vLLM one each; replies are single tokens.
    seconds = tokens * 5 / speed + rows * TURNS * TURN_TOKENS * 2 / speed
    checkpointed = bool(resolved.config.actor_rollout_ref.model.enable_gradient_checkpointing)
    memory = cpu_step_bytes(model, 2048, checkpointed=checkpointed)
    return [
        f"estimated: {seconds:,.0f} s a step on {cores} cores ({rows} rollouts of {found.longest} + {TURNS} x "
        f"{TURN_TOKENS} tokens, {found.gflops:,.0f} GFLOP/s a core), {memory / (1 << 30):.1f} of "
        f"{ram_bytes() / (1 << 30):.1f} GiB"
    ]


def _measure(resolved: Resolved, modules: Sequence[str], url: str | None, *, plain: bool) -> MeasuredOpenings | str:
    """Return the subprocess's measurements, or the reason for its failure as text."""
    request = {"config": resolved_tree(resolved.config), "modules": list(modules), "url": url, "plain": plain}
    command = [sys.executable, "-m", MODULE]
    try:
        done = subprocess.run(
            command, input=json.dumps(request), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"the environment takes more than {TIMEOUT_S:g} s"
    if done.returncode != 0:
        return (done.stderr.strip().splitlines() or ["without output"])[-1]
    answer = json.loads(done.stdout.splitlines()[-1])
    if "problem" in answer:
        return str(answer["problem"])
    return MeasuredOpenings(**{**answer, "verbose": tuple(answer["verbose"])})
