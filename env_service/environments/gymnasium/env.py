"""Gymnasium worlds as text episodes: one message, one action.

A message without an action uses up one of the agent's steps, but the world does not move. An episode without a goal
also ends with `action: done [ANSWER]`. With native tools, actions are calls of `act`, and that end is a call of `done`.
For other worlds, subclass with your own `worlds` and start the service with `--env-module NAME=package.module:Class`.

A task id is `<environment id>:seed=<number>`. Of seeds with the same start only one is used; a hash of the start
decides the split.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

from agentevolver.utils.names import did_you_mean
from env_service.action_format import tool_call
from env_service.base import BaseEnv, InitState, Message, StepResult
from env_service.environments.gymnasium.toy_text import WORLDS
from env_service.environments.gymnasium.world import ActionError, NamedActions, World, farewell, quoted
from env_service.tool_calls import BadCall, ToolCall, answer_to, structured_calls

SPLITS = {"train": range(0, 60), "val": range(60, 70), "test": range(70, 100)}
CANDIDATE_SEEDS = 600
_ID = re.compile(r"(?P<world>[\w./-]{1,100}):seed=(?P<seed>0|[1-9]\d{0,8})")


def read_task_id(task_id: str, worlds: Mapping[str, World]) -> tuple[World, int]:
    match = _ID.fullmatch(task_id)
    if match is None:
        example = f"{next(iter(worlds))}:seed=3"
        raise ValueError(
            f"task id {task_id[:120]!r} has not the form `<environment id>:seed=<number>`, for example `{example}`"
        )
    return _world(match["world"], worlds), int(match["seed"])


def task_ids(split: str, params: Mapping[str, Any] | None, worlds: Mapping[str, World]) -> list[str]:
    """Return the ids of a split, world by world; `params["worlds"]` picks worlds.
    Raises ValueError for an unknown name."""
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; gymnasium has: {', '.join(SPLITS)}")
    options = dict(params or {})
    chosen = options.pop("worlds", list(worlds))
    if options:
        raise ValueError(
            f"unknown parameter `{next(iter(options))}` for get_query_list of the gymnasium environment; known: worlds"
        )
    if isinstance(chosen, str) or not isinstance(chosen, Sequence) or not chosen:
        raise ValueError(f"`worlds` is {chosen!r}; give a list with some of: {', '.join(worlds)}")
    picked = [_world(str(name), worlds) for name in chosen]
    return [f"{world.env_id}:seed={seed}" for world in picked for seed in _seeds(world)[split]]


def _world(name: str, worlds: Mapping[str, World]) -> World:
    if name not in worlds:
        hint = did_you_mean(name, worlds, f"there are: {', '.join(worlds)}")
        raise ValueError(f"{name!r} is not a world of this gymnasium environment; {hint}")
    return worlds[name]


@lru_cache(maxsize=64)
def _seeds(world: World) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {split: [] for split in SPLITS}
    seen: set[str] = set()
    for seed, key in enumerate(world.start_keys(range(CANDIDATE_SEEDS))):
        if key in seen:
            continue
        seen.add(key)
        bucket = int.from_bytes(hashlib.sha256(f"{world.env_id}/{key}".encode()).digest()[:8], "big") % 100
        found[next(split for split, buckets in SPLITS.items() if bucket in buckets)].append(seed)
    return found


LARGEST_MAX_STEPS = 1000
ACT, DONE = "act", "done"
OPEN_GOAL = "There is no goal: find out how this world works."
_DONE = (
    "When you are done with what you were asked for, write `action: done`, or `action: done <answer>` if there "
    "was a question."
)


@dataclass(frozen=True, slots=True)
class _Farewell:
    answer: str


class GymnasiumEnv(BaseEnv):
    """One episode of one world.

    Parameters of `create`: `max_steps` (default: twice the shortest solution plus 5, or the world's own number),
    `is_open_query` (no goal is set, nothing is graded) and `native_tools` (actions come in `tool_calls` alone).
    """

    isolation: ClassVar[Literal["shared", "isolated"]] = "shared"
    call_timeout_s: ClassVar[float] = 30.0
    explore_steps: ClassVar[str] = "max_steps"
    native_tools: ClassVar[bool] = True
    worlds: ClassVar[Mapping[str, World]] = {world.env_id: world for world in WORLDS}

    def __init__(self, task_id: str, instance_id: str, params: dict[str, Any] | None = None) -> None:
        super().__init__(task_id, instance_id, params)
        self._open, asked_steps, self._native = _read_params(self.params)
        self._world, self._seed = read_task_id(task_id, self.worlds)
        self._env = self._world.make(self._seed)
        self._actions = self._world.actions(self._env)
        self._observation, _ = self._env.reset(seed=self._seed)
        self._plan = self._world.plan(self._env)
        self._max_steps = asked_steps or (2 * len(self._plan) + 5 if self._plan else self._world.max_steps)
        self._rewards: list[float] = []
        self._steps = 0
        self._terminated = False
        self._said: str | None = None
        self._stop: str | None = None

    def get_init_state(self, params: dict[str, Any] | None = None) -> InitState:
        if params is not None and _read_params(params)[0] != self._open:
            raise ValueError("`is_open_query` must be given when the instance is created")
        goal = OPEN_GOAL if self._open else self._world.goal
        request = f"{goal}\n\n{self._world.observe(self._env, self._observation)}"
        if self._native:
            system = f"{self._world.rules}\n\nYou have {self._max_steps} actions. {self._how_to_call()}"
        else:
            end = f"\n{_DONE}" if self._open else ""
            system = (
                f"{self._world.rules}\n\nYou have {self._max_steps} actions, one a reply. You may think first, in few "
                f"words. {self._actions.form()}{end}"
            )
        system = system.strip()
        return {
            "state": [{"role": "system", "content": system}, {"role": "user", "content": request}],
            "info": {"instance_id": self.instance_id, "query": goal, **self._facts()},
        }

    def step(self, action: Message, params: dict[str, Any] | None = None) -> StepResult:
        if self._stop is not None:
            raise ValueError(f"the episode {self.instance_id!r} is over ({self._stop}); release it and create another")
        if self._native:
            return self._answer_calls(structured_calls(action))
        text = action.get("content") if isinstance(action, Mapping) and action.get("role") == "assistant" else None
        if not isinstance(text, str):
            raise ValueError(
                f"an action is a message of the role `assistant` with text as content; got {str(action)[:200]!r}"
            )
        asked: int | str | ActionError | _Farewell = self._actions.parse(text)
        if isinstance(asked, ActionError) and self._open and (said := farewell(text)) is not None:
            asked = _Farewell(said)
        told, refused, reward = self._take(asked)
        return self._result([{"role": "user", "content": told}], reward=reward, refused=refused)

    def _answer_calls(self, calls: Sequence[ToolCall | BadCall]) -> StepResult:
        if not calls:
            told, refused, reward = self._take(ActionError(f"This reply holds no call. {self._how_to_call()}"))
            return self._result([{"role": "user", "content": told}], reward=reward, refused=refused)
        state, total, any_refused = list[Message](), 0.0, False
        for call in calls:
            told, refused, reward = "Not taken: the episode is over.", True, 0.0
            if self._stop is None:
                told, refused, reward = self._take(self._asked(call))
            state.append(answer_to(call, told))
            total, any_refused = total + reward, any_refused or refused
        return self._result(state, reward=total, refused=any_refused)

    def _asked(self, call: ToolCall | BadCall) -> int | str | ActionError | _Farewell:
        if isinstance(call, BadCall):
            return ActionError(f"{call.reason}. {self._how_to_call()}")
        if call.name == DONE and self._open:
            return _Farewell(str(call.arguments.get("answer") or "").strip())
        if call.name != ACT:
            return ActionError(f"There is no tool {quoted(call.name)}. {self._how_to_call()}")
        if set(call.arguments) != {"action"}:
            return ActionError(f"`{ACT}` takes one argument, `action`. {self._how_to_call()}")
        value = call.arguments["action"]
        found = self._actions.chosen(value)
        return ActionError(f"{quoted(str(value))} is not an action. {self._how_to_call()}") if found is None else found

    def _how_to_call(self) -> str:
        example = json.dumps({"action": self._actions.example()})
        return (
            f"{self._actions.choice()} Make one call of {ACT} a reply, with arguments like {example}, and write "
            "nothing else: the world answers."
        )

    def _take(self, asked: int | str | ActionError | _Farewell) -> tuple[str, bool, float]:
        """Take one step of the agent; returns the observation, whether the action was refused, and the reward."""
        self._steps += 1
        reward, told = 0.0, ""
        if isinstance(asked, ActionError):
            told = asked.text
        elif isinstance(asked, _Farewell):
            self._said, self._stop = asked.answer, "finished"
        else:
            self._observation, gained, self._terminated, truncated, _ = self._env.step(asked)
            reward = float(gained)
            self._rewards.append(reward)
            self._stop = "finished" if self._terminated else "time_limit" if truncated else None
        if not told:
            told = self._world.observe(self._env, self._observation)
        if isinstance(asked, int | str):
            told += f"\nReward: {reward:g}."
        if self._stop is None and self._steps >= self._max_steps:
            self._stop = "max_steps"
        if self._stop is not None:
            told += "\nThe episode is over."
        return told, isinstance(asked, ActionError), reward

    def _result(self, state: list[Message], *, reward: float, refused: bool) -> StepResult:
        return {
            "state": state,
            "reward": reward,
            "is_terminated": self._stop is not None,
            "info": {
                "steps": self._steps,
                "refused": refused,
                "finished": self._is_finished(),
                "answer": self._said,
                "stop_reason": self._stop,
            },
        }

    def evaluate(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> float:
        """Return 1.0 for a success, else 0.0; with `sparse=False` the progress to the goal, if the world measures it;
        0.0 for an open query."""
        options = dict(params or {})
        sparse = options.pop("sparse", True)
        if options or not isinstance(sparse, bool):
            raise ValueError(
                f"evaluate of the gymnasium environment knows only `sparse`, true or false; got {params!r}"
            )
        if self._open:
            return 0.0
        if self._world.solved(self._env, self._rewards, self._terminated):
            return 1.0
        progress = None if sparse else self._world.progress(self._env, self._plan)
        return 0.0 if progress is None else progress

    def get_info(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> Any:
        """Return the world, the rewards so far and the actions; with `what` "state" the state (`base.StateInfo`)."""
        options = dict(params or {})
        what = options.pop("what", "world")
        if options or what not in ("world", "state"):
            raise ValueError(f"get_info of the gymnasium environment knows only `what`, world or state; got {params!r}")
        if what == "state":
            facts, exact = self._world.facts(self._env, self._observation)
            return {"facts": facts, "answer": self._said, "finished": self._is_finished(), "exact": exact}
        return {**self._facts(), "steps": self._steps, "stop_reason": self._stop, "rewards": list(self._rewards)}

    def tools(self, params: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """Return `act`, which takes an action, and `done` in an episode without a goal."""
        answer = {"type": "string", "description": "The answer, if there was a question."}
        done = _tool(DONE, "End the episode, when you are done with what you were asked for.", {"answer": answer}, [])
        act = _tool(ACT, "Take an action in the world.", {"action": self._actions.schema()}, ["action"])
        return [act, done] if self._open else [act]

    def reference_actions(self) -> list[str] | None:
        plan = None if self._open or self._stop else self._world.plan(self._env)
        if not plan or not isinstance(self._actions, NamedActions):
            return None
        names = [self._actions.names[number - self._actions.start] for number in plan]
        return [tool_call(ACT, {"action": name}) if self._native else f"action: {name}" for name in names]

    def _is_finished(self) -> bool:
        """Whether the agent called `done` or the world was solved; other ends, such as a fall into a hole, do not
        count."""
        if self._stop != "finished":
            return False
        return self._said is not None or self._world.solved(self._env, self._rewards, self._terminated)

    def _facts(self) -> dict[str, Any]:
        return {
            "task_id": self.task_id,
            "world": self._world.env_id,
            "seed": self._seed,
            "max_steps": self._max_steps,
            "actions": self._actions.choice() if self._native else self._actions.form(),
            "is_open_query": self._open,
        }

    def close(self) -> None:
        self._env.close()

    @classmethod
    def get_query_list(cls, split: str = "train", params: dict[str, Any] | None = None) -> list[str]:
        """Return the task ids of train, val or test, of the worlds in `params["worlds"]`."""
        return task_ids(split, params, cls.worlds)


def _tool(name: str, description: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


_CREATE_PARAMS = ("is_open_query", "max_steps", "native_tools")


def _read_params(params: Mapping[str, Any]) -> tuple[bool, int | None, bool]:
    flags = {name: params.get(name, False) for name in ("is_open_query", "native_tools")}
    max_steps = params.get("max_steps")
    unknown = sorted(set(params) - set(_CREATE_PARAMS))
    if unknown:
        raise ValueError(
            f"unknown parameter `{unknown[0]}` for create of the gymnasium environment; known: "
            f"{', '.join(_CREATE_PARAMS)}"
        )
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ValueError(f"parameter `{name}` is {value!r}; it must be true or false")
    if max_steps is not None and (
        isinstance(max_steps, bool) or not isinstance(max_steps, int) or not 1 <= max_steps <= LARGEST_MAX_STEPS
    ):
        raise ValueError(
            f"parameter `max_steps` is {max_steps!r}; it must be a whole number from 1 to {LARGEST_MAX_STEPS}"
        )
    return flags["is_open_query"], max_steps, flags["native_tools"]
