"""Where the fields of `Settings` stand in the configuration."""

from __future__ import annotations

from agentevolver.config.schema import Section, Settings, SizeSettings

# Where each field of `Settings` stands in the configuration, if not under its own name in its own section.
PLACES: dict[str, str] = {
    "rollout": "actor_rollout_ref.rollout",
    "rollout.max_steps": "actor_rollout_ref.rollout.multi_turn.max_steps",
    "attribution": "attribution_driven_credit_assignment",
    "experiment_dir": "experiment.dir",
    "shared_files": "experiment.shared_files",
    "sizes.train_batch_size": "data.train_batch_size",
    "sizes.ppo_mini_batch_size": "actor_rollout_ref.actor.ppo_mini_batch_size",
    "sizes.n": "actor_rollout_ref.rollout.n",
    "sizes.val_n": "actor_rollout_ref.rollout.val_kwargs.n",
    "sizes.max_prompt_length": "data.max_prompt_length",
    "sizes.max_response_length": "data.max_response_length",
    "sizes.response_length": "actor_rollout_ref.rollout.response_length",
    "sizes.max_model_len": "actor_rollout_ref.rollout.max_model_len",
    "sizes.n_gpus_per_node": "trainer.n_gpus_per_node",
    "sizes.nnodes": "trainer.nnodes",
    "device": "device_name",
}


def place_of(field: str) -> str:
    """Return where a field of `Settings` (`rollout.max_steps`, say) stands in the configuration."""
    section, _, key = field.partition(".")
    return PLACES.get(field) or f"{PLACES.get(section, section)}{'.' if key else ''}{key}"


def own_places() -> frozenset[str]:
    """Return the keys that our models check alone: the sizes, which are verl's too, are not among them."""
    places = {"experiment"}
    for name, field in Settings.model_fields.items():
        section = field.annotation
        if not (isinstance(section, type) and issubclass(section, Section)):
            places.add(place_of(name))
        elif section is not SizeSettings:
            places |= {place_of(f"{name}.{key}") for key in section.model_fields}
    return frozenset(places)
