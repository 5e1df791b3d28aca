"""Training samples of a rollout: each token with its mask, step, log-prob and advantage, as the optimiser saw it.

Samples exist if the run had `trainer.dump_samples`. Without a tokenizer the tokens are shown as numbers.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from agentevolver.types import RowKey
from agentevolver.utils.files import open_lines, parse, written
from agentevolver.view.experiment import Experiment

# Tokens of a row that are sent: the end of the prompt, the beginning of the response.
PROMPT_TOKENS = 2000
RESPONSE_TOKENS = 12_000


class Samples:
    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._lock = threading.Lock()
        self._tokenizer: Tokenizer | None = None
        self._tried: set[Path] = set()

    def exist(self) -> bool:
        return (self._experiment.folder / "samples").is_dir()

    def rows(self, step: int, trajectory_id: str) -> list[dict[str, Any]]:
        """Return the rows of a rollout in a step, in order.

        A row is `{key, prompt, tokens: {text, mask, step, advantage, log_prob}, cut, is_text}`; each list has an entry
        per token.
        """
        path = written(self._experiment.folder / "samples" / f"step_{step}.jsonl")
        if path is None:
            return []
        # The writer puts the key first, so rows of other rollouts, which may have megabytes, are skipped unparsed.
        beginning = b'{"key":' + json.dumps(trajectory_id)[:-1].encode() + b"_"
        with open_lines(path) as file:
            found = [
                row
                for raw in file
                if raw.startswith(beginning) and raw.endswith(b"\n") and (row := parse(raw)) is not None
            ]
        return [self._row(row) for row in sorted(found, key=lambda row: RowKey.of(str(row["key"])))]

    def _row(self, row: dict[str, Any]) -> dict[str, Any]:
        response, prompt = row["responses"][:RESPONSE_TOKENS], row["prompts"][-PROMPT_TOKENS:]
        columns = {"mask": "response_mask", "step": "step_ids", "advantage": "advantages", "log_prob": "old_log_probs"}
        return {
            "key": row["key"],
            "prompt": self._texts(prompt),
            "tokens": {
                "text": self._texts(response),
                **{name: row[source][: len(response)] for name, source in columns.items()},
            },
            "cut": len(row["prompts"]) - len(prompt) + len(row["responses"]) - len(response),
            "is_text": self._found() is not None,
        }

    def _texts(self, ids: list[int]) -> list[str]:
        tokenizer = self._found()
        if tokenizer is None:
            return [str(identifier) for identifier in ids]
        return [str(tokenizer.decode([identifier], skip_special_tokens=False)) for identifier in ids]

    def _found(self) -> Tokenizer | None:
        with self._lock:
            if self._tokenizer is None:
                for path in self._places():
                    if path not in self._tried and path.is_file():
                        self._tried.add(path)
                        self._tokenizer = _load(path)
                    if self._tokenizer is not None:
                        break
            return self._tokenizer

    def _places(self) -> list[Path]:
        # A checkpoint's tokenizer is preferred: the configured model may be a name on the Hugging Face hub.
        checkpoints = sorted(
            (self._experiment.folder / "checkpoints").glob("global_step_*/actor/huggingface/tokenizer.json")
        )
        model = self._experiment.setting("actor_rollout_ref", "model", "tokenizer_path") or self._experiment.setting(
            "actor_rollout_ref", "model", "path"
        )
        return [*checkpoints[:1], *([Path(str(model)).expanduser() / "tokenizer.json"] if model else [])]


def _load(path: Path) -> Tokenizer | None:
    try:
        return Tokenizer.from_file(str(path))
    except Exception:  # the library raises bare Exception for a file that it cannot read
        return None
