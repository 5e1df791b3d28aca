"""Comparison of runs: distinct names, and the keys in which their configurations differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from agentevolver.config.changes import decides
from agentevolver.config.trees import leaves
from agentevolver.utils.secrets import masked_tree
from agentevolver.view.experiment import Experiment

VALUE_CHARS = 300


def names_of(runs: Sequence[Experiment]) -> list[str]:
    """Return "project/experiment" for each run, or its path if that name is not unique."""
    counts = Counter(run.name for run in runs)
    return [run.name if counts[run.name] == 1 else str(run.folder) for run in runs]


def differences(runs: Sequence[Experiment]) -> list[dict[str, Any]]:
    """Return `{key, decides, values}` of each differing key; keys that affect learning come first.

    `values` holds a text for each run, or None if the run lacks the key. Secrets are masked.
    """
    trees = [dict(leaves(masked_tree(run.config()))) for run in runs]
    rows = []
    for key in dict.fromkeys(key for tree in trees for key in tree):
        values = [_text(tree[key]) if key in tree else None for tree in trees]
        if len(set(values)) > 1:
            rows.append({"key": key, "decides": decides(key), "values": values})
    return sorted(rows, key=lambda row: (not row["decides"], row["key"]))


def _text(value: Any) -> str:
    text = str(value)
    return text if len(text) <= VALUE_CHARS else f"{text[:VALUE_CHARS]} …"
