"""Settings that hold for every test: one compute thread a process, no network hub, no leftover platform choice."""

import gc
import os
import signal
import sys
import types
from collections.abc import Generator
from pathlib import Path

import pytest

from agentevolver.utils.recipes import recipes
from env_service.registry import known_environments

# Before torch is imported anywhere: two spinning OpenMP threads on two cores are several times slower than one.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

# An installed distribution may hold a package `tests`, which would hide this folder: it is a namespace.
if "tests" not in sys.modules:
    sys.modules["tests"] = types.ModuleType("tests")
    sys.modules["tests"].__path__ = [str(Path(__file__).with_name("tests"))]

# A test run in the background has SIGINT, or under nohup SIGHUP, ignored; what the tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# What is imported while tests are collected (torch, transformers, the tests themselves) stays to the end. Looking for
# garbage in it again and again is two fifths of the time that collecting takes.
gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    gc.freeze()
    # What tests load themselves (torch, verl, configurations) stays as well. Looked through after every 700 new objects
    # it is a fifth of the time that the tests take.
    gc.set_threshold(100_000, 20, 50)
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a module that imports an environment whose folder was removed."""
    report = yield
    error = report.call.excinfo.value if report.failed else None
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and str(error.name).startswith("env_service.environments."):
            report.outcome = "skipped"
            report.longrepr = (str(collector.path), None, f"Skipped: {error.name} is not in this checkout")
        error = error.__cause__ or error.__context__
    return report


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that is marked to need an environment or a recipe that is not here."""
    for kind, known in (("environment", known_environments), ("recipe", recipes)):
        for marker in item.iter_markers(kind):
            for name in marker.args:
                if name not in known():
                    pytest.skip(f"the {kind} {name} is not in this checkout")
