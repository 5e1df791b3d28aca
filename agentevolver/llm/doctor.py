"""Health check of the roles' endpoints: four short questions to each, and a line for every problem.

Roles with equal endpoints are checked once. Models that are served only during a run are skipped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from agentevolver.llm.client import LLM, PolicySource
from agentevolver.llm.errors import LLMContextOverflow, LLMError, LLMReplyError, LLMTimeout, LLMUnavailable
from agentevolver.llm.settings import OFFLINE, POLICY, EndpointSettings, LLMSettings, Role

PATIENCE_S = 30.0
_READY = [{"role": "user", "content": "Reply with the one word: ready"}]
_SUM = [{"role": "user", "content": 'How much is 2 + 3? Reply with a JSON object alone, of this form: {"sum": 0}'}]
_LOOK = [{"role": "user", "content": "What is the weather in Turin? Call the tool that tells it."}]
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tell the weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


class Sum(BaseModel):
    sum: int


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """Result of checking one endpoint."""

    roles: tuple[Role, ...]
    where: str
    works: bool  # the endpoint returns text and JSON, or is skipped
    said: str = ""  # outcome of each question, and the cost
    problems: tuple[str, ...] = ()  # one line per failure; `optional`: of features that may be missing
    optional: tuple[str, ...] = ()


async def examine(settings: LLMSettings, policy: PolicySource | None = None) -> list[DoctorFinding]:
    """Check every role's endpoint. If `policy` is None, roles with `base_url: policy` are skipped."""
    groups: list[tuple[EndpointSettings, list[Role]]] = []
    for role in Role:
        endpoint = settings.endpoint(role)
        known = next((roles for other, roles in groups if other == endpoint), None)
        if known is None:
            groups.append((endpoint, [role]))
        else:
            known.append(role)
    async with LLM(_impatient(settings), policy=policy, patience_s=PATIENCE_S) as llm:
        return await asyncio.gather(
            *(_examine(llm, endpoint, tuple(roles), policy is not None) for endpoint, roles in groups)
        )


def report(findings: list[DoctorFinding]) -> str:
    lines = []
    for found in findings:
        lines += [f"{', '.join(role.value for role in found.roles)}: {found.where}{found.said}"]
        lines += [f"  PROBLEM {problem}" for problem in found.problems]
        lines += [f"  optional, does not work: {problem}" for problem in found.optional]
    return "\n".join(lines)


def _impatient(settings: LLMSettings) -> LLMSettings:
    # One try, no cache and no budget: the check must show today's server, not a repeated or stored reply.
    roles = {role: {**own, "tries": 1} for role, own in settings.roles.items()}
    plain = settings.model_dump(exclude={"budget", "ledger", "cache", "roles"})
    return LLMSettings.model_validate({**plain, "tries": 1, "cache": False, "roles": roles})


async def _examine(llm: LLM, settings: EndpointSettings, roles: tuple[Role, ...], has_policy: bool) -> DoctorFinding:
    role = roles[0]
    if settings.base_url == OFFLINE:
        return DoctorFinding(roles, "the built-in teacher, which the launcher starts; not checked", True)
    if settings.base_url == POLICY and not has_policy:
        return DoctorFinding(roles, "the policy, which is served during a run; not checked", True)
    where, problems, optional = f"{settings.model} at {settings.base_url}", list[str](), list[str]()
    text = await _asked(problems, "text", llm.chat(role, _READY))
    if text is None:
        return DoctorFinding(roles, where, False, problems=tuple(problems))
    answer = await _asked(problems, "JSON", llm.structured(role, _SUM, Sum))
    call = await _asked(optional, "tool call", llm.chat(role, _LOOK, tools=_TOOLS))
    wanted = {"type": "json_schema", "json_schema": {"name": "Sum", "schema": Sum.model_json_schema()}}
    form = await _asked(optional, "response_format", llm.chat(role, _SUM, response_format=wanted))
    if (refusal := llm.refused_format(role)) is not None:
        form = None
        optional.append(f"response_format: {refusal}")
    worked = {"text": True, "JSON": answer, "tool call": call and call.tool_calls, "response_format": form}
    counts = llm.counts(role)
    outcomes = ", ".join(f"{name} {'yes' if value else 'no'}" for name, value in worked.items())
    cost = f"{counts.prompt_tokens} tokens in, {counts.completion_tokens} out, cost {counts.cost:.6f}"
    said = f": {outcomes}; {text.seconds:.1f} s; {cost}"
    return DoctorFinding(roles, where, answer is not None, said, tuple(problems), tuple(optional))


async def _asked(problems: list[str], question: str, call: Awaitable[Any]) -> Any:
    try:
        return await call
    except LLMError as error:
        problems.append(f"{question}: {error}{_advice(error)}")
        return None


def _advice(error: LLMError) -> str:
    if isinstance(error, LLMTimeout | LLMContextOverflow):
        return ""
    if isinstance(error, LLMUnavailable):
        return "; check that its base_url is right and the server up, or wait and try again"
    if isinstance(error, LLMReplyError) and "no usable reply" in str(error):
        return "; set json_mode: schema if it offers that, more max_tokens, or another model"
    return ""
