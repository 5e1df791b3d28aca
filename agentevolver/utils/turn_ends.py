"""Token ids at which a model's files end a turn. After a conversion of the weights the files may disagree."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from agentevolver.utils.files import write_json

TOKENIZER, FILES = "tokenizer_config.json", ("config.json", "generation_config.json")


def ends_by_file(tokenizer: Any) -> dict[str, tuple[int, ...]]:
    """Return the end ids that a tokenizer and the model's files beside it name, by file.

    A file that is missing or names none is left out.
    """
    model = str(getattr(tokenizer, "name_or_path", ""))
    named = {TOKENIZER: tokenizer.eos_token_id} | {file: _named(model, file) for file in FILES}
    as_tuples = {file: (ids,) if isinstance(ids, int) else tuple(ids or ()) for file, ids in named.items()}
    return {file: ids for file, ids in as_tuples.items() if ids}


def disagreement(tokenizer: Any, closing: int) -> str | None:
    """Return a warning that names each file without the chat template's closing token, or None if all have it."""

    def spell(ids: tuple[int, ...]) -> str:
        return " or ".join(tokenizer.decode([token]) for token in ids)

    ends = ends_by_file(tokenizer)
    lacking = [f"{file} with {spell(ids)}" for file, ids in ends.items() if closing not in ids]
    if not lacking:
        return None
    return (
        f"the chat template ends a turn with {spell((closing,))}, {', '.join(lacking)}: a reply may end with any of "
        "them, and the template's closes a demonstration"
    )


def restore_ends(folder: Path, model: str) -> None:
    """Give a saved model the token ids and the generation_config.json of the model that it was made of.

    verl 0.9.1 writes the tokenizer's single end of a turn, and leaves out a file that transformers would not write.
    """
    config, generation = (_path(model, file) for file in FILES)
    if config is not None:
        own, saved = (json.loads(path.read_text(encoding="utf-8")) for path in (config, folder / FILES[0]))
        ids = {key: value for key, value in own.items() if key.endswith("_token_id")}
        write_json(folder / FILES[0], {**saved, **ids}, indent=2)
    if generation is not None:
        shutil.copyfile(generation, folder / FILES[1])


def _named(model: str, file: str) -> Any:
    path = _path(model, file)
    if path is None:
        return None
    tree = json.loads(path.read_text(encoding="utf-8"))
    return tree.get("eos_token_id", (tree.get("text_config") or {}).get("eos_token_id"))


def _path(model: str, file: str) -> Path | None:
    if not model or Path(model).is_dir():
        path = Path(model) / file
        return path if model and path.is_file() else None
    from transformers.utils import cached_file

    try:
        found = cached_file(model, file, _raise_exceptions_for_missing_entries=False)
    except (OSError, ValueError):  # no such model, or the hub does not answer
        return None
    return None if found is None else Path(found)
