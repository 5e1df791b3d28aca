"""The sections that self-questioning reads of a configuration, as one object."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from agentevolver.llm.settings import LLMSettings, Role
from task_manager.settings import TaskManagerSettings


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Service(_Section):
    """Which environment, and where."""

    env_type: str = Field("pocket", min_length=1)
    env_url: str = Field("http://127.0.0.1:8080", pattern=r"^https?://[^/]+(/.*)?$")
    external: bool = False
    env_params: dict[str, Any] = Field(default_factory=dict)
    timeout_s: float = Field(300.0, gt=0)


class Splits(_Section):
    """Whose worlds are explored, and what must not be trained on."""

    train_split: str = "train"
    train_filter: dict[str, Any] = Field(default_factory=dict)
    val_splits: list[str] = Field(default_factory=lambda: ["dev"])
    val_filter: dict[str, Any] = Field(default_factory=dict)


class Configuration(_Section):
    """Everything that a questioning run reads."""

    task_manager: TaskManagerSettings = TaskManagerSettings()
    llm: LLMSettings = LLMSettings()
    env_service: Service = Service()
    data: Splits = Splits()

    @property
    def models(self) -> dict[str, str]:
        """What tells each role's model and sampling apart from others, by role."""
        out = {}
        for role in Role:
            endpoint = self.llm.endpoint(role)
            parts = endpoint.model_dump(include={"base_url", "model", "sampling"})
            if role.value in ("explorer", "synthesiser", "verifier", "judge") and endpoint.base_url == "offline":
                parts["teacher"] = self.llm.teacher.model_dump(exclude={"url"})
            out[role.value] = repr(sorted(parts.items()))
        return out
