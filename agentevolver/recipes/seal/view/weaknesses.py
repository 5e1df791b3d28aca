"""Weaknesses of the closed loop: those of the newest checkpoint, and what each round was asked for.

The recipe `seal` writes both files while the page reads them, so what is torn or of another shape is left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agentevolver.recipes.seal.settings import SealSettings
from agentevolver.recipes.seal.signals import Signals
from agentevolver.recipes.seal.weakness import Window
from agentevolver.view.experiment import Experiment, read_object

ROUNDS, STATE = "rounds.json", "closed_loop.json"
LISTED, TEXT = 50, 300


def weaknesses(experiment: Experiment) -> list[dict[str, Any]]:
    """Return one entry an environment with a closed loop, `{environment, step, signals, weaknesses, rounds}`.

    `step` is that of the newest checkpoint, None without one; `signals` counts its tasks by what is said of them;
    `weaknesses` are its heaviest; `rounds` are `{number, step, failed, weaknesses}`, the newest last.
    """
    step, states = _newest_state(experiment)
    rounds = _rounds(experiment.folder / "tasks" / "rounds")
    only = (experiment.environments() or [""])[0]
    # Of one environment the rounds lie in the folder itself, and have no name.
    named = {name or only: found for name, found in rounds.items()}
    return [
        {"environment": name, "step": step, **_state(experiment, states.get(name)), "rounds": named.get(name, [])}
        for name in sorted({*named, *states})
    ]


def _newest_state(experiment: Experiment) -> tuple[int | None, dict[str, Any]]:
    paths = {
        int(number): path
        for path in experiment.folder.glob(f"checkpoints/global_step_*/{STATE}")
        if (number := path.parent.name.rpartition("_")[2]).isdecimal()
    }
    if not paths:
        return None, {}
    newest = max(paths)
    return newest, read_object(paths[newest])


def _state(experiment: Experiment, state: Any) -> dict[str, Any]:
    try:
        settings = SealSettings.model_validate(experiment.setting("recipes", "seal") or {})
        signals, window = Signals(), Window(settings.window_steps)
        signals.load_state_dict(state["signals"])
        window.load_state_dict(state["window"])
        found = [_weakness(one.to_dict()) for one in window.weaknesses(signals)[:LISTED]]
        return {"signals": dict(signals.counts()), "weaknesses": found}
    except (ValidationError, TypeError, KeyError, ValueError, AttributeError):
        return {"signals": {}, "weaknesses": []}


def _rounds(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the rounds by the name of their environment's folder, "" for those in the folder itself."""
    found = {}
    for path in sorted([folder / ROUNDS, *folder.glob(f"*/{ROUNDS}")]):
        listed = read_object(path).get("rounds")
        rounds = [_round(one) for one in (listed if isinstance(listed, list) else []) if isinstance(one, dict)]
        if rounds:
            found["" if path.parent == folder else path.parent.name] = rounds[-LISTED:]
    return found


def _round(one: dict[str, Any]) -> dict[str, Any]:
    told = one.get("weaknesses")
    return {
        "number": one.get("number"),
        "step": one.get("step"),
        "failed": one.get("failed") is True,
        "weaknesses": [_weakness(item) for item in (told if isinstance(told, list) else [])[:LISTED]],
    }


def _weakness(one: Any) -> dict[str, Any]:
    told = one if isinstance(one, dict) else {}
    examples = told.get("examples")
    shown = [item for item in (examples if isinstance(examples, list | tuple) else []) if isinstance(item, dict)]
    return {
        "name": str(told.get("name") or "?")[:TEXT],
        "count": told.get("count") if isinstance(told.get("count"), int) else None,
        "worlds": len(told["seeds"]) if isinstance(told.get("seeds"), list | tuple) else None,
        "examples": [
            {key: _text(item, key) for key in ("task_id", "query", "action", "observation", "words")}
            for item in shown[:LISTED]
        ],
    }


def _text(item: dict[str, Any], key: str) -> str:
    return str(item.get(key) or "")[:TEXT].encode("utf-8", "replace").decode("utf-8")
