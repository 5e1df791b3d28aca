"""verl's worker of policy, reference and rollout, with initial weights and timed weight syncs."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from omegaconf import OmegaConf, open_dict
from verl.single_controller.base.decorator import Dispatch, register
from verl.workers.engine_workers import ActorRolloutRefWorker

from agentevolver.trainer.weights import KEY, Weights


class PolicyWorker(ActorRolloutRefWorker):
    role: str

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """Build the models of this role, the policy with the weights of `agentevolver.trainer.weights`."""
        found = self.config.get(KEY)
        weights = None if found is None else Weights(**found)
        if weights is None:
            super().init_model()
        elif weights.kind == "shards":
            super().init_model()
            self._load_shards(weights.folder)
        else:
            # The reference keeps the model's own weights, so policy and reference are built separately.
            with self._as_role("_".join(part for part in self.role.split("_") if part != "actor")):
                super().init_model()
            with self._as_role("actor"), self._reading(weights.folder):
                super().init_model()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def update_weights(self, global_steps: int | None = None, mode: str = "auto") -> Any:
        # Only parts are timed. Loading, offloading and waiting for other ranks is the rest of the sync's time.
        if not hasattr(self, "_sync_seconds"):
            self.rollout.resume = self._timed(self.rollout.resume, lambda tags: f"wake_{'_'.join(tags)}")
            self.rollout.update_weights = self._timed(self.rollout.update_weights, lambda *_: "send")
        self._sync_seconds: dict[str, float] = {}
        return await super().update_weights(global_steps=global_steps, mode=mode)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def sync_seconds(self) -> dict[str, float]:
        """Return the seconds of the last weight sync's parts on this rank: `wake_weights`, `send`, `wake_kv_cache`."""
        return getattr(self, "_sync_seconds", {})

    def _timed(self, method: Callable[..., Awaitable[Any]], name: Callable[..., str]) -> Callable[..., Awaitable[Any]]:
        async def inner(*arguments: Any, **options: Any) -> Any:
            part = name(*arguments, **{key: value for key, value in options.items() if key == "tags"})
            began = time.perf_counter()
            try:
                return await method(*arguments, **options)
            finally:
                self._sync_seconds[part] = self._sync_seconds.get(part, 0.0) + time.perf_counter() - began

        return inner

    @contextmanager
    def _as_role(self, role: str) -> Iterator[None]:
        """Make verl's `init_model` build only the parts of this role."""
        own, self.role = self.role, role
        try:
            yield
        finally:
            self.role = own

    @contextmanager
    def _reading(self, folder: str) -> Iterator[None]:
        """Make verl read the policy's weights from a folder; configuration and tokenizer stay."""
        own = self.config.model
        elsewhere = {
            "path": folder,
            "hf_config_path": own.hf_config_path or own.path,
            "tokenizer_path": own.tokenizer_path or own.path,
        }
        with open_dict(self.config):
            self.config.model = OmegaConf.merge(own, elsewhere)
        try:
            yield
        finally:
            with open_dict(self.config):
                self.config.model = own

    def _load_shards(self, folder: str) -> None:
        assert self.actor is not None
        manager = self.actor.engine.checkpoint_manager
        wanted, manager.checkpoint_load_contents = manager.checkpoint_load_contents, ["model"]
        try:
            self.actor.load_checkpoint(folder)
        finally:
            manager.checkpoint_load_contents = wanted
