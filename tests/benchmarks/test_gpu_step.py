"""The benchmark of whole steps: what it asks for, and that a run ends by its deadline."""

import json
import signal
import sys
import time

import pytest

from benchmarks import run_within as module
from benchmarks.gpu_step import overrides_of, parse
from benchmarks.random_policy import SHAPES
from benchmarks.run_within import run_within


def test_what_is_given_on_the_command_line_comes_last_and_wins(tmp_path):
    arguments = parse(["--shape", "7B", "--lora-rank", "16", "actor_rollout_ref.rollout.gpu_memory_utilization=0.4"])
    told = overrides_of(arguments, "7B", tmp_path)
    assert told[-1] == "actor_rollout_ref.rollout.gpu_memory_utilization=0.4"
    assert (
        "actor_rollout_ref.model.lora_rank=16" in told
        and "actor_rollout_ref.actor.fsdp_config.optimizer_offload=true" in told
    )
    assert f"actor_rollout_ref.model.path={tmp_path}" in told and "trainer.total_training_steps=3" in told


@pytest.mark.parametrize(("shape", "lora"), [("1.5B", "0"), ("7B", "0"), ("7B", "32")])
def test_the_configuration_of_a_shape_is_accepted_and_fits_one_h100(shape, lora, tmp_path):
    from agentevolver.config.checks import load
    from agentevolver.launcher.memory import demand
    from benchmarks.gpu_step import CONF

    conf = tmp_path / "gpu_step.yaml"
    conf.write_text(json.dumps(CONF))
    told = overrides_of(parse(["--shape", shape, "--lora-rank", lora]), shape, tmp_path)
    need = demand(load(conf, ["device=cuda", *told]).config, SHAPES[shape])
    assert need.problem(81_559 << 20) is None and need.warning(81_559 << 20) is None


@pytest.fixture
def short(monkeypatch):
    for name, seconds in (("STOP_S", 1.0), ("HURRY_S", 0.6), ("KILL_S", 0.3), ("POLL_S", 0.02)):
        monkeypatch.setattr(module, name, seconds)


@pytest.mark.service
def test_a_run_that_heeds_the_first_signal_ends_itself(short, tmp_path):
    code = "import signal, sys, time\nsignal.signal(signal.SIGINT, lambda *_: sys.exit(130))\ntime.sleep(60)"
    ended = run_within([sys.executable, "-c", code], tmp_path, tmp_path / "e", tmp_path / "out", 2.5)
    assert ended.returncode == 130 and ended.seconds < 2.4


@pytest.mark.service
def test_a_run_that_heeds_no_signal_is_ended_by_its_deadline(short, tmp_path):
    code = (
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('begun', flush=True)\ntime.sleep(60)"
    )
    began = time.monotonic()
    ended = run_within([sys.executable, "-c", code], tmp_path, tmp_path / "e", tmp_path / "out", 3.0)
    assert ended.returncode == -signal.SIGKILL and time.monotonic() - began < 3.5
    assert (tmp_path / "out").read_text() == "begun\n"
