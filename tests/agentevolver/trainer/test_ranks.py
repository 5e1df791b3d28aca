import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.free_ports import free_port

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).parent / "rank.py"
CPUS = sorted(os.sched_getaffinity(0))
pytestmark = [pytest.mark.service, pytest.mark.timeout(600)]

UNEVEN = "uneven rows, several samples a trajectory"
CASES = (UNEVEN, "withdrawn rows", "a rank of padding alone")
# Means over micro-batches, whatever their size (verl's own), and what belongs to the machine.
NOT_COMPARED = (
    "actor/pg_clipfrac",
    "actor/pg_clipfrac_lower",
    "actor/ppo_kl",
    "perf/",
    "mfu",
    "timing",
    "tokens_per_s",
    "global_seqlen",
)


def start(folder, ranks):
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "VERL_PLATFORM": "cpu",
        "WG_BACKEND": "ray", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(ranks),
    }  # fmt: skip
    for rank in range(ranks):
        with (folder / f"rank_{rank}_of_{ranks}.log").open("wb") as log:
            command = [sys.executable, str(PROGRAM), str(folder)]
            process = subprocess.Popen(
                command, cwd=ROOT, env={**environment, "RANK": str(rank)}, stdout=log, stderr=subprocess.STDOUT
            )
        # Of several threads on a busy CPU each waits for the others, spinning: a rank has one of each.
        os.sched_setaffinity(process.pid, {CPUS[(ranks + rank) % len(CPUS)]})
        yield process


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What one rank found, and what two did."""
    folder = tmp_path_factory.mktemp("ranks")
    processes = [*start(folder, 1), *start(folder, 2)]
    try:
        while any(process.poll() is None for process in processes):
            assert not any(process.poll() for process in processes), "\n".join(
                path.read_text()[-2000:] for path in folder.glob("*.log")
            )
            time.sleep(0.1)
        assert not any(process.returncode for process in processes), "\n".join(
            path.read_text()[-2000:] for path in folder.glob("*.log")
        )
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return {ranks: torch.load(folder / f"results_{ranks}.pt", weights_only=False) for ranks in (1, 2)}


def furthest(one, two):
    """The greatest difference of two dicts of tensors."""
    assert one.keys() == two.keys()
    return max((one[name] - two[name]).abs().max().item() for name in one)


def furthest_state(one, two):
    assert one["schedule"] == two["schedule"]
    assert one["optimizer"].keys() == two["optimizer"].keys()
    moments = max(furthest(one["optimizer"][index], two["optimizer"][index]) for index in one["optimizer"])
    return max(furthest(one["weights"], two["weights"]), moments)


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_compute_what_one_does(runs, case):
    one, two = runs[1][case], runs[2][case]
    for name, column in one["columns"].items():
        assert furthest(column, two["columns"][name]) <= 1e-6, name
    assert len(one["gradients"]) == len(two["gradients"])
    for ours, theirs in zip(one["gradients"], two["gradients"], strict=True):
        assert furthest(ours, theirs) <= 1e-6
    assert max(gradient.abs().max() for gradient in one["gradients"][0].values()) > 1e-2, "there is nothing to compare"
    assert furthest_state(one, two) <= 1e-6
    compared = [name for name in one["metrics"] if not any(part in name for part in NOT_COMPARED)]
    assert {"actor/loss", "actor/pg_loss", "actor/kl_loss", "actor/grad_norm", "actor/guided/clipfrac"} <= set(compared)
    assert {name: one["metrics"][name] for name in compared} == pytest.approx(
        {name: two["metrics"][name] for name in compared}, abs=1e-6
    )


@pytest.mark.parametrize(("saved_by", "loaded_by"), [(2, 1), (1, 2)])
def test_a_checkpoint_is_resumed_on_another_number_of_ranks(runs, saved_by, loaded_by):
    saved, loaded = runs[saved_by], runs[loaded_by]
    assert furthest_state(saved["saved"], loaded["loaded"]) == 0
    assert furthest_state(saved["after saving"], loaded["after loading"]) <= 1e-6
    assert furthest(saved["saved"]["weights"], saved["after saving"]["weights"]) > 1e-6, (
        "the step after it changed nothing"
    )
