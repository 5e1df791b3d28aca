"""Training samples from recorded model calls."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from agentevolver.types import TrainingSample
from context_manager.timeline import TimelineMessage

logger = logging.getLogger(__name__)

SampleChoice = Literal["spread", "first", "last"]
Runs = tuple[tuple[int, int], ...]
# Reasons for dropping a sample.
DROPPED = ("prompt_too_long", "response_too_long", "opening_edited", "over_max_samples")


@dataclass(frozen=True, slots=True)
class ChainOpening:
    """Ids at the start of a chain's prompts, and the ids that replace them in the sample."""

    sent: Sequence[int]
    trained: Sequence[int]


# Opening of a chain in which nothing is replaced.
UNTOUCHED = ChainOpening((), ())


@dataclass(slots=True)
class _Chain:
    ids: list[int]  # only ever appended to
    prompt_length: int  # of the first call
    opening: ChainOpening | None = None  # None: the episode's
    snapshots: list[CallSnapshot] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CallSnapshot:
    step: int  # number of the call in the trajectory
    kind: str
    shown: Runs  # numbers of the messages in the prompt
    trained: bool  # whether its tokens are trained on
    log_probs: Sequence[float]  # one per sampled id
    _chain: _Chain
    _start: int
    _end: int

    @property
    def prompt_ids(self) -> list[int]:
        return self._chain.ids[: self._start]

    @property
    def sampled_ids(self) -> list[int]:
        return self._chain.ids[self._start : self._end]


@dataclass(frozen=True, slots=True)
class SampleLimits:
    """Limits of training samples. `spread` selects samples evenly over the episode."""

    max_prompt_tokens: int
    max_response_tokens: int
    max_samples: int | None = None
    choice: SampleChoice = "spread"


class SnapshotRecorder:
    def __init__(self) -> None:
        self.snapshots: list[CallSnapshot] = []
        self._chains: list[_Chain] = []

    def record(
        self,
        prompt_ids: list[int],
        sampled_ids: Sequence[int],
        log_probs: Sequence[float],
        *,
        step: int,
        kind: str = "action",
        shown: Runs = (),
        trained: bool = True,
        chain: CallSnapshot | None = None,
        opening: ChainOpening | None = None,
    ) -> CallSnapshot:
        """Record a call; raises ValueError without sampled ids, or without one log-prob per id.

        `shown`: the messages in the prompt. `chain`: the call to continue; all chains are searched if None. `opening`:
        the opening of a new chain; the episode's if None; `UNTOUCHED` replaces nothing.
        """
        if len(sampled_ids) != len(log_probs) or not sampled_ids:
            raise ValueError(f"step {step}: {len(sampled_ids)} sampled ids but {len(log_probs)} log-probs")
        goes_on = self._find(prompt_ids, chain, opening) if trained else _Chain(list(prompt_ids), len(prompt_ids))
        start = len(prompt_ids)
        goes_on.ids += sampled_ids
        snapshot = CallSnapshot(step, kind, shown, trained, log_probs, goes_on, start, len(goes_on.ids))
        goes_on.snapshots.append(snapshot)
        self.snapshots.append(snapshot)
        return snapshot

    def _find(self, prompt_ids: list[int], known: CallSnapshot | None, opening: ChainOpening | None) -> _Chain:
        """Return the chain that the call continues, extended by its prompt."""
        # Each chain becomes one sample, so no id is recomputed. A prompt that does not continue a chain begins one.
        chains = self._chains if known is None else [known._chain]
        # Longest first, then newest. Comparing the last id first rejects most chains cheaply.
        for chain in sorted(reversed(chains), key=lambda chain: -len(chain.ids)):
            length = len(chain.ids)
            if (
                length < len(prompt_ids)
                and prompt_ids[length - 1] == chain.ids[-1]
                and prompt_ids[:length] == chain.ids
                and chain in self._chains
            ):
                chain.ids += prompt_ids[length:]
                return chain
        chain = _Chain(list(prompt_ids), len(prompt_ids), opening)
        self._chains.append(chain)
        return chain

    def samples(
        self, limits: SampleLimits, opening_ids: Sequence[int] = (), training_ids: Sequence[int] | None = None
    ) -> tuple[list[TrainingSample], Counter[str]]:
        """Return the training samples in order, and the number of dropped samples by reason.

        `training_ids` replace `opening_ids` in samples whose chain has no opening of its own.
        """
        dropped: Counter[str] = Counter()
        samples: list[TrainingSample] = []
        episodes = None if training_ids is None else ChainOpening(opening_ids, training_ids)
        for chain in self._chains:
            made = _sample(chain, limits, chain.opening or episodes)
            if isinstance(made, TrainingSample):
                samples.append(made)
            else:
                steps = [snapshot.step for snapshot in chain.snapshots]
                logger.warning("sample of steps %d..%d dropped: %s", steps[0], steps[-1], made)
                dropped[made.partition(":")[0]] += 1
        kept = choose(samples, limits)
        if len(kept) < len(samples):
            dropped["over_max_samples"] += len(samples) - len(kept)
        return _shared(kept), dropped


def runs(messages: Iterable[TimelineMessage]) -> Runs:
    """Return the message numbers as runs (first, last) of consecutive ones."""
    found: list[list[int]] = []
    for message in messages:
        if found and message.number == found[-1][1] + 1:
            found[-1][1] = message.number
        else:
            found.append([message.number, message.number])
    return tuple((first, last) for first, last in found)


def _sample(chain: _Chain, limits: SampleLimits, opening: ChainOpening | None) -> TrainingSample | str:
    # A prompt beyond the limit moves to the front of the response, with mask 0: the gradient does not see the border.
    split = min(chain.prompt_length, limits.max_prompt_tokens)
    prompt, response = chain.ids[:split], chain.ids[split:]
    if opening is not None:
        sent = list(opening.sent)
        if chain.ids[: len(sent)] != sent or len(sent) > split:
            return (
                "opening_edited: a prompt does not begin with the opening messages, so the training opening cannot "
                "be put in their place"
            )
        prompt = [*opening.trained, *prompt[len(sent) :]]
    if len(prompt) > limits.max_prompt_tokens:
        return f"prompt_too_long: {len(prompt)} tokens, data.max_prompt_length allows {limits.max_prompt_tokens}"
    if len(response) > limits.max_response_tokens:
        return (
            f"response_too_long: {len(response)} tokens, data.max_response_length allows {limits.max_response_tokens}"
        )
    mask, log_probs, step_ids = [0] * len(response), [0.0] * len(response), [-1] * len(response)
    for snapshot in chain.snapshots:
        here, count = slice(snapshot._start - split, snapshot._end - split), snapshot._end - snapshot._start
        mask[here] = [1] * count
        log_probs[here] = snapshot.log_probs
        step_ids[here] = [snapshot.step] * count
    return TrainingSample(prompt, response, mask, log_probs, step_ids)


def choose(samples: list[TrainingSample], limits: SampleLimits) -> list[TrainingSample]:
    count = limits.max_samples
    if count is None or len(samples) <= count:
        return samples
    if limits.choice == "first":
        return samples[:count]
    if limits.choice == "last" or count == 1:
        return samples[-count:]
    last = len(samples) - 1
    return [samples[round(i * last / (count - 1))] for i in range(count)]


def _shared(samples: list[TrainingSample]) -> list[TrainingSample]:
    # A sample's share of all sampled tokens.
    counts = [sum(sample.response_mask) for sample in samples]
    return [replace(sample, share=count / sum(counts)) for sample, count in zip(samples, counts, strict=True)]
