"""Contract check: runs the promises of `base.py` against an environment and says in one sentence each what is broken.

Each check is a function whose docstring is the promise it tests; it returns nothing when the promise holds and raises
`Broken` (or `Failed`) when not. Checks make a handful of instances and release them all. A probe makes the calls:
`LocalProbe` in this process, `HttpProbe` through a running service. `Refused` is what the environment tells its caller
(ValueError, HTTP 4xx), `Failed` is a defect (any other exception, a broken contract, HTTP 5xx).
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from env_service.base import BaseEnv
from env_service.client import EnvClient, EnvRequestError, EnvServiceError, RetryPolicy
from env_service.contract import checked_action, shorten
from env_service.hosting.wire import Decoder, Frame, Kind, pack, unpack
from env_service.hosting.worker import InstanceHost


class Refused(Exception):
    """The environment says that the caller asked for something wrong."""


class Failed(Exception):
    """The environment failed."""


class Probe(Protocol):
    """The calls that a check makes."""

    def tasks(self, split: str) -> list[str]:
        """Return the task ids of a split."""

    def create(self, task_id: str, params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Open an instance; returns its id and init state."""

    def step(self, instance_id: str, action: dict[str, Any]) -> dict[str, Any]:
        """Apply an action."""

    def evaluate(self, instance_id: str, params: dict[str, Any]) -> float:
        """Grade the episode."""

    def info(self, instance_id: str, params: dict[str, Any] | None = None) -> Any:
        """Return facts."""

    def release(self, instance_id: str) -> None:
        """Close the instance."""


class LocalProbe:
    """Calls the class in this process, through the code that hosts it in production."""

    def __init__(self, env_class: type[BaseEnv]) -> None:
        self._instance_host = InstanceHost(env_class, max_reply_bytes=16 * 1024 * 1024)
        if env_class.isolation == "isolated":
            self._instance_host.warm_up()

    def tasks(self, split: str) -> list[str]:
        """Return the task ids of a split."""
        return list(self._call(Kind.PROFILE, {"split": split, "params": None}))

    def create(self, task_id: str, params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Open an instance; returns its id and init state."""
        instance_id = f"check-{uuid.uuid4().hex}"
        return instance_id, self._call(
            Kind.CREATE, {"slot": instance_id, "instance_id": instance_id, "task_id": task_id, "params": params}
        )

    def step(self, instance_id: str, action: dict[str, Any]) -> dict[str, Any]:
        """Apply an action."""
        try:
            checked = checked_action(action)
        except ValueError as error:
            raise Refused(str(error)) from error
        return dict(self._call(Kind.STEP, {"slot": instance_id, "action": checked, "params": {}}))

    def evaluate(self, instance_id: str, params: dict[str, Any]) -> float:
        """Grade the episode."""
        return float(self._call(Kind.EVALUATE, {"slot": instance_id, "messages": None, "params": params}))

    def info(self, instance_id: str, params: dict[str, Any] | None = None) -> Any:
        """Return facts."""
        return self._call(Kind.INFO, {"slot": instance_id, "messages": None, "params": params or {}})

    def release(self, instance_id: str) -> None:
        """Close the instance."""
        self._call(Kind.CLOSE, {"slot": instance_id})

    def _call(self, kind: Kind, request: dict[str, Any]) -> Any:
        (reply,) = Decoder().feed(self._instance_host.answer(Frame(0, kind, pack(request))))
        body = unpack(reply.payload)
        if reply.kind is Kind.OK:
            return body
        if reply.kind is Kind.BAD_REQUEST:
            raise Refused(body["message"])
        raise Failed(f"{body['type']}: {body['message']}\n{body['traceback']}".rstrip())


class HttpProbe:
    """Calls a running service."""

    def __init__(self, url: str, env_type: str) -> None:
        self._client = EnvClient(url, retry=RetryPolicy(tries=4, budget_s=10.0))
        self._env_type = env_type

    def tasks(self, split: str) -> list[str]:
        """Return the task ids of a split."""
        return list(self._call(self._client.get_env_profile, self._env_type, split))

    def create(self, task_id: str, params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Open an instance; returns its id and init state."""
        state = self._call(self._client.create_instance, self._env_type, task_id, None, params)
        return str(state["info"]["instance_id"]), state

    def step(self, instance_id: str, action: dict[str, Any]) -> dict[str, Any]:
        """Apply an action."""
        return dict(self._call(self._client.step, instance_id, action))

    def evaluate(self, instance_id: str, params: dict[str, Any]) -> float:
        """Grade the episode."""
        return float(self._call(self._client.evaluate, instance_id, None, params))

    def info(self, instance_id: str, params: dict[str, Any] | None = None) -> Any:
        """Return facts."""
        return self._call(self._client.get_tools_info, instance_id, None, params or {})

    def release(self, instance_id: str) -> None:
        """Close the instance."""
        self._call(self._client.release_instance, instance_id)

    def _call(self, method: Any, *arguments: Any) -> Any:
        try:
            return method(*arguments)
        except EnvRequestError as error:
            raise Refused(str(error)) from error
        except EnvServiceError as error:
            raise Failed(str(error)) from error


ODD_TEXTS = (
    "",
    " \n\t",
    "\U0001d518 \u0000 \u202e \U0001f600",
    "```python\nwhile",
    "<tool_call>{",
    "x" * 20_000,
    '{"name": "", "arguments": [[[[',
)
NO_SUCH = "no such thing 7f3a"


class Broken(Exception):
    """A promise of the contract does not hold; the message says which and how."""


class Finding(NamedTuple):
    """The result of one check; `problem` is empty when the promise holds."""

    promise: str
    problem: str


class Subject(NamedTuple):
    """What the checks look at."""

    probe: Probe
    split: str
    action: str


def run_checks(probe: Probe, *, split: str = "train", action: str = "hello") -> Iterator[Finding]:
    """Yield a finding for each check. `action` is any text that the environment understands as a step."""
    subject = Subject(probe, split, action)
    for check in CHECKS:
        promise = (check.__doc__ or "").strip().rstrip(".")
        try:
            check(subject)
        except Broken as error:
            yield Finding(promise, str(error))
        except Refused as error:
            yield Finding(promise, f"it raised ValueError (HTTP 400): {error}")
        except Failed as error:
            yield Finding(promise, str(error))
        else:
            yield Finding(promise, "")


@contextlib.contextmanager
def _episode(
    subject: Subject, task_id: str | None = None, params: dict[str, Any] | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    chosen = task_id if task_id is not None else subject.probe.tasks(subject.split)[0]
    instance_id, state = subject.probe.create(chosen, params or {})
    try:
        yield instance_id, state
    finally:
        subject.probe.release(instance_id)


def _say(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def _expect(condition: bool, problem: str) -> None:
    if not condition:
        raise Broken(problem)


def lists_tasks(subject: Subject) -> None:
    """get_query_list returns distinct task ids, in the same order each time."""
    first, second = subject.probe.tasks(subject.split), subject.probe.tasks(subject.split)
    _expect(bool(first), f"split {subject.split!r} has no tasks")
    _expect(first == second, "two calls returned different lists")
    doubles = sorted({task for task in first if first.count(task) > 1}) if len(first) < 5000 else []
    _expect(len(set(first)) == len(first), f"ids occur more than once, e.g. {doubles[:3]}")


def refuses_unknown_splits(subject: Subject) -> None:
    """get_query_list raises ValueError for a split that does not exist."""
    try:
        tasks = subject.probe.tasks(NO_SUCH)
    except Refused:
        return
    raise Broken(f"split {NO_SUCH!r} returned {len(tasks)} tasks")


def refuses_unknown_tasks(subject: Subject) -> None:
    """Creating an instance of a task that does not exist raises ValueError."""
    try:
        instance_id, _ = subject.probe.create(NO_SUCH, {})
    except Refused:
        return
    subject.probe.release(instance_id)
    raise Broken(f"task {NO_SUCH!r} was accepted")


def opens(subject: Subject) -> None:
    """get_init_state returns messages, the last one from the user and with text, and facts that JSON can hold."""
    with _episode(subject) as (_, state):
        _expect(bool(state["state"][-1]["content"].strip()), "the user's message is empty")


def opens_without_a_task(subject: Subject) -> None:
    """params.is_open_query opens an episode for exploration, also with explore_steps, which goes by the name that the
    class declares."""
    with _episode(subject, params={"is_open_query": True, "explore_steps": 3}):
        pass


def opens_alike(subject: Subject) -> None:
    """Two instances of a task start alike, so that a group of rollouts is comparable."""
    with _episode(subject) as (_, first), _episode(subject) as (_, second):
        _expect(
            first["state"] == second["state"], f"they start differently: {first['state'][-1]} and {second['state'][-1]}"
        )


def steps(subject: Subject) -> None:
    """A step returns messages, a finite reward, a boolean end and facts that JSON can hold."""
    with _episode(subject) as (instance_id, _):
        result = subject.probe.step(instance_id, _say(subject.action))
        _expect(
            bool(result["state"]) or result["is_terminated"],
            "the agent gets no observation although the episode goes on",
        )


def steps_alike(subject: Subject) -> None:
    """The same action at the same state is answered alike."""
    with _episode(subject) as (first, _), _episode(subject) as (second, _):
        one, other = (subject.probe.step(instance_id, _say(subject.action)) for instance_id in (first, second))
        _expect(one["state"] == other["state"], f"answers differ: {one['state']} and {other['state']}")


def marks_its_query(subject: Subject) -> None:
    """The query that info.query of an opening tells stands in the last message exactly once, so that another one can
    take its slot."""
    for params in ({}, {"is_open_query": True}):
        with _episode(subject, params=params) as (_, state):
            query, content = state["info"].get("query"), state["state"][-1]["content"]
            if query is None:
                continue
            _expect(
                isinstance(query, str) and bool(query.strip()),
                f"info.query is {query!r}; name the text, or leave it out",
            )
            times = content.count(query)
            where = "an opening without a task" if params else "an opening"
            _expect(times == 1, f"info.query of {where} stands {times} times in the last message: {query[:80]!r}")


def says_what_actions_did(subject: Subject) -> None:
    """What info says of an action (refused, finished, answer) it says of every action, and finished only of the last
    one."""
    told: dict[str, set[str]] = {}
    with _episode(subject, params={"is_open_query": True}) as (instance_id, _):
        for text in (subject.action, *ODD_TEXTS):
            result = subject.probe.step(instance_id, _say(text))
            told[text] = {key for key in ("refused", "finished") if key in result["info"]}
            if result["is_terminated"]:
                break
    every = set().union(*told.values())
    for text, keys in told.items():
        _expect(
            keys == every,
            f"info tells {sorted(every)} of some actions, and not {sorted(every - keys)} of {text[:40]!r}",
        )


def tells_its_state(subject: Subject) -> None:
    """get_info with what=state tells no state at all, or one that asking does not change and that equal actions make
    equal."""
    with (
        _episode(subject, params={"is_open_query": True}) as (one, _),
        _episode(subject, params={"is_open_query": True}) as (other, _),
    ):
        if (before := _state(subject, one)) is None:
            return
        for number, text in enumerate((subject.action, *ODD_TEXTS)):
            moment = "before the first step" if number == 0 else f"after {number} steps"
            first, again, twin = _state(subject, one), _state(subject, one), _state(subject, other)
            _expect(first == again, f"two asks in a row differ {moment}: {shorten(first)} and {shorten(again)}")
            _expect(
                first == twin,
                f"the same actions led to different states {moment}: {shorten(first)} and {shorten(twin)}",
            )
            result = subject.probe.step(one, _say(text))
            subject.probe.step(other, _say(text))
            state, said = _state(subject, one), result["info"].get("finished")
            if state is not None and state.get("finished") is not None and said is not None:
                _expect(
                    state["finished"] == said,
                    f"the state says finished={state['finished']} and the step finished={said}",
                )
            if result["is_terminated"]:
                break
        last, twin = _state(subject, one), _state(subject, other)
        _expect(last == twin, f"the same actions led to different states: {shorten(last)} and {shorten(twin)}")
        _expect(
            last is not None and set(last) >= {"facts", "exact"},
            f"the state lacks `facts` or `exact`: {shorten(before)}",
        )


def _state(subject: Subject, instance_id: str) -> dict[str, Any] | None:
    try:
        told = subject.probe.info(instance_id, {"what": "state"})
    except Refused:
        return None
    return told if isinstance(told, dict) and "facts" in told else None


def bears_any_text(subject: Subject) -> None:
    """Whatever an agent writes is answered by an observation, never by an exception."""
    texts = list(ODD_TEXTS)
    while texts:
        with _episode(subject) as (instance_id, _):
            is_over = False
            while texts and not is_over:
                text = texts.pop(0)
                try:
                    is_over = subject.probe.step(instance_id, _say(text))["is_terminated"]
                except (Refused, Failed) as error:
                    raise Broken(f"the action {text[:40]!r} raised: {error}") from error


def grades(subject: Subject) -> None:
    """evaluate returns 0 or 1 by default, a score in 0..1 with sparse=false, at any moment, and always the same at the
    same state."""
    with _episode(subject) as (instance_id, _):
        for moment in ("before the first step", "after a step"):
            if moment == "after a step":
                subject.probe.step(instance_id, _say(subject.action))
            sparse = subject.probe.evaluate(instance_id, {"sparse": True})
            _expect(sparse in (0.0, 1.0), f"sparse score {moment} is {sparse}")
            _expect(subject.probe.evaluate(instance_id, {}) == sparse, f"the default is not the sparse score {moment}")
            dense = subject.probe.evaluate(instance_id, {"sparse": False})
            _expect(subject.probe.evaluate(instance_id, {"sparse": False}) == dense, f"two evaluations {moment} differ")


def starts_unsolved(subject: Subject) -> None:
    """A task is not solved before the agent did anything."""
    with _episode(subject) as (instance_id, _):
        _expect(subject.probe.evaluate(instance_id, {}) == 0.0, "the score is 1 before the first step")


def keeps_instances_apart(subject: Subject) -> None:
    """What one instance does changes nothing in another."""
    with _episode(subject) as (quiet, _), _episode(subject) as (busy, _):
        before = subject.probe.evaluate(quiet, {"sparse": False})
        subject.probe.step(busy, _say(subject.action))
        _expect(subject.probe.evaluate(quiet, {"sparse": False}) == before, "a step of a neighbour changed the score")


def tells_facts(subject: Subject) -> None:
    """get_info returns what JSON can hold."""
    with _episode(subject) as (instance_id, _):
        subject.probe.info(instance_id)


def closes_early(subject: Subject) -> None:
    """An instance that ended before its first step closes without an exception."""
    instance_id, _ = subject.probe.create(subject.probe.tasks(subject.split)[0], {})
    subject.probe.release(instance_id)


CHECKS: tuple[Callable[[Subject], None], ...] = (
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
    closes_early,
)
