"""The teacher beside a run."""

import socket
from pathlib import Path

from agentevolver.config.checks import load
from agentevolver.launcher.experiment import START
from agentevolver.launcher.options import Options
from agentevolver.launcher.plan import make_plan
from agentevolver.launcher.records import RunRegistry
from tests.agentevolver.launcher.fakes import FakeConfiguration

ASKING = ("device=cpu", "env_service.env_type=pocket", "attribution_driven_credit_assignment.enable=true")


def test_it_starts_where_a_port_is_free_and_the_run_is_told(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        told = (f"llm.teacher.url=http://127.0.0.1:{port}/v1", "llm.teacher.wrong_labels=0.3")
        configuration = FakeConfiguration(experiment_dir=tmp_path, settings=load(None, [*ASKING, *told]).settings)
        made = make_plan(Options(conf=Path("x.yaml")), configuration, START, RunRegistry(tmp_path / "run"))
    (spec,) = [spec for spec in made.services if spec.name == "teacher"]
    chosen = made.config["llm"]["teacher"]["url"].removesuffix("/v1").rpartition(":")[2]
    assert int(chosen) != port and f"--port={chosen}" in spec.argv and "--wrong-labels=0.3" in spec.argv
    assert spec.health_urls == (f"http://127.0.0.1:{chosen}/healthz",) and spec.says_who
