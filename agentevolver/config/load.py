"""The layers of a configuration: verl's defaults, ours, the device group, an experiment's yaml, the command line.

Each layer is refused with a one-line `ConfigError` when it cannot be read or names a key that nobody would read.
"""

from __future__ import annotations

import difflib
import functools
import importlib.util
import pickle
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from agentevolver.config import devices
from agentevolver.config.schema import own_defaults
from agentevolver.errors import ConfigError
from agentevolver.utils import recipes

CONFIG_DIR = Path(__file__).resolve().parent

# Mappings whose keys belong to someone else (vLLM's arguments, a model's config, an environment's parameters): any key
# is taken.
FREE_FORM = (
    "actor_rollout_ref.model.override_config",
    "actor_rollout_ref.rollout.engine_kwargs",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision",
    "actor_rollout_ref.ref.fsdp_config.mixed_precision",
    "data.apply_chat_template_kwargs",
    "data.train_filter",
    "data.val_filter",
    "device_env",
    "env_service.env_params",
    "env_service.env_type",
    "env_service.environments",
    "env_service.val_env_params",
    "exp_manager.ranking",
    "exp_manager.scout.filter",
    "llm.roles",
    "llm.sampling",
    "ray_kwargs.ray_init",
    "task_manager.explore_env_params",
    "trainer.v1.sampler.sampler_kwargs",
)


def open_keys() -> tuple[str, ...]:
    """Return the keys whose value is a mapping that takes any key, those of recipes among them."""
    own = (f"recipes.{name}.{key}" for name, recipe in recipes.recipes().items() for key in recipe.open_keys)
    return (*FREE_FORM, *own)


def moved_keys() -> dict[str, str]:
    """Return the keys that recipes took over: old name -> what to write."""
    return {old: new for recipe in recipes.recipes().values() for old, new in recipe.moved.items()}


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
        return devices.automatic()
    if chosen == "cuda_small":
        raise ConfigError("device: cuda_small has another name: write cuda, the sizes follow from the model")
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


def compose_defaults(device: str, written: Sequence[Mapping[str, Any]] = ()) -> DictConfig:
    """Return verl's defaults under ours under the device group under those of recipes; raises ConfigError when verl is
    not installed.

    Args:
        device: the device group.
        written: what the user wrote, weakest first; recipes may have other defaults because of it.
    """
    OmegaConf.register_new_resolver("visible_gpus", devices.visible_gpus, replace=True)
    OmegaConf.register_new_resolver("larger", max, replace=True)
    OmegaConf.register_new_resolver("attention", devices.attention, replace=True)
    OmegaConf.register_new_resolver("config_dir", lambda: str(CONFIG_DIR), replace=True)
    config: DictConfig = pickle.loads(_composed(device))
    for layer in recipes.called("layer", device, written):
        merge(config, layer, "the defaults of a recipe")
    return config


@functools.cache
def _composed(device: str) -> bytes:
    pickled = _compose(
        CONFIG_DIR, "agentevolver", f"device={device}", f"hydra.searchpath=[file://{_verl_config_dir()}]"
    )
    layers = [OmegaConf.load(recipe.defaults) for recipe in recipes.recipes().values() if recipe.defaults is not None]
    return pickle.dumps(OmegaConf.merge(own_defaults(), pickle.loads(pickled), *layers))


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


def paths(tree: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted path of every key of a tree, inner ones included."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            path = f"{prefix}{key}"
            yield path
            yield from paths(value, f"{path}.")


def refuse_unknown(layer: Mapping[str, Any], config: DictConfig, source: str) -> None:
    """Raise ConfigError for the first key of a layer that the configuration does not have (with the nearest name), or
    that would replace a section by a value."""
    for path in paths(layer):
        if any(path.startswith(f"{free}.") for free in open_keys()):
            continue
        if (moved := moved_keys().get(path)) is not None:
            raise ConfigError(f"{source}: `{path}` has another name: write {moved}")
        parent, _, key = path.rpartition(".")
        section = _section(config, parent)
        if section is None or key not in set(section.keys()):  # `in section` leaves out what is still to be given (???)
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


def select(tree: Any, path: str, default: Any = None) -> Any:
    """Return what stands at a dotted path of a plain tree, `default` if nothing does."""
    for key in path.split("."):
        if not isinstance(tree, Mapping) or key not in tree:
            return default
        tree = tree[key]
    return tree


def _nearest(path: str, known: list[str]) -> str:
    close = difflib.get_close_matches(path, known, n=1, cutoff=0.75)
    if not close:
        leaf = path.rpartition(".")[2]
        leaves = {name.rpartition(".")[2]: name for name in known}
        close = [leaves[match] for match in difflib.get_close_matches(leaf, list(leaves), n=1, cutoff=0.75)]
    return f", did you mean `{close[0]}`?" if close else ", no key of that name is read"


def one_line(error: BaseException) -> str:
    """Return an error's text without line breaks."""
    return " ".join(str(error).split())
