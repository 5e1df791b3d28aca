"""Seconds, tokens a second, MFU and memory of real training steps with random-weight policies of Qwen2.5's shapes.

    python -m benchmarks.gpu_step --shape 0.5B --steps 3 --out DIR [key=value …]
    python -m benchmarks.gpu_step --shape 1.5B --side-by-side graphs= --side-by-side
    eager=actor_rollout_ref.rollout.enforce_eager=true python -m benchmarks.gpu_step --side-by-side usual=
    --side-by-side same=trainer.deterministic=true python -m benchmarks.gpu_step --device cpu --shape tiny

Each run is the launcher's own, on pocket_long, in a process tree of its own, one device, FSDP2; no validation, no
checkpoint. The rows of a table add up to the step: what stands in no timer is `untimed`. MFU is 6 N FLOPs a token in
the update, 2 N in a pass of log-probs (LoRA's update: 4 N) plus causal attention's, N the parameters that multiply,
over the whole phase's seconds and the device's promise in dense bf16. DIR gets results.json, table.txt, and of each run
its metrics and the launcher's output.

Everything ends within --limit-s seconds; what was measured until then is printed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from agentevolver.config.model import DecoderSize
from agentevolver.utils.files import read_jsonl
from benchmarks.random_policy import SHAPES
from benchmarks.run_within import run_within
from benchmarks.step_cost import Row, peak_flops, ratios, rows, table_of

ROOT = Path(__file__).resolve().parents[1]
PROJECT = "gpu_step"
# Below so many seconds no run is begun: it could not reach its first step.
LEAST_S = 60.0
# What is kept of a launcher's output.
OUTPUT_BYTES = 400_000
SAID_LINES = 12
KNOWN = ("seed", *SHAPES)

CONF: dict[str, Any] = {
    "trainer": {
        "project_name": PROJECT,
        "test_freq": -1,
        "save_freq": -1,
        "n_gpus_per_node": 1,
        "val_before_train": False,
    },
    "data": {
        "train_split": "train",
        "val_splits": ["dev"],
        "train_batch_size": 16,
        "max_prompt_length": 192,
        "max_response_length": 2304,
    },
    "env_service": {"env_type": "pocket_long"},
    "actor_rollout_ref": {
        "actor": {"ppo_mini_batch_size": 8, "ppo_max_token_len_per_gpu": 16384},
        "ref": {"log_prob_max_token_len_per_gpu": 16384},
        "rollout": {
            "temperature": 1.0,
            "gpu_memory_utilization": 0.6,
            "max_model_len": 2560,
            "response_length": 256,
            "max_env_len": 96,
            "log_prob_max_token_len_per_gpu": 16384,
            "sparse": False,
            "multi_turn": {"max_steps": 8},
            "agent": {"num_workers": 4},
        },
    },
    "ray": {"dashboard": False},
}
# What one device needs beside. 7B: parameters, gradients and both moments in bf16 are 61 GB, on the device only while
# the policy learns.
OF_SHAPE = {
    "1.5B": ["actor_rollout_ref.rollout.gpu_memory_utilization=0.5"],
    "7B": [
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.5",
        "actor_rollout_ref.actor.fsdp_config.model_dtype=bf16",
        "actor_rollout_ref.actor.fsdp_config.param_offload=true",
        "actor_rollout_ref.actor.fsdp_config.optimizer_offload=true",
        "actor_rollout_ref.ref.fsdp_config.model_dtype=bf16",
        *(
            f"actor_rollout_ref.{key}=8192"
            for key in ("actor.ppo_max_token_len_per_gpu", "ref.log_prob_max_token_len_per_gpu")
        ),
        "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=8192",
    ],
}
OF_CPU = [
    *("data.train_batch_size=4", "data.max_response_length=384", "actor_rollout_ref.rollout.n=4"),
    *("actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=4096"),
    *(f"actor_rollout_ref.{key}_max_token_len_per_gpu=8192" for key in ("ref.log_prob", "rollout.log_prob")),
    *("actor_rollout_ref.rollout.max_model_len=576", "actor_rollout_ref.rollout.response_length=32"),
    "actor_rollout_ref.rollout.agent.num_workers=1",
]


@dataclass
class Condition:
    """A column of a comparison: overrides by a name."""

    name: str
    overrides: list[str]


@dataclass
class Measured:
    """What one run showed."""

    shape: str
    condition: str
    overrides: list[str]
    returncode: int | None
    seconds: float
    # (seconds after the launch, what status.json said then)
    timeline: list[tuple[float, str]] = field(default_factory=list)
    gpu_memory_mib: int | None = None
    gpu_utilisation: float | None = None
    records: list[dict[str, float]] = field(default_factory=list)
    table: list[Row] = field(default_factory=list)
    # The end of the launcher's output.
    said: str = ""

    @property
    def first_step_s(self) -> float | None:
        """Seconds from the launch to the beginning of the first step."""
        return next((at for at, phase in self.timeline if phase.startswith("training")), None)


class DeviceMemory:
    """Watches nvidia-smi's memory and utilisation of the first device; None where there is no nvidia-smi."""

    def __init__(self) -> None:
        self.samples: list[tuple[int, int]] = []
        self._process: subprocess.Popen[str] | None = None
        if (tool := shutil.which("nvidia-smi")) is not None:
            query = [
                tool,
                "-i",
                "0",
                "--query-gpu=memory.used,utilization.gpu",
                "--format=csv,noheader,nounits",
                "-lms",
                "500",
            ]
            self._process = subprocess.Popen(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            used, utilisation = (part.strip() for part in line.split(","))
            if used.isdecimal():
                self.samples.append((int(used), int(utilisation) if utilisation.isdecimal() else 0))

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()


def device_name(device: str) -> str:
    """What the device is called; the driver's version with it."""
    tool = shutil.which("nvidia-smi")
    if device == "cpu" or tool is None:
        return "cpu"
    query = [tool, "-i", "0", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip() or "cuda"


def policy(shape: str, device: str, models: Path) -> Path:
    """The folder of a shape's policy, made if it is not there; in a process of its own, which gives its memory back."""
    if shape == "seed":
        from agentevolver.recipes.offline.seed import seed_policy_path

        return seed_policy_path()
    path = models / f"{shape}-{device}"
    if not (path / "model.safetensors").exists() and not (path / "model.safetensors.index.json").exists():
        draft = path.with_name(f".{path.name}.draft")
        shutil.rmtree(draft, ignore_errors=True)
        make = [
            sys.executable,
            "-m",
            "benchmarks.random_policy",
            f"--shape={shape}",
            f"--out={draft}",
            f"--device={device}",
        ]
        subprocess.run(make, cwd=ROOT, check=True)
        draft.replace(path)
    return path


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def overrides_of(arguments: argparse.Namespace, shape: str, model: Path) -> list[str]:
    """What a run is told beside the configuration, weakest first."""
    lora = [f"actor_rollout_ref.model.lora_rank={arguments.lora_rank}"] if arguments.lora_rank else []
    return [
        f"actor_rollout_ref.model.path={model}",
        f"trainer.total_training_steps={arguments.steps}",
        f"env_service.env_url=http://127.0.0.1:{free_port()}",
        *OF_SHAPE.get(shape, []),
        *(OF_CPU if arguments.device == "cpu" else []),
        *lora,
        *arguments.overrides,
    ]


def measure(
    shape: str, condition: Condition, arguments: argparse.Namespace, model: Path, folder: Path, left_s: float
) -> Measured:
    """Launch one run and wait for its end, `left_s` seconds at most."""
    name = f"{shape}-{condition.name}-{time.time_ns()}"
    conf = folder / "gpu_step.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    conf.write_text(yaml.safe_dump(CONF), encoding="utf-8")
    own = [*overrides_of(arguments, shape, model), *condition.overrides]
    command = [sys.executable, str(ROOT / "launcher.py"), "--conf", str(conf), f"device={arguments.device}"]
    command += [f"experiment.root={folder}", f"trainer.experiment_name={name}", *own]
    directory, output = folder / PROJECT / name, folder / f"{name}.out"
    memory = DeviceMemory()
    try:
        ended = run_within(command, ROOT, directory, output, left_s)
    finally:
        memory.close()
    path = directory / "metrics.jsonl"
    records = [record for record in read_jsonl(path) if "timing_s/step" in record] if path.exists() else []
    measured = Measured(shape, condition.name, own, ended.returncode, ended.seconds, ended.timeline, records=records)
    if memory.samples:
        measured.gpu_memory_mib = max(used for used, _ in memory.samples)
        measured.gpu_utilisation = sum(utilisation for _, utilisation in memory.samples) / len(memory.samples)
    measured.said = "\n".join(output.read_text(encoding="utf-8", errors="replace").splitlines()[-SAID_LINES:])
    keep(arguments.out, name, directory, output)
    return measured


def keep(out: Path | None, name: str, directory: Path, output: Path) -> None:
    """Copy what explains a run to the folder of results."""
    if out is None:
        return
    target = out / name
    target.mkdir(parents=True, exist_ok=True)
    (target / "launcher.out").write_bytes(output.read_bytes()[-OUTPUT_BYTES:])
    for source in (directory / "metrics.jsonl", directory / "config.yaml", directory / "logs" / "trainer_error.log"):
        if source.exists():
            shutil.copy(source, target / source.name)
    if (directory / "logs" / "workers").exists():
        shutil.copytree(directory / "logs" / "workers", target / "workers", dirs_exist_ok=True)


def describe(measured: Measured, device: str, shape: DecoderSize, console: Console) -> None:
    """Print one run."""
    title = (
        f"{measured.shape} ({shape.parameters / 1e6:,.1f} M parameters), {measured.condition}, "
        f"{len(measured.records)} steps, {device}"
    )
    console.print(table_of(title, measured.table))
    last = measured.records[-1]
    rows_of, tokens = int(last["rollout/trajectories"]), last["perf/total_num_tokens"]
    facts = [
        f"{rows_of} rollouts, {tokens:,.0f} tokens, {last['rollout/action_tokens']:,.0f} of them sampled in the last "
        "step"
    ]
    if measured.first_step_s is not None:
        facts.append(f"launch to the first step {measured.first_step_s:.0f} s: {stages(measured.timeline)}")
    if measured.gpu_memory_mib is not None:
        facts.append(
            f"device memory {measured.gpu_memory_mib / 1024:.1f} GiB at most (nvidia-smi), utilised "
            f"{measured.gpu_utilisation:.0f} %"
        )
        peaks = {name: last.get(f"actor/perf/max_memory_{name}_gb") for name in ("allocated", "reserved")}
        facts += [
            f"torch's peak in the actor: {value:.1f} GiB {name}" for name, value in peaks.items() if value is not None
        ]
    if measured.gpu_memory_mib is not None and (verl := last.get("perf/mfu/actor")) is not None:
        facts.append(f"verl's own MFU of the update's computation {verl:.1%}")
    for fact in facts:
        console.print(fact, highlight=False)


def stages(timeline: list[tuple[float, str]]) -> str:
    """The seconds of each stage of a start, the launcher's own work first."""
    starts = [(0.0, "launcher and services"), *timeline]
    ends = [at for at, _ in timeline]
    before = [
        (name, end - at) for (at, name), end in zip(starts, ends, strict=False) if not name.startswith("training")
    ]
    return ", ".join(f"{name} {seconds:.0f} s" for name, seconds in before)


def shapes(value: str) -> list[str]:
    if wrong := [name for name in value.split(",") if name not in KNOWN]:
        raise argparse.ArgumentTypeError(f"{wrong[0]}: must be of {', '.join(KNOWN)}")
    return value.split(",")


def side(value: str) -> Condition:
    name, mark, overrides = value.partition("=")
    if not name or not mark:
        raise argparse.ArgumentTypeError(f"{value}: must be NAME=key=value key=value …, or NAME= for none")
    return Condition(name, overrides.split())


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_step", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shape", type=shapes, default=["0.5B"], metavar="SHAPE[,SHAPE…]", help=f"of {', '.join(KNOWN)}"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--lora-rank", type=int, default=0, help="0: all parameters learn")
    parser.add_argument(
        "--side-by-side",
        action="append",
        type=side,
        metavar="NAME=overrides",
        help="a condition; all of them are run in turn",
    )
    parser.add_argument("--rounds", type=int, default=1, help="how often each condition is run")
    parser.add_argument("--limit-s", type=float, default=570.0, help="seconds for everything")
    parser.add_argument("--peak-tflops", type=float, help="what MFU is a share of; by default by the device's name")
    parser.add_argument(
        "--models", type=Path, default=Path(tempfile.gettempdir()) / "gpu_step_models", help="where policies are kept"
    )
    parser.add_argument("--experiments", type=Path, help="folder to keep the runs' experiments in; by default they go")
    parser.add_argument("--out", type=Path, help="folder for results.json, table.txt and the runs' records")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parsed = parser.parse_intermixed_args(arguments)
    if wrong := [item for item in parsed.overrides if "=" not in item]:
        parser.error(f"{wrong[0]}: not key=value")
    return parsed


def main() -> int:
    """Command line; see --help. Ends with 1 where a run gave no step."""
    arguments = parse()
    deadline = time.monotonic() + arguments.limit_s
    conditions = arguments.side_by_side or [Condition("lora" if arguments.lora_rank else "full", [])]
    device = device_name(arguments.device)
    peak = arguments.peak_tflops * 1e12 if arguments.peak_tflops else peak_flops(device)
    console = Console(record=True, width=140)
    if peak is not None:
        console.print(f"MFU is a share of {peak / 1e12:g} TFLOP/s ({device})", highlight=False)
    arguments.models.mkdir(parents=True, exist_ok=True)
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
    done: list[Measured] = []
    complete = True
    with (
        nullcontext(arguments.experiments)
        if arguments.experiments
        else tempfile.TemporaryDirectory(prefix="gpu-step-") as folder
    ):
        for shape in arguments.shape:
            model = policy(shape, arguments.device, arguments.models)
            config = DecoderSize.of(json.loads((model / "config.json").read_text(encoding="utf-8")))
            by_condition: dict[str, list[dict[str, float]]] = {}
            for condition in [condition for _ in range(arguments.rounds) for condition in conditions]:
                left_s = deadline - time.monotonic()
                if left_s < LEAST_S:
                    console.print(f"{shape}, {condition.name}: not run, {left_s:.0f} s are left")
                    complete = False
                    continue
                measured = measure(shape, condition, arguments, model, Path(folder), left_s)
                done.append(measured)
                if not measured.records:
                    complete = False
                    console.print(
                        f"{shape}, {condition.name}: no step in {measured.seconds:.0f} s (exit code "
                        f"{measured.returncode})"
                    )
                    console.print(stages([*measured.timeline, (measured.seconds, "its end")]), highlight=False)
                    console.print(measured.said, highlight=False, markup=False)
                else:
                    by_condition.setdefault(condition.name, []).extend(measured.records)
                    measured.table = rows(measured.records, config, lora=bool(arguments.lora_rank), peak=peak)
                    describe(measured, device, config, console)
                write(arguments.out, console, device, peak, done)
            if len(by_condition) > 1:
                bodies = {
                    name: rows(records, config, lora=bool(arguments.lora_rank), peak=peak)
                    for name, records in by_condition.items()
                }
                console.print(ratios(f"{shape}, side by side", bodies))
                write(arguments.out, console, device, peak, done)
    return 0 if complete else 1


def write(out: Path | None, console: Console, device: str, peak: float | None, done: list[Measured]) -> None:
    """Write what is known so far."""
    if out is None:
        return
    (out / "table.txt").write_text(console.export_text(clear=False), encoding="utf-8")
    runs = [{**asdict(measured), "first_step_s": measured.first_step_s} for measured in done]
    (out / "results.json").write_text(
        json.dumps({"device": device, "peak_flops": peak, "runs": runs}, indent=1), encoding="utf-8"
    )


if __name__ == "__main__":
    sys.exit(main())
