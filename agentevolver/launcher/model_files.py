"""Whether the policy can be loaded: a folder that has what a model needs, or a name whose files are in the cache or on
the hub."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from agentevolver.errors import LaunchError, UsageError

KEY = "actor_rollout_ref.model.path"
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
HUB_TIMEOUT_S = 10.0
TRUE = frozenset({"1", "true", "yes", "on"})


def looks_local(path: str) -> bool:
    """Whether a model's path can only be a folder."""
    return path.startswith(("/", "./", "../", "~"))


def folder_of(path: str) -> Path | None:
    """The folder that a model is read from without a network: the path itself, or the newest of it in the hub's cache;
    None: neither."""
    folder = Path(path).expanduser()
    if looks_local(path) or folder.is_dir():
        return folder if folder.is_dir() else None
    from huggingface_hub.constants import HF_HUB_CACHE

    cached = Path(HF_HUB_CACHE) / f"models--{path.replace('/', '--')}"
    try:
        snapshot = cached / "snapshots" / (cached / "refs" / "main").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return snapshot if snapshot.is_dir() else None


def missing_in(folder: Path) -> str | None:
    """Name the file that a model's folder lacks, or None."""
    if not (folder / "config.json").is_file():
        return "config.json"
    found = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if found is None:
        return "model.safetensors (or an index of its shards)"
    if found.suffix == ".json":
        shards = json.loads(found.read_text(encoding="utf-8"))["weight_map"].values()
        return next((name for name in sorted(set(shards)) if not (folder / name).is_file()), None)
    return None


def check_files(path: str, environment: Mapping[str, str], *, ask_hub: bool = True) -> None:
    """Refuse a policy that cannot be loaded; one that is not in the cache is asked for at the hub.

    Args:
        environment: what the run's processes will have (HF_HUB_OFFLINE).
        ask_hub: False lets a name pass that is not in the cache.

    Raises:
        UsageError: the folder lacks a file, or nobody has a model of this name.
        LaunchError: the hub does not answer, or may not be asked.
    """
    folder = folder_of(path)
    if folder is not None:
        missing = missing_in(folder)
        if missing is None:
            return
        if looks_local(path):
            raise UsageError(f"{KEY}={path} has no {missing}; give a folder that `from_pretrained` takes")
    if environment.get("HF_HUB_OFFLINE", "").lower() in TRUE:
        raise LaunchError(
            f"{KEY}={path} is not (or not whole) in the Hugging Face cache and HF_HUB_OFFLINE is set: unset it, "
            f"fetch it first with `hf download {path}`, or give a folder"
        )
    if ask_hub:
        _ask_hub(path)


def _ask_hub(path: str) -> None:
    import httpx
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    try:
        get_hf_file_metadata(hf_hub_url(path, "config.json"), timeout=HUB_TIMEOUT_S)
    except GatedRepoError as error:
        raise LaunchError(f"{KEY}={path} wants its licence accepted on the hub, and HF_TOKEN set here") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise UsageError(
            f"{KEY}={path}: no such folder, and the Hugging Face hub has no model of this name (a private one: set "
            "HF_TOKEN)"
        ) from error
    except (httpx.HTTPError, OSError) as error:
        raise LaunchError(
            f"{KEY}={path} is not in the Hugging Face cache, and the hub does not answer ({type(error).__name__}): "
            f"fetch it where there is a network (`hf download {path}`), or give a folder"
        ) from error
