"""The layers of a configuration: verl's defaults, ours, the device group, an experiment's yaml, the command line.

Each layer is refused with a one-line `ConfigError` when it cannot be read or names a key that nobody would read.
"""

from __future__ import annotations

import difflib
import functools
import importlib.util
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from agentevolver.config import devices
from agentevolver.config.removed import told
from agentevolver.config.schema import own_defaults
from agentevolver.config.trees import FREE_FORM, one_line, paths, select
from agentevolver.errors import ConfigError

CONFIG_DIR = Path(__file__).resolve().parent


def read_yaml(path: Path) -> dict[str, Any]:
    """Return an experiment's yaml as a mapping; raises ConfigError when it is missing or is not one."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file, give an experiment's yaml (examples/basic.yaml, say) to --conf")
    try:
        content = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except (yaml.YAMLError, OmegaConfBaseException, OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as yaml: {one_line(error)}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: holds a {type(content).__name__}, an experiment's yaml is a mapping of keys")
    for key in ("defaults", "hydra"):
        if key in content:
            raise ConfigError(f"{path}: remove `{key}`, the layers are composed by the launcher")
    return {str(key): value for key, value in content.items()}


def read_overrides(items: list[str]) -> dict[str, Any]:
    """Return `key=value` items as a mapping; raises ConfigError for an item of another form."""
    for item in items:
        if "=" not in item or item.startswith(("=", "-")):
            raise ConfigError(f"{item!r} is not an override, write key=value (trainer.total_epochs=2, say)")
    try:
        content = OmegaConf.to_container(OmegaConf.from_dotlist(items), resolve=False)
    except (yaml.YAMLError, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(f"the command line's overrides cannot be read: {one_line(error)}") from error
    return dict(content) if isinstance(content, dict) else {}  # type: ignore[arg-type]


def take_device(experiment: dict[str, Any], command_line: dict[str, Any]) -> devices.Device:
    """Remove `device` from the layers and return the device group that it stands for, `auto` resolved; raises
    ConfigError for another."""
    told = [layer.pop("device", None) for layer in (command_line, experiment)]
    chosen = told[0] or told[1] or "auto"
    if chosen == "auto":
        paths = ("actor_rollout_ref.model.path", "env_service.env_type")
        model, environment = (select(command_line, path) or select(experiment, path) for path in paths)
        return devices.automatic(model, environment)
    for device in devices.DEVICES:
        if chosen == device:
            return device
    raise ConfigError(
        f"device: {chosen!r} is not known, write auto, {', '.join(devices.DEVICES[:-1])} or {devices.DEVICES[-1]}"
    )


def take_agent(layer: dict[str, Any], source: str) -> None:
    """Move a text at `actor_rollout_ref.rollout.agent`, where verl has a section, to our key for the user's agent;
    raises ConfigError where that is set as well."""
    rollout = select(layer, "actor_rollout_ref.rollout")
    if not isinstance(rollout, dict) or not isinstance(rollout.get("agent"), str):
        return
    if rollout.get("agent_function") is not None:
        raise ConfigError(
            f"{source}: actor_rollout_ref.rollout.agent and agent_function mean the same: remove one of them"
        )
    rollout["agent_function"] = rollout.pop("agent")


def compose_defaults(device: str) -> DictConfig:
    """Return verl's defaults under ours under the device group; raises ConfigError when verl is not installed."""
    OmegaConf.register_new_resolver("seed_policy", _seed_policy, replace=True)
    OmegaConf.register_new_resolver("training_gpus", devices.training_gpus, replace=True)
    OmegaConf.register_new_resolver("larger", max, replace=True)
    OmegaConf.register_new_resolver("attention", devices.attention, replace=True)
    OmegaConf.register_new_resolver("config_dir", lambda: str(CONFIG_DIR), replace=True)
    config: DictConfig = pickle.loads(_composed(device))
    return config


@functools.cache
def _composed(device: str) -> bytes:
    pickled = _compose(
        CONFIG_DIR, "agentevolver", f"device={device}", f"hydra.searchpath=[file://{_verl_config_dir()}]"
    )
    return pickle.dumps(OmegaConf.merge(own_defaults(), pickle.loads(pickled)))


def compose_verl() -> DictConfig:
    """Return verl's defaults alone; raises ConfigError when verl is not installed."""
    config: DictConfig = pickle.loads(_compose(_verl_config_dir(), "ppo_trainer"))
    return config


def _verl_config_dir() -> Path:
    verl = importlib.util.find_spec("verl")
    if verl is None or not verl.submodule_search_locations:
        raise ConfigError("verl is not installed in this Python: run `bash install.sh`, then use .venv/bin/python")
    return Path(verl.submodule_search_locations[0]) / "trainer" / "config"


# Half a second of CPU. Pickled, since layers are laid over it in place, and `loads` is half of what a deep copy takes.
@functools.cache
def _compose(folder: Path, name: str, *overrides: str) -> bytes:
    with initialize_config_dir(str(folder), version_base=None):
        try:
            return pickle.dumps(compose(name, overrides=list(overrides)))
        except HydraException as error:
            raise ConfigError(f"the defaults cannot be composed: {one_line(error)}") from error


def _seed_policy(name: str = "pocket") -> str:
    from agentevolver.builtin.seed import seed_policy_path

    return str(seed_policy_path(name))


def resolved_tree(config: DictConfig) -> dict[str, Any]:
    """Return a configuration as a plain tree, resolved but for what comes from the environment: secrets stay there.

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
    """Lay one more layer over a configuration, in place; `source` names it in the error."""
    try:
        OmegaConf.set_struct(config, False)
        config.merge_with(OmegaConf.create(dict(layer)))
    except OmegaConfBaseException as error:
        raise ConfigError(f"{source}: {one_line(error)}") from error


def refuse_unknown(layer: Mapping[str, Any], config: DictConfig, source: str) -> None:
    """Raise ConfigError for the first key of a layer that the configuration does not have (with the nearest name), or
    that would replace a section by a value."""
    for path in paths(layer):
        if any(path.startswith(f"{free}.") for free in FREE_FORM):
            continue
        parent, _, key = path.rpartition(".")
        section = _section(config, parent)
        if section is None or key not in set(section.keys()):  # `in section` leaves out what is still to be given (???)
            if (reason := told(path)) is not None:
                raise ConfigError(f"{source}: `{path}` is no key any more: {reason}")
            known = list(paths(OmegaConf.to_container(config, resolve=False)))
            raise ConfigError(f"{source}: unknown key `{path}`{_nearest(path, known)}")
        # A name may take the place of several environments.
        if path != "env_service.env_type" and _section(config, path) and not isinstance(select(layer, path), Mapping):
            raise ConfigError(f"{source}: `{path}` is a section, write {path}.<key>")


def _section(config: DictConfig, path: str) -> DictConfig | None:
    """Return the section at a dotted path as it stands, no reference followed, or None where there is none."""
    section = config
    for key in path.split(".") if path else ():
        # To make the whole tree plain for the few keys that are looked up is a quarter of what a load takes.
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
