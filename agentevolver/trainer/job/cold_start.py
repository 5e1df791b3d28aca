"""Cold start: the policy imitates successful conversations (SFT) before reinforcement learning begins.

The result replaces `actor_rollout_ref.model.path`, also for the reference model. All files are in `cold_start/`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
from omegaconf import DictConfig, open_dict

from agentevolver.config.environments import Environment, launched_with
from agentevolver.config.model_files import local
from agentevolver.config.schema import Settings
from agentevolver.config.training import REFERENCE
from agentevolver.llm.message_logs import LogError, find_logs, read_logs
from agentevolver.trainer.monitor.log import METRICS, Status
from agentevolver.trainer.monitor.results import records
from agentevolver.types import Trajectory
from agentevolver.utils import net
from agentevolver.utils.errors import ConfigError, TrainingFailed
from agentevolver.utils.files import remove_tree, write_json, write_jsonl
from agentevolver.utils.turn_ends import restore_ends
from context_manager.chat import ChatRenderer, ChatTemplateError
from context_manager.demonstrations import DemonstrationTokens, demonstration
from experience_manager.guide import strip

DONE, MODEL, LOG = "done.json", "model", "cold_start.log"
POLL_S = 0.5
# At most so many conversations of one task, so that easy tasks do not dominate.
MAX_PER_TASK = 4


def prepare(config: DictConfig, settings: Settings, renderer: ChatRenderer) -> None:
    """Point `config` at the cold start's model, which is trained first if missing.

    Raises:
        ConfigError: nothing to imitate, an unreadable log, or another cold start than the run began with.
        TrainingFailed: verl's SFT trainer failed.
    """
    if not settings.cold_start.files:
        return
    folder = settings.experiment_dir.resolve() / "cold_start"
    base = str(config.actor_rollout_ref.model.path)
    wanted = {**settings.cold_start.model_dump(mode="json"), "model": base}
    done = _done(folder)
    if done is None:
        done = _made(settings, renderer, folder, wanted)
    elif {**done["wanted"], "model": local(done["wanted"]["model"])} != wanted:
        raise ConfigError(
            f"this experiment has another cold start ({folder / DONE}): start a new experiment with "
            "trainer.experiment_name=NAME, or restore cold_start and the model"
        )
    with open_dict(config):
        config.actor_rollout_ref.model.path = str(folder / MODEL)


def _done(folder: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = orjson.loads((folder / DONE).read_bytes())
    except FileNotFoundError:
        return None
    return found


def _made(settings: Settings, renderer: ChatRenderer, folder: Path, wanted: dict[str, Any]) -> dict[str, Any]:
    from agentevolver.trainer.sft import CHECKPOINTS, EPISODES

    remove_tree(folder)
    demonstrated = _demonstrate(settings, folder)
    Status(settings.experiment_dir).set("reading what the cold start imitates")
    try:
        trajectories = read_logs([*demonstrated, *find_logs(settings.cold_start.logs)])
    except (LogError, OSError) as error:
        raise ConfigError(f"cold_start.files: {error}") from error
    chosen, left_out = choose(trajectories, settings.cold_start.min_score)
    kept, dropped = render(chosen, renderer, _longest(settings))
    left_out += dropped
    ranks = settings.sizes.n_gpus_per_node
    if len(kept) < ranks:
        told = ", ".join(f"{count} {why}" for why, count in left_out.items()) or "no line"
        raise ConfigError(
            f"cold_start.files: {len(kept)} of {len(trajectories)} conversations can be imitated, but each of {ranks} "
            f"ranks needs one (left out: {told})"
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_jsonl(folder / EPISODES, ({"ids": one.ids, "mask": one.mask} for one in kept))
    _train(settings, folder)
    saved = sorted((folder / CHECKPOINTS).glob("global_step_*/huggingface"), key=lambda path: path.stat().st_mtime)
    if not saved or not list(saved[-1].glob("*.safetensors")):
        raise TrainingFailed(f"the cold start left no model behind; its log is {_log(settings)}")
    saved[-1].rename(folder / MODEL)
    restore_ends(folder / MODEL, wanted["model"])
    shutil.rmtree(folder / CHECKPOINTS)
    losses = [record["data"]["train/loss"] for record in records(folder) if "train/loss" in record["data"]]
    done = {
        "wanted": wanted,
        "conversations": len(kept),
        "left_out": dict(left_out),
        "tokens": sum(len(one.ids) for one in kept),
        "imitated_tokens": sum(sum(one.mask) for one in kept),
        "episodes_sha256": hashlib.sha256((folder / EPISODES).read_bytes()).hexdigest(),
        "steps": len(losses),
        "first_loss": losses[0] if losses else None,
        "last_loss": losses[-1] if losses else None,
    }
    write_json(folder / DONE, done, indent=2)
    print(
        f"[cold start] {len(kept)} conversations imitated in {len(losses)} steps, "
        f"loss {done['first_loss']:.3f} -> {done['last_loss']:.3f}",
        flush=True,
    )
    return done


def _demonstrate(settings: Settings, folder: Path) -> list[Path]:
    """Make the demonstrations of `reference:N` and return their files. Each environment gets its share by weight, and a
    process of its own."""
    trained = [one for one in settings.environments if one.weight > 0] if settings.cold_start.demonstrations else []
    total, left, files = sum(one.weight for one in trained), settings.cold_start.demonstrations, []
    for place, one in enumerate(trained):
        share = one.weight / total
        n = left if place == len(trained) - 1 else min(left, round(settings.cold_start.demonstrations * share))
        left -= n
        out = folder / f"demonstrations{f'.{one.env_type}' if len(trained) > 1 else ''}.jsonl"
        Status(settings.experiment_dir).set(f"making {n} demonstrations of {one.env_type}")
        if n:
            _demonstrate_one(settings, one, n, out)
            files.append(out)
    return files


def _demonstrate_one(settings: Settings, environment: Environment, n: int, out: Path) -> None:
    params = environment.params(validation=False)
    if environment.native_tools and settings.rollout.tool_format != "none":
        params["native_tools"] = True
    # Not as words: every user can read them.
    given = [f"{name}={json.dumps(value)}" for name, value in params.items()]
    given += [f"--filter={name}={json.dumps(value)}" for name, value in environment.train_filter.items()]
    command = [sys.executable, "-m", "env_service", "demonstrate", environment.env_type, "@/dev/stdin"]
    command += ["--out", str(out), "--split", environment.train_split, "-n", str(n)]
    command += ["--seed", str(settings.data.seed), f"--template={settings.exp_manager.experience_template}"]
    command += [word for text in launched_with(settings.experiment_dir) for word in ("--env-module", text)]
    done = subprocess.run(command, input="\n".join(given), capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        raise ConfigError(f"cold_start.files = {REFERENCE}{n}: {''.join(last)}")
    print(f"[cold start] {done.stdout.strip()}", flush=True)


def choose(trajectories: Sequence[Trajectory], min_score: float) -> tuple[list[Trajectory], Counter[str]]:
    """Return the trajectories to imitate, the shortest of each task, and counts of the others by reason."""
    left_out: Counter[str] = Counter()
    by_task: dict[tuple[str, str], list[Trajectory]] = {}
    for trajectory in trajectories:
        outcome = trajectory.outcome
        if trajectory.task.is_validation:
            left_out["of validation"] += 1
        elif outcome is None or not trajectory.stop_reason.happened:
            left_out["without a grade"] += 1
        elif outcome.score < min_score:
            left_out["below min_score"] += 1
        else:
            by_task.setdefault((trajectory.task.env_type, trajectory.task.task_id), []).append(trajectory)
    kept = []
    for of_task in by_task.values():
        of_task.sort(key=lambda trajectory: len(trajectory.steps))
        kept += of_task[:MAX_PER_TASK]
        left_out["beyond the shortest of a task"] += len(of_task) - len(of_task[:MAX_PER_TASK])
    return kept, +left_out


def render(
    trajectories: Sequence[Trajectory], renderer: ChatRenderer, longest: int
) -> tuple[list[DemonstrationTokens], Counter[str]]:
    """Return token ids and masks without injected experience, and counts of the conversations left out by reason."""
    kept, left_out = [], Counter[str]()
    for trajectory in trajectories:
        guidance = trajectory.guidance
        messages = strip(trajectory.messages, guidance.injected if guidance is not None else "")
        tools = trajectory.tools or trajectory.task.metadata.get("tools") or []
        try:
            made = demonstration(renderer.for_tools(tools), messages)
        except (ValueError, ChatTemplateError) as error:
            left_out[f"that cannot be rendered ({error})"] += 1
            continue
        if len(made.ids) > longest:
            left_out[f"longer than {longest} tokens"] += 1
        else:
            kept.append(made)
    return kept, left_out


def _longest(settings: Settings) -> int:
    sizes = settings.sizes
    return min(sizes.max_prompt_length + sizes.max_response_length, sizes.max_model_len)


def _log(settings: Settings) -> Path:
    return settings.experiment_dir.resolve() / "logs" / LOG


def _train(settings: Settings, folder: Path) -> None:
    from agentevolver.trainer.sft import PARENT

    ranks, log = settings.sizes.n_gpus_per_node, _log(settings)
    config = settings.experiment_dir.resolve() / "config.yaml"
    command = [sys.executable, "-m", "agentevolver.trainer.sft", "--config", str(config), "--folder", str(folder)]
    # The ranks meet through a file. verl still reads the address of a store, but does not use it.
    store = {"MASTER_ADDR": net.LOOPBACK, "MASTER_PORT": "0", "WORLD_SIZE": str(ranks)}
    shared = {**os.environ, **net.ON_LOOPBACK, **store, PARENT: str(os.getpid())}
    status = Status(settings.experiment_dir)
    status.set("cold start")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        processes = []
        try:
            for rank in range(ranks):
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "VERL_FILE_LOGGER_PATH": str(folder / METRICS)}
                processes.append(
                    subprocess.Popen(command, env={**shared, **own}, stdout=output, stderr=subprocess.STDOUT)
                )
            while any(process.poll() is None for process in processes):
                if any(process.poll() for process in processes):
                    break
                if done := list(records(folder)):
                    status.set("cold start", step=done[-1]["step"])
                time.sleep(POLL_S)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.wait()
    if any(process.returncode for process in processes):
        last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        raise TrainingFailed(f"the cold start failed: {''.join(last)[:300]} (the log is {log})")
