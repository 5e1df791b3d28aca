"""A trainer that takes over what another one has started: workers, reference policy, vLLM's engines."""

from __future__ import annotations

from typing import Any, Self

import ray
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

# What verl's `_setup` makes and another training can use as it is; the last one last.
KEPT = (
    *("role_worker_mapping", "mapping", "resource_pool_manager", "resource_pool_to_cls", "ref_in_actor"),
    *("actor_rollout_wg", "ref_policy_wg", "reward_loop_manager", "teacher_model_manager", "distillation_config"),
    *("llm_server_manager", "checkpoint_manager"),
)


class Adopting(PPOTrainer):
    """Mixin over verl's `PPOTrainer`: `_setup` is verl's, or takes over what the trainer of `adopt` has up.

    Then the policy is made anew on its workers by this trainer's configuration; tokenizer, data and checkpoint are its
    own.
    """

    _before: PPOTrainer | None = None

    def adopt(self, before: PPOTrainer) -> Self:
        """Take over what `before` has up, which is not used again; to be called before `init`."""
        self._before = before
        return self

    @property
    def is_up(self) -> bool:
        """Whether everything is there that another trainer could adopt."""
        return hasattr(self, KEPT[-1])

    def _setup(self) -> None:
        if self._before is None:
            super()._setup()
            return
        self._init_tokenizer()
        self._init_dataloader()
        self._init_dump_executor()
        for name in KEPT:
            if hasattr(self._before, name):  # there is no reference where no training needs one
                setattr(self, name, getattr(self._before, name))
        self._before = None
        self.llm_server_manager.config = self.config
        self.calm()
        self.actor_rollout_wg.renew(self.config.actor_rollout_ref)
        self._load_checkpoint()

    def calm(self) -> None:
        """Wait until vLLM has nothing to do, forget which episode was where, and let its memory go."""
        manager = self.llm_server_manager
        servers: dict[str, Any] = dict(zip(manager.server_addresses, manager.server_handles, strict=True))
        balancer = manager.global_load_balancer
        ray.get(balancer.clear_sticky_cache.remote())
        # Rollout workers that were ended have not said that their calls are over.
        ray.get(balancer.remove_servers.remote(list(servers)))
        ray.get(balancer.add_servers.remote(servers))
        self.checkpoint_manager.sleep_replicas()
