"""A main job for the test of who sees a run's secrets: opens instances, starts an actor as the trainer does, and
waits."""

import argparse
import asyncio
import json
import os
import time
from pathlib import Path

import ray
from omegaconf import OmegaConf

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


async def open_instances() -> None:
    async with AsyncEnvClient(config.env_service.env_url) as client:
        for env_type in ("pocket", "lonely"):
            await client.create_instance(env_type, (await client.get_env_profile(env_type))[0])


asyncio.run(open_instances())
ray.init(
    address=os.environ["RAY_ADDRESS"], log_to_driver=False, runtime_env={"env_vars": {SECRETS: os.environ[SECRETS]}}
)
role = Role.remote()
(folder / "ready").write_text(json.dumps({"key": ray.get(role.key.remote())}))
while not (folder / "looked").exists():
    time.sleep(0.05)
