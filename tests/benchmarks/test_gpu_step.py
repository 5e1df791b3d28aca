"""The benchmark of whole steps: what it asks for, and that a run ends by its deadline."""

import json
import signal
import sys
import time

import pytest

from agentevolver.launcher.memory import DecoderSize
from benchmarks import run_within as module
from benchmarks.gpu_step import Measured, overrides_of, parse, stages
from benchmarks.random_policy import SHAPES, write_tokenizer
from benchmarks.run_within import run_within


def test_the_command_line():
    arguments = parse(
        [
            "--shape",
            "0.5B,7B",
            "--steps",
            "2",
            "a.b=1",
            "--side-by-side",
            "whole=",
            "--side-by-side",
            "eager=c.d=2 e.f=3",
            "g=4",
        ]
    )
    assert arguments.shape == ["0.5B", "7B"] and arguments.overrides == ["a.b=1", "g=4"]
    assert [(one.name, one.overrides) for one in arguments.side_by_side] == [
        ("whole", []),
        ("eager", ["c.d=2", "e.f=3"]),
    ]
    for wrong in (["--shape", "3B"], ["nonsense"], ["--side-by-side", "name"]):
        with pytest.raises(SystemExit):
            parse(wrong)


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


def test_the_tokenizer_is_filled_up_with_words_that_mean_nothing(tmp_path):
    special = write_tokenizer(tmp_path, 1000)
    entries = json.loads((tmp_path / "tokenizer.json").read_text())
    ids = {*entries["model"]["vocab"].values(), *(token["id"] for token in entries["added_tokens"])}
    assert special["vocab_size"] == 1000 and ids == set(range(1000)) and special["eos_token_id"] in ids
    assert write_tokenizer(tmp_path, 0)["vocab_size"] == 768


def test_a_start_is_told_by_its_stages():
    timeline = [(10.0, "loading"), (70.0, "training 1"), (90.0, "training 2")]
    assert stages(timeline) == "launcher and services 10 s, loading 60 s"
    assert Measured("0.5B", "full", [], 0, 100.0, timeline).first_step_s == 70.0


@pytest.fixture
def short(monkeypatch):
    for name, seconds in (("STOP_S", 1.0), ("HURRY_S", 0.6), ("KILL_S", 0.3), ("POLL_S", 0.02)):
        monkeypatch.setattr(module, name, seconds)


def test_a_run_that_heeds_the_first_signal_ends_itself(short, tmp_path):
    code = "import signal, sys, time\nsignal.signal(signal.SIGINT, lambda *_: sys.exit(130))\ntime.sleep(60)"
    ended = run_within([sys.executable, "-c", code], tmp_path, tmp_path / "e", tmp_path / "out", 2.5)
    assert ended.returncode == 130 and ended.seconds < 2.4


def test_a_run_that_heeds_no_signal_is_ended_by_its_deadline(short, tmp_path):
    code = (
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('begun', flush=True)\ntime.sleep(60)"
    )
    began = time.monotonic()
    ended = run_within([sys.executable, "-c", code], tmp_path, tmp_path / "e", tmp_path / "out", 3.0)
    assert ended.returncode == -signal.SIGKILL and time.monotonic() - began < 3.5
    assert (tmp_path / "out").read_text() == "begun\n"


def test_phases_are_told_with_their_times(short, tmp_path):
    (tmp_path / "e").mkdir()
    say = "import json, time, pathlib\np = pathlib.Path('e/status.json')\n"
    say += (
        "for s in ({'phase': 'loading'}, {'phase': 'training', 'step': 1}):\n    p.write_text(json.dumps(s)); "
        "time.sleep(0.4)\n"
    )
    ended = run_within([sys.executable, "-c", say], tmp_path, tmp_path / "e", tmp_path / "out", 20.0)
    assert ended.returncode == 0 and [phase for _, phase in ended.timeline] == ["loading", "training 1"]


def test_a_shape_is_that_of_its_config():
    config = {
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
    }
    assert DecoderSize.of({**config, "vocab_size": 151_936, "tie_word_embeddings": True}) == SHAPES["1.5B"]
