"""A main job for the live test: a task in the run's Ray, a detached actor with a child, and a call to the environment
service."""

import argparse
import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import psutil
import ray
from omegaconf import OmegaConf

from agentevolver.utils.processes import carriers

parser = argparse.ArgumentParser()
parser.add_argument("--config", type=Path, required=True)
config = OmegaConf.load(parser.parse_args().config)


@ray.remote(num_cpus=1)
class Detached:
    def start_something(self) -> str:
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        return os.environ["AGENTEVOLVER_RUN_ID"]


ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False, namespace="live")
actor = Detached.options(lifetime="detached", name="detached").remote()
seen = ray.get(actor.start_something.remote())
own = {process.pid for process in carriers(os.environ["AGENTEVOLVER_RUN_ID"])} | {os.getpid()}
listening = {
    one.laddr.ip.removeprefix("::ffff:") for one in psutil.net_connections("inet") if one.pid in own and not one.raddr
}
without_token = subprocess.run(
    [sys.executable, "-c", f"import ray; ray.init(address={os.environ['RAY_ADDRESS']!r})"],
    env={name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")},
    capture_output=True,
    text=True,
    timeout=60,
)
with urllib.request.urlopen(f"{config.env_service.env_url}/healthz") as reply:
    health = reply.read().decode()
said = {"run_id": seen, "health": health, "cpus": ray.cluster_resources()["CPU"], "secret": os.environ["JUDGE_KEY"]}
strangers = [without_token.returncode != 0, "AuthenticationError" in without_token.stderr]
print(json.dumps(said | {"listening": sorted(listening), "strangers": strangers}), flush=True)
