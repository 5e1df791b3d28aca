"""Tasks that are folders in harbor's layout: an agent works in each task's container, not through `step`.

`root/<split>/<task>/instruction.md` is the task. `actor_rollout_ref.rollout.agent_container` selects agent and grader.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from env_service.base import BaseEnv, InitState, Message, StepResult
from env_service.parameters import inside

INSTRUCTION = "instruction.md"
_ELSEWHERE = (
    "a task of this environment is worked on in its container: set actor_rollout_ref.rollout.agent_container, and "
    "agent_world to false"
)


class TaskFoldersEnv(BaseEnv):
    """One task's text; `root` is the folder of all tasks (in `env_params`, and for listing in `data.train_filter` and
    `data.val_filter`)."""

    isolation: ClassVar[Literal["shared", "isolated"]] = "shared"
    call_timeout_s: ClassVar[float] = 10.0

    def __init__(self, task_id: str, instance_id: str, params: dict[str, Any] | None = None) -> None:
        super().__init__(task_id, instance_id, params)
        root = _root(self.params)
        try:
            self.folder = inside(root / task_id, [root])
            self.text = inside(self.folder / INSTRUCTION, [root]).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise ValueError(f"no task {task_id!r} in {root}: {task_id}/{INSTRUCTION}: {error}") from error

    def get_init_state(self, params: dict[str, Any] | None = None) -> InitState:
        if {**self.params, **(params or {})}.get("is_open_query"):
            raise ValueError("there is nothing to explore here: no tasks can be made of task folders")
        info = {"query": self.text, "folder": str(self.folder)}
        return {"state": [{"role": "user", "content": self.text}], "info": info}

    def step(self, action: Message, params: dict[str, Any] | None = None) -> StepResult:
        raise ValueError(_ELSEWHERE)

    def evaluate(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> float:
        raise ValueError(_ELSEWHERE)

    @staticmethod
    def get_query_list(split: str = "train", params: dict[str, Any] | None = None) -> list[str]:
        root = _root(params or {})
        folder = inside(root / split, [root])
        if not folder.is_dir():
            raise ValueError(f"no split {split!r}: {folder} is no folder")
        return sorted(f"{split}/{path.parent.name}" for path in folder.glob(f"*/{INSTRUCTION}"))


def _root(params: dict[str, Any]) -> Path:
    root = params.get("root")
    if not isinstance(root, str) or not Path(root).is_absolute() or not Path(root).is_dir():
        raise ValueError(
            f"root = {root!r} is no folder: say where the tasks are, by an absolute path, in "
            "env_service.env_params.root, data.train_filter.root and data.val_filter.root"
        )
    return Path(root).resolve()
