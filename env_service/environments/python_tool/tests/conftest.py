"""Sandboxes for the tests: one that lasts a module, and a maker of short-lived ones. All are closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from env_service.environments.python_tool.sandbox.host import RunResult, Sandbox, SandboxLimits

Run = Callable[[str], RunResult]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Run code in one lasting interpreter that the code is expected to leave alive."""
    sandbox = Sandbox(SandboxLimits(wall_s=20.0))

    def run_code(code: str) -> RunResult:
        result = sandbox.run(code)
        assert result.alive, result
        return result

    yield run_code
    sandbox.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Sandbox]]:
    """Start sandboxes with chosen limits."""
    started: list[Sandbox] = []

    def make(**limits: float) -> Sandbox:
        started.append(Sandbox(SandboxLimits(**{"wall_s": 5.0, **limits})))  # type: ignore[arg-type]
        return started[-1]

    yield make
    for sandbox in started:
        sandbox.close()
