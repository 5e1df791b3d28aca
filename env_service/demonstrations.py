"""Demonstrations: episodes that follow an environment's reference solution, some with a mistake that is corrected.

They run in this process, in fresh instances. Mistakes are drawn from the actions of reference solutions, so that no
foreign code runs.
"""

from __future__ import annotations

import json
import random
import time
from argparse import Namespace
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentevolver.utils.guidance import TEMPLATE
from env_service.base import BaseEnv
from env_service.contract import (
    checked_action,
    checked_init_state,
    checked_score,
    checked_step,
    checked_tasks,
    created_with,
    has_native_tools,
    list_tasks,
    with_tools,
)
from env_service.registry import RegistryError, known_environments, load, resolve
from env_service.tool_calls import ToolCall, tagged_calls

# Draws of a mistake at one place, before it is left without.
DRAWS = 3
# Actions of other tasks that mistakes are drawn from, the latest ones.
REMEMBERED = 200
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class EpisodeOver(Exception):
    """Action `number` (from 1) ended the episode although further actions remained."""

    def __init__(self, number: int) -> None:
        super().__init__(f"the episode ended with action {number} although further actions remained")
        self.number = number


class NoReference(Exception):
    pass


class NoDemonstrations(Exception):
    """No demonstrations can be made; the message is one line."""


@dataclass(frozen=True, slots=True)
class DemonstratedEpisode:
    """A played episode: its messages, the last one the assistant's, its actions and its score. `refused` counts refused
    actions that are not deliberate mistakes."""

    messages: list[dict[str, Any]]
    actions: list[str]
    tools: list[dict[str, Any]]
    hint: str | None
    refused: int
    score: float


@dataclass(frozen=True, slots=True)
class DemonstrationStyle:
    """- `mistakes`: probability of a mistake before an action.
    - `hints`: share of the conversations with the environment's hint before the task.
    - `template`: the words around a hint; {} is the hint.
    """

    mistakes: float = 0.15
    hints: float = 0.5
    template: str = TEMPLATE


@dataclass
class Counts:
    """Numbers of conversations, hints and mistakes; `dropped` counts by reason what was left out."""

    kept: int = 0
    hinted: int = 0
    mistakes: int = 0
    dropped: Counter[str] = field(default_factory=Counter)


def has_reference(env_class: type[BaseEnv]) -> bool:
    return env_class.reference_actions is not BaseEnv.reference_actions


def play(
    env: BaseEnv,
    params: dict[str, Any],
    actions: Sequence[str] | None = None,
    mistakes: Mapping[int, str] | None = None,
) -> DemonstratedEpisode:
    """Carry out actions (default: the reference) in a fresh instance, created with `params`.

    `mistakes` maps turns (from 0) to wrong actions, which are inserted with the weight 0. Raises EpisodeOver,
    NoReference, and the environment's exceptions.
    """
    hint = env.reference_hint()
    opening = with_tools(env, checked_init_state(env.get_init_state(params)))
    messages: list[dict[str, Any]] = [dict(message) for message in opening["state"]]
    is_native = has_native_tools(env)
    rest = deque(_reference(env) if actions is None else actions)
    said: list[str] = []
    told: list[dict[str, Any]] = []
    over, refused = False, 0
    while rest:
        if over and actions is None and not mistakes:
            break  # solved before the reference ends, as its score says
        if over:
            raise EpisodeOver(len(said))
        mistake = (mistakes or {}).get(len(said))
        action = rest.popleft() if mistake is None else mistake
        message = assistant_message(action, len(said)) if is_native else {"role": "assistant", "content": action}
        result = checked_step(env.step(checked_action(message), {}))  # type: ignore[arg-type]
        messages += [*told, message if mistake is None else {**message, "weight": 0}]
        said.append(action)
        told, over = result["state"], result["is_terminated"]
        refused += mistake is None and bool(result["info"].get("refused"))
        if mistake is not None and not over and (anew := env.reference_actions()) is not None:
            rest = deque(anew)
    tools = opening["info"].get("tools") or []
    return DemonstratedEpisode(messages, said, tools, hint, refused, checked_score(env.evaluate(None, {})))


def assistant_message(action: str, turn: int) -> dict[str, Any]:
    """Return an action as a message with native calls; each call in tags becomes one of its `tool_calls`."""
    calls = [
        {
            "id": f"call_{turn}_{number}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
        }
        for number, call in enumerate(tagged_calls(action))
        if isinstance(call, ToolCall)
    ]
    text = action.partition(_OPEN)[0].strip() if calls else action
    return {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}


def demonstrations(
    env_class: type[BaseEnv],
    tasks: Sequence[str],
    n: int,
    *,
    params: Mapping[str, Any] | None = None,
    seed: int = 0,
    style: DemonstrationStyle | None = None,
    counts: Counts | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield up to `n` successful conversations as `task_id`, `success`, `messages`, `tools` and `metadata`. They end
    early once a round over all tasks adds none. Equal arguments give equal conversations."""
    chosen, count, rng = style or DemonstrationStyle(), counts or Counts(), random.Random(f"demonstrations {seed}")
    others: deque[str] = deque(maxlen=REMEMBERED)
    while count.kept < n:
        before = count.kept
        for task_id in rng.sample(list(tasks), len(tasks)):
            if count.kept >= n:
                return
            try:
                reference = instance(env_class, task_id, params)
            except (EpisodeOver, NoReference) as error:
                count.dropped[_why(error)] += 1
                continue
            if reference.score < 1.0:
                count.dropped["tasks whose reference does not solve them"] += 1
                continue
            episode, mistakes = _with_mistakes(
                env_class, task_id, params, reference, rng, chosen.mistakes, others, count
            )
            others.extend(reference.actions)
            hint = episode.hint if rng.random() < chosen.hints else None
            if hint:
                last = [message["role"] for message in episode.messages].index("assistant") - 1
                opening = episode.messages[last]
                opening["content"] = chosen.template.replace("{}", hint, 1) + opening["content"]
            count.kept += 1
            count.hinted += bool(hint)
            count.mistakes += mistakes
            yield {
                "task_id": task_id,
                "success": True,
                "messages": episode.messages,
                **({"tools": episode.tools} if episode.tools else {}),
                "metadata": {"mistakes": mistakes, "hinted": bool(hint)},
            }
        if count.kept == before:
            return


def _with_mistakes(
    env_class: type[BaseEnv],
    task_id: str,
    params: Mapping[str, Any] | None,
    episode: DemonstratedEpisode,
    rng: random.Random,
    share: float,
    others: Sequence[str],
    count: Counts,
) -> tuple[DemonstratedEpisode, int]:
    """Return an episode with mistakes inserted, and their number. A mistake stays only if the episode still
    succeeds."""
    mistakes: dict[int, str] = {}
    turn = 0
    while turn < len(episode.actions):
        for _ in range(DRAWS if rng.random() < share else 0):
            right = episode.actions[turn]
            drawn = mistaken(rng, right, episode.actions[:turn], episode.actions[turn + 1 :], others)
            if drawn is None or drawn == right:
                continue
            try:
                tried = instance(env_class, task_id, params, {**mistakes, turn: drawn})
            except EpisodeOver:
                count.dropped["mistakes that ended the episode"] += 1
                continue
            # A right action that is refused only after the mistake would be imitated with its error.
            if tried.score < 1.0 or tried.refused > episode.refused:
                count.dropped["mistakes that could not be put right"] += 1
                continue
            episode, mistakes[turn] = tried, drawn
            break
        turn += 1
    return episode, len(mistakes)


def mistaken(
    rng: random.Random, right: str, before: Sequence[str], after: Sequence[str], others: Sequence[str]
) -> str | None:
    """Draw a wrong action to take in place of `right`: one of another task, the last one again, a later one, or `right`
    with an argument removed or changed. None if the drawn kind is impossible here."""
    kind = rng.randrange(4)
    if kind < 3:
        found = (others, before[-1:], after)[kind]
        return rng.choice(found) if found else None
    head, tag, body = right.partition(_OPEN)
    if tag:
        body, close, tail = body.partition(_CLOSE)
        spoilt = _spoilt_call(rng, json.loads(body), others)
        return (
            None if spoilt is None else f"{head}{tag}{_like(body, json.dumps(spoilt, ensure_ascii=False))}{close}{tail}"
        )
    words = right.split(" ")
    if len(words) < 2:
        return None
    place = rng.randrange(1, len(words))
    elsewhere = [parts[place] for other in others if len(parts := other.split(" ")) > place]
    instead = [] if rng.random() < 0.5 or not elsewhere else [rng.choice(elsewhere)]
    return " ".join([*words[:place], *instead, *words[place + 1 :]])


def _spoilt_call(rng: random.Random, call: dict[str, Any], others: Sequence[str]) -> dict[str, Any] | None:
    arguments = dict(call["arguments"])
    if not arguments:
        return None
    name = rng.choice(sorted(arguments))
    known = [one for other in others for one in tagged_calls(other) if isinstance(one, ToolCall)]
    elsewhere = [one.arguments[name] for one in known if name in one.arguments]
    if rng.random() < 0.5 or not elsewhere:
        del arguments[name]
    else:
        arguments[name] = rng.choice(elsewhere)
    return {**call, "arguments": arguments}


def _like(body: str, text: str) -> str:
    """Return `text` between the leading and trailing white space of `body`."""
    return body[: len(body) - len(body.lstrip())] + text + body[len(body.rstrip()) :]


def instance(
    env_class: type[BaseEnv],
    task_id: str,
    params: Mapping[str, Any] | None,
    mistakes: Mapping[int, str] | None = None,
) -> DemonstratedEpisode:
    """Follow a task's reference in a fresh instance, with mistakes; see `play`."""
    created = created_with(env_class, dict(params or {}))
    env = env_class(task_id, "demonstration", created)
    try:
        return play(env, created, mistakes=mistakes)
    finally:
        env.close()


def _reference(env: BaseEnv) -> list[str]:
    actions = env.reference_actions()
    if not actions:
        raise NoReference("no reference actions")
    return actions


def _why(error: Exception) -> str:
    return "tasks without a reference" if isinstance(error, NoReference) else "tasks whose reference goes on too long"


def write_demonstrations(options: Namespace, params: Mapping[str, Any], narrowed: Mapping[str, Any]) -> str:
    """Write the command line's file of demonstrations and return a summary.

    `params` are the parameters of instances, `narrowed` those of the list of tasks. Raises NoDemonstrations, OSError.
    """
    began, out, count = time.monotonic(), Path(options.out), Counts()
    if options.template is not None and options.template.count("{}") != 1:
        raise NoDemonstrations("--template must hold {} once, where the hint goes")
    style = DemonstrationStyle(options.mistakes, options.hints, options.template or TEMPLATE)
    env_class = _with_reference(options.name, options.env_modules)
    made = ""
    try:
        if env_class.isolation == "isolated":
            env_class.warm_up()
        tasks = checked_tasks(list_tasks(env_class, options.split, dict(narrowed) or None))
        found = demonstrations(env_class, tasks, options.n, params=params, seed=options.seed, style=style, counts=count)
        made = "".join(json.dumps({**one, "env_type": options.name}, ensure_ascii=False) + "\n" for one in found)
    except Exception as error:  # an environment may raise anything
        raise NoDemonstrations(f"{options.name}: {type(error).__name__}: {' '.join(str(error).split())}") from error
    dropped = "".join(f"; dropped: {number} {why}" for why, number in sorted(count.dropped.items()))
    if not made:
        raise NoDemonstrations(f"{options.name}: none of the {len(tasks)} tasks can be demonstrated{dropped}")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(made, encoding="utf-8")
    return (
        f"{out}: {count.kept} of {options.n} conversations, {count.hinted} with a hint, {count.mistakes} mistakes"
        f"{dropped}; {time.monotonic() - began:.1f} s"
    )


def _with_reference(name: str, modules: Sequence[str]) -> type[BaseEnv]:
    try:
        env_class = load(resolve([name], modules)[name])
    except RegistryError as error:
        raise NoDemonstrations(str(error)) from error
    if not has_reference(env_class):
        raise NoDemonstrations(
            f"{name} has no reference_actions, so nobody knows how its tasks are solved; these have them: "
            f"{', '.join(with_references(modules))}"
        )
    return env_class


def with_references(modules: Sequence[str] = ()) -> list[str]:
    """Return the names of the importable environments that have reference solutions."""
    found = []
    for name, spec in sorted(known_environments(modules).items()):
        with suppress(RegistryError):
            if has_reference(load(spec)):
                found.append(name)
    return found
