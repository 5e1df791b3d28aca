"""verl's worker of policy, reference and rollout, whose policy can be made anew for another training.

What verl builds of a policy (weights, optimiser, schedule, the sizes of its micro-batches) is built by verl again, by
the part of its `init_model` that does so; reference and rollout stay.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf, open_dict
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.device import get_torch_device
from verl.workers.engine_workers import ActorRolloutRefWorker

from agentevolver.trainer.weights import KEY, Weights


class RenewableWorker(ActorRolloutRefWorker):
    """Like verl's; a policy that is made anew is, to the bit, the one that a new process would have."""

    role: str

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """verl's own, with the policy built last."""
        self._known_meshes: set[str] = set()
        with self._as_role("_".join(part for part in self.role.split("_") if part != "actor")):
            super().init_model()
        self._random = (torch.get_rng_state(), get_torch_device().get_rng_state())
        self._build_policy()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def renew(self, config: DictConfig) -> None:
        """Drop the policy with its optimiser, and build that of another training.

        Args:
            config: the training's section `actor_rollout_ref`; what `agentevolver.trainer.fixed` lists is as before.
        """
        self.config = config
        self.actor = None
        gc.collect()
        get_torch_device().empty_cache()
        torch.set_rng_state(self._random[0])
        get_torch_device().set_rng_state(self._random[1])
        self._build_policy()

    def set_dispatch_collect(self, mesh_name: str, **ranks: Any) -> None:
        """verl's own, which refuses to be told a second time what has not changed."""
        if mesh_name not in self._known_meshes:
            super().set_dispatch_collect(mesh_name, **ranks)
            self._known_meshes.add(mesh_name)

    def _build_policy(self) -> None:
        found = self.config.get(KEY)
        weights = None if found is None else Weights(**found)
        with self._as_role("actor"), self._reading(weights):
            super().init_model()
        if weights is not None and weights.kind == "shards":
            self._load_shards(weights.folder)

    @contextmanager
    def _as_role(self, role: str) -> Iterator[None]:
        """Let verl's `init_model` build the parts of this role alone."""
        own, self.role = self.role, role
        try:
            yield
        finally:
            self.role = own

    @contextmanager
    def _reading(self, weights: Weights | None) -> Iterator[None]:
        """Have verl read a policy's weights elsewhere, its configuration and tokenizer where they are."""
        own = self.config.model
        if weights is not None and weights.kind == "huggingface":
            elsewhere = OmegaConf.merge(
                own,
                {
                    "path": weights.folder,
                    "hf_config_path": own.hf_config_path or own.path,
                    "tokenizer_path": own.tokenizer_path or own.path,
                },
            )
            with open_dict(self.config):
                self.config.model = elsewhere
        try:
            yield
        finally:
            with open_dict(self.config):
                self.config.model = own

    def _load_shards(self, folder: str) -> None:
        """Load a checkpoint's weights, and nothing else of it."""
        assert self.actor is not None
        manager = self.actor.engine.checkpoint_manager
        wanted, manager.checkpoint_load_contents = manager.checkpoint_load_contents, ["model"]
        try:
            self.actor.load_checkpoint(folder)
        finally:
            manager.checkpoint_load_contents = wanted
