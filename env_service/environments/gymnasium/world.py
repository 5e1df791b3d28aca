"""World: a Gymnasium environment as text, and the parser of its actions.

`World` takes any registered environment with discrete or text actions, and observations of discrete and text spaces. A
subclass may add rules, a drawn observation, a plan and progress. An action is a name or number, alone or after
`action:`, or a text after `action:`. Anything else is an `ActionError`.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_LABELLED = re.compile(r"^[ \t*_`>-]*action[ \t*_`]*[:=](.*)$", re.IGNORECASE | re.MULTILINE)
_EDGES = " \t\r\n.,;!?*_`'\"()[]<>"
_MAX_QUOTED = 80


@dataclass(frozen=True)
class ActionError:
    text: str


@dataclass(frozen=True)
class NamedActions:
    """Actions of a discrete space: numbers from `start` on, with the world's names if it has some."""

    names: tuple[str, ...]
    start: int = 0

    def form(self) -> str:
        return f"{self.choice()} End your reply with one line like this:\naction: {self.example()}"

    def example(self) -> str | int:
        name = self.names[0]
        return int(name) if self.schema()["type"] == "integer" else name

    def choice(self) -> str:
        listed = ", ".join(
            f"{number} {name}" if name != str(number) else name for number, name in enumerate(self.names, self.start)
        )
        return f"The actions are: {listed}."

    def schema(self) -> dict[str, Any]:
        numbers = [number for number, _ in enumerate(self.names, self.start)]
        if list(map(str, numbers)) == list(self.names):
            return {"type": "integer", "enum": numbers}
        return {"type": "string", "enum": list(self.names)}

    def chosen(self, value: Any) -> int | None:
        """Return the number of an action by name or number, or None."""
        word = str(value).strip(_EDGES).lower()
        for number, name in enumerate(self.names, self.start):
            if word in (name.lower(), str(number), f"{number} {name.lower()}"):
                return number
        return None

    def parse(self, text: str) -> int | ActionError:
        found = _spoken(text)
        if isinstance(found, ActionError):
            return ActionError(f"{found.text} {self.form()}")
        number = self.chosen(found)
        return ActionError(f"{quoted(found)} is not an action. {self.form()}") if number is None else number


@dataclass(frozen=True)
class TextActions:
    space: Any

    def form(self) -> str:
        return f"{self.choice()}. End your reply with one line like this:\naction: {self.example()}"

    def example(self) -> str:
        return str(min(self.space.character_set)) * max(1, int(self.space.min_length))

    def choice(self) -> str:
        return f"An action is a text, {self._bounds()}"

    def _bounds(self) -> str:
        characters = "".join(sorted(self.space.character_set))
        return f"{self.space.min_length} to {self.space.max_length} characters long, of these characters: {characters}"

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of an action, its characters described in words."""
        least, most = int(self.space.min_length), int(self.space.max_length)
        return {"type": "string", "minLength": least, "maxLength": most, "description": self.choice()}

    def chosen(self, value: Any) -> str | None:
        """Return the text, or None if it is outside the space."""
        return value if isinstance(value, str) and value in self.space else None

    def parse(self, text: str) -> str | ActionError:
        found = _spoken(text)
        if isinstance(found, ActionError):
            return ActionError(f"{found.text} {self.form()}")
        word = found.strip()
        if word in self.space:
            return word
        return ActionError(f"{quoted(word)} is not an action. {self.form()}")


def farewell(text: str) -> str | None:
    """Return ANSWER of `action: done [ANSWER]`, which ends an episode without a goal, or "" if there is no answer.
    None if the message is another action."""
    found = _spoken(text)
    if isinstance(found, ActionError):
        return None
    word, _, answer = found.strip().partition(" ")
    return answer.strip(" .,;!?*_`'\"") if word.strip(_EDGES).lower() == "done" else None


def _spoken(text: str) -> str | ActionError:
    text = text.rpartition("</think>")[2].partition("<think>")[0]
    labelled = [part.strip() for part in _LABELLED.findall(text)]
    if len(labelled) > 1:
        return ActionError(f"The message names {len(labelled)} actions, and one is taken at a time.")
    return labelled[0] if labelled else text.strip()


def quoted(text: str) -> str:
    text = text.encode("utf-8", "replace").decode("utf-8")
    return f"`{text}`" if len(text) <= _MAX_QUOTED else f"`{text[:_MAX_QUOTED]}…`"


INSTALL_LINE = "pip install gymnasium==1.4.0"
_READABLE_SPACES = ("Discrete", "MultiDiscrete", "MultiBinary", "Text")


def gymnasium_module(name: str = "gymnasium") -> Any:
    """Import a module of gymnasium; raise RuntimeError with the command that installs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise RuntimeError(
            f"the gymnasium environment could not import `{name}` ({error}); install it with: {INSTALL_LINE}"
        ) from error


class World:
    """One registered environment in words: `goal` is the user's request, `rules` go into the system message,
    `action_names` name a discrete space's actions in order. `max_steps` is used without a plan. An episode is solved if
    its rewards add up to `success_return`; None: the registry's threshold, or anything above 0."""

    def __init__(
        self,
        env_id: str,
        *,
        goal: str,
        rules: str = "",
        action_names: Sequence[str] = (),
        max_steps: int = 50,
        success_return: float | None = None,
    ) -> None:
        self.env_id = env_id
        self.goal = goal
        self.rules = rules
        self.action_names = tuple(action_names)
        self.max_steps = max_steps
        self.success_return = success_return

    def make(self, seed: int) -> Any:
        return gymnasium_module().make(self.env_id, disable_env_checker=True)

    def start_keys(self, seeds: Iterable[int]) -> Iterator[str]:
        """Yield a text for each seed that is equal for equal starts; a split keeps one seed of each."""
        for seed in seeds:
            yield str(seed)

    def observe(self, env: Any, observation: Any) -> str:
        return f"Observation: {_as_text(observation)}"

    def facts(self, env: Any, observation: Any) -> tuple[dict[str, Any], bool]:
        """Return the observation as facts, and whether equal facts mean equal states."""
        return {"observation": _as_text(observation)}, False

    def plan(self, env: Any) -> list[int] | None:
        """Return a shortest solution from the present state, [] if it is solved, None if none is known."""
        return None

    def progress(self, env: Any, start_plan: Sequence[int] | None) -> float | None:
        """Return the progress of an unsolved episode in 0..1, or None if it cannot be measured."""
        if not start_plan:
            return None
        rest = self.plan(env)
        return 0.0 if rest is None else max(0.0, 1.0 - len(rest) / len(start_plan))

    def solved(self, env: Any, rewards: Sequence[float], terminated: bool) -> bool:
        wanted = self.success_return if self.success_return is not None else env.spec.reward_threshold
        return sum(rewards) >= wanted if wanted is not None else sum(rewards) > 0

    def actions(self, env: Any) -> NamedActions | TextActions:
        """Return the parser of actions; raise RuntimeError if the spaces are not discrete or text."""
        space = env.action_space
        _check_readable(env.observation_space, self.env_id)
        kind = type(space).__name__
        if kind == "Text":
            return TextActions(space)
        if kind != "Discrete":
            raise RuntimeError(
                f"the action space of {self.env_id} is {space}; only discrete and text spaces can be written as text"
            )
        names = self.action_names or tuple(
            str(number) for number in range(int(space.start), int(space.start) + int(space.n))
        )
        if len(names) != int(space.n):
            raise RuntimeError(f"{self.env_id} has {int(space.n)} actions, but its world's `action_names` {len(names)}")
        return NamedActions(names, int(space.start))


def _check_readable(space: Any, env_id: str) -> None:
    kind = type(space).__name__
    if kind == "Tuple":
        parts: Iterable[Any] = space.spaces
    elif kind == "Dict":
        parts = space.spaces.values()
    elif kind in _READABLE_SPACES:
        return
    else:
        raise RuntimeError(
            f"the observation space of {env_id} holds {space}; only discrete and text spaces can be read as text"
        )
    for part in parts:
        _check_readable(part, env_id)


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_as_text(item)}" for key, item in value.items())
    if isinstance(value, (tuple, list)) or (hasattr(value, "shape") and value.shape):
        return "(" + ", ".join(_as_text(item) for item in value) + ")"
    return str(value)
