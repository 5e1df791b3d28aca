"""A frozen policy's reply to a conversation: what a seat of a game asks for in self-play.

The conversation is rendered whole, by the chat template of the run, and sampled as in training. One engine holds one
policy at a time (`turns.py`): whoever asks for another waits until it is loaded.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from omegaconf import DictConfig, OmegaConf

from agentevolver.coevolve.player.client import PlayerRefused, PlayerUnavailable, PlayFailed
from agentevolver.coevolve.player.play import sampling_of
from agentevolver.coevolve.player.turns import Turns
from agentevolver.coevolve.player.weights import Accepted, Weights, identify
from agentevolver.config.schema import Settings
from agentevolver.engine import Engine, EngineError
from agentevolver.rollout.agent_loop import stop_ids
from context_manager.chat import ChatRenderer, ChatTemplateError

logger = logging.getLogger(__name__)


class ChatEngine(Engine, Weights, Protocol):
    """An engine that samples, and whose weights can be changed."""


class FrozenChat:
    """Replies of frozen policies; for one event loop.

    Args:
        engine: samples, and changes its weights.
        renderer: of the run's chat template.
        sampling: parameters of training's samples.
        response_length: tokens of a reply at most.
        max_model_len: tokens of conversation and reply.
        loaded: the folder whose weights the engine has; None: nobody knows.
        at_once: replies that are sampled at a time.
    """

    def __init__(
        self,
        engine: ChatEngine,
        renderer: ChatRenderer,
        sampling: Mapping[str, Any],
        response_length: int,
        max_model_len: int,
        loaded: Path | None,
        at_once: int,
    ) -> None:
        self._engine = engine
        self._renderer = renderer
        self._sampling = {**sampling, "max_tokens": response_length}
        self._room = max_model_len - response_length
        self._slots = asyncio.Semaphore(at_once)
        self._accepted = Accepted(engine)
        self.turns = Turns(engine.load, None if loaded is None else identify(loaded))

    async def reply(self, checkpoint: Path | str, messages: Sequence[dict[str, Any]], seed: int | None = None) -> str:
        """Return what the policy of a folder says next: nothing, where the conversation leaves no room for a reply (in
        training its episode would have ended there).

        Args:
            checkpoint: a Hugging Face folder.
            messages: the conversation, which ends with somebody else's message.
            seed: of the sample; None: none of its own.

        Raises:
            PlayerRefused: these weights or messages cannot be played.
            PlayFailed: the engine gave no reply.
            PlayerUnavailable: the engine has ended.
        """
        if self._engine.dead:
            raise PlayerUnavailable("the engine has ended, and the player with it")
        try:
            prompt = self._renderer.opening(messages)
        except ChatTemplateError as error:
            raise PlayerRefused(f"the conversation cannot be rendered: {error}") from error
        if len(prompt) > self._room:
            return ""
        key = await asyncio.to_thread(self._accepted.name, checkpoint)
        sampling = {**self._sampling, **({} if seed is None else {"seed": seed})}
        try:
            async with self.turns.of(key), self._slots:
                said = await self._engine.generate(uuid.uuid4().hex, prompt, sampling)
        except EngineError as error:
            logger.warning("no reply of %s: %s", checkpoint, error)
            kind = PlayerUnavailable if self._engine.dead else PlayFailed
            raise kind(f"checkpoint {checkpoint}: {error}") from error
        return self._renderer.text(said.ids)


def make_chat(config: DictConfig, settings: Settings, engine: ChatEngine, tokenizer: Any, loaded: Path) -> FrozenChat:
    """Return what replies for the frozen policies of a run's self-play.

    Args:
        config: of the run.
        settings: its typed view.
        engine: samples, and changes its weights.
        tokenizer: of the policy.
        loaded: the folder whose weights the engine has.
    """
    kwargs: Any = OmegaConf.to_container(
        config.data.get("apply_chat_template_kwargs") or OmegaConf.create(), resolve=True
    )
    renderer = ChatRenderer(tokenizer, dict(kwargs), stop_ids(tokenizer.name_or_path))
    sampling, sizes = sampling_of(config)[0], settings.sizes
    at_once = settings.rollout.max_env_worker
    return FrozenChat(engine, renderer, sampling, sizes.response_length, sizes.max_model_len, loaded, at_once)
