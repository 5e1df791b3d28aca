"""The environment "propose": given a seed, a policy writes a task for another world in one message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from env_service.base import BaseEnv, InitState, Message, StepResult
from env_service.environments.propose.prompts import opening
from env_service.environments.propose.reading import NOTHING_YET, Read, read_proposal
from env_service.environments.propose.seeds import read_seed, seed_ids
from env_service.parameters import laid_over


@dataclass(frozen=True, slots=True)
class ProposeParams:
    """- `verbose`: explain seeds of calc, for a language model.
    - `program`: a problem of python must include a program that prints its answer.
    - `is_open_query`: the same opening, graded 0.
    - `sparse`: no effect, because there is no partial credit.
    """

    verbose: bool = False
    program: bool = True
    is_open_query: bool = False
    sparse: bool = True

    def updated(self, params: dict[str, Any] | None) -> ProposeParams:
        return laid_over(self, params)


class ProposeEnv(BaseEnv):
    """One seed and one message; see `ProposeParams`."""

    isolation: ClassVar[Literal["shared", "isolated"]] = "shared"
    call_timeout_s: ClassVar[float] = 10.0

    def __init__(self, task_id: str, instance_id: str, params: dict[str, Any] | None = None) -> None:
        super().__init__(task_id, instance_id, params)
        self._settings = ProposeParams().updated(params)
        self._seed = read_seed(task_id)
        self._read: Read = NOTHING_YET
        self._is_over = False

    def get_init_state(self, params: dict[str, Any] | None = None) -> InitState:
        self._settings = chosen = self._settings.updated(params)
        state = opening(self._seed, verbose=chosen.verbose, wants_program=chosen.program)
        return {
            "state": state,
            "info": {
                "query": state[-1]["content"],
                "instance_id": self.instance_id,
                "task_id": self.task_id,
                "world": self._seed.world,
                "is_open_query": chosen.is_open_query,
            },
        }

    def step(self, action: Message, params: dict[str, Any] | None = None) -> StepResult:
        """Read the proposal, which ends the episode. `info`: `refused` (the reason, or false), `finished` (whether it
        is valid), `answer`, `question`."""
        if self._is_over:
            raise ValueError(f"the episode of task {self.task_id!r} is over; create a new instance")
        # What UTF-8 cannot hold would not reach whoever asks for the state.
        text = str(action.get("content") or "").encode("utf-8", "replace").decode()
        self._read = read_proposal(text, self._seed, wants_program=self._settings.program)
        self._is_over = True
        refused = self._read.refused
        return {
            "state": [{"role": "user", "content": f"refused, {refused}" if refused else "ok"}],
            "reward": self.evaluate(),
            "is_terminated": True,
            "info": {
                "refused": refused or False,
                "finished": not refused,
                "answer": self._read.answer,
                "question": self._read.question,
            },
        }

    def evaluate(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> float:
        """Return 1 for a valid proposal, else 0."""
        chosen = self._settings.updated(params)
        return 0.0 if self._read.refused or chosen.is_open_query else 1.0

    def get_info(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the state (`base.StateInfo`). Its facts are the proposal: question, program, answer, `refused`,
        `warning`, world, and `calls`, always 0."""
        options = dict(params or {})
        if options.pop("what", "state") != "state" or options:
            raise ValueError(f"get_info of propose understands what=state; got {params!r}")
        read = self._read
        facts = {
            "question": read.question,
            "program": read.program,
            "answer": read.answer,
            "refused": read.refused,
            "warning": read.warning,
            "world": self._seed.world,
            "calls": 0,
        }
        return {"facts": facts, "answer": read.answer, "finished": not read.refused, "exact": True}

    @staticmethod
    def get_query_list(split: str = "train", params: dict[str, Any] | None = None) -> list[str]:
        """Return seeds of train, dev or test: `world` (calc, python), `count` and `offset`."""
        return seed_ids(split, params)
