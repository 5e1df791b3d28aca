"""The bodies of the service's routes, as ReMe's first generation has them: fields that are not known are taken and passed over."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore")


class TrajectoryBody(_Body):
    """A finished rollout."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    score: float = Field(allow_inf_nan=False)
    task_id: str = ""
    metadata: dict[str, Any] = Field(default_factory=dict)


class WorkspaceBody(_Body):
    """What every request says; an empty workspace is the service's default."""

    workspace_id: str = ""


class SummaryBody(WorkspaceBody):
    """POST /summary_task_memory."""

    trajectories: list[TrajectoryBody] = Field(min_length=1)


class RetrieveBody(WorkspaceBody):
    """POST /retrieve_task_memory: `query` as text, or AgentEvolver's JSON list of messages; or `messages`."""

    query: str = ""
    messages: list[dict[str, Any]] = Field(default_factory=list)
    top_k: int = Field(3, ge=1, le=1000)
    metadata: dict[str, Any] = Field(default_factory=dict)


class RecordBody(WorkspaceBody):
    """POST /record_task_memory."""

    memory_dicts: list[dict[str, Any]]
    update_utility: bool = False


class DeleteBody(WorkspaceBody):
    """POST /delete_task_memory."""

    freq_threshold: int = Field(ge=0)
    utility_threshold: float = Field(ge=0)


class VectorStoreBody(WorkspaceBody):
    """POST /vector_store."""

    action: Literal["copy", "delete", "delete_ids", "dump", "load", "list"]
    src_workspace_id: str = ""
    memory_ids: list[str] = Field(default_factory=list)
    path: str = ""


class Answer(BaseModel):
    """What every route returns."""

    answer: str | list[Any] | dict[str, Any] = ""
    success: bool = True
    metadata: dict[str, Any] = Field(default_factory=dict)
