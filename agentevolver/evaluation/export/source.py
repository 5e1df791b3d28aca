"""Source of weights: a run, a checkpoint or a model's folder, as a user names it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agentevolver.trainer.checkpoints import whole_checkpoints
from agentevolver.trainer.weights import Weights, weights_at
from agentevolver.utils.errors import ConfigError, LaunchError, UsageError
from agentevolver.utils.experiments import find_experiment

_PREFIX = "global_step_"


@dataclass(frozen=True, slots=True)
class Source:
    """Weights to export. `experiment` and `step` are None if no training run made them."""

    weights: Weights
    experiment: Path | None
    step: int | None

    @property
    def name(self) -> str:
        """Name in tables and cards: "project/experiment step N", else the folder's name."""
        if self.experiment is None:
            return Path(self.weights.folder).name
        run = "/".join(self.experiment.resolve().parts[-2:])
        return run if self.step is None else f"{run} step {self.step}"


def find_source(name: str, step: int | None = None) -> Source:
    """Return the weights of a run (newest complete checkpoint, or that of `step`), a checkpoint or a model's folder.

    Raises:
        UsageError: the name is unknown or holds no weights.
        LaunchError: the run has no complete checkpoint yet.
    """
    path = Path(name).expanduser()
    if path.is_dir() and not (path / "launches").is_dir():
        if step is not None:
            raise UsageError(f"--step {step} picks a checkpoint of a run, and {name} is a folder of weights")
        return _of_folder(path)
    experiment = find_experiment(name)
    whole = whole_checkpoints(experiment / "checkpoints")
    if not whole:
        raise LaunchError(
            f"{experiment} has no whole checkpoint in {experiment / 'checkpoints'}: resume the "
            "training, or name a checkpoint's folder (global_step_N)"
        )
    chosen = [one for one in whole if step is None or one.step == step]
    if not chosen:
        there = ", ".join(str(one.step) for one in sorted(whole, key=lambda one: one.step))
        raise UsageError(f"--step {step}: {experiment} has whole checkpoints of the steps {there}")
    return Source(_weights(chosen[-1].folder), experiment, chosen[-1].step)


def _of_folder(path: Path) -> Source:
    weights = _weights(path)
    folder = path.resolve()
    # The name may be the checkpoint, its `actor` or `actor/huggingface`.
    checkpoint = next((one for one in (folder, *folder.parents[:2]) if one.name.startswith(_PREFIX)), None)
    if checkpoint is None or not checkpoint.name.removeprefix(_PREFIX).isdecimal():
        return Source(weights, None, None)
    step, parents = int(checkpoint.name.removeprefix(_PREFIX)), list(checkpoint.parents[:2])
    experiment = next((one for one in parents if (one / "config.yaml").is_file()), None)
    return Source(weights, experiment, step)


def _weights(path: Path) -> Weights:
    try:
        return weights_at(path)
    except ConfigError as error:
        raise UsageError(
            f"{path} holds no weights: give a run, a checkpoint (global_step_N) or a Hugging Face folder (config.json "
            "and *.safetensors)"
        ) from error


def tokenizer_folder(weights: Weights) -> Path:
    """Return the folder with the tokenizer and the model's config.json."""
    folder = Path(weights.folder)
    return folder / "huggingface" if weights.kind == "shards" else folder
