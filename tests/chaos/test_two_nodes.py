"""A training on two nodes, of which one loses its power in the middle of a step and comes back later.

The nodes are namespaces of this machine (`tests.chaos.nodes`). The trainer is on the first; rollout workers and
environment hosts are on both. The second has no CPU in Ray's books, as a node for rollouts alone is started
(`examples/multi_node.md`).
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentevolver.utils.files import read_jsonl
from tests.chaos.nodes import ROOT, Node, why_not
from tests.e2e.runs import SMALL

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(1200)]

# What `on_nodes` notes, and where.
NOTED = Path(__file__).with_name("noted")
ENVIRONMENT, ROLLOUT, WHERE = "environment", "rollout", "ON_NODES"
ROLLOUTS = 16
AHEAD_S = 10 * 24 * 3600
PYTHON = str(ROOT / ".venv" / "bin" / "python")
RAY = "--disable-usage-stats --object-store-memory=100000000"
# Ray's own time for a node that does not answer is a minute; the head decides.
HEALTH = {
    "RAY_health_check_period_ms": "2000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}
KEYS = (
    *SMALL,
    "actor_rollout_ref.rollout.agent.num_workers=2",
    "actor_rollout_ref.rollout.agent_flow=on_nodes:NotedFlow",
    "env_service.env_params={latency: {share: 1, seconds: 1.5}}",
    "env_service.timeout_s=60",
    "trainer.total_training_steps=500",
    "trainer.save_freq=-1",
    "trainer.test_freq=-1",
    "trainer.val_before_train=false",
    "trainer.dump_samples=false",
)


class Cluster:
    """Two nodes with Ray, the environment service on the first, and a run that the launcher started there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.directory = folder / "experiments" / "pocket" / "nodes"
        self.where = folder / "on_nodes"
        self.where.touch()
        token = folder / "ray_token"
        token.write_text("0123456789abcdef" * 4)
        token.chmod(0o600)
        self.variables = {
            "ENV_SERVICE_TOKEN": "one-secret-for-all-nodes",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(NOTED))),
            WHERE: str(self.where),
            **HEALTH,
        }
        self.nodes: list[Node] = []

    def head(self) -> Node:
        node = Node(1, "head", self.folder)
        self.nodes.append(node)
        node.run(
            f".venv/bin/ray start --head --node-ip-address={node.address} --port=6379 --num-cpus=16 --num-gpus=1 "
            f"--include-dashboard=false {RAY}",
            self.variables,
        )
        return node

    def second(self, name: str, head: Node) -> Node:
        node = Node(2, name, self.folder, switch=head, ahead_s=AHEAD_S)
        self.nodes.append(node)
        node.run(
            f".venv/bin/ray start --address={head.address}:6379 --node-ip-address={node.address} "
            f"--num-cpus=0 --num-gpus=0 {RAY}",
            self.variables,
        )
        return node

    def places(self, since: int = 0) -> Counter[tuple[str, str]]:
        """What was done where since that line of the notes."""
        return Counter(tuple(line.split()[:2]) for line in self.lines()[since:])  # type: ignore[misc]

    def lines(self) -> list[str]:
        return self.where.read_text().splitlines()

    def metrics(self) -> list[dict[str, Any]]:
        path = self.directory / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def step(self) -> int:
        """The last step that is done."""
        return max((record["step"] for record in self.metrics()), default=0)

    def wait_for(self, condition: Callable[[], Any], what: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            for name, process in (("launcher", self.run), ("environment service", self.service)):
                log = (self.folder / f"{name.split()[0]}.log").read_text(errors="replace")
                assert process.poll() is None, f"the {name} ended with {process.returncode} before {what}:\n{log}"
            assert time.monotonic() < deadline, f"no {what} within {timeout_s} s"
            time.sleep(0.1)

    def launch(self, head: Node) -> None:
        url = f"http://{head.address}:8080"
        serve = f"{PYTHON} -m env_service serve --env pocket --env-module pocket=on_nodes:NotedPocket"
        self.service = head.start(
            [*shlex.split(f"{serve} --host {head.address} --port 8080 --ray-address {head.address}:6379")],
            self.folder / "environment.log",
            self.variables,
        )
        for _ in range(120):
            with_token = f"{PYTHON} -c \"import urllib.request as r; r.urlopen('{url}/healthz', timeout=5)\""
            if os.system(shlex.join(head.command(with_token)) + " 2> /dev/null") == 0:
                break
            time.sleep(0.5)
        self.run = head.start(
            [
                *(PYTHON, "launcher.py", "--conf", "examples/basic.yaml"),
                *(f"ray.address={head.address}:6379", f"env_service.env_url={url}"),
                *(f"experiment.root={self.folder}/experiments", "trainer.project_name=pocket"),
                *("trainer.experiment_name=nodes", *KEYS),
            ],
            self.folder / "launcher.log",
            # A folder that the second node does not have.
            self.variables | {"TMPDIR": "/tmp"},
        )

    def end(self) -> None:
        """Turn everything off."""
        for node in reversed(self.nodes):
            node.kill()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    made = Cluster(tmp_path)
    yield made
    made.end()


def test_a_run_outlives_the_power_of_its_second_node(cluster: Cluster) -> None:
    head = cluster.head()
    second = cluster.second("second", head)
    uptime = [float(node.run("cat /proc/uptime").split()[0]) for node in (head, second)]
    assert uptime[1] - uptime[0] > AHEAD_S - 60
    cluster.launch(head)
    cluster.wait_for(lambda: cluster.step() >= 2, "two steps are done", 600)
    both = {(node, what) for node in ("head", "second") for what in (ENVIRONMENT, ROLLOUT)}
    assert cluster.places().keys() == both, "rollouts and environments are on both nodes"

    seen = len(cluster.lines())
    cluster.wait_for(lambda: cluster.places(seen)["second", ROLLOUT] >= 4, "rollouts on the second node", 120)
    time.sleep(1.0)
    second.cut()
    second.kill()
    hit = cluster.step() + 1
    cluster.wait_for(lambda: cluster.step() >= hit, f"step {hit} is done all the same", 300)
    record = next(record for record in cluster.metrics() if record["step"] == hit)
    rolled = list(read_jsonl(cluster.directory / "trajectories" / f"step_{hit}.jsonl"))
    assert len(rolled) == len({one["trajectory_id"] for one in rolled}) == ROLLOUTS
    assert record["rollout/lost_workers"] == 1 and record["rollout/groups_begun_again"] >= 1
    assert all((one["outcome"] is None) == (one["stop_reason"] == "env_error") for one in rolled)
    assert any(one["attempts"] > 1 or one["stop_reason"] == "env_error" for one in rolled), (
        "instances on the lost node were lost with it, and those rollouts tried again or ended as env_error"
    )

    seen = len(cluster.lines())
    cluster.wait_for(lambda: cluster.step() >= hit + 3, "three more steps on one node", 300)
    assert {node for node, _ in cluster.places(seen)} == {"head"}
    for record in cluster.metrics():
        if record["step"] > hit:
            assert "rollout/lost_workers" not in record

    cluster.second("again", head)
    seen = len(cluster.lines())
    for what in (ROLLOUT, ENVIRONMENT):
        cluster.wait_for(lambda what=what: cluster.places(seen)["again", what] >= 4, f"{what} on it", 300)  # type: ignore[misc]
    back = cluster.step()
    cluster.wait_for(lambda: cluster.step() >= back + 2, "two more steps", 300)
    steps = [record["step"] for record in cluster.metrics()]
    assert steps == list(range(1, len(steps) + 1)), "one record a step, none missing, none twice"
    for step in steps:
        rolled = list(read_jsonl(cluster.directory / "trajectories" / f"step_{step}.jsonl"))
        assert len({one["trajectory_id"] for one in rolled}) == ROLLOUTS, f"the rollouts of step {step}"
    head.run(["pkill", "--signal", "INT", "--full", "^[^ ]*python launcher.py"])
    assert cluster.run.wait(120) == 130
