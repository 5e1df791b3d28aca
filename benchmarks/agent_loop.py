"""CPU time of the agent loop per turn: everything of an episode but the engine and the environment.

    python benchmarks/agent_loop.py [--episodes 512] [--turns 4]

Episodes run as verl runs them (verl's worker class makes the agent loop and hands its rows on), against an engine that
answers at once and an environment that is a function call. What is left is ours and verl's own bookkeeping. Prints one
table: without and with the hand-over of the rows to TransferQueue (a real one, on a private Ray), and the share of
verl's construction per episode.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("VERL_PLATFORM", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


class InstantEngine:
    """Answers every request with the same ids, as verl's server manager would."""

    def __init__(self, ids: list[int]) -> None:
        self._reply = type("Reply", (), {})()
        self._reply.token_ids, self._reply.log_probs, self._reply.stop_reason = ids, [-0.5] * len(ids), "completed"
        self._reply.extra_fields = {"min_global_steps": 0, "max_global_steps": 0}

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        return self._reply


class InstantEnv:
    """Ends every episode after a fixed number of turns."""

    def __init__(self, turns: int) -> None:
        self._turns = turns

    async def create_instance(
        self, env_type: str, task_id: str, instance_id: str | None = None, params: Any = None
    ) -> dict[str, Any]:
        return {
            "state": [{"role": "system", "content": "site k7"}, {"role": "user", "content": "delete the note hat"}],
            "info": {},
        }

    async def step(self, instance_id: str, action: Any, params: Any = None, step_index: int = 0) -> dict[str, Any]:
        over = step_index + 1 >= self._turns
        return {
            "state": [{"role": "user", "content": "n6 hat fun , n3 hat home"}],
            "reward": 0.0,
            "is_terminated": over,
            "info": {},
        }

    async def evaluate(self, instance_id: str, messages: Any = None, params: Any = None) -> float:
        return 1.0

    async def release_instance(self, instance_id: str) -> bool:
        return True

    async def health(self) -> bool:
        return True


def make_worker(turns: int) -> Any:
    """Return the worker object, outside an actor, with the instant engine and environment behind it."""
    from agentevolver.config.checks import for_verl, load
    from agentevolver.rollout import agent_loop as episode
    from agentevolver.rollout.agent_loop import EpisodeWorker

    config = for_verl(load(Path(__file__).parents[1] / "examples" / "basic.yaml", ["device=cpu"]).config)
    import transfer_queue

    init, transfer_queue.init = transfer_queue.init, lambda *_: None
    try:
        worker = EpisodeWorker(config, None, None, [])
    finally:
        transfer_queue.init = init
    worker.llm_client = InstantEngine([*worker.tokenizer.encode("note.del n3 yes"), worker.tokenizer.eos_token_id])
    episode.AsyncEnvClient = lambda *_, **__: InstantEnv(turns)  # type: ignore[assignment,misc]
    return worker


async def run_episodes(worker: Any, episodes: int) -> None:
    row = {
        "task": {"task_id": "note_del.k7.1", "env_type": "pocket", "metadata": {"split": "train"}},
        "raw_prompt": [{"role": "user", "content": "note_del.k7.1"}],
        "data_source": "pocket",
        "reward_model": {"style": "rule", "ground_truth": ""},
        "index": 0,
        "global_steps": 1,
    }
    trajectory = {"step": 1, "sample_index": 0, "rollout_n": 0, "validate": False}
    jobs = [
        worker._run_agent_loop(
            {}, trajectory, agent_name="agentevolver", trace=False, uid=f"u{i // 8}", session_id=i % 8, **row
        )
        for i in range(episodes)
    ]
    await asyncio.gather(*jobs)


def measure(loop: asyncio.Runner, worker: Any, episodes: int) -> float:
    """Return seconds of CPU of this process, the best of three rounds after one to warm up."""
    rounds = []
    for _ in range(4):
        before = time.process_time()
        loop.run(run_episodes(worker, episodes))
        rounds.append(time.process_time() - before)
    return min(rounds[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=512)
    parser.add_argument("--turns", type=int, default=4)
    arguments = parser.parse_args()
    loop = asyncio.Runner()
    worker = make_worker(arguments.turns)
    turns = arguments.episodes * arguments.turns

    from rich.console import Console
    from rich.table import Table

    import agentevolver.rollout.agent_loop as agent_loop_tq

    real_put = agent_loop_tq.tq.async_kv_batch_put
    real_post = type(worker)._agent_loop_postprocess
    table = Table(
        "what",
        "ms of CPU a turn",
        "ms of CPU an episode",
        title=f"{arguments.episodes} episodes x {arguments.turns} turns",
    )

    async def no_put(*_: Any, **__: Any) -> None:
        return None

    async def no_post(*_: Any, **__: Any) -> None:
        return None

    def row(name: str, seconds: float) -> None:
        table.add_row(name, f"{1e3 * seconds / turns:.3f}", f"{1e3 * seconds / arguments.episodes:.3f}")

    agent_loop_tq.tq.async_kv_batch_put = no_put
    type(worker)._agent_loop_postprocess = no_post
    row("episode alone", measure(loop, worker, arguments.episodes))
    type(worker)._agent_loop_postprocess = real_post
    row("with verl's rows", measure(loop, worker, arguments.episodes))
    agent_loop_tq.tq.async_kv_batch_put = real_put
    import ray
    import transfer_queue as tq
    from omegaconf import OmegaConf

    from agentevolver.transport import run_key
    from agentevolver.transport import worker as worker_hook

    closed_off = {"worker_process_setup_hook": worker_hook.HOOK}
    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False, runtime_env=closed_off)
    run_key.create()
    tq.init(OmegaConf.create({"enable": True, "backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
    try:
        row("with TransferQueue", measure(loop, worker, arguments.episodes))
    finally:
        tq.close()
        ray.shutdown()
    Console().print(table)


if __name__ == "__main__":
    main()
