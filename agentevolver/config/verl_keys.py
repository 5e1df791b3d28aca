"""verl's keys in an experiment: keys without effect and values of a wrong type are refused.

`check` runs with every load and imports nothing of verl. Values that cannot be checked by the type of their default (a
name, a list, a default of null) are left to verl's dataclasses: `ask_verl`, in a dry run and when a training starts.
"""

from __future__ import annotations

import functools
import importlib.util
import io
import json
import math
import re
import typing
import warnings
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import redirect_stdout
from importlib import import_module
from typing import Any

from omegaconf import DictConfig, OmegaConf
from pydantic import TypeAdapter, ValidationError

from agentevolver.config.layers import Layer
from agentevolver.config.removed import table
from agentevolver.config.trees import FREE_FORM, leaves, one_line, select
from agentevolver.utils.errors import ConfigError

MODE = "trainer.v1.trainer_mode"
SYNC, COLOCATED, SEPARATE = "agentevolver", "agentevolver_async", "agentevolver_separate"
ACTOR, REF, ROLLOUT, MODEL = (f"actor_rollout_ref.{name}" for name in ("actor", "ref", "rollout", "model"))
_LOSS = f"{ACTOR}.policy_loss.loss_mode"

# Advice -> patterns of keys that have no effect here.
UNREAD: dict[str, str] = table()["unread"]
# Keys that are read only if a switch has one of the values.
READ_WITH: list[tuple[str, str, list[Any]]] = table()["read_with"]
CHOICES: dict[str, str] = table()["choices"]
_LOGGERS_OF_VERL = ("console", "file", "vemlp_wandb", "rl_insight")
_EVERY = "the trainer's log-probs count every token; val_kwargs are free"
# Bounds that verl does not check: (words, test, keys).
_BOUNDS: tuple[tuple[str, Any, str], ...] = (
    (f"of 1 ({_EVERY})", lambda value: value == 1, f"{ROLLOUT}.top_p"),
    (f"of -1 ({_EVERY})", lambda value: value in (-1, 0), f"{ROLLOUT}.top_k"),
    (
        "above 0",
        lambda value: value > 0,
        f"""trainer.total_training_steps trainer.total_epochs {ACTOR}.ppo_epochs *.ppo_max_token_len_per_gpu
        *_micro_batch_size_per_gpu *.log_prob_max_token_len_per_gpu {ROLLOUT}.*_parallel_size {ROLLOUT}.temperature
        {ROLLOUT}.agent.num_workers data.*_batch_size trainer.v1.sampler.max_off_policy_threshold
        trainer.v1.separate_async.parameter_sync_step""",
    ),
    (
        "0 or more",
        lambda value: value >= 0,
        f"""*.optim.lr {ACTOR}.clip_ratio_low {ACTOR}.clip_ratio_high {ACTOR}.kl_loss_coef {MODEL}.lora_rank
        {ROLLOUT}.val_kwargs.temperature trainer.v1.*_async.num_warmup_batches""",
    ),
    ("above 0 and at most 1", lambda value: 0 < value <= 1, f"{ROLLOUT}.gpu_memory_utilization {ROLLOUT}.*top_p"),
    ("from 0 to 1", lambda value: 0 <= value <= 1, "algorithm.gamma algorithm.lam"),
)
# Keys that accept other types than their default's, and counts whose default is null outside of verl's dataclasses.
_WIDER = f"""trainer.logger {ROLLOUT}.top_p trainer.v1.*_async.num_warmup_batches {MODEL}.*_modules
    *.rollout_is_threshold"""
_COUNTS = """*_micro_batch_size_per_gpu trainer.total_training_steps trainer.max_*_ckpt_to_keep data.gen_batch_size
    data.val_batch_size trainer.v1.sampler.max_off_policy_threshold"""
# Sections of verl's dataclasses, and their keys that are checked elsewhere (`loss_modes`, the file system).
_JUDGED, _ELSEWHERE = "actor_rollout_ref.* algorithm.*", f"{_LOSS} *path"
_WORDS: dict[type, str] = dict(
    zip(
        (bool, int, float, str, list, dict),
        ("true or false", "an integer", "a number", "text", "a list", "a mapping"),
        strict=True,
    )
)


def check(layers: Sequence[Layer], config: DictConfig, defaults: DictConfig, ours: Set[str]) -> tuple[str, ...]:
    """Refuse keys of verl without effect, and values that verl cannot use.

    Args:
        layers: the user's, weakest first.
        config: the composed configuration, with these layers.
        defaults: the same without them.
        ours: paths that our own models check.

    Returns:
        The keys whose values only verl's dataclasses can check (`ask_verl`).

    Raises:
        ConfigError: all problems in one line, each with the layer, the key, the value, and what to write instead.
    """
    undecided, problems = [], []
    strongest = {path: strength for strength, layer in enumerate(layers) for path, _ in leaves(layer.content)}
    for path, strength in strongest.items():
        own = _is_within(path, ours)
        if own and path != "device_name":  # ours, but chosen by the device group
            continue
        value, default = _plain(config, path), _plain(defaults, path)
        if type(value) is type(default) and value == default:
            continue
        try:
            _refuse_unread(path, strength, layers, config)
            if not own and not _is_within(path, FREE_FORM):
                _refuse_value(path, value, default, layers[strength].source)
        except ConfigError as error:
            problems.append(str(error))
            continue
        if not own and not _is_within(path, FREE_FORM):
            known = path in CHOICES or _matches(path, f"{_COUNTS} {_ELSEWHERE}")
            if not known and _matches(path, _JUDGED) and (value is None or not isinstance(default, int | float)):
                undecided.append(path)
    saved, rank = f"{ACTOR}.checkpoint.save_contents", f"{MODEL}.lora_rank"
    if not problems and "hf_model" in (_plain(config, saved) or ()) and _plain(config, rank):
        problems.append(
            f"{saved}: hf_model cannot be combined with {rank} above 0, because verl would save the adapters under "
            "names that no model has: leave it out, and merge a checkpoint with `python -m verl.model_merger`"
        )
    if problems:
        raise ConfigError("; ".join(problems))
    return tuple(undecided)


def _refuse_unread(path: str, strength: int, layers: Sequence[Layer], config: DictConfig) -> None:
    source = layers[strength].source
    for instead, patterns in UNREAD.items():
        if _matches(path, patterns):
            raise ConfigError(f"{source}: `{path}` has no effect: {instead}")
    for patterns, switch, values in READ_WITH:
        if not _matches(path, patterns) or _plain(config, switch) in values:
            continue
        # The command line may switch off the reader of a key in the experiment's yaml, as ablations do.
        if any(select(layer.content, switch) is not None for layer in layers[strength + 1 :]):
            continue
        raise ConfigError(
            f"{source}: `{path}` has an effect only with {switch} = {' or '.join(map(str, values))}: set that too, "
            "or remove the key"
        )


def _refuse_value(path: str, value: Any, default: Any, source: str) -> None:
    kind = int if _matches(path, _COUNTS) else type(default)
    wanted = None if value is None or _matches(path, _WIDER) or _is_of(kind, value) else _WORDS.get(kind)
    items = value if isinstance(value, list) else [] if value is None else [value]
    names = CHOICES.get(path, "").split()
    if wanted is None and names and not set(items) <= set(names):
        wanted = " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    for words, holds, patterns in _BOUNDS:
        if wanted is None and _matches(path, patterns) and not all(map(holds, items)):
            wanted = f"a number {words}"
    if wanted is not None:
        quoted = ", in quotes" if kind is str and isinstance(value, int | float) else ""
        raise ConfigError(f"{source}: {path}: write {wanted}{quoted}, found {value!r}")
    for name in items if path == "trainer.logger" else ():
        if name not in _LOGGERS_OF_VERL and importlib.util.find_spec(name) is None:
            raise ConfigError(f"{source}: {path}: the package {name} is not installed: install it, or leave {name} out")


def _is_of(kind: type, value: Any) -> bool:
    """Whether a value may replace a default of type `kind`. A float takes an integer, but no NaN."""
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
    return type(value) is kind or kind not in _WORDS


@functools.cache
def _pattern(patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(one).replace(r"\*", ".*") for one in patterns.split()))


def _matches(path: str, patterns: str) -> bool:
    return _pattern(patterns).fullmatch(path) is not None


def _is_within(path: str, places: Set[str] | Sequence[str]) -> bool:
    parts = path.split(".")
    return any(".".join(parts[:depth]) in places for depth in range(1, len(parts) + 1))


def _plain(config: DictConfig, path: str) -> Any:
    value = OmegaConf.select(config, path, throw_on_missing=False)
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def ask_verl(config: DictConfig, keys: Sequence[str] | None = None) -> None:
    """Let verl's dataclasses check the values. Imports verl, which takes seconds.

    Args:
        config: the configuration that verl receives.
        keys: keys whose types are checked; None: all.

    Raises:
        ConfigError: one line that names the key.
    """
    for place, section in _dataclasses(config):
        module, _, name = str(section._target_).rpartition(".")
        hints = typing.get_type_hints(getattr(import_module(module), name))
        for key in hints.keys() & set(section):
            path, value = f"{place}.{key}", _plain(section, key)
            # Some defaults of verl 0.9.1 are null although their annotation does not allow it.
            if isinstance(value, Mapping) or (value is None if keys is None else path not in keys):
                continue
            try:
                TypeAdapter(hints[key]).validate_json(json.dumps(value), strict=True)
            except ValidationError as error:
                message = error.errors()[0]["msg"]
                raise ConfigError(f"{path}: {message[0].lower()}{message[1:]}, found {value!r}") from error
    _compose_dataclasses(config)


def _dataclasses(config: DictConfig) -> Iterator[tuple[str, DictConfig]]:
    """Yield the sections that verl converts to dataclasses, with their paths."""
    pending = [(place, OmegaConf.select(config, place)) for place in ("algorithm", ACTOR, REF, ROLLOUT, MODEL)]
    while pending:
        place, section = pending.pop()
        if section.get("_target_"):
            yield place, section
        pending += [(f"{place}.{key}", value) for key, value in section.items() if isinstance(value, DictConfig)]


def _compose_dataclasses(config: DictConfig) -> None:
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    place = "the configuration"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # verl warns that there is no critic
        critic, reference = need_critic(config), need_reference_policy(config)
    try:
        for place in ("algorithm", ACTOR, ROLLOUT):  # the critic's dataclass would load its model
            omega_conf_to_dataclass(OmegaConf.select(config, place))
        place = "the configuration"
        with redirect_stdout(io.StringIO()):  # verl prints that all checks passed
            validate_config(config, use_reference_policy=reference, use_critic=critic)
    except Exception as error:  # verl's dataclasses raise errors of any type
        raise ConfigError(f"{place}: verl refuses it: {one_line(error.__cause__ or error)}") from error
