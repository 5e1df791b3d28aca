"""Self-play: the pool of frozen checkpoints, their ratings, and the opponent of each step.

A step has one opponent, so the server of frozen policies loads weights once a step. The draw depends on the run's seed,
the step and the ratings in the checkpoint: a step repeated after a resume has the same opponent. The policy plays one
seat of each game; the game with swapped seats is another task, with a rollout group of its own.
"""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from agentevolver.config.schema import Settings
from agentevolver.recipes.self_play.settings import CHECKPOINT, FOLDER, SelfPlaySettings, settings_of
from agentevolver.trainer.checkpoints import ACTOR
from agentevolver.trainer.parts import TrainerPart
from agentevolver.trainer.recipe_parts import PartContext
from agentevolver.types import Trajectory
from agentevolver.utils import seeds
from agentevolver.utils.errors import TrainingFailed
from agentevolver.utils.files import remove_tree, write_json

logger = logging.getLogger(__name__)

STATE = "self_play.json"
START = "start"
# Metadata key of a task: parameters of create beside the configuration's.
_PARAMS = "env_params"
_HUGGING_FACE = "huggingface"


FIRST = 1000.0
"""The fixed rating of the start."""
SCALE = 400.0
"""Difference of ratings at which the odds of a win are ten to one."""


def expected(own: float, other: float) -> float:
    """Return the expected score (0..1) against another player: 1 / (1 + 10^((other - own) / 400))."""
    return float(1.0 / (1.0 + 10.0 ** ((other - own) / SCALE)))


def gain(own: float, other: float, score: float, k: float) -> float:
    """Return the rating points that a player gains with a mean score (0..1); the opponent loses as many."""
    return k * (score - expected(own, other))


@dataclass(frozen=True, slots=True)
class PoolMember:
    """A frozen policy: its name, its folder (relative to the experiment, except for the start), its rating, and the
    number of rated games."""

    name: str
    folder: str
    elo: float
    games: int = 0


class OpponentPool:
    def __init__(self, settings: SelfPlaySettings, start: str) -> None:
        self._settings = settings
        self.members = [PoolMember(START, start, FIRST)]
        self.elo = FIRST

    def draw(self, seed: int, step: int) -> PoolMember:
        rng = random.Random(seeds.derived(seed, "self-play", step))
        # Prioritised fictitious self-play (Vinyals et al. 2019): likely winners are drawn more often.
        weights = [expected(member.elo, self.elo) for member in self.members]
        return rng.choices(self.members, weights)[0]

    def rate(self, name: str, scores: Sequence[float]) -> None:
        """Update the ratings with the policy's scores (0..1) against a member. The start's rating is fixed."""
        for place, member in enumerate(self.members):
            if member.name == name and scores:
                points = gain(self.elo, member.elo, sum(scores) / len(scores), SelfPlaySettings.k)
                self.elo += points
                elo = member.elo if member.name == START else member.elo - points
                self.members[place] = replace(member, elo=elo, games=member.games + len(scores))

    def join(self, name: str, folder: str) -> list[PoolMember]:
        kept = [member for member in self.members if member.name != name]
        kept.append(PoolMember(name, folder, self.elo))
        gone = kept[1 : max(1, len(kept) - self._settings.pool)]
        self.members = [member for member in kept if member not in gone]
        return gone

    def state_dict(self) -> dict[str, Any]:
        return {"elo": self.elo, "members": [asdict(member) for member in self.members]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises KeyError, TypeError or ValueError for an invalid state."""
        members = [PoolMember(**member) for member in state["members"]]
        if not members or members[0].name != START:
            raise ValueError("the pool does not begin with the start")
        self.elo, self.members = float(state["elo"]), members


def parts(context: PartContext) -> list[TrainerPart]:
    return [SelfPlay(context.settings)] if settings_of(context.settings).enable else []


class SelfPlay(TrainerPart):
    """The pool of a training run, its files and its metrics.

    `self_play/<step>` in the experiment's folder holds a member's weights, `self_play.json` the ratings. Each
    checkpoint has a copy of the ratings.
    """

    def __init__(self, settings: Settings) -> None:
        section = settings_of(settings)
        assert section.start is not None  # defaults.yaml refers to the model's path
        self._settings = section
        self._directory = settings.experiment_dir
        self._seed = settings.data.seed
        self._opponent: dict[int, str] = {}
        self.pool = OpponentPool(section, section.start)

    def opponent(self, step: int) -> PoolMember:
        """Return the opponent of a step; later calls for the same step return the same one."""
        if step not in self._opponent:
            self._opponent = {step: self.pool.draw(self._seed, step).name}
        return next(member for member in self.pool.members if member.name == self._opponent[step])

    def before_rollouts(self, tasks: list[dict[str, Any]], step: int) -> list[dict[str, Any]]:
        folder = self._place(self.opponent(step))
        return [seated(task, folder) if task["env_type"] == self._settings.env_type else dict(task) for task in tasks]

    def after_validation(self, step: int, trajectories: Sequence[Trajectory]) -> Mapping[str, float]:
        return win_rates(trajectories, self._settings)

    def after_rollouts(self, step: int, trajectories: Sequence[Trajectory]) -> Mapping[str, float]:
        opponent = self.opponent(step)
        scores = [
            one.outcome.score
            for one in trajectories
            if one.outcome is not None and one.stop_reason.happened and one.task.env_type == self._settings.env_type
        ]
        self.pool.rate(opponent.name, scores)
        rated = next(member for member in self.pool.members if member.name == opponent.name)
        write_json(self._directory / STATE, {"step": step, **self.pool.state_dict()})
        metrics = {
            "self_play/elo/policy": self.pool.elo,
            "self_play/elo/opponent": rated.elo,
            "self_play/pool": float(len(self.pool.members)),
            "self_play/games": float(len(scores)),
        }
        if scores:
            metrics["self_play/score"] = sum(scores) / len(scores)
        return metrics

    def save(self, folder: Path, step: int) -> None:
        """Write the ratings into a checkpoint, and add its policy to the pool if that is due. Raises TrainingFailed if
        the checkpoint holds no Hugging Face weights."""
        if step % self._settings.every == 0:
            name = f"step_{step}"
            self._keep(folder / ACTOR / _HUGGING_FACE, self._directory / FOLDER / name)
            for gone in self.pool.join(name, f"{FOLDER}/{name}"):
                logger.info("self-play: %s leaves the pool for %s", gone.name, name)
        write_json(folder / STATE, self.pool.state_dict())
        self._tidy(folder.parent)
        write_json(self._directory / STATE, {"step": step, **self.pool.state_dict()})

    def restore(self, folder: Path) -> None:
        """Load the pool of a checkpoint; raises TrainingFailed if it is missing, or a member's weights are."""
        path = folder / STATE
        try:
            self.pool.load_state_dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TrainingFailed(
                f"{path} cannot be read ({error}), so the pool of self-play is unknown: start a new run with a name of "
                "its own with trainer.experiment_name=NAME"
            ) from error
        for member in self.pool.members:
            if member.name != START and not (Path(self._place(member)) / "config.json").is_file():
                raise TrainingFailed(
                    f"{self._place(member)} is missing, a member of the pool of self-play in {folder}: put it "
                    "back, or start a new run with a name of its own with trainer.experiment_name=NAME"
                )

    def _tidy(self, checkpoints: Path) -> None:
        known = {member.folder for member in self.pool.members}
        for path in checkpoints.glob(f"global_step_*/{STATE}"):
            try:
                known |= {str(member["folder"]) for member in json.loads(path.read_text(encoding="utf-8"))["members"]}
            except (OSError, ValueError, KeyError, TypeError):
                return  # an unreadable checkpoint may need any of the folders
        for folder in (self._directory / FOLDER).glob("step_*"):
            if f"{FOLDER}/{folder.name}" not in known:
                remove_tree(folder)

    def _place(self, member: PoolMember) -> str:
        return member.folder if member.name == START else str((self._directory / member.folder).resolve())

    @staticmethod
    def _keep(weights: Path, folder: Path) -> None:
        if not (weights / "config.json").is_file():
            raise TrainingFailed(
                f"{weights} holds no model for self-play's pool: actor_rollout_ref.actor.checkpoint.save_contents must "
                "name hf_model"
            )
        remove_tree(folder)
        try:
            # Hard links outlive the checkpoint's folder without a copy.
            shutil.copytree(weights, folder, copy_function=os.link)
        except OSError:
            remove_tree(folder)
            shutil.copytree(weights, folder)


def seated(task: Mapping[str, Any], folder: str) -> dict[str, Any]:
    metadata = dict(task.get("metadata") or {})
    return {**task, "metadata": {**metadata, _PARAMS: {**metadata.get(_PARAMS, {}), CHECKPOINT: folder}}}


def win_rates(trajectories: Sequence[Trajectory], section: SelfPlaySettings) -> dict[str, float]:
    scores = [
        one.outcome.score
        for one in trajectories
        if one.outcome is not None and one.stop_reason.happened and one.task.env_type == section.env_type
    ]
    if not scores:
        return {}
    from scipy.stats import binomtest  # takes a second to import

    wins, games = sum(score >= 1.0 for score in scores), len(scores)
    interval = binomtest(wins, games).proportion_ci(method="wilson")
    return {
        "val-self_play/score": sum(scores) / games,
        "val-self_play/win_rate": wins / games,
        "val-self_play/win_rate_low": float(interval.low),
        "val-self_play/win_rate_high": float(interval.high),
        "val-self_play/games": float(games),
    }
