"""Players of an evaluation: a policy in vLLM, or a chat model behind an API.

Both play the same rollouts as in training: templates, limits, flows and graders. A run's checkpoint plays with the
run's own configuration, so its scores are comparable with the run's validation.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from agentevolver.config.checks import from_config
from agentevolver.config.layers import quoted, read_overrides
from agentevolver.config.load import resolved_tree
from agentevolver.config.model import PATH
from agentevolver.config.openings import load_measured
from agentevolver.config.overlay import check_overlay, flat, laid_over
from agentevolver.config.schema import Settings
from agentevolver.evaluation import serving
from agentevolver.evaluation.export.source import Source, tokenizer_folder
from agentevolver.llm import LLM, LLMSettings, Role
from agentevolver.rollout.attempt import RolloutPolicy
from agentevolver.rollout.flows import flow_chooser
from agentevolver.rollout.policy import LLMEngine, plain_renderer, role_summariser
from agentevolver.rollout.rollout import RolloutRunner
from agentevolver.rollout.tool_calls import ToolUse
from agentevolver.trainer.job.frozen_engine import sampling_of
from agentevolver.utils import recipes
from agentevolver.utils.errors import ConfigError, UsageError
from agentevolver.utils.ownership import refuse_orders
from agentevolver.utils.turn_ends import disagreement
from context_manager.chat import ChatRenderer
from context_manager.registry import checked_template

# The role whose model acts in an environment.
ACTING = Role.EXPLORER
QUIET = {
    **{"VLLM_LOGGING_LEVEL": "ERROR", "TRANSFORMERS_VERBOSITY": "error", "TORCH_CPP_LOG_LEVEL": "ERROR"},
    **{"TQDM_DISABLE": "1", "VERL_LOGGING_LEVEL": "ERROR"},
}
"""Environment variables that keep libraries quiet. Libraries read these on import."""
WrapEngine = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class EvaluatedGame:
    config: DictConfig
    settings: Settings


@dataclass(frozen=True, slots=True)
class Contestant:
    """Player with its sampling parameters. `spent` returns calls, tokens and cost of an API."""

    name: str
    runner: Callable[[Any], RolloutRunner]
    sampling: Mapping[str, Any]
    spent: Callable[[], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class EvaluatedEndpoint:
    """Endpoint of a chat model. `key_env` is the variable that holds its key, or None if it needs no key."""

    url: str
    model: str
    key_env: str | None
    temperature: float | None = None
    max_tokens: int | None = None


def game_of(
    source: Source | None,
    conf: Path | None,
    overrides: Sequence[str],
    modules: Sequence[str] = (),
    url: str | None = None,
    trusted: bool = False,
) -> EvaluatedGame:
    """Return the configuration to play: of the yaml, else of the checkpoint's run, else of the default environment.

    Args:
        source: weights of the policy; None: a chat model plays.
        modules: `NAME=package.module:Class` of unregistered environments.
        url: environment service that runs; None: none is needed.
        trusted: commands, code and keys of a run that another checkout made may be used.

    Raises:
        ConfigError, UsageError: the configuration is wrong.
    """
    written = None if source is None or source.experiment is None else source.experiment / "config.yaml"
    if conf is not None or written is None or not written.is_file():
        named = [] if source is None else [f"{PATH}={quoted(str(tokenizer_folder(source.weights)))}"]
        env_type = recipes.default_environment() if conf is None else None
        named += [f"env_service.env_type={env_type}"] if env_type is not None else []
        resolved = load_measured(conf, [*named, *overrides], modules=modules, url=url, api=source is None)
        return EvaluatedGame(OmegaConf.create(resolved_tree(resolved.config)), resolved.settings)
    # The run's configuration is resolved already: composing the defaults again could change values, as a new release
    # may have other defaults.
    tree = OmegaConf.to_container(OmegaConf.load(written), resolve=False)
    if not isinstance(tree, dict):
        raise ConfigError(f"{written} is no configuration")
    plain = {str(key): value for key, value in tree.items()}
    if not trusted:
        refuse_orders(written, plain)
    if not overrides:
        config = OmegaConf.create(plain)
        return EvaluatedGame(config, from_config(config))
    # In a resolved configuration nothing follows another key any more; the overlay restores these references.
    overlay = flat(read_overrides(list(overrides)), plain)
    settings = check_overlay(plain, overlay, "the command line")
    return EvaluatedGame(laid_over(plain, overlay), settings)


@asynccontextmanager
async def policy(
    source: Source, game: EvaluatedGame, *, temperature: float | None, wrap: WrapEngine | None = None
) -> AsyncIterator[Contestant]:
    """Start vLLM with a policy's weights. A checkpoint is merged first.

    Args:
        temperature: None: the one of validation.
        wrap: receives engine and renderer; returns the engine that the rollouts use.

    Raises:
        UsageError: the run was on a GPU, and this machine has none.
        LaunchError: the weights cannot be read, or vLLM does not start.
    """
    if game.config.trainer.device == "cuda" and not _has_gpu():
        raise UsageError(
            "this configuration is for a GPU, and there is none here: give --conf FILE device=cpu, where FILE is the "
            "experiment's yaml"
        )
    # The libraries below, and those of the server, read these variables on import.
    for name, value in {**QUIET, **game.settings.device_env}.items():
        os.environ.setdefault(name, value)
    from transformers import AutoTokenizer

    from agentevolver.trainer.verl_plugin.agent_loop import make_runner

    with tempfile.TemporaryDirectory(prefix="agentevolver-weights-") as scratch:
        folder = _huggingface(source, Path(scratch), game)
        trusted = bool(game.config.actor_rollout_ref.model.trust_remote_code)
        tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=trusted)
        kwargs = game.config.data.get("apply_chat_template_kwargs")
        renderer = ChatRenderer(tokenizer, dict(kwargs or {}))
        if (warning := disagreement(tokenizer, renderer.end_id)) is not None:
            print(f"warning: {warning}", file=sys.stderr)
        # As in validation, so that the scores of both can be compared.
        sampling = sampling_of(game.config, validation=True)
        if temperature is not None:
            sampling["temperature"] = temperature
        async with serving.playing(game.config, game.settings, folder, Path(scratch)) as engine:
            used = engine if wrap is None else wrap(engine, renderer)

            def runner(world: Any) -> RolloutRunner:
                return make_runner(game.settings, used, tokenizer, kwargs, client=world)

            yield Contestant(source.name, runner, sampling, dict)


def _huggingface(source: Source, scratch: Path, game: EvaluatedGame) -> Path:
    from agentevolver.evaluation.export.merge import write_folder

    if source.weights.kind == "huggingface" and any(Path(source.weights.folder).glob("*.safetensors")):
        return Path(source.weights.folder)
    folder = scratch / "weights"
    folder.mkdir()
    # Everything else (shards of ranks, adapters, pytorch_model.bin) is written as safetensors first.
    base = str(game.config.actor_rollout_ref.model.path)
    try:
        write_folder(source, folder, dtype=None, adapters="merge", base=base)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


@asynccontextmanager
async def chat_model(
    endpoint: EvaluatedEndpoint, game: EvaluatedGame, *, wrap: WrapEngine | None = None
) -> AsyncIterator[Contestant]:
    """Open an OpenAI-compatible endpoint. Without a tokenizer, context limits count four characters as one token.

    Raises:
        UsageError: the settings cannot be used.
    """
    settings, rollout = game.settings, game.settings.rollout
    if rollout.agent_function is not None or rollout.agent_command:
        raise UsageError(
            "the configuration names an agent of your own, which would call the policy's server instead of --api"
        )
    try:
        llm_settings = LLMSettings.model_validate(
            {
                **settings.llm.model_dump(),
                "base_url": endpoint.url,
                "model": endpoint.model,
                "api_key_env": endpoint.key_env,
                # The run's own models and ledger stay untouched; a cache would make all episodes of a task equal.
                "roles": {},
                "cache": False,
                "ledger": None,
                "sampling": _own_sampling(settings, endpoint),
            }
        )
    except ValueError as error:
        first = error.errors()[0] if hasattr(error, "errors") else {"loc": ("api",), "msg": str(error)}
        raise UsageError(f"--api {endpoint.url}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    template, limits = checked_template(rollout), settings.context_limits
    async with LLM(llm_settings) as llm:
        engine: Any = LLMEngine(llm, ACTING, seed=False)
        renderer = plain_renderer()
        used = engine if wrap is None else wrap(engine, renderer)
        summariser = role_summariser(llm) if rollout.summary_by == "summariser" else None
        native = rollout.tool_format != "none"
        tool_use = ToolUse(None, rollout.max_tool_calls) if native else None
        how = RolloutPolicy(
            max_steps=rollout.max_steps,
            max_tries=rollout.max_rollout_tries,
            sparse=rollout.sparse,
            unavailable_timeout_s=settings.env_service.unavailable_timeout_s,
            no_think=rollout.use_qwen3,
            by_text=frozenset(one.env_type for one in settings.environments if not one.native_tools),
        )

        def runner(world: Any) -> RolloutRunner:
            return RolloutRunner(
                how,
                world,
                used,
                lambda: template(renderer, limits, rollout),
                flow_chooser(rollout),
                summariser,
                tool_use=tool_use,
            )

        def spent() -> dict[str, float]:
            total = llm.ledger.spent()
            return {
                "calls": total.calls,
                "prompt_tokens": total.prompt_tokens,
                "completion_tokens": total.completion_tokens,
                "cost": total.cost,
            }

        yield Contestant(endpoint.model, runner, {}, spent)


def _own_sampling(settings: Settings, endpoint: EvaluatedEndpoint) -> dict[str, Any]:
    own = {"temperature": endpoint.temperature, "max_tokens": endpoint.max_tokens}
    return {**settings.llm.sampling, **{name: value for name, value in own.items() if value is not None}}
