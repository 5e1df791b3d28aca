"""Training run: hands a resolved configuration to verl and names what went wrong."""

from __future__ import annotations

from omegaconf import DictConfig

from agentevolver.config.schema import Settings
from agentevolver.trainer.session import Session


def run(config: DictConfig, settings: Settings) -> None:
    """Train on a configuration made by `settings.for_verl`.

    Raises:
        ConfigError: verl refuses the configuration.
        TrainingFailed: the trainer ended with an error.
    """
    with Session.open(config, settings) as session:
        session.train(config, settings)
