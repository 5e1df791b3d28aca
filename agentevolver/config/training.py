"""The sections of the cluster and of training: `ray`, our keys of `trainer`, `cold_start`, `watchdog`,
`retention`."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from advantage_processor.settings import StageSettings
from agentevolver.config.section import Section


class RaySettings(Section):
    """The section `ray`: the cluster that a run starts or joins."""

    address: str | None = Field(
        None, description="join the cluster at HOST:PORT; null: the launcher starts one for the run"
    )
    num_cpus: int = Field(32, ge=1, description="logical CPUs of the cluster that is started")
    num_gpus: int = Field(1, ge=1, description="its logical GPUs: one a rank, also on a machine without any")
    preload: bool = Field(
        False,
        description="import everything once, and fork the main job, the player, Ray's workers and vLLM's engine; on a "
        "CPU alone",
    )
    dashboard: bool = Field(True, description="serve Ray's dashboard")
    # Ray's own; the first free one from there on is taken.
    dashboard_port: ClassVar[int] = 8265
    object_store_memory: int | None = Field(
        default=None, ge=80_000_000, description="bytes of the object store; null: Ray's choice"
    )


class TrainerSettings(Section):
    """Our keys of `trainer`."""

    # Share of a step's rollouts that may fail: with more, the rest is no sample of the step's tasks.
    max_failed_rollouts: ClassVar[float] = 0.5
    # Failed steps in a row before the run stops, so that one bad minute of a service does not end it.
    max_failed_steps: ClassVar[int] = 2
    deterministic: bool = Field(
        False,
        description="equal seeds give equal runs: rollouts wait for what runs in the background and they could see, a "
        "checkpoint holds the "
        "pool of experience, and a resume takes it back; on a GPU the kernels must be asked for it too "
        "(docs/training.md)",
    )
    reward_stages: tuple[StageSettings, ...] = Field(
        default=(),
        description="what makes new scores of a step's rollouts once all are graded, in order, before advantages are "
        "computed: package.module:Stage, or mappings with `use` and the stage's options",
    )
    row_clips: tuple[StageSettings, ...] = Field(
        default=(),
        description="rules that give the rows of a rollout an upper clip of their own in the place of "
        "actor.clip_ratio_high, the first that applies: a name that a recipe registers, or package.module:Rule. A "
        "guided rollout that exp_manager boosts keeps that clip",
    )
    # Mean |log-prob of the engine - of the trainer| in nats: beyond it rollouts are not the policy's own.
    max_log_prob_diff: ClassVar[float] = 0.05
    # Training steps in a row in which every group scored alike.
    max_steps_without_signal: ClassVar[int] = 5
    dump_samples: bool = Field(
        False,
        description="write every training row's tokens and numbers to samples/step_<n>.jsonl, of which the newest GB "
        "is kept; true on a CPU",
    )
    weights: Path | None = Field(
        None,
        description="weights that the policy begins with in the place of those of actor_rollout_ref.model.path, which "
        "the reference policy keeps: a Hugging Face folder, or a checkpoint (global_step_N), of which nothing else is "
        "read; a run that is resumed goes on from its own checkpoints",
    )


class ColdStartSettings(Section):
    """The section `cold_start`: conversations that the policy imitates before it is trained by reinforcement."""

    files: list[str] = Field(
        default_factory=list,
        description="files of conversations, or globs: logs in the form of OpenAI's messages, and trajectories of "
        "runs; none: no cold start",
    )
    min_score: float = Field(1.0, ge=0, le=1, description="the least score of a conversation that is imitated")
    epochs: int = Field(2, ge=1, description="how often each conversation is seen")
    batch_size: int = Field(32, ge=1, description="conversations an optimiser step")
    lr: float = Field(1.0e-5, gt=0, description="learning rate, on a cosine down to 0")
    # Share of the steps in which the learning rate rises.
    warmup: ClassVar[float] = 0.05


class WatchdogSettings(Section):
    """The section `watchdog`: when a phase of the run counts as stuck. Nothing is ever ended for it."""

    floor_s: float = Field(600, gt=0, description="seconds below which no phase is too long")
    # Times its own usual duration after which a phase is too long.
    factor: ClassVar[float] = 5


class RetentionSettings(Section):
    """The section `retention`: how much a long run keeps of what neither a resume nor the page's curves need.
    Null: all of it."""

    # Newest files of trajectories/, validation/, samples/ that are not compressed, so that other tools can read them.
    plain_steps: ClassVar[int] = 100
    folder_gb: float | None = Field(
        10, gt=0, description="size of each of these folders beyond which the oldest files are dropped"
    )
    # The same of samples/ alone, if it is less: a few dozen steps are enough to look at tokens.
    samples_gb: ClassVar[float] = 1
    # Size of a log in MB beyond which it is set aside and begun anew.
    log_mb: ClassVar[float] = 64
    # Older pieces kept of a log, and runs whose failed workers' last words are kept.
    log_files: ClassVar[int] = 4
