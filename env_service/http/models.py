"""Bodies of requests and replies: field names and types of AgentEvolver's routes, and the schemas of OpenAPI."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, create_model


class ServiceRequest(BaseModel):
    """The body of any POST route; each route says which fields it needs."""

    model_config = ConfigDict(extra="ignore")

    env_type: Annotated[
        str | None, Field(description="Name of a served environment; may be left out when only one is served.")
    ] = None
    task_id: Annotated[str | None, Field(description="Id of a task, as /get_env_profile lists it.")] = None
    instance_id: Annotated[
        str | None, Field(description="Id of an instance; for /create the caller may choose it.")
    ] = None
    messages: Annotated[
        dict[str, Any] | list[dict[str, Any]] | None,
        Field(
            description="For /step the action `{role, content, tool_calls?}`, where content may be null; for /evaluate "
            "and /get_info the conversation or nothing."
        ),
    ] = None
    params: Annotated[dict[str, Any] | None, Field(description="Parameters of the environment.")] = None
    step_index: Annotated[
        int | None,
        Field(
            ge=0,
            strict=True,
            description="Number of the step from 0; the last number again returns the last reply again.",
        ),
    ] = None


def request_model(name: str, required: tuple[str, ...], optional: tuple[str, ...]) -> type[BaseModel]:
    """Return the schema of one route's body, derived from `ServiceRequest`."""
    fields: dict[str, Any] = {}
    for field_name in (*required, *optional):
        info = ServiceRequest.model_fields[field_name]
        default = ... if field_name in required else None
        fields[field_name] = (
            info.annotation,
            Field(default, description=info.description, ge=0 if field_name == "step_index" else None),
        )
    return create_model(name, **fields)


class MessageModel(BaseModel):
    """A chat message."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: str


class InitStateModel(BaseModel):
    """The opening of an episode."""

    state: list[MessageModel]
    info: dict[str, Any]


class StepModel(BaseModel):
    """The result of an action."""

    state: list[MessageModel]
    reward: float
    is_terminated: bool
    info: dict[str, Any]


class ErrorModel(BaseModel):
    """Why a request failed."""

    success: bool = False
    detail: str | list[dict[str, Any]]
    code: str
    error_id: str | None = None


class ProfileReply(BaseModel):
    """Task ids."""

    success: bool
    data: list[str]


class CreateReply(BaseModel):
    success: bool
    data: InitStateModel


class StepReply(BaseModel):
    success: bool
    data: StepModel


class ScoreReply(BaseModel):
    """A score in 0..1."""

    success: bool
    data: float


class InfoReply(BaseModel):
    """The environment's facts about an instance."""

    success: bool
    data: Any


class ReleaseReply(BaseModel):
    """Whether there was an instance to release."""

    success: bool
    data: None


class ManyReply(BaseModel):
    """Replies in the order of the requests; a failed one is an error body with its `status`."""

    success: bool
    data: list[dict[str, Any]]


class InstancesReply(BaseModel):
    success: bool
    data: list[dict[str, Any]]
