"""Two trainings on one machine send their weights at the same moments: each engine gets those of its own trainer, to
the last bit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e.runs import ROOT, SMALL, Launched

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(1500)]

STEPS = 10
DIGESTS = Path(__file__).with_name("digests")
KEYS = (
    "data.train_batch_size=2",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.rollout.multi_turn.max_steps=4",
    "actor_rollout_ref.model.external_lib=digest_sent",
    "actor_rollout_ref.rollout.engine_kwargs.vllm.worker_extension_cls=digest_received.DigestingExtension",
    f"trainer.total_training_steps={STEPS}",
    "trainer.save_freq=-1",
    "trainer.test_freq=-1",
    "trainer.val_before_train=false",
    "trainer.dump_samples=false",
)


def training(folder: Path, name: str, peer: str, learning_rate: str) -> Launched:
    variables = {
        "WEIGHT_DIGESTS": str(folder / name),
        "WEIGHT_DIGESTS_PEER": str(folder / peer),
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(DIGESTS))),
    }
    # Decay alone makes the two policies different ones from the first step on.
    return Launched(folder, name, (*SMALL, *KEYS, f"actor_rollout_ref.actor.optim.lr={learning_rate}"), env=variables)


def digests(folder: Path, name: str, end: str) -> list[str]:
    return (folder / f"{name}.{end}").read_text().splitlines()


def test_no_engine_gets_the_weights_of_another_run(tmp_path: Path) -> None:
    runs = [training(tmp_path, "one", "other", "5e-4")]
    try:
        # Not two Rays at once: Ray gives its own start 30 s.
        runs[0].wait_for(lambda: "running -m agentevolver.trainer.job.main" in runs[0].output, "main job")
        runs.append(training(tmp_path, "other", "one", "1e-3"))
        for run in runs:
            assert run.wait(1200) == 0, run.output
    finally:
        for run in runs:
            run.end()
    sent, received = ({name: digests(tmp_path, name, end) for name in ("one", "other")} for end in ("sent", "received"))
    for name in ("one", "other"):
        assert len(sent[name]) >= STEPS and received[name] == sent[name], (
            f"the engine of {name} has other weights than its trainer"
        )
        assert len(set(sent[name])) >= STEPS, "the policy was not trained"
    # What both began with is the same; nothing after it is.
    assert not set(sent["one"][1:]) & set(sent["other"][1:]), "the two runs trained one policy"
