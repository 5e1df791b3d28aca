"""Composition, weakest layer first: verl's defaults, ours, the device group, a preset or mode, the user's layers."""

from __future__ import annotations

import difflib
import functools
import importlib.util
import pickle
from collections.abc import Mapping, Sequence
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
    device: Device, layers: Sequence[Layer], measured: Mapping[str, Any] | None = None
) -> tuple[DictConfig, DictConfig, Model | None]:
    """Return the configuration with the layers, its defaults without them, and the model of `sized_defaults`. Raises
    ConfigError.

    Args:
        measured: defaults that follow from the environment's openings, by dotted key.
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
        refuse_unknown(layer.content, config, layer.source)
        merge(config, layer.content, layer.source)
    for added in recipes.called("over", contents):
        for content in added:
            merge(config, content, "a recipe, over the user's keys")
    _check_references(config, layers)
    return config, defaults, model


def _check_references(config: DictConfig, layers: Sequence[Layer]) -> None:
    """Resolve the references in the layers. Raises ConfigError."""
    # The typed view resolves only our keys, and an error in verl's would surface after the start.
    for layer in layers:
        for path, value in leaves(layer.content):
            if "${" in str(value):
                try:
                    found = OmegaConf.select(config, path)
                    if OmegaConf.is_config(found):
                        OmegaConf.to_container(found, resolve=True)
                except OmegaConfBaseException as error:
                    raise ConfigError(one_line(error)) from error


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
    """Raise ConfigError if a layer has an unknown key, or replaces a section by a value."""
    moved_keys = {old: new for recipe in recipes.recipes().values() for old, new in recipe.moved.items()}
    for path in paths(layer):
        if any(path.startswith(f"{free}.") for free in open_keys()):
            continue
        if (moved := moved_keys.get(path)) is not None:
            raise ConfigError(f"{source}: `{path}` is not a key: write {moved}")
        parent, _, key = path.rpartition(".")
        section = _section(config, parent)
        if section is None or key not in set(section.keys()):  # `key in section` is False for a mandatory value (???)
            if (reason := explanation(path)) is not None:
                raise ConfigError(f"{source}: `{path}` is no key any more: {reason}")
            known = list(paths(OmegaConf.to_container(config, resolve=False)))
            raise ConfigError(f"{source}: unknown key `{path}`{_nearest(path, known)}")
        # env_type may be a mapping or a single name.
        if path != "env_service.env_type" and _section(config, path) and not isinstance(select(layer, path), Mapping):
            raise ConfigError(f"{source}: `{path}` is a section, write {path}.<key>")


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


def _nearest(path: str, known: list[str]) -> str:
    close = difflib.get_close_matches(path, known, n=1, cutoff=0.75)
    if not close:
        leaf = path.rpartition(".")[2]
        leaves = {name.rpartition(".")[2]: name for name in known}
        close = [leaves[match] for match in difflib.get_close_matches(leaf, list(leaves), n=1, cutoff=0.75)]
    return f", did you mean `{close[0]}`?" if close else ", no key of that name is read"
