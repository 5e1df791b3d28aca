"""A main job for the live test: a task in the run's Ray, a detached actor with a child, and a call to the environment service."""

import argparse
import json
import os
import subprocess
import urllib.request
from pathlib import Path

import ray
from omegaconf import OmegaConf

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
with urllib.request.urlopen(f"{config.env_service.env_url}/healthz") as reply:
    health = reply.read().decode()
print(json.dumps({"run_id": seen, "health": health, "cpus": ray.cluster_resources()["CPU"], "secret": os.environ["JUDGE_KEY"]}), flush=True)
