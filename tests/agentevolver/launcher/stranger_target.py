"""A main job for the tests of a real run: opens instances, starts an actor as the trainer does and a detached one with
a child, tries Ray without its token, and waits."""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import ray
from omegaconf import OmegaConf

from agentevolver.utils.processes import carriers
from agentevolver.utils.secrets import SECRETS, secret
from env_service.client import AsyncEnvClient

parser = argparse.ArgumentParser()
parser.add_argument("--config", type=Path, required=True)
config = OmegaConf.load(parser.parse_args().config)
folder = Path(os.environ["STRANGER_FOLDER"])


@ray.remote(num_cpus=0)
class Role:
    def key(self) -> str:
        return secret("OPENAI_API_KEY")


@ray.remote(num_cpus=0)
class Detached:
    def start_something(self) -> None:
        subprocess.Popen(["sleep", "600"], start_new_session=True)


async def open_instances() -> None:
    async with AsyncEnvClient(config.env_service.env_url) as client:
        for env_type in ("pocket", "lonely"):
            await client.create_instance(env_type, (await client.get_env_profile(env_type))[0])


asyncio.run(open_instances())
ray.init(
    address=os.environ["RAY_ADDRESS"], log_to_driver=False, runtime_env={"env_vars": {SECRETS: os.environ[SECRETS]}}
)
role = Role.remote()
detached = Detached.options(lifetime="detached", name="detached", namespace="strangers").remote()
ray.get(detached.start_something.remote())
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
refused = without_token.returncode != 0 and "AuthenticationError" in without_token.stderr
said = {"key": ray.get(role.key.remote()), "listening": sorted(listening), "refused": refused}
(folder / "ready").write_text(json.dumps(said))
while not (folder / "looked").exists():
    time.sleep(0.05)
