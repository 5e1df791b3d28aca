"""Sections of the cluster and of training: `ray`, our keys of `trainer`, `cold_start`, `watchdog`, `retention`."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field, field_validator

from advantage_processor.settings import StageSettings
from agentevolver.config.section import Section

REFERENCE = "reference:"


class RaySettings(Section):
    """The section `ray`: the cluster that a run starts or joins."""

    address: str | None = Field(
        None, description="HOST:PORT of a cluster to join; null: the launcher starts one for the run"
    )
    num_cpus: int = Field(32, ge=1, description="logical CPUs of a cluster that the launcher starts")
    num_gpus: int = Field(
        1, ge=1, description="logical GPUs of that cluster: one per rank, even on a machine without GPUs"
    )
    preload: bool = Field(
        False,
        description="import the libraries once and fork the main job, the player, Ray's workers and vLLM's engine from "
        "that process; only on a CPU",
    )
    dashboard: bool = Field(True, description="serve Ray's dashboard")
    # Ray's default port. The first free port from there on is used.
    dashboard_port: ClassVar[int] = 8265
    object_store_memory: int | None = Field(
        default=None, ge=80_000_000, description="bytes of the object store; null: Ray decides"
    )


class TrainerSettings(Section):
    """Our keys of `trainer`."""

    # Share of a step's rollouts that may fail. With more, the others no longer represent the step's tasks.
    max_failed_rollouts: ClassVar[float] = 0.5
    # Consecutive failed steps before the run stops; a service may be down for a minute.
    max_failed_steps: ClassVar[int] = 2
    deterministic: bool = Field(
        False,
        description="equal seeds give equal runs: rollouts wait for background work that could affect them, and "
        "checkpoints include the experience pool, which a resume restores; GPU kernels have to be deterministic too "
        "(docs/training.md)",
    )
    reward_stages: tuple[StageSettings, ...] = Field(
        default=(),
        description="stages that change the scores of a step's rollouts, in this order, after grading and before "
        "advantages are computed: package.module:Stage, or mappings with `use` and the stage's options",
    )
    row_clips: tuple[StageSettings, ...] = Field(
        default=(),
        description="rules that replace actor.clip_ratio_high for the rows of a rollout; the first rule that applies "
        "decides: a name that a recipe registers, or package.module:Rule. A guided rollout that exp_manager boosts "
        "keeps its own clip",
    )
    # Limit of the mean |log-prob of the engine - log-prob of the trainer| in nats. Beyond it the engine samples from
    # another policy than the trainer updates.
    max_log_prob_diff: ClassVar[float] = 0.05
    # Consecutive training steps in which all rollouts of each group score the same, so no group has an advantage.
    max_steps_without_signal: ClassVar[int] = 5
    dump_samples: bool = Field(
        False,
        description="write tokens, log-probs and advantages of each training row to samples/step_<n>.jsonl, and keep "
        "the newest GB; true on a CPU",
    )
    weights: Path | None = Field(
        None,
        description="initial weights of the policy: a Hugging Face folder, or the weights of a checkpoint "
        "(global_step_N); the reference policy keeps those of actor_rollout_ref.model.path. A resumed run continues "
        "from its own checkpoints",
    )


class ColdStartSettings(Section):
    """The section `cold_start`: supervised fine-tuning on conversations before reinforcement learning."""

    files: list[str] = Field(
        default_factory=list,
        description="files of conversations, or globs: logs in the format of OpenAI's messages, or trajectories of "
        "runs; `reference:N`: N demonstrations made of the references of the run's environments; empty: no cold start",
    )
    min_score: float = Field(1.0, ge=0, le=1, description="minimum score of a conversation")
    epochs: int = Field(2, ge=1, description="passes over the conversations")
    batch_size: int = Field(32, ge=1, description="conversations per optimiser step")
    lr: float = Field(1.0e-5, gt=0, description="peak learning rate, with cosine decay to 0")
    # Share of the steps for the warm-up of the learning rate.
    warmup: ClassVar[float] = 0.05

    @field_validator("files")
    @classmethod
    def _check_files(cls, files: list[str]) -> list[str]:
        for file in files:
            number = file.removeprefix(REFERENCE)
            if number != file and not (number.isascii() and number.isdigit() and int(number)):
                raise ValueError(f"{file!r} must be {REFERENCE}N with a number of demonstrations of at least 1")
        return files

    @property
    def logs(self) -> list[str]:
        """Files and globs among `files`."""
        return [file for file in self.files if not file.startswith(REFERENCE)]

    @property
    def demonstrations(self) -> int:
        """Number of demonstrations to generate from reference solutions."""
        return sum(int(file.removeprefix(REFERENCE)) for file in self.files if file.startswith(REFERENCE))


class WatchdogSettings(Section):
    """The section `watchdog`: when a phase of the run is reported as stuck. The watchdog never ends anything."""

    floor_s: float = Field(600, gt=0, description="seconds before any phase can be reported as stuck")
    # A phase is reported after this multiple of its usual duration.
    factor: ClassVar[float] = 5


class RetentionSettings(Section):
    """The section `retention`: size of the files that a long run keeps, without those that a resume or the page's
    curves need."""

    # Newest files of trajectories/, validation/ and samples/ that stay uncompressed, for other tools.
    plain_steps: ClassVar[int] = 100
    folder_gb: float | None = Field(
        10,
        gt=0,
        description="GB of trajectories/, validation/ and samples/ each, beyond which the oldest files are deleted",
    )
    # The same for samples/, if smaller: a few dozen steps are enough for looking at tokens.
    samples_gb: ClassVar[float] = 1
    # Size of a log in MB beyond which it is rotated.
    log_mb: ClassVar[float] = 64
    # Rotated files kept of each log, and runs of which the output of failed workers is kept.
    log_files: ClassVar[int] = 4
