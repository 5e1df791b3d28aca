"""The executor: the package's own result texts, without its evaluation, its globals or its ways to hang."""

from __future__ import annotations

import decimal
import importlib
import inspect
import json
import random
import sys
import time
from typing import Any

import orjson
import pytest

from env_service.environments.bfcl.backend import BfclBackend, plain
from env_service.environments.bfcl.calls import BfclCall
from env_service.environments.bfcl.env import BfclEnv
from env_service.environments.bfcl.package import load_package


def backend_with(class_name: str, long_context: bool = False) -> BfclBackend:
    package = load_package()
    task = next(
        t for t in package.tasks.values() if class_name in t.involved_classes and t.long_context == long_context
    )
    return BfclBackend(task, package)


def packages_result(text: str, class_name: str) -> str:
    """Run one call written as Python text through the package's own executor."""
    utils = importlib.import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils")
    task = next(t for t in load_package().tasks.values() if class_name in t.involved_classes and not t.long_context)
    try:
        results, _ = utils.execute_multi_turn_func_call(
            [text], task.initial_config, list(task.involved_classes), "backend", task.task_id
        )
    finally:
        for name in [name for name in vars(utils) if name.endswith("_instance")]:
            del vars(utils)[name]
    return str(results[0])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("class_name", "name", "arguments"),
    [
        ("GorillaFileSystem", "ls", {"a": True}),
        ("GorillaFileSystem", "cd", {"folder": "zzz"}),
        ("GorillaFileSystem", "mkdir", {}),
        ("GorillaFileSystem", "mkdir", {"dir_name": 3}),
        ("GorillaFileSystem", "mkdir", {"dir_name": "d", "mode": 7}),
        ("GorillaFileSystem", "nope", {}),
        ("GorillaFileSystem", "kill", {}),
        ("GorillaFileSystem", "find", {"path": ".", "name": None}),
        ("MathAPI", "logarithm", {"value": 36.0, "base": 6.0, "precision": 4}),
        ("MathAPI", "logarithm", {"value": 36.0, "base": 1, "precision": 4}),
        ("MathAPI", "square_root", {"number": 2, "precision": 30}),
        ("MathAPI", "power", {"base": 2, "exponent": 100}),
        ("MathAPI", "power", {"base": 10, "exponent": 4298}),
        ("MathAPI", "power", {"base": 10, "exponent": 4400}),
        ("MathAPI", "power", {"base": 2.0, "exponent": 1e6}),
        ("MathAPI", "power", {"base": "2", "exponent": 3}),
        ("MathAPI", "round_number", {"number": 123456, "decimal_places": -3}),
        ("MathAPI", "round_number", {"number": 5, "decimal_places": -20_000}),
        ("MathAPI", "round_number", {"number": 5}),
        ("TradingBot", "get_stock_info", {"symbol": "AAPL"}),
        ("TradingBot", "get_watchlist", {}),
        ("TicketAPI", "get_ticket", {"ticket_id": "x"}),
        ("VehicleControlAPI", "startEngine", {"ignitionMode": "WARP"}),
        ("MessageAPI", "list_users", {}),
        ("TwitterAPI", "get_tweet", {"tweet_id": 10**6}),
        ("TravelAPI", "list_all_airports", {}),
    ],
)
def test_results_and_errors_read_exactly_like_the_packages(
    class_name: str, name: str, arguments: dict[str, Any]
) -> None:
    text = f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
    assert backend_with(class_name).call(BfclCall(name, arguments)) == packages_result(text, class_name)


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("power", {"base": 10, "exponent": 10**9}, "Exceeds the limit"),
        ("power", {"base": -7, "exponent": 10**4000}, "Exceeds the limit"),
        ("round_number", {"number": 5, "decimal_places": -(10**9)}, '"result": 0'),
        ("logarithm", {"value": 3, "base": 2, "precision": 10**9}, "precision must be at most"),
        ("square_root", {"number": 2, "precision": 10**9}, "precision must be at most"),
    ],
)
def test_numbers_that_would_block_the_process_are_answered_at_once(
    name: str, arguments: dict[str, Any], words: str
) -> None:
    backend, start = backend_with("MathAPI"), time.perf_counter()
    assert words in backend.call(BfclCall(name, arguments))
    assert time.perf_counter() - start < 1.0


def test_number_precision_of_the_process_and_the_thread_is_left_alone() -> None:
    backend = backend_with("MathAPI")
    mpmath = sys.modules["mpmath"]
    before = (mpmath.mp.prec, decimal.getcontext().prec)
    backend.call(BfclCall("logarithm", {"value": 3, "base": 2, "precision": 200}))
    backend.call(BfclCall("square_root", {"number": 2, "precision": 200}))
    assert (mpmath.mp.prec, decimal.getcontext().prec) == before


def test_folders_copied_into_each_other_stop_growing_and_stay_quick() -> None:
    backend, start = backend_with("GorillaFileSystem"), time.perf_counter()
    for name in ("x", "y"):
        backend.call(BfclCall("mkdir", {"dir_name": name}))
    last = ""
    for number in range(60):
        source, target = ("x", "y") if number % 2 else ("y", "x")
        last = backend.call(BfclCall("cp", {"source": source, "destination": target}))
        backend.call(BfclCall("cd", {"folder": target}))
        backend.call(BfclCall("mv", {"source": source, "destination": f"{source}{number}"}))
        backend.call(BfclCall("cd", {"folder": ".."}))
    assert "holds more than" in last
    backend.call(BfclCall("find", {}))
    json.dumps(backend.snapshot())
    assert time.perf_counter() - start < 5.0


def test_a_folder_copied_into_itself_still_gives_a_snapshot() -> None:
    backend = backend_with("GorillaFileSystem")
    backend.call(BfclCall("mkdir", {"dir_name": "a"}))
    backend.call(BfclCall("cp", {"source": "a", "destination": "a"}))
    assert "Error during execution" in backend.call(BfclCall("find", {}))
    assert "(truncated)" in json.dumps(backend.snapshot())


def test_every_value_of_a_state_becomes_json() -> None:
    values = {"n": float("nan"), 3: (1, {2}), "big": 10**30, "broken": "\ud83d", "none": None}
    found = plain(values)
    assert found == {"n": "nan", "3": [1, "{2}"], "big": str(10**30), "broken": "?", "none": None}


ODD_VALUES: list[Any] = [
    0, -1, 10**9, 10**300, 10**4000, 1e308, 0.5, True, None, "", "..", "/", "x" * 1000, "1-99999999999", "\ud83d",
    "R", "AAPL", [], [1],
    ["a"] * 100, {}, {"a": [1, {"b": None}]}, "document",
]  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_whatever_a_model_passes_to_whatever_method_the_answer_and_the_state_can_be_sent(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(12):
        env = BfclEnv(rng.choice(list(load_package().tasks)), "i", {"max_steps_per_turn": 100})
        for _ in range(25):
            name = rng.choice(list(env._agent._methods))
            names = [*inspect.signature(env._agent._methods[name]).parameters, "self"]
            arguments = {
                key: rng.choice(ODD_VALUES)
                for key in names
                if rng.random() < 0.9 and (key != "self" or rng.random() < 0.05)
            }
            text = json.dumps({"name": name, "arguments": arguments})
            orjson.dumps(env.step({"role": "assistant", "content": f"<tool_call>{text}</tool_call>"}))
        env.step({"role": "assistant", "content": "done"})
        orjson.dumps([env.snapshot(), env.get_info(params={"what": "report"})])
        assert env.evaluate() == 0.0


def test_no_method_that_a_model_could_reach_is_private_or_foreign() -> None:
    package = load_package()
    for class_name in {name for task in package.tasks.values() for name in task.involved_classes}:
        backend = backend_with(class_name)
        for name, method in backend._methods.items():
            assert not name.startswith("_")
            assert type(method.__self__).__module__.startswith("bfcl_eval.")
