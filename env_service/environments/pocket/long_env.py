"""PocketWorld over a long horizon: one episode is a chain of goals (`chains`), each given as the answer to the `done`
that ended the last.

Calls, words, sites and what they want are pocket's. A goal is graded when it is ended, as pocket grades a task.
Afterwards the world is as the reference solution would have left it: what was done wrong costs that goal and no other,
and what follows from an id stays what it is. What the agent read and where it logged in stays its own.
"""

from __future__ import annotations

import copy
from typing import Any

from env_service.base import Message, StepResult
from env_service.environments.pocket.chains import Chain, long_task_ids, make_chain, split_long_id
from env_service.environments.pocket.env import PocketEnv
from env_service.environments.pocket.grading import score
from env_service.environments.pocket.prompts import opening
from env_service.environments.pocket.tasks import OPEN, read_list_params
from env_service.environments.pocket.world import World

_VERBOSE = (
    "\n\nThere are several tasks, one after the other: when you call done I give you the next one, until there "
    "is none left."
)


class PocketLongEnv(PocketEnv):
    """A chain of goals in one world; parameters are pocket's, `slack` counts for each goal."""

    def _begin(self) -> None:
        kind, site, seed = split_long_id(self.task_id)
        self.chain: Chain | None = None if kind == OPEN else make_chain(self.task_id)
        self.world = (
            self.chain.world(self._settings.syntax)
            if self.chain
            else World(site, f"open-{seed}", self._settings.syntax)
        )
        if self._settings.is_open_query:
            self.chain = None
        self.task = None
        self.grades: list[float] = []
        self.max_steps = self._settings.explore_steps
        if self.chain:
            self.max_steps = self.chain.calls + self._settings.slack * len(self.chain.goals)
        self.steps = 0
        self.errors = 0

    @property
    def is_open(self) -> bool:
        """Whether the episode has no chain of goals."""
        return self.chain is None

    def _opening(self) -> tuple[list[Message], dict[str, Any]]:
        first = self.chain.goals[0] if self.chain else None
        messages = opening(
            self.world.site,
            first.query if first else None,
            syntax=self._settings.syntax,
            verbose=self._settings.verbose,
        )
        if self.chain and self._settings.verbose:
            messages[0]["content"] += _VERBOSE
        facts = {"query": first.query, "goals": len(self.chain.goals)} if first and self.chain else {}
        return messages, facts

    def _carry_out(self, action: Message) -> tuple[str, bool]:
        answer, refused = super()._carry_out(action)
        if self.chain and self.world.answer is not None:
            return self._end_goal(self.chain, answer), refused
        return answer, refused

    def _end_goal(self, chain: Chain, goodbye: str) -> str:
        """Grade the goal, put the world right, and return the next goal's wording, or `goodbye` after the last."""
        ended = chain.goals[len(self.grades)]
        self.grades.append(score(ended, self.world))
        self.world.tables = copy.deepcopy(ended.tables)
        if len(self.grades) == len(chain.goals):
            return goodbye
        self.world.answer = None
        return chain.goals[len(self.grades)].query

    def step(self, action: Message, params: dict[str, Any] | None = None) -> StepResult:
        """Carry out one call, as pocket does; `info` also has `goals_ended` and `goals_solved`.

        The reward is what `evaluate` grows by: dense a goal's share when it is ended, sparse nothing before the end of
        the chain.
        """
        before = self.evaluate()
        result = super().step(action, params)
        result["reward"] = self.evaluate() - before
        result["info"] |= {"goals_ended": len(self.grades), "goals_solved": round(sum(self.grades))}
        return result

    def evaluate(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> float:
        """Grade the goals ended so far: sparse 1 if all of the chain are solved, else 0; dense the share solved; 0
        without a task."""
        sparse = self._settings.updated(params).sparse
        if not self.chain:
            return 0.0
        share = sum(self.grades) / len(self.chain.goals)
        return float(share == 1.0) if sparse else share

    @staticmethod
    def get_query_list(split: str = "train", params: dict[str, Any] | None = None) -> list[str]:
        """Return the ids of the long tasks of train, dev, test or hard, `n` of them. Raises ValueError."""
        params = params or {}
        if "levels" in params:
            raise ValueError("the long tasks of pocket have no levels, remove the parameter; the query list takes n")
        return long_task_ids(split, read_list_params(params)[0])
