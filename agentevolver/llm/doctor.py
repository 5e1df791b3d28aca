"""Health check of the roles' endpoints: each is asked a few short questions, all at once; a table says what works.

Roles whose endpoints are equal are asked once. The built-in teacher and the policy are served by a run alone and are
not asked. Nothing is cached, no budget counts, and nobody is waited for: one try for each question.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from agentevolver.llm.client import LLM, PolicySource
from agentevolver.llm.errors import LLMContextOverflow, LLMError, LLMReplyError, LLMTimeout, LLMUnavailable
from agentevolver.llm.settings import OFFLINE, POLICY, EndpointSettings, LLMSettings, Role

PATIENCE_S = 30.0
YES, NO, LEFT_OUT, DEFERRED = "yes", "no", "left out", "-"
_SEED = 7
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
    """The answer to the question in JSON."""

    sum: int


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of the check of one endpoint; `works` is whether text and JSON come from it,
    or it is not there to be asked yet.

    `text`, `json`, `tools`, `seed` and `response_format` are `yes`, `no`, `left out` (not sent, since the dialect, the
    configuration or a refusal says so) or `-` (not asked). `problems` and `facts` are lines.
    """

    roles: tuple[Role, ...]
    where: str
    works: bool
    text: str = DEFERRED
    json: str = DEFERRED
    tools: str = DEFERRED
    seed: str = DEFERRED
    response_format: str = DEFERRED
    seconds: float | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    problems: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()


@dataclass
class _Notes:
    problems: list[str] = field(default_factory=list)
    seconds: float | None = None

    async def of(self, question: str, call: Awaitable[Any]) -> Any:
        """Return what a call returns, None and a line if it fails."""
        try:
            return await call
        except LLMError as error:
            self.problems.append(f"{question}: {error}{_advice(error)}")
            return None


async def examine(settings: LLMSettings, policy: PolicySource | None = None) -> list[Finding]:
    """Ask every endpoint of the roles; returns a finding for each, in the order of the roles.

    Args:
        settings: the section `llm`.
        policy: where the policy is served; without it roles with `base_url: policy` are not asked.
    """
    groups: list[tuple[EndpointSettings, list[Role]]] = []
    for role in Role:
        endpoint = settings.endpoint(role)
        known = next((roles for other, roles in groups if other == endpoint), None)
        if known is None:
            groups.append((endpoint, [role]))
        else:
            known.append(role)
    async with LLM(_impatient(settings), policy=policy) as llm:
        return await asyncio.gather(
            *(_examine(llm, endpoint, tuple(roles), policy is not None) for endpoint, roles in groups)
        )


def report(findings: list[Finding], width: int = 140) -> str:
    """Return the findings: a table of the endpoints that were asked, then a line for each finding, fact and problem."""
    asked = [found for found in findings if found.text != DEFERRED]
    table = Table(box=None, pad_edge=False)
    for name in ("role", "text", "JSON", "tool call", "seed", "response_format", "latency", "tokens in", "out", "cost"):
        table.add_column(
            name, justify="right" if name in ("latency", "tokens in", "out", "cost") else "left", no_wrap=True
        )
    for found in asked:
        said = (found.text, found.json, found.tools, found.seed, found.response_format)
        for role in found.roles:
            # What roles of one endpoint share is told once.
            latency = f"{found.seconds:.1f} s" if found.seconds is not None else DEFERRED
            numbers = [latency, str(found.prompt_tokens), str(found.completion_tokens), f"{found.cost:.6f}"]
            if role is not found.roles[0]:
                numbers = [""] * len(numbers)
            table.add_row(role.value, *said, *numbers)
    out = io.StringIO()
    if asked:
        Console(file=out, width=width, color_system=None).print(table)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    for found in findings:
        lines += [""] if lines else []
        lines += [f"{', '.join(role.value for role in found.roles)}: {found.where}"]
        lines += [f"  {fact}" for fact in found.facts] + [f"  PROBLEM {problem}" for problem in found.problems]
    return "\n".join(lines)


def _impatient(settings: LLMSettings) -> LLMSettings:
    """Return settings that wait for nobody, keep nothing and count no budget."""
    once = {"tries": 1, "rate_limit_timeout_s": PATIENCE_S}
    roles = {role: {**own, **once} for role, own in settings.roles.items()}
    plain = settings.model_dump(exclude={"budget", "ledger", "cache", "roles"})
    return LLMSettings.model_validate({**plain, **once, "cache": False, "roles": roles})


async def _examine(llm: LLM, settings: EndpointSettings, roles: tuple[Role, ...], has_policy: bool) -> Finding:
    role = roles[0]
    if settings.base_url == OFFLINE:
        return Finding(roles, "the built-in teacher, which the launcher starts; not asked", True)
    if settings.base_url == POLICY and not has_policy:
        return Finding(roles, "the policy, which is served during a run; not asked", True)
    notes = _Notes()
    text = await notes.of("text", llm.chat(role, _READY, seed=_SEED))
    endpoint = llm.known_endpoint(role)
    if text is None or endpoint is None:
        return Finding(roles, f"{settings.model} at {settings.base_url}", False, NO, problems=tuple(notes.problems))
    answer = await notes.of("JSON", llm.structured(role, _SUM, Sum))
    works = answer is not None
    optional = _Notes()
    call = await optional.of("tool call", llm.chat(role, _LOOK, tools=_TOOLS))
    wanted = {"type": "json_schema", "json_schema": {"name": "Sum", "schema": Sum.model_json_schema()}}
    form = await optional.of("response_format", llm.chat(role, _SUM, response_format=wanted))
    unsent = endpoint.unsent
    if "response_format" in unsent:
        offered = LEFT_OUT
    elif form is None:
        offered = NO
    else:
        refused = endpoint.learnt.formats
        offered = "schema" if "json_schema" not in refused else "object" if "json_object" not in refused else NO
    counts, (context, told) = llm.counts(role), (await endpoint.named_context(), endpoint.server)
    requests, tokens = told.told.requests.limit, told.told.tokens.limit
    named = told.pace.limits
    limits = [f"{_number(requests or named[0])} requests"] if requests or named[0] else []
    limits += [f"{_number(tokens or named[1])} tokens"] if tokens or named[1] else []
    context = endpoint.context_limit or context
    facts = [
        f"limits it names: {' and '.join(limits) or 'none'}; context: {f'{context} tokens' if context else 'not named'}"
    ]
    facts += [f"learnt: {line}" for line in endpoint.learnt.lines()]
    facts += [f"dialect {endpoint.dialect.name}"] + [
        f"optional, does not work: {problem}" for problem in optional.problems
    ]
    return Finding(
        roles,
        f"{endpoint.served.model} at {endpoint.served.base_url}",
        works,
        YES,
        YES if works else NO,
        LEFT_OUT if "tools" in unsent else YES if call is not None and call.tool_calls else NO,
        LEFT_OUT if "seed" in unsent else YES,
        offered,
        text.seconds,
        counts.prompt_tokens,
        counts.completion_tokens,
        counts.cost,
        tuple(notes.problems),
        tuple(facts),
    )


def _advice(error: LLMError) -> str:
    if isinstance(error, LLMTimeout | LLMContextOverflow):
        return ""
    if isinstance(error, LLMUnavailable):
        return "; check that its base_url is right and the server up, or wait and try again"
    if isinstance(error, LLMReplyError) and "no usable reply" in str(error):
        return "; set json_mode: schema if it offers that, more max_tokens, or another model"
    return ""


def _number(value: float | None) -> str:
    return f"{value:.0f}" if value is not None else ""
