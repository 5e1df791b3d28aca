"""Request and reply bodies of the routes of ReMe 0.1 to 0.3; unknown fields are ignored.

Dump files are named after workspaces, so a workspace's name has at most 200 printable characters, no slash, and no dot
at the beginning.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

# SQLite's largest integer.
_MAX_COUNT = 2**63 - 1


def _is_name(value: str) -> str:
    if not value.isprintable() or "/" in value or "\\" in value or value.startswith("."):
        raise ValueError("must be printable, without slashes, and not begin with a dot")
    return value


def _is_path(value: str) -> str:
    if not value.isprintable():
        raise ValueError("must be printable")
    return value


def _is_message(value: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(value.get("role"), str):
        raise ValueError("every message needs a role")
    return value


ChatMessage = Annotated[dict[str, Any], AfterValidator(_is_message)]
WorkspaceName = Annotated[str, Field(max_length=200), AfterValidator(_is_name)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore")


class TrajectoryBody(_Body):
    messages: list[ChatMessage] = Field(min_length=1)
    score: float = Field(allow_inf_nan=False)
    task_id: str = ""
    metadata: dict[str, Any] = Field(default_factory=dict)


class WorkspaceBody(_Body):
    """Fields of every request; an empty workspace is the service's default."""

    workspace_id: WorkspaceName = ""


class SummaryBody(WorkspaceBody):
    """Body of POST /summary_task_memory."""

    trajectories: list[TrajectoryBody] = Field(min_length=1)


class RetrieveBody(WorkspaceBody):
    """POST /retrieve_task_memory: `query` as text, or AgentEvolver's JSON list of messages; or `messages`."""

    query: str = ""
    messages: list[ChatMessage] = Field(default_factory=list)
    top_k: int = Field(3, ge=1, le=1000)
    metadata: dict[str, Any] = Field(default_factory=dict)


class RecordBody(WorkspaceBody):
    """POST /record_task_memory."""

    memory_dicts: list[dict[str, Any]]
    update_utility: bool = False


class DeleteBody(WorkspaceBody):
    """POST /delete_task_memory."""

    freq_threshold: int = Field(ge=0, le=_MAX_COUNT)
    utility_threshold: float = Field(ge=0)


class VectorStoreBody(WorkspaceBody):
    """POST /vector_store."""

    action: Literal["copy", "delete", "delete_ids", "dump", "load", "list"]
    src_workspace_id: WorkspaceName = ""
    memory_ids: list[str] = Field(default_factory=list)
    path: Annotated[str, Field(max_length=1000), AfterValidator(_is_path)] = ""


class RemeAnswer(BaseModel):
    """Reply of every route."""

    answer: str | list[Any] | dict[str, Any] = ""
    success: bool = True
    metadata: dict[str, Any] = Field(default_factory=dict)
