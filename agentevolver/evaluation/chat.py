"""Chat with a policy in its environment: a person sees each step and may act in the policy's place.

The screen wraps the engine, whose replies may be replaced, and the environment's client. The rollout code is unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from agentevolver.rollout.engine import Engine, Generated
from agentevolver.rollout.policy import ChatEngine, ChatReply
from context_manager.chat import ChatRenderer


class Quit(Exception):
    """The user asked to stop."""


class Screen(Protocol):
    """Shows an episode and asks the user for actions."""

    def opening(self, messages: list[dict[str, Any]]) -> None: ...

    def reply(self, text: str) -> None: ...

    def choice(self) -> str | None:
        """Return the user's action, or None to take the policy's. Raises Quit."""
        ...

    def observation(self, messages: list[dict[str, Any]], reward: float, over: bool) -> None: ...


class WatchedPolicy:
    def __init__(self, engine: Engine, renderer: ChatRenderer, screen: Screen) -> None:
        self._engine = engine
        self._renderer = renderer
        self._screen = screen

    async def generate(self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Generated:
        """Return the policy's reply, or the tokens of the user's action. Raises EngineError, Quit."""
        said = await self._engine.generate(request_id, prompt_ids, sampling_params)
        self._screen.reply(self._renderer.decode(said.ids, skip_special_tokens=True))
        typed = self._screen.choice()
        if typed is None:
            return said
        # The end token closes the turn, as a reply of the policy would. The log-probs are dummies: a chat is never
        # trained on.
        ids = [*self._renderer.encode(typed), self._renderer.end_id]
        return Generated(ids, [0.0] * len(ids), said.min_version, said.max_version)


class WatchedModel:
    def __init__(self, engine: ChatEngine, screen: Screen) -> None:
        self._engine = engine
        self._screen = screen

    async def converse(
        self,
        request_id: str,
        messages: list[dict[str, Any]],
        sampling_params: dict[str, Any],
        tools: list[dict[str, Any]] | None = None,
    ) -> ChatReply:
        """Return the model's reply, or the user's action. Raises EngineError, Quit."""
        offered = {} if tools is None else {"tools": tools}
        said = await self._engine.converse(request_id, messages, sampling_params, **offered)
        self._screen.reply(said.written)
        typed = self._screen.choice()
        return said if typed is None else ChatReply(typed)


def watched(screen: Screen) -> Callable[[Any, Any], Any]:
    """Return a function that wraps an engine so that its replies are shown and may be replaced."""

    def wrap(engine: Any, renderer: ChatRenderer) -> Any:
        if isinstance(engine, ChatEngine):
            return WatchedModel(engine, screen)
        return WatchedPolicy(engine, renderer, screen)

    return wrap


class WatchedWorld:
    def __init__(self, client: Any, screen: Screen) -> None:
        self._client = client
        self._screen = screen

    def __getattr__(self, name: str) -> Any:
        # The client has many more methods, and only two of them are shown.
        return getattr(self._client, name)

    async def create_instance(self, *arguments: Any, **options: Any) -> Any:
        state = await self._client.create_instance(*arguments, **options)
        self._screen.opening(state["state"])
        return state

    async def step(self, *arguments: Any, **options: Any) -> Any:
        result = await self._client.step(*arguments, **options)
        self._screen.observation(result["state"], float(result["reward"]), bool(result["is_terminated"]))
        return result
