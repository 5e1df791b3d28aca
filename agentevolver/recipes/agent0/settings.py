"""The section `recipes.agent0`: rounds of a proposer and an executor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

if TYPE_CHECKING:
    from agentevolver.config.schema import Settings

# Worlds that take a proposed problem, that a proposer has seeds for, and that run a reference program.
WORLDS = ("calc", "python")
# The environment in which a proposal is made.
PROPOSE_ENV = "propose"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ProposerSettings(_Section):
    levels: ClassVar[None] = None
    """Seeds of all levels are drawn."""
    trained: bool = Field(True, description="train the proposer in each round; false: it stays as it is")
    path: str | None = Field(
        None, description="the policy that the proposer starts from; null: actor_rollout_ref.model.path"
    )
    steps: int = Field(6, ge=1, description="training steps of the proposer in a round")
    batch_size: int = Field(12, ge=1, description="seeds a step, each with a prompt of its own")
    n: int = Field(8, ge=2, description="proposals of a seed: the group of its advantage")
    override: dict[str, Any] = Field(
        default_factory=dict,
        description="keys of the configuration that are different while the proposer is trained, by their full names",
    )


class ExecutorSettings(_Section):
    steps: int = Field(15, ge=1, description="training steps of the executor in a round")
    k: int = Field(8, ge=2, description="episodes of the frozen executor that a proposal's reward is measured by")
    label_k: int = Field(10, ge=2, description="episodes of the frozen executor that a task of the pool is labelled by")
    eval_n: int = Field(4, ge=1, description="episodes of every task of data.val_splits in an evaluation")
    gpus: int = Field(
        1, ge=0, description="GPUs of the frozen policies' server, beside those of the training; 0: it shares theirs"
    )


class RewardSettings(_Section):
    agg: ClassVar[str] = "mean"
    """Calls of k episodes as one number."""

    unc: float = Field(0.5, ge=0, description="weight of the uncertainty, which is 1 at p = 0.5")
    tool: float = Field(0.05, ge=0, description="for each tool call that the executor carried out")
    cap: int = Field(4, ge=0, description="calls beyond which there is no more")
    repetition: float = Field(1.0, ge=0, description="weight of the share of the batch that is like this proposal")
    malformed: float = Field(-1.0, le=0, description="the reward of what is no proposal")


class AdpoSettings(_Section):
    enable: bool = Field(True, description="scale advantages and upper clips of the executor's training by p")
    s_min: float = Field(0.6, gt=0, le=1, description="scale of the advantages at p = keep[0]; 1 at keep[1]")
    bonus: float = Field(0.1, ge=0, description="added to the upper clip at p = keep[0]; 0 at keep[1]")


class Agent0Settings(_Section):
    shared_weights: ClassVar[bool] = False
    """Proposer and executor are two policies."""
    stop: ClassVar[None] = None
    """No rule ends the rounds early; the best one's executor is kept."""
    enable: bool = Field(False, description="train a proposer and an executor by turns instead of one policy")
    rounds: int = Field(3, ge=1, description="rounds of propose, pool, label, solve, evaluate")
    proposer: ProposerSettings = Field(default_factory=ProposerSettings)
    executor: ExecutorSettings = Field(default_factory=ExecutorSettings)
    gate: Literal["executed", "vote"] = Field(
        "executed",
        description="what makes a label: the proposal's program, run twice (executed), or the executor's most frequent "
        "answer (vote), which collapses",
    )
    keep: tuple[float, float] = Field((0.3, 0.8), description="the least and the greatest p of a task that is kept")
    min_answered: int = Field(5, ge=1, description="episodes of label_k that must have given an answer")
    pool: int = Field(200, ge=1, description="tasks that a round wants")
    draws: int = Field(960, ge=1, description="proposals that are drawn for it at most")
    min_pool: int = Field(40, ge=1, description="tasks below which a round does not train its executor")
    replay: float = Field(
        0.2, ge=0, lt=1, description="share of earlier rounds' tasks in what the executor is trained on"
    )
    reward: RewardSettings = Field(default_factory=RewardSettings)
    adpo: AdpoSettings = Field(default_factory=AdpoSettings)
    frozen: str | None = Field(
        None,
        description="the checkpoint of the executor that proposals are measured by while the proposer is trained; set "
        "by the rounds",
    )
    url: str = Field(
        "http://127.0.0.1:8095",
        pattern=r"^http://[^/]+$",
        description="where the launcher starts the frozen policies' server, on the first free port from there on",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        low, high = self.keep
        if not 0 <= low < high <= 1:
            raise ValueError(f"keep = [{low}, {high}]: write two shares in 0..1, the least one first")
        if self.min_pool > self.pool:
            raise ValueError(f"min_pool = {self.min_pool} is more than pool = {self.pool}")
        if self.min_answered > self.executor.label_k:
            raise ValueError(
                f"min_answered = {self.min_answered} is more than executor.label_k = {self.executor.label_k}"
            )
        return self


def settings_of(settings: Settings) -> Agent0Settings:
    section = settings.recipe("agent0")
    assert isinstance(section, Agent0Settings)
    return section
