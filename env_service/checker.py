"""Contract check: tests the promises of `base.py` on an environment and reports each broken one.

The docstring of a check is its promise, which is printed. A check raises `Broken` (or `Failed`) if the promise does not
hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from env_service.contract import shorten
from env_service.demonstrations import EpisodeOver, NoReference, has_reference, instance
from env_service.probing import (
    ODD_TEXTS,
    Broken,
    Failed,
    HttpProbe,
    LocalProbe,
    Probe,
    ProbeRefused,
    ProbeSubject,
    episode,
    expect,
    say,
)
from env_service.tool_checks import answers_each_call, bears_any_call, offers_its_tools

__all__ = ["CHECKS", "Broken", "Failed", "Finding", "HttpProbe", "LocalProbe", "Probe", "ProbeRefused", "run_checks"]

# Tasks that are solved by their references.
REFERENCES = 3
NO_SUCH = "no such thing 7f3a"


class Finding(NamedTuple):
    """Result of one check; `problem` is "" if the promise holds."""

    promise: str
    problem: str


def run_checks(probe: Probe, *, split: str = "train", action: str = "hello") -> Iterator[Finding]:
    """Yield a finding for each check. `action` is a text that the environment takes as a step."""
    subject = ProbeSubject(probe, split, action)
    for check in CHECKS:
        promise = " ".join((check.__doc__ or "").split()).rstrip(".")
        try:
            check(subject)
        except Broken as error:
            yield Finding(promise, str(error))
        except ProbeRefused as error:
            yield Finding(promise, f"it raised ValueError (HTTP 400): {error}")
        except Failed as error:
            yield Finding(promise, str(error))
        else:
            yield Finding(promise, "")


def lists_tasks(subject: ProbeSubject) -> None:
    """get_query_list returns distinct task ids, in the same order each time."""
    first, second = subject.probe.tasks(subject.split), subject.probe.tasks(subject.split)
    expect(bool(first), f"split {subject.split!r} has no tasks")
    expect(first == second, "two calls returned different lists")
    doubles = sorted({task for task in first if first.count(task) > 1}) if len(first) < 5000 else []
    expect(len(set(first)) == len(first), f"ids occur more than once, e.g. {doubles[:3]}")


def refuses_unknown_splits(subject: ProbeSubject) -> None:
    """get_query_list raises ValueError for a split that does not exist."""
    try:
        tasks = subject.probe.tasks(NO_SUCH)
    except ProbeRefused:
        return
    raise Broken(f"split {NO_SUCH!r} returned {len(tasks)} tasks")


def refuses_unknown_tasks(subject: ProbeSubject) -> None:
    """Creating an instance of a task that does not exist raises ValueError."""
    try:
        instance_id, _ = subject.probe.create(NO_SUCH, {})
    except ProbeRefused:
        return
    subject.probe.release(instance_id)
    raise Broken(f"task {NO_SUCH!r} was accepted")


def opens(subject: ProbeSubject) -> None:
    """get_init_state returns messages, the last one from the user and not empty, and facts in JSON."""
    with episode(subject) as (_, state):
        expect(bool(state["state"][-1]["content"].strip()), "the user's message is empty")


def opens_without_a_task(subject: ProbeSubject) -> None:
    """params.is_open_query opens an episode for exploration, also together with explore_steps."""
    with episode(subject, params={"is_open_query": True, "explore_steps": 3}):
        pass


def opens_alike(subject: ProbeSubject) -> None:
    """Two instances of a task start alike, so that a group of rollouts is comparable."""
    with episode(subject) as (_, first), episode(subject) as (_, second):
        expect(
            first["state"] == second["state"], f"they start differently: {first['state'][-1]} and {second['state'][-1]}"
        )


def steps(subject: ProbeSubject) -> None:
    """A step returns messages, a finite reward, a boolean end and facts in JSON."""
    with episode(subject) as (instance_id, _):
        result = subject.probe.step(instance_id, say(subject.action))
        expect(
            bool(result["state"]) or result["is_terminated"],
            "the agent gets no observation although the episode goes on",
        )


def steps_alike(subject: ProbeSubject) -> None:
    """The same action at the same state gets the same answer."""
    with episode(subject) as (first, _), episode(subject) as (second, _):
        one, other = (subject.probe.step(instance_id, say(subject.action)) for instance_id in (first, second))
        expect(one["state"] == other["state"], f"answers differ: {one['state']} and {other['state']}")


def marks_its_query(subject: ProbeSubject) -> None:
    """info.query of an opening occurs in the last message exactly once, so that another query can replace it."""
    for params in ({}, {"is_open_query": True}):
        with episode(subject, params=params) as (_, state):
            query, content = state["info"].get("query"), state["state"][-1]["content"]
            if query is None:
                continue
            expect(
                isinstance(query, str) and bool(query.strip()),
                f"info.query is {query!r}; name the text, or leave it out",
            )
            times = content.count(query)
            where = "an opening without a task" if params else "an opening"
            expect(times == 1, f"info.query of {where} stands {times} times in the last message: {query[:80]!r}")


def says_what_actions_did(subject: ProbeSubject) -> None:
    """If info reports `refused` or `finished` for one action, it does so for every action of the episode."""
    told: dict[str, set[str]] = {}
    with episode(subject, params={"is_open_query": True}) as (instance_id, _):
        for text in (subject.action, *ODD_TEXTS):
            result = subject.probe.step(instance_id, say(text))
            told[text] = {key for key in ("refused", "finished") if key in result["info"]}
            if result["is_terminated"]:
                break
    every = set().union(*told.values())
    for text, keys in told.items():
        expect(
            keys == every,
            f"info tells {sorted(every)} of some actions, and not {sorted(every - keys)} of {text[:40]!r}",
        )


def tells_its_state(subject: ProbeSubject) -> None:
    """get_info with what=state returns None, or a state that reading does not change and that is equal after equal
    actions."""
    with (
        episode(subject, params={"is_open_query": True}) as (one, _),
        episode(subject, params={"is_open_query": True}) as (other, _),
    ):
        if (before := _state(subject, one)) is None:
            return
        for number, text in enumerate((subject.action, *ODD_TEXTS)):
            moment = "before the first step" if number == 0 else f"after {number} steps"
            first, again, twin = _state(subject, one), _state(subject, one), _state(subject, other)
            expect(first == again, f"two asks in a row differ {moment}: {shorten(first)} and {shorten(again)}")
            expect(
                first == twin,
                f"the same actions led to different states {moment}: {shorten(first)} and {shorten(twin)}",
            )
            result = subject.probe.step(one, say(text))
            subject.probe.step(other, say(text))
            state, said = _state(subject, one), result["info"].get("finished")
            if state is not None and state.get("finished") is not None and said is not None:
                expect(
                    state["finished"] == said,
                    f"the state says finished={state['finished']} and the step finished={said}",
                )
            if result["is_terminated"]:
                break
        last, twin = _state(subject, one), _state(subject, other)
        expect(last == twin, f"the same actions led to different states: {shorten(last)} and {shorten(twin)}")
        expect(
            last is not None and set(last) >= {"facts", "exact"},
            f"the state lacks `facts` or `exact`: {shorten(before)}",
        )


def _state(subject: ProbeSubject, instance_id: str) -> dict[str, Any] | None:
    try:
        told = subject.probe.info(instance_id, {"what": "state"})
    except ProbeRefused:
        return None
    return told if isinstance(told, dict) and "facts" in told else None


def bears_any_text(subject: ProbeSubject) -> None:
    """Whatever an agent writes is answered by an observation, never by an exception."""
    texts = list(ODD_TEXTS)
    while texts:
        with episode(subject) as (instance_id, _):
            is_over = False
            while texts and not is_over:
                text = texts.pop(0)
                try:
                    is_over = subject.probe.step(instance_id, say(text))["is_terminated"]
                except (ProbeRefused, Failed) as error:
                    raise Broken(f"the action {text[:40]!r} raised: {error}") from error


def grades(subject: ProbeSubject) -> None:
    """evaluate returns 0 or 1 by default and a score in 0..1 with sparse=false, at any moment, and always the same at
    the same state."""
    with episode(subject) as (instance_id, _):
        for moment in ("before the first step", "after a step"):
            if moment == "after a step":
                subject.probe.step(instance_id, say(subject.action))
            sparse = subject.probe.evaluate(instance_id, {"sparse": True})
            expect(sparse in (0.0, 1.0), f"sparse score {moment} is {sparse}")
            expect(subject.probe.evaluate(instance_id, {}) == sparse, f"the default is not the sparse score {moment}")
            dense = subject.probe.evaluate(instance_id, {"sparse": False})
            expect(subject.probe.evaluate(instance_id, {"sparse": False}) == dense, f"two evaluations {moment} differ")


def starts_unsolved(subject: ProbeSubject) -> None:
    """A task is not solved before the agent acts."""
    with episode(subject) as (instance_id, _):
        expect(subject.probe.evaluate(instance_id, {}) == 0.0, "the score is 1 before the first step")


def keeps_instances_apart(subject: ProbeSubject) -> None:
    """An action in one instance changes nothing in another."""
    with episode(subject) as (quiet, _), episode(subject) as (busy, _):
        before = subject.probe.evaluate(quiet, {"sparse": False})
        subject.probe.step(busy, say(subject.action))
        expect(subject.probe.evaluate(quiet, {"sparse": False}) == before, "a step of a neighbour changed the score")


def tells_facts(subject: ProbeSubject) -> None:
    """get_info returns a JSON value."""
    with episode(subject) as (instance_id, _):
        subject.probe.info(instance_id)


def solves_by_reference(subject: ProbeSubject) -> None:
    """reference_actions, where an environment has them, solve its tasks."""
    env_class = subject.probe.env_class
    if env_class is None or not has_reference(env_class):
        return
    for task_id in subject.probe.tasks(subject.split)[:REFERENCES]:
        try:
            score = instance(env_class, task_id, None).score
        except NoReference:
            continue
        except EpisodeOver as error:
            raise Broken(f"task {task_id!r}: {error}") from error
        expect(score == 1.0, f"task {task_id!r}: the score after its reference is {score}")


def closes_early(subject: ProbeSubject) -> None:
    """An instance that ended before its first step closes without an exception."""
    instance_id, _ = subject.probe.create(subject.probe.tasks(subject.split)[0], {})
    subject.probe.release(instance_id)


CHECKS: tuple[Callable[[ProbeSubject], None], ...] = (
    lists_tasks,
    refuses_unknown_splits,
    refuses_unknown_tasks,
    opens,
    opens_without_a_task,
    opens_alike,
    marks_its_query,
    steps,
    steps_alike,
    says_what_actions_did,
    tells_its_state,
    bears_any_text,
    grades,
    starts_unsolved,
    keeps_instances_apart,
    tells_facts,
    offers_its_tools,
    answers_each_call,
    bears_any_call,
    solves_by_reference,
    closes_early,
)
