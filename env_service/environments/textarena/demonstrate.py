"""Writes demonstrations of legal play for a seed policy: `python -m env_service.environments.textarena.demonstrate
--game Nim-v0 --games 2000 --out demos.jsonl`.

All seats move at random: a policy learns the form of moves, not strategy. A line is `{"task_id": "...", "actions":
["...", ...]}`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from env_service.environments.textarena.env import TextarenaEnv
from env_service.environments.textarena.games import GAMES
from env_service.environments.textarena.tasks import SPLIT_SEEDS, TaskId

# Demonstrated tasks are seeds that the default lists of train do not hold.
_FIRST = SPLIT_SEEDS["train"].stop // 2


def played(task_id: str) -> list[str]:
    """Return the agent's moves in one game: random legal ones, until the game is over or no legal move is known."""
    env = TextarenaEnv(task_id, "demonstration")
    env.get_init_state()
    rng, actions, over = random.Random(task_id), list[str](), False
    while not over and (legal := env.get_info(params={"what": "legal"})):
        actions.append(rng.choice(legal))
        over = env.step({"role": "assistant", "content": actions[-1]})["is_terminated"]
    env.close()
    return actions


def demonstrations(game: str, games: int) -> list[dict[str, Any]]:
    """Return `games` demonstrations, seat by seat in turn."""
    found = []
    for number in range(games):
        task_id = str(TaskId(game, number % GAMES[game].seats, _FIRST + number, "random"))
        if actions := played(task_id):
            found.append({"task_id": task_id, "actions": actions})
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m env_service.environments.textarena.demonstrate")
    parser.add_argument("--game", required=True, choices=list(GAMES), metavar="GAME", help="one of textarena's games")
    parser.add_argument("--games", type=int, default=2000, help="how many games are played (default 2000)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the JSONL file that is written")
    options = parser.parse_args(arguments)
    if not 1 <= options.games <= _FIRST - 1:
        parser.error(f"--games {options.games} must be from 1 to {_FIRST - 1}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(one) for one in demonstrations(options.game, options.games)]
    options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{options.out}: {len(lines)} games of {options.game}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
