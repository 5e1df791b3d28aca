"""Arguments shared by `eval` and `chat`: weights or an API, environment and configuration."""

from __future__ import annotations

import argparse
from contextlib import AbstractAsyncContextManager
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentevolver.cli.commands.verbs import VerbParser, positive
from agentevolver.launcher.options import is_override
from agentevolver.utils.errors import UsageError
from agentevolver.utils.net import http_url
from env_service.arguments import add_env_modules

if TYPE_CHECKING:
    from agentevolver.evaluation.contestants import Contestant, EvaluatedGame, WrapEngine
    from agentevolver.evaluation.export.source import Source

KEY = "OPENAI_API_KEY"


def add_player(parser: VerbParser) -> None:
    add = parser.add_argument
    add(
        "what",
        nargs="*",
        metavar="RUN|CHECKPOINT|key=value",
        help="an experiment (its newest whole checkpoint), global_step_N or a Hugging Face folder; then keys of the "
        "configuration that differ",
    )
    add("--step", type=positive, metavar="N", help="of a run, the checkpoint of this step")
    add("--api", metavar="URL", help="instead of weights: an OpenAI-compatible endpoint (http(s)://.../v1)")
    add("--model", metavar="NAME", help="with --api: the model")
    add(
        "--key-env",
        default=KEY,
        metavar="NAME",
        help="with --api: the variable that holds the key (default: %(default)s); none: it wants none",
    )
    add("--max-tokens", type=positive, metavar="N", help="with --api: tokens of a reply (default: llm.sampling's)")
    add("--temperature", type=float, help="of the samples (default: that of validation)")
    add("--seed", type=int, help="of what is sampled here (default: data.seed)")
    add("--conf", type=Path, metavar="FILE", help="an experiment's yaml: how is played (default: as the run did)")
    add("--env", metavar="NAME", help="the environment (default: the configuration's)")
    add_env_modules(parser)
    add("--trust-run", action="store_true", help="use commands, code and keys that a run of another checkout names")
    add("--env-url", type=http_url, metavar="URL", help="an environment service that runs (default: none is needed)")


def refuse_unclear(options: argparse.Namespace) -> None:
    """Split `options.what` into the name and `options.overrides`.

    Raises:
        UsageError: two players are named, or the endpoint is incomplete.
    """
    names = [item for item in options.what if not is_override(item)]
    options.overrides = [item for item in options.what if item not in names]
    if len(names) > 1:
        raise UsageError(f"only one of {', '.join(names)} can play: run the command once for each")
    options.what = names[0] if names else None
    if options.what and options.api:
        raise UsageError(f"{options.what} and --api {options.api}: give weights or an endpoint, not both")
    if options.api and not options.model:
        raise UsageError("--api needs --model NAME")
    if not options.api and (options.model or options.max_tokens or options.key_env != KEY):
        raise UsageError("--model, --key-env and --max-tokens need --api URL")
    if options.api and options.step:
        raise UsageError("--step picks a checkpoint of a run and cannot be combined with --api")
    if options.temperature is not None and not 0 <= options.temperature < inf:
        raise UsageError(f"--temperature {options.temperature:g} must be a number from 0 on")
    if options.env is not None:
        options.overrides = [f"env_service.env_type={options.env}", *options.overrides]


def game(options: argparse.Namespace) -> tuple[Source | None, EvaluatedGame]:
    """Return the weights (None with --api) and the configuration to play. Raises LaunchError, ConfigError."""
    from agentevolver.config.environments import launched_with
    from agentevolver.evaluation.contestants import game_of
    from agentevolver.evaluation.export.source import find_source
    from agentevolver.utils.ownership import TRUST, is_ours

    source = find_source(options.what, options.step) if options.what else None
    experiment = None if source is None else source.experiment
    if experiment is not None and not options.env_modules:
        options.env_modules = launched_with(experiment)
        if options.env_modules and not (options.trust_run or is_ours(experiment / "config.yaml")):
            raise UsageError(f"{experiment} would run {options.env_modules[0]}: give {TRUST} if you trust it")
    own = options.conf, options.overrides, options.env_modules, options.env_url
    return source, game_of(source, *own, trusted=options.trust_run)


def contestant(
    options: argparse.Namespace, source: Source | None, played: EvaluatedGame, wrap: WrapEngine | None = None
) -> AbstractAsyncContextManager[Contestant]:
    """Open the player. `wrap` receives the engine and returns the one that the rollouts use."""
    from agentevolver.evaluation.contestants import EvaluatedEndpoint, chat_model, policy
    from agentevolver.utils.secrets import secret

    if source is not None:
        return policy(source, played, temperature=options.temperature, wrap=wrap)
    key: Any = None if options.key_env.lower() == "none" else options.key_env
    if key is not None and not secret(key):
        raise UsageError(f"{key} is not set: put the key of {options.api} there (.env), or give --key-env none")
    endpoint = EvaluatedEndpoint(options.api, options.model, key, options.temperature, options.max_tokens)
    return chat_model(endpoint, played, wrap=wrap)
