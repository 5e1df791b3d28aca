"""A launcher for tests: carries out the plan in the JSON file it is given, as `cli.main` would."""

import json
import sys
from pathlib import Path
from typing import Any

from agentevolver.launcher import cli
from agentevolver.launcher.plan import Plan
from agentevolver.launcher.records import RunRegistry
from agentevolver.launcher.run import carry_out
from agentevolver.launcher.stack import JobSpec, ServiceSpec
from agentevolver.utils.errors import LaunchError


def spec(kind: type[JobSpec], raw: dict[str, Any]) -> Any:
    lists = {key: tuple(value) for key, value in raw.items() if isinstance(value, list)}
    return kind(**{**raw, **lists, "cwd": Path(raw["cwd"]), "log": Path(raw["log"])})


raw = json.loads(Path(sys.argv[1]).read_text())
folder = Path(raw["folder"])
count = raw["services"]
plan = Plan(
    run_id=raw["run_id"],
    device="cpu",
    experiment_dir=folder / raw["experiment"],
    config={"key": "value"},
    services=tuple(spec(ServiceSpec, item) for item in raw["specs"][:count]),
    job=next((spec(JobSpec, item) for item in raw["specs"][count:]), None),
    temp_dir=Path("/tmp") / f"ae-test-{raw['run_id']}",
    token=folder / "run" / f"{raw['run_id']}.token",
    dashboard=None,
    reused=(),
)
cli._set_up_logging()
try:
    sys.exit(carry_out(plan, RunRegistry(folder / "run"), ["--test"], folder))
except LaunchError as error:
    sys.exit(cli._fail(error))
