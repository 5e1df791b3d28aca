"""Composition, weakest layer first: verl's defaults, ours, the device group, a preset or mode, the user's layers."""

from __future__ import annotations

import functools
import importlib.util
import pickle
import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from agentevolver.config import devices
from agentevolver.config.devices import Device
from agentevolver.config.layers import Layer, written
from agentevolver.config.model import PATH, Model, defaults_of, read_model
from agentevolver.config.model_files import bucket_megabytes
from agentevolver.config.removed import explanation
from agentevolver.config.schema import own_defaults
from agentevolver.config.trees import leaves, one_line, open_keys, paths, select
from agentevolver.config.verl_keys import COLOCATED, MODE, SEPARATE
from agentevolver.utils import recipes
from agentevolver.utils.errors import ConfigError
from experience_manager.settings import PRESETS, verl_overrides

CONFIG_DIR = Path(__file__).resolve().parent


# Defaults if rollouts continue during updates. The trainer waits for old groups, because dropping them would take slow
# tasks out of training. A token's loss is weighted by the ratio of its probabilities now and when it was sampled.
ASYNCHRONOUS: dict[str, Any] = {
    "trainer.v1.sampler.max_off_policy_threshold": 4,
    "trainer.v1.sampler.max_off_policy_strategy": "wait",
    "algorithm.rollout_correction.rollout_is": "token",
    "algorithm.rollout_correction.rollout_is_threshold": 2.0,
    "trainer.deterministic": False,
}


def lay_over(
    device: Device, layers: Sequence[Layer], measured: Mapping[str, Any] | None, problems: list[str]
) -> tuple[DictConfig, DictConfig, Model | None]:
    """Return the configuration with the layers, its defaults without them, and the model of `sized_defaults`. Raises
    ConfigError.

    Args:
        measured: defaults that follow from the environment's openings, by dotted key.
        problems: gets a line for each key that nothing reads; the key is left out.
    """
    preset = written(layers, "exp_manager.preset")  # its model refuses an unknown preset
    own: dict[str, Any] = verl_overrides(preset if preset in PRESETS else "default")
    if written(layers, MODE) in (COLOCATED, SEPARATE):
        own = own | ASYNCHRONOUS
    contents = [layer.content for layer in layers]
    defaults, model = sized_defaults(device, contents)
    for path, value in (own | dict(measured or {})).items():
        OmegaConf.update(defaults, path, value, force_add=True)
    config: DictConfig = pickle.loads(pickle.dumps(defaults))
    for layer in layers:
        for path, problem in unknown_keys(layer.content, config, layer.source).items():
            problems.append(problem)
            section, _, key = path.rpartition(".")
            (select(layer.content, section, {}) if section else layer.content).pop(key, None)
        merge(config, layer.content, layer.source)
    for added in recipes.called("over", contents):
        for content in added:
            merge(config, content, "a recipe, over the user's keys")
    problems += _check_references(config, defaults, layers)
    return config, defaults, model


def _check_references(config: DictConfig, defaults: DictConfig, layers: Sequence[Layer]) -> list[str]:
    """Return what is wrong with the references in the layers. A wrong one is replaced by the default."""
    # The typed view resolves only our keys, and an error in verl's would surface after the start.
    problems = []
    for layer in layers:
        for path, value in leaves(layer.content):
            if "${" in str(value):
                try:
                    found = OmegaConf.select(config, path)
                    if OmegaConf.is_config(found):
                        OmegaConf.to_container(found, resolve=True)
                except OmegaConfBaseException as error:
                    problems.append(one_line(error))
                    OmegaConf.update(config, path, OmegaConf.select(defaults, path))
    return problems


def compose_defaults(device: Device, written: Sequence[Mapping[str, Any]] = ()) -> DictConfig:
    """Return the defaults of verl, of this project, of the device group, of recipes and of the model. Raises
    ConfigError.

    Args:
        written: the user's layers, weakest first; the defaults of a recipe and of a model depend on them.
    """
    return sized_defaults(device, written)[0]


def sized_defaults(device: Device, written: Sequence[Mapping[str, Any]]) -> tuple[DictConfig, Model | None]:
    """Return `compose_defaults`, and the model whose size decided some of them: the one that the layers name, else the
    default one. None if a recipe brings the model with its sizes, or nothing here says what it is."""
    OmegaConf.register_new_resolver("visible_gpus", devices.visible_gpus, replace=True)
    OmegaConf.register_new_resolver("larger", max, replace=True)
    OmegaConf.register_new_resolver("attention", devices.attention, replace=True)
    OmegaConf.register_new_resolver("weights_bucket", bucket_megabytes, replace=True)
    OmegaConf.register_new_resolver("config_dir", lambda: str(CONFIG_DIR), replace=True)
    config: DictConfig = pickle.loads(_composed(device))
    layers = recipes.called("layer", device, written)
    for layer in layers:
        merge(config, layer, "the defaults of a recipe")
    if any(select(layer, PATH) is not None for layer in layers):
        return config, None
    named = recipes.written(written, PATH) or config.actor_rollout_ref.model.path
    if (model := read_model(str(OmegaConf.create({"path": named}).path))) is not None:
        lora = recipes.written(written, "actor_rollout_ref.model.lora_rank")
        for path, value in defaults_of(model, device, lora=bool(lora)).items():
            OmegaConf.update(config, path, value)
    return config, model


@functools.cache
def _composed(device: str) -> bytes:
    # Merged here and not by Hydra: a search path in an override has Hydra's grammar, which few folders' names obey.
    files = [CONFIG_DIR / "agentevolver.yaml", CONFIG_DIR / "device" / f"{device}.yaml"]
    files += [recipe.defaults for recipe in recipes.recipes().values() if recipe.defaults is not None]
    verls = compose_verl()
    OmegaConf.set_struct(verls, False)
    return pickle.dumps(OmegaConf.merge(own_defaults(), verls, *map(OmegaConf.load, files)))


def compose_verl() -> DictConfig:
    """Return verl's own defaults. Raises ConfigError if verl is not installed."""
    verl = importlib.util.find_spec("verl")
    if verl is None or not verl.submodule_search_locations:
        raise ConfigError("verl is not installed in this Python: run `bash install.sh`, then use .venv/bin/python")
    config: DictConfig = pickle.loads(_compose(str(Path(verl.submodule_search_locations[0]) / "trainer" / "config")))
    return config


# Composing takes half a second of CPU. The result is pickled, because callers change it in place and `loads` takes half
# the time of a deep copy (OmegaConf 2.3).
@functools.cache
def _compose(folder: str) -> bytes:
    with initialize_config_dir(folder, version_base=None):
        try:
            return pickle.dumps(compose("ppo_trainer"))
        except HydraException as error:
            raise ConfigError(f"the defaults cannot be composed: {one_line(error)}") from error


def resolved_tree(config: DictConfig) -> dict[str, Any]:
    """Return the configuration as a plain tree. References to environment variables are kept, so secrets do not appear
    in it.

    Raises:
        OmegaConfBaseException: an interpolation cannot be resolved.
    """
    raw = OmegaConf.to_container(config, resolve=False)
    tree: dict[str, Any] = _keep_environment(raw, OmegaConf.to_container(config, resolve=True))
    return tree


def _keep_environment(raw: Any, resolved: Any) -> Any:
    if isinstance(raw, Mapping) and isinstance(resolved, Mapping):
        return {key: _keep_environment(raw[key], value) for key, value in resolved.items()}
    if isinstance(raw, list) and isinstance(resolved, list):
        return [_keep_environment(*pair) for pair in zip(raw, resolved, strict=True)]
    return raw if isinstance(raw, str) and "${oc.env:" in raw else resolved


def merge(config: DictConfig, layer: Mapping[str, Any], source: str) -> None:
    """Merge a layer into a configuration, in place. `source` names the layer in errors."""
    try:
        OmegaConf.set_struct(config, False)
        config.merge_with(OmegaConf.create(dict(layer)))
    except OmegaConfBaseException as error:
        raise ConfigError(f"{source}: {one_line(error)}") from error


def refuse_unknown(layer: Mapping[str, Any], config: DictConfig, source: str) -> None:
    """Raise ConfigError if a layer has unknown keys, or replaces a section by a value."""
    if problems := unknown_keys(layer, config, source):
        raise ConfigError("; ".join(problems.values()))


def unknown_keys(layer: Mapping[str, Any], config: DictConfig, source: str) -> dict[str, str]:
    """Return the keys of a layer that nothing reads, or that replace a section by a value, with what to do."""
    moved_keys = {old: new for recipe in recipes.recipes().values() for old, new in recipe.moved.items()}
    found: dict[str, str] = {}
    for path, value in leaves(layer):
        sections = [path[: end.start()] for end in re.finditer(r"\.|$", path)]
        if any(path.startswith(f"{free}.") for free in open_keys()):
            continue
        if (moved := next((one for one in sections if one in moved_keys), None)) is not None:
            found[moved] = f"{source}: `{moved}` has another name: write {moved_keys[moved]}"
            continue
        parents = [_section(config, one.rpartition(".")[0]) for one in sections]
        # `key in section` is False for a mandatory value (???).
        pairs = zip(sections, parents, strict=True)
        unknown = next((one for one, held in pairs if held is None or one.split(".")[-1] not in set(held)), None)
        if unknown is not None:
            old = next((one for one in sections if explanation(one) is not None), None)
            names = list(paths(OmegaConf.to_container(config, resolve=False))) if old is None else []
            reason = nearest(unknown, names) if old is None else f": {explanation(old)}"
            found[old or unknown] = f"{source}: unknown key `{old or unknown}`{reason}"
        # env_type may be a mapping or a single name.
        elif path != "env_service.env_type" and _section(config, path) and not isinstance(value, Mapping):
            found[path] = f"{source}: `{path}` is a section, write {path}.<key>"
    return found


def _section(config: DictConfig, path: str) -> DictConfig | None:
    """Return the section at a dotted path without following references, or None."""
    section = config
    for key in path.split(".") if path else ():
        # Converting the whole tree for the few keys that are read would take a quarter of the time of a load.
        value = dict(section.items_ex(resolve=False, keys=[key])).get(key)
        if not isinstance(value, DictConfig):
            return None
        section = value
    return section


def nearest(path: str, known: Sequence[str]) -> str:
    """Suggest the one key that `path` is without a typing error, or with the sections before it."""
    split = functools.partial(re.split, r"[._]")
    words = {word for name in known for word in split(name)}

    def alike(one: str, other: str) -> bool:
        # A word of other keys is no typing error: `min_steps` is not `max_steps`.
        typed = one not in words and len(one) > 3 and SequenceMatcher(None, one, other).ratio() >= 0.8
        return typed or one.rstrip("s") == other.rstrip("s")

    given = split(path)
    spelt = (name for name in known if len(split(name)) == len(given) and all(map(alike, given, split(name))))
    close = [*spelt, *(name for name in known if name.endswith(f".{path}"))]
    return f", did you mean `{close[0]}`?" if len(close) == 1 else ", no key of that name is read"
