"""What a questioning run is made of, and the keys under which the journal keeps its parts.

A key hashes everything that the part follows from and nothing else: an exploration does not depend on how duplicates
are told, so it is found again when only that changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from task_manager.journal import fingerprint
from task_manager.profile import EnvProfile
from task_manager.prompts import PROMPTS_VERSION
from task_manager.settings import TaskManagerSettings


@dataclass(frozen=True, slots=True)
class Plan:
    """JSON-ready, so that `stats` and `show` can follow a run without its configuration. The four strings are
    hashes."""

    env_type: str
    profile: str
    seeds: tuple[str, ...]
    n: int
    first: int
    exploring: str
    synthesising: str
    verifying: str
    deciding: str

    @classmethod
    def of(
        cls,
        settings: TaskManagerSettings,
        *,
        env_type: str,
        env_params: Mapping[str, Any],
        profile: EnvProfile,
        seeds: tuple[str, ...],
        models: Mapping[str, str],
        evaluation: tuple[str, ...] = (),
        known: tuple[str, ...] = (),
    ) -> Self:
        """Return the plan of a configuration.

        Args:
            settings: the section `task_manager`.
            env_type: the environment.
            env_params: its parameters.
            profile: what is known of it.
            seeds: ids of the tasks whose worlds are explored.
            models: what tells the model and the sampling of `explorer, synthesiser, verifier, judge` apart from others.
            evaluation: queries that must not be trained on.
            known: ids of tasks that exist beside this plan's.
        """
        # Queries and solutions hold for the start states, which parameters like a step budget do not change, but others
        # may.
        world = {
            "env_type": env_type,
            "params": dict(env_params),
            "version": PROMPTS_VERSION,
            "max_observation_chars": settings.max_observation_chars,
        }
        if settings.action_format is not None:
            world["action_format"] = settings.action_format
        exploring = {
            **world,
            "profile": profile.instruction(),
            "strategy": settings.strategy,
            "args": settings.strategy_args.model_dump(),
            "explore_env_params": settings.explore_env_params,
            "reply_format": settings.reply_format,
            "explorer": models["explorer"],
        }
        synthesising = {
            **world,
            "profile": profile.instruction(),
            "preference": profile.preference_instruction(settings.synthesis.preference),
            "args": settings.synthesis.model_dump(),
            "synthesiser": models["synthesiser"],
        }
        verifying = {
            **world,
            "args": settings.verification.model_dump(),
            "verifier": models["verifier"],
            "judge": models["judge"],
        }
        deciding = {
            "args": settings.deduplication.model_dump(mode="json"),
            "evaluation": sorted(evaluation),
            "known": sorted(known),
            "grader": settings.grader.model_dump(),
        }
        hashes = {
            name: fingerprint(parts)
            for name, parts in (
                ("exploring", exploring),
                ("synthesising", synthesising),
                ("verifying", verifying),
                ("deciding", deciding),
            )
        }
        first = settings.round * settings.n
        return cls(env_type=env_type, profile=profile.fingerprint, seeds=seeds, n=settings.n, first=first, **hashes)

    @property
    def run(self) -> str:
        """The hash of what a task of this plan follows from, seeds and their number aside."""
        return fingerprint({"parts": [self.exploring, self.synthesising, self.verifying, self.deciding]})

    def jobs(self) -> Iterator[tuple[str, int]]:
        """Return (seed, number of the exploration): every seed once, then every seed again."""
        return ((seed, number) for number in range(self.first, self.first + self.n) for seed in self.seeds)

    def exploration(self, seed: str, number: int) -> str:
        """Return the key of an exploration."""
        return fingerprint({"of": self.exploring, "seed": seed, "number": number})

    def synthesis(self, exploration: str) -> str:
        """Return the key of what is synthesised from an exploration."""
        return fingerprint({"of": self.synthesising, "from": exploration})

    def verdict(self, synthesis: str, index: int) -> str:
        """Return the key of the verdict on a proposal."""
        return fingerprint({"of": self.verifying, "from": synthesis, "index": index})

    def decision(self, verdict: str) -> str:
        """Return the key of the decision whether a verified proposal is kept."""
        return fingerprint({"of": self.deciding, "from": verdict})

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_dict` returned."""
        return cls(**{**data, "seeds": tuple(data["seeds"])})
