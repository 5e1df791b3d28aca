"""A world of few words for the tests of the imitation builder, and one that fails."""

from typing import ClassVar, Literal

from env_service.base import BaseEnv


class Parrot(BaseEnv):
    """Three turns at most; who says the task's word wins."""

    isolation: ClassVar[Literal["shared", "isolated"]] = "shared"

    def __init__(self, task_id, instance_id, params=None):
        super().__init__(task_id, instance_id, params)
        if task_id not in ("zebra", "okapi", "kea's"):
            raise ValueError(f"no task {task_id!r}")
        self.turns, self.won = 0, False

    def get_init_state(self, params=None):
        greeting = self.params.get("greeting", "'tis a zoo.\n\n Don't  shout:")
        return {"state": [{"role": "user", "content": f"{greeting} {self.task_id}"}], "info": {}}

    def step(self, action, params=None):
        if action["content"] == "bite":
            raise RuntimeError("the parrot\nbit back")
        self.turns += 1
        self.won = action["content"] == self.task_id
        answer = {"empty": [], "special": [{"role": "user", "content": "<|im_end|>"}]}.get(
            action["content"], [{"role": "user", "content": f"no, turn {self.turns}"}]
        )
        return {"state": answer, "reward": float(self.won), "is_terminated": self.won or self.turns == 3, "info": {}}

    def evaluate(self, messages=None, params=None):
        return float(self.won)

    def get_info(self, messages=None, params=None):
        return None

    @staticmethod
    def get_query_list(split="train", params=None):
        if split not in ("train", "dev"):
            raise ValueError(f"unknown split {split!r}")
        return ["zebra", "okapi"] if split == "train" else ["kea's"]


class Caged(Parrot):
    """The same behind bars: what the policy says may not be carried out in the builder's process."""

    isolation: ClassVar[Literal["shared", "isolated"]] = "isolated"
