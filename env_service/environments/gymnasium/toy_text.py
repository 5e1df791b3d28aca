"""FrozenLake on seeded maps without slipping, and Taxi.

Both are deterministic: a breadth-first search over the transition table (`P`) gives step limit and progress, and proves
that every task can be solved.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from env_service.environments.gymnasium.world import World, gymnasium_module


def shortest_plan(table: Any, start: int) -> list[int] | None:
    """Return the fewest actions from `start` to a rewarded end, or None. `table[state][action]` is Gymnasium's
    `[(probability, next state, reward, terminated)]` with one certain entry."""
    came_from: dict[int, tuple[int, int] | None] = {start: None}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        for action, outcomes in table[state].items():
            ((_, following, reward, terminated),) = outcomes
            if terminated and reward > 0:
                return [*_trace(came_from, state), action]
            if not terminated and following not in came_from:
                came_from[following] = (state, action)
                queue.append(following)
    return None


def _trace(came_from: dict[int, tuple[int, int] | None], state: int) -> list[int]:
    actions = []
    while (step := came_from[state]) is not None:
        state, action = step
        actions.append(action)
    return actions[::-1]


class _Planned(World):
    def plan(self, env: Any) -> list[int] | None:
        return shortest_plan(env.unwrapped.P, int(env.unwrapped.s))

    def solved(self, env: Any, rewards: Sequence[float], terminated: bool) -> bool:
        """Whether the episode ended with a reward, whatever its steps cost."""
        return terminated and bool(rewards) and rewards[-1] > 0


class FrozenLake(_Planned):
    """Walk over a frozen lake with holes. The seed draws the map: 4x4, 5x5 or 6x6, always with a safe way."""

    def __init__(self) -> None:
        super().__init__(
            "FrozenLake-v1",
            goal="Reach the goal without falling into a hole.",
            rules=(
                "You stand on a frozen lake, a square grid. S is the start, F is safe ice, H is a hole, G is the goal. "
                "One action moves you one square; at the edge you stay where you are. A hole ends the episode."
            ),
            action_names=("left", "down", "right", "up"),
        )

    def make(self, seed: int) -> Any:
        return gymnasium_module().make(self.env_id, desc=self._map(seed), is_slippery=False, disable_env_checker=True)

    def start_keys(self, seeds: Iterable[int]) -> Iterator[str]:
        for seed in seeds:
            yield "/".join(self._map(seed))

    @staticmethod
    def _map(seed: int) -> list[str]:
        maps = gymnasium_module("gymnasium.envs.toy_text.frozen_lake")
        rows: list[str] = maps.generate_random_map(size=4 + seed % 3, p=0.75, seed=seed)
        return rows

    def facts(self, env: Any, observation: Any) -> tuple[dict[str, Any], bool]:
        row, column = divmod(int(observation), env.unwrapped.ncol)
        return {"agent": {"row": row, "column": column}}, True

    def observe(self, env: Any, observation: Any) -> str:
        rows = [[cell.decode() for cell in row] for row in env.unwrapped.desc]
        row, column = divmod(int(observation), len(rows[0]))
        here = rows[row][column]
        rows[row][column] = "A"
        drawn = "\n".join(" ".join(cells) for cells in rows)
        place = {"H": "You fell into a hole.", "G": "You are at the goal."}.get(here, f"You are on {here}.")
        return f"{drawn}\nYou are A, at row {row}, column {column} (row 0 is the top, column 0 the left). {place}"


class Taxi(_Planned):
    """Fetch a passenger and bring them to another of four stands. The seed draws taxi, passenger and destination."""

    stands = ("R", "G", "Y", "B")

    def __init__(self) -> None:
        super().__init__(
            "Taxi-v4",
            goal="Pick the passenger up and drop them at their destination.",
            rules=(
                "You drive a taxi on a 5x5 grid, north is up. R, G, Y and B are stands. You can drive across : but "
                "not through a wall (|). "
                "Pick up works at the passenger's stand, drop off at the destination. Every action costs 1, a wrong "
                "pick up or "
                "drop off 10, arriving pays 20."
            ),
            action_names=("south", "north", "east", "west", "pick up", "drop off"),
        )

    def start_keys(self, seeds: Iterable[int]) -> Iterator[str]:
        env = self.make(0)
        for seed in seeds:
            state, _ = env.reset(seed=seed)
            yield str(int(state))
        env.close()

    def facts(self, env: Any, observation: Any) -> tuple[dict[str, Any], bool]:
        inner = env.unwrapped
        row, column, passenger, _ = (int(part) for part in inner.decode(int(observation)))
        place = "taxi" if passenger == len(self.stands) else self.stands[passenger]
        return {"taxi": {"row": row, "column": column}, "passenger": place}, True

    def observe(self, env: Any, observation: Any) -> str:
        inner = env.unwrapped
        row, column, passenger, destination = (int(part) for part in inner.decode(int(observation)))
        rows = [[cell.decode() for cell in line] for line in inner.desc]
        rows[row + 1][2 * column + 1] = "T"
        drawn = "\n".join("".join(cells) for cells in rows)
        if passenger == len(self.stands):
            rider = "The passenger is in the taxi."
        else:
            rider = f"The passenger waits at {self._stand(inner, passenger)}."
        places = f"The taxi T is at row {row}, column {column} (row 0 is the top, column 0 the left)."
        return f"{drawn}\n{places} {rider} The destination is {self._stand(inner, destination)}."

    def _stand(self, inner: Any, number: int) -> str:
        row, column = inner.locs[number]
        return f"{self.stands[number]} (row {row}, column {column})"


WORLDS: tuple[World, ...] = (FrozenLake(), Taxi())
