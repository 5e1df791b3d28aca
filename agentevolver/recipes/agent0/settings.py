"""The section `recipes.agent0`: rounds of a proposer and an executor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

if TYPE_CHECKING:
    from agentevolver.config.schema import Settings

# Environments that accept proposed problems, have seeds for the proposer, and run reference programs.
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
    batch_size: int = Field(12, ge=1, description="prompts in a step, each for another seed")
    n: int = Field(8, ge=2, description="proposals of a prompt; they are one group of the advantage")
    override: dict[str, Any] = Field(
        default_factory=dict,
        description="keys that differ from the configuration while the proposer is trained, by their full names",
    )


class ExecutorSettings(_Section):
    steps: int = Field(15, ge=1, description="training steps of the executor in a round")
    k: int = Field(8, ge=2, description="episodes of the frozen executor that measure a proposal's reward")
    label_k: int = Field(10, ge=2, description="episodes of the frozen executor that label a task of the pool")
    eval_n: int = Field(4, ge=1, description="episodes of every task of data.val_splits in an evaluation")
    gpus: int = Field(1, ge=0, description="GPUs reserved for the frozen policies' server; 0: it shares the training's")


class RewardSettings(_Section):
    agg: ClassVar[str] = "mean"
    """How the calls of k episodes become one number."""

    unc: float = Field(0.5, ge=0, description="weight of the uncertainty, which is 1 at p = 0.5")
    tool: float = Field(0.05, ge=0, description="reward for each tool call that the executor made")
    cap: int = Field(4, ge=0, description="calls that are rewarded, at most")
    repetition: float = Field(1.0, ge=0, description="weight of the share of the batch that is similar to the proposal")
    malformed: float = Field(-1.0, le=0, description="reward of a malformed proposal")


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
        description="source of a label: the proposal's program, run twice (executed), or the executor's most frequent "
        "answer (vote), which collapses",
    )
    keep: tuple[float, float] = Field((0.3, 0.8), description="least and greatest p of a kept task")
    min_answered: int = Field(5, ge=1, description="episodes of label_k that must give an answer")
    pool: int = Field(200, ge=1, description="tasks that a round collects, at most")
    draws: int = Field(960, ge=1, description="proposals that a round draws for its pool, at most")
    min_pool: int = Field(40, ge=1, description="tasks that a round needs to train its executor")
    replay: float = Field(
        0.2, ge=0, lt=1, description="share of earlier rounds' tasks among the executor's training tasks"
    )
    reward: RewardSettings = Field(default_factory=RewardSettings)
    adpo: AdpoSettings = Field(default_factory=AdpoSettings)
    frozen: str | None = Field(
        None,
        description="checkpoint of the executor that measures proposals in the proposer's training; the rounds set it",
    )
    url: str = Field(
        "http://127.0.0.1:8095",
        pattern=r"^http://[^/]+$",
        description="address of the frozen policies' server; the launcher takes the first free port from this one on",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        low, high = self.keep
        if not 0 <= low < high <= 1:
            raise ValueError(f"keep = [{low}, {high}]: write two shares in 0..1, the smaller one first")
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
