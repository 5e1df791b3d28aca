"""The simulated APIs of one episode, called by method name.

Results are the package's own texts, errors included, because its response check compares them. Every instance is a deep
copy, since the package shares instances in module globals. Number precision, which the package sets for the whole
interpreter, is put back. Arguments that would compute for minutes are refused (`_GUARDS`).
"""

from __future__ import annotations

import copy
import decimal
import inspect
import json
import math
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from env_service.environments.bfcl.calls import BfclCall
from env_service.environments.bfcl.package import BfclPackage, BfclTask

REFUSED_NAMES = frozenset({"kill", "exit", "quit", "remove", "unlink", "popen", "Popen", "run"})
"""Names that the package refuses to call."""

MAX_PRECISION = 1000
MAX_TREE = 20_000
MAX_SNAPSHOT_VALUES = 50_000
MAX_SNAPSHOT_DEPTH = 60

_one_call_at_a_time = threading.Lock()
"""Some methods of the package use module-level objects and settings for a moment."""


class BfclBackend:
    def __init__(self, task: BfclTask, package: BfclPackage) -> None:
        self._numbers = package.numbers
        self.instances: dict[str, Any] = {}
        self._methods: dict[str, Any] = {}
        for name in task.involved_classes:
            instance = package.classes[name]()
            if name not in package.stateless_classes:
                instance._load_scenario(
                    copy.deepcopy(task.initial_config.get(name, {})), long_context=task.long_context
                )
            # Loading stores references to module-level tables (credit cards, bookings); without this copy episodes
            # would share them.
            instance = copy.deepcopy(instance)
            self.instances[name] = instance
            members = inspect.getmembers(instance, predicate=inspect.ismethod)
            self._methods.update({method: bound for method, bound in members if not method.startswith("_")})

    def call(self, call: BfclCall) -> str:
        """Execute a call and return its result as the package words it; an error of the API is a result, too."""
        try:
            if call.name in REFUSED_NAMES:
                raise PermissionError(f"Function call {call.name} is not allowed.")
            if call.name not in self._methods:
                raise NameError(f"name '{call.name}' is not defined")
            with _one_call_at_a_time, _kept(self._numbers):
                return self._run(call)
        # The simulated APIs raise whatever a wrong argument leads to; the text of it is what the agent is to see.
        except Exception as error:
            return f"Error during execution: {error}"

    def named(self, call: BfclCall) -> BfclCall:
        """Return a call of a method of these APIs with all arguments by name."""
        bound = inspect.signature(self._methods[call.name]).bind(*call.positional, **call.arguments)
        return BfclCall(call.name, bound.arguments)

    def _run(self, call: BfclCall) -> str:
        method = self._methods[call.name]
        positional, arguments = _harmless(call, method)
        result = method(*positional, **arguments)
        if isinstance(result, str):
            return result
        if isinstance(result, dict):
            try:
                return json.dumps(result)
            except (TypeError, ValueError, RecursionError):
                return str(result)
        return str(result)

    def snapshot(self) -> dict[str, Any]:
        return {
            name: {key: plain(value) for key, value in _public(instance)} for name, instance in self.instances.items()
        }


def is_error(result: str) -> bool:
    """Whether a call failed: the package's error text, or an object with `error`."""
    if result.startswith("Error during execution:"):
        return True
    try:
        value = json.loads(result)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and "error" in value


def _public(instance: Any) -> Iterator[tuple[str, Any]]:
    for key, value in vars(instance).items():
        if not key.startswith("_"):
            yield key, value


def plain(value: Any) -> Any:
    """Turn a state into JSON-ready data: folders and files become objects, keys become texts.

    A folder can be copied into itself, so depth and size are bounded; the rest reads "(truncated)".
    """
    return _plain(value, [MAX_SNAPSHOT_VALUES], MAX_SNAPSHOT_DEPTH)


def _plain(value: Any, budget: list[int], depth: int) -> Any:
    budget[0] -= 1
    if budget[0] < 0 or depth < 0:
        return "(truncated)"
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, int):
        return value if abs(value) < 2**63 else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {printable(str(key)): _plain(item, budget, depth - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, budget, depth - 1) for item in value]
    if isinstance(children := getattr(value, "contents", None), Mapping):
        return {"type": "directory", "contents": _plain(children, budget, depth - 1)}
    if hasattr(value, "content"):
        return {"type": "file", "content": _plain(value.content, budget, depth - 1)}
    return printable(str(value))


def printable(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode, by question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


@contextmanager
def _kept(numbers: Any) -> Iterator[None]:
    """Restore the number precision that `MathAPI` sets for the whole process (mpmath) or thread (decimal)."""
    precision = numbers.prec
    with decimal.localcontext():
        try:
            yield
        finally:
            numbers.prec = precision


def _harmless(call: BfclCall, method: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments, reduced where the result stays the same; raise for calls that would compute too long."""
    guard = _GUARDS.get(call.name)
    if guard is None:
        return call.positional, dict(call.arguments)
    try:
        bound = inspect.signature(method).bind(*call.positional, **call.arguments)
    except TypeError:
        return call.positional, dict(call.arguments)
    guard(method.__self__, bound.arguments)
    return bound.args, bound.kwargs


def _guard_power(_: Any, arguments: dict[str, Any]) -> None:
    base, exponent = arguments["base"], arguments["exponent"]
    limit = sys.get_int_max_str_digits()
    if not (limit and isinstance(base, int) and isinstance(exponent, int) and exponent > 0 and abs(base) > 1):
        return
    if exponent > 4 * limit or exponent * math.log10(abs(base)) > limit + 1:
        # The power would be computed at length only to fail with these words when it is turned into text.
        raise ValueError(
            f"Exceeds the limit ({limit} digits) for integer string conversion; use sys.set_int_max_str_digits() to "
            "increase the limit"
        )


def _guard_round(_: Any, arguments: dict[str, Any]) -> None:
    places = arguments.get("decimal_places")
    if isinstance(places, int):
        # No number that arrives as JSON has this many digits, so the result stays the same.
        arguments["decimal_places"] = max(places, -10_000)


def _guard_precision(_: Any, arguments: dict[str, Any]) -> None:
    precision = arguments["precision"]
    if isinstance(precision, (int, float)) and precision > MAX_PRECISION:
        raise ValueError(f"precision must be at most {MAX_PRECISION}")


def _guard_copy(file_system: Any, _: dict[str, Any]) -> None:
    stack, seen = [file_system.root], 0
    while stack:
        seen += 1
        if seen > MAX_TREE:
            raise ValueError(f"cp: the file system holds more than {MAX_TREE} entries")
        stack.extend(getattr(stack.pop(), "contents", {}).values())


_GUARDS: dict[str, Callable[[Any, dict[str, Any]], None]] = {
    "power": _guard_power,
    "round_number": _guard_round,
    "logarithm": _guard_precision,
    "square_root": _guard_precision,
    "cp": _guard_copy,
}
