"""What the language models cost, by role: the ledger of a run, opened read-only."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from agentevolver.view.errors import Unreadable
from agentevolver.view.experiment import Experiment

COLUMNS = ("role", "calls", "prompt_tokens", "completion_tokens", "cost")
BUSY_S = 2.0


def usage(experiment: Experiment) -> dict[str, Any]:
    """Return `{exists, roles, budget}`: one row a role with its calls, tokens and cost; raises Unreadable."""
    path = _ledger(experiment)
    budget = experiment.setting("llm", "budget") or {}
    if not path.is_file():
        return {"exists": False, "roles": [], "budget": budget}
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=BUSY_S)) as db:
            rows = db.execute(f"SELECT {', '.join(COLUMNS)} FROM usage ORDER BY cost DESC, calls DESC").fetchall()
    except sqlite3.Error as error:
        raise Unreadable(f"{path.name} cannot be read: {error}") from error
    return {"exists": True, "roles": [dict(zip(COLUMNS, row, strict=True)) for row in rows], "budget": budget}


def _ledger(experiment: Experiment) -> Path:
    own = experiment.setting("llm", "ledger")
    return Path(str(own)) if own else experiment.folder / "llm_usage.sqlite"
