"""PocketWorld as verl's tools, and what verl's run is told of our configuration."""

from omegaconf import OmegaConf

from agentevolver.config import load
from benchmarks.peers_verl import SAME


def test_every_key_that_is_taken_over_is_one_of_verls():
    verls, missing = load.compose_verl(), object()
    unknown = {key for key in SAME if OmegaConf.select(verls, key, default=missing) is missing}
    # What verl's yaml asks for or leaves to its dataclasses.
    rollout, precision = "actor_rollout_ref.rollout", "fsdp_config.mixed_precision"
    assert unknown == {
        f"{rollout}.name",
        f"{rollout}.enable_sleep_mode",
        *(f"actor_rollout_ref.{part}.{precision}" for part in ("actor", "ref")),
    }
