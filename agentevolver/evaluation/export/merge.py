"""Merge of a checkpoint into a Hugging Face folder, in the precision in which it was stored."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
import transformers

from agentevolver.evaluation.export.source import Source, tokenizer_folder
from agentevolver.trainer.shards import whole_state
from agentevolver.utils.errors import LaunchError, TrainingFailed, UsageError
from agentevolver.utils.files import write_json
from agentevolver.utils.turn_ends import TOKENIZER, ends_by_file
from context_manager.chat import ChatRenderer

Adapters = Literal["merge", "keep"]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
META = "lora_train_meta.json"
_PEFT = "base_model.model."
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model*.json")


def write_folder(source: Source, target: Path, *, dtype: str | None, adapters: Adapters, base: str | None) -> None:
    """Write weights, configuration and tokenizer of a policy into the empty folder `target`.

    Args:
        dtype: one of `DTYPES`; None: as stored.
        adapters: merge LoRA adapters into the weights, or write only the adapters.
        base: model that the run started from, or None if unknown.

    Raises:
        LaunchError: files of the checkpoint are missing or do not fit its configuration.
        UsageError: adapters are to be kept, but there are none or their base model is unknown.
    """
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if source.weights.kind == "huggingface":
        if adapters == "keep":
            raise UsageError(f"--adapters keep: {source.weights.folder} holds whole weights, and no adapters")
        _copy_weights(Path(source.weights.folder), target, dtype)
        _copy(tokenizer_folder(source.weights), target, weights=False)
        name_one_end(target)
        return
    # torch warns that no process group is initialised; a merge needs none.
    logging.getLogger("torch.distributed.device_mesh").setLevel(logging.ERROR)
    try:
        # Not `verl.model_merger` (verl 0.9.1): it rounds to bfloat16 and leaves adapters beside the weights.
        state = whole_state(Path(source.weights.folder))
    except TrainingFailed as error:
        raise LaunchError(str(error)) from error
    if any("lora_" in name for name in state):
        _write_adapted(source, state, target, dtype=dtype, adapters=adapters, base=base)
    elif adapters == "keep":
        raise UsageError(f"--adapters keep: {source.weights.folder} was trained without adapters")
    else:
        model = _empty_model(tokenizer_folder(source.weights), _dtype_of(state, dtype))
        _load(model, state, source.weights.folder)
        _save(model, target)
    _copy(tokenizer_folder(source.weights), target, weights=False)
    name_one_end(target)


def name_one_end(folder: Path) -> None:
    """Add the chat template's closing token to every file that lacks it as an end token, so that any program stops
    there."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    if not tokenizer.chat_template:
        return
    closing, ends = ChatRenderer(tokenizer).end_id, ends_by_file(tokenizer)
    for file, ids in ends.items():
        if closing not in ids:
            tree = json.loads((folder / file).read_text(encoding="utf-8"))
            if file == TOKENIZER:
                tree["eos_token"] = tokenizer.decode([closing])
                tree.pop("eos_token_id", None)  # some conversions write it beside the token
            else:
                tree["eos_token_id"] = [closing, *ids]
            write_json(folder / file, tree, indent=2)


def _copy_weights(folder: Path, target: Path, dtype: str | None) -> None:
    if dtype is None and any(folder.glob("*.safetensors")):
        _copy(folder, target, weights=True)
        return
    from transformers import AutoModelForCausalLM

    _save(AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype] if dtype else "auto"), target)


def _copy(folder: Path, target: Path, *, weights: bool) -> None:
    """Copy the weight files of a folder, or all other files that `target` lacks."""
    own = {path for pattern in _WEIGHTS for path in folder.glob(pattern)}
    for path in sorted(folder.iterdir()):
        if path.is_file() and (path in own) is weights and not (target / path.name).exists():
            if not {folder.resolve(), folder.resolve().parents[1] / "blobs"} & set(path.resolve().parents):
                raise LaunchError(f"{path} is a link out of its folder: put the file itself there")
            shutil.copyfile(path, target / path.name)


def _dtype_of(state: Mapping[str, torch.Tensor], dtype: str | None) -> torch.dtype:
    return DTYPES[dtype] if dtype else next(value.dtype for value in state.values() if value.is_floating_point())


def _empty_model(folder: Path, dtype: torch.dtype) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=dtype)


def _load(model: Any, state: Mapping[str, torch.Tensor], where: str) -> None:
    """Load a state dict. Only tied weights may be missing."""
    try:
        missing, unexpected = model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise LaunchError(f"{where} does not fit its config.json: {str(error).splitlines()[-1].strip()}") from error
    tied = {"lm_head.weight"} if getattr(model.config, "tie_word_embeddings", False) else set()
    if unexpected or (lacking := [name for name in missing if name.removeprefix(_PEFT) not in tied]):
        name = unexpected[0] if unexpected else lacking[0]
        raise LaunchError(f"{where} does not fit its config.json: {'unknown' if unexpected else 'missing'} {name}")
    model.tie_weights()


def _save(model: Any, target: Path) -> None:
    # transformers derives this file from config.json, and refuses to write some that models have. Their own is copied.
    model.generation_config = transformers.GenerationConfig()
    model.save_pretrained(target)
    (target / "generation_config.json").unlink(missing_ok=True)


def _write_adapted(
    source: Source, state: dict[str, torch.Tensor], target: Path, *, dtype: str | None, adapters: Adapters,
    base: str | None,
) -> None:  # fmt: skip
    """Write a policy with LoRA adapters: merged, or only the adapters in peft's format."""
    from peft import LoraConfig, get_peft_model

    folder = Path(source.weights.folder)
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        rank, alpha = int(meta["r"]), int(meta["lora_alpha"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LaunchError(f"{folder} has adapters, and {META} does not say their rank and alpha: {error}") from error
    modules = sorted({name.removeprefix(_PEFT).partition(".lora_")[0] for name in state if ".lora_" in name})
    only = all("lora_" in name for name in state)
    if (only or adapters == "keep") and base is None:
        raise UsageError(f"{folder} holds only adapters, and their base model is unknown: name the run instead")
    settings = LoraConfig(
        r=rank, lora_alpha=alpha, target_modules=modules, task_type="CAUSAL_LM", base_model_name_or_path=base
    )
    if only:
        from transformers import AutoModelForCausalLM

        plain = AutoModelForCausalLM.from_pretrained(base, dtype=_dtype_of(state, dtype))
    else:
        plain = _empty_model(tokenizer_folder(source.weights), _dtype_of(state, dtype))
    if base is not None:
        # peft writes this name as the base model into adapter_config.json.
        plain.name_or_path = base
    model = get_peft_model(plain, settings)
    own = model.state_dict()
    lacking = [name for name in own if name not in state and "lora_" in name] + [
        name for name in state if name not in own
    ]
    if lacking:
        raise LaunchError(f"{folder}: its adapters do not fit its config.json: {lacking[0]}")
    if only:
        model.load_state_dict(state, strict=False)
    else:
        _load(model, state, source.weights.folder)
    if adapters == "keep":
        model.save_pretrained(str(target))
    else:
        _save(model.merge_and_unload(), target)
