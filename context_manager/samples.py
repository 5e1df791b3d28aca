"""The timeline snapshot recorder: every model call frozen as it happened, and the training samples made of them.

A call whose prompt begins with all the ids of a chain of calls before it goes on that chain (the longest such), so that
an episode that was never edited is one chain of ids; any other call begins a chain. A chain is one training sample: no
id is computed, searched for or guessed when samples are made. A sample that is over a limit is dropped by name and
counted, it never stops anything.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from agentevolver.types import TrainingSample
from context_manager.timeline import Message

logger = logging.getLogger(__name__)

SampleChoice = Literal["spread", "first", "last"]
Runs = tuple[tuple[int, int], ...]
# Why a sample is left out.
DROPPED = ("prompt_too_long", "response_too_long", "opening_edited", "over_max_samples")


@dataclass(frozen=True, slots=True)
class Opening:
    """Opening of a chain: how its prompts begin (`sent`), and the ids
    that stand in its place in the sample (`trained`: without guidance, say)."""

    sent: Sequence[int]
    trained: Sequence[int]


# A chain whose sample is what was sent, whatever else the episode's samples are stripped of.
UNTOUCHED = Opening((), ())


@dataclass(slots=True)
class _Chain:
    """Ids that only ever grow; `prompt_length` is that of its first call's prompt.
    `opening` is its own, None that of the episode."""

    ids: list[int]
    prompt_length: int
    opening: Opening | None = None
    snapshots: list[Snapshot] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One model call. `step` is its number in the trajectory; `shown` the messages that were in its prompt, as runs of
    their numbers; `trained` whether its tokens are trained on; `log_probs` has one number per sampled id."""

    step: int
    kind: str
    shown: Runs
    trained: bool
    log_probs: Sequence[float]
    _chain: _Chain
    _start: int
    _end: int

    @property
    def prompt_ids(self) -> list[int]:
        """The ids that were sent."""
        return self._chain.ids[: self._start]

    @property
    def sampled_ids(self) -> list[int]:
        """The ids that came back."""
        return self._chain.ids[self._start : self._end]


@dataclass(frozen=True, slots=True)
class SampleLimits:
    """Limits of a training sample: tokens of its prompt and of its response,
    and how many samples a trajectory may become.

    `choice` says which are kept when there are more: the first, the last, or some of them spread evenly over the
    episode, the first and the last included.
    """

    max_prompt_tokens: int
    max_response_tokens: int
    max_samples: int | None = None
    choice: SampleChoice = "spread"


class SnapshotRecorder:
    """Records the calls of one episode."""

    def __init__(self) -> None:
        self.snapshots: list[Snapshot] = []
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
        chain: Snapshot | None = None,
        opening: Opening | None = None,
    ) -> Snapshot:
        """Freeze a call.

        Args:
            prompt_ids: what was sent.
            sampled_ids: what came back.
            log_probs: of the sampled ids, one each.
            step: the call's number in the trajectory.
            kind: what it was for.
            shown: the messages in the prompt.
            trained: whether its tokens are trained on.
            chain: a call whose chain this one goes on, where the caller knows; None: the longest chain that the prompt
                begins with. A prompt that does not begin with all the ids of that chain begins one of its own.
            opening: of the chain that the call begins, if it begins one: its own, `UNTOUCHED` for a chain that nothing
                is taken out of (a sub-agent's, a compacted one), None: the one that `samples` is given.

        Raises:
            ValueError: there is not one log-prob per sampled id, or no sampled id at all.
        """
        if len(sampled_ids) != len(log_probs) or not sampled_ids:
            raise ValueError(f"step {step}: {len(sampled_ids)} sampled ids but {len(log_probs)} log-probs")
        goes_on = self._find(prompt_ids, chain, opening) if trained else _Chain(list(prompt_ids), len(prompt_ids))
        start = len(prompt_ids)
        goes_on.ids += sampled_ids
        snapshot = Snapshot(step, kind, shown, trained, log_probs, goes_on, start, len(goes_on.ids))
        goes_on.snapshots.append(snapshot)
        self.snapshots.append(snapshot)
        return snapshot

    def _find(self, prompt_ids: list[int], known: Snapshot | None, opening: Opening | None) -> _Chain:
        """Return the chain that the call goes on, with the call's prompt on it."""
        chains = self._chains if known is None else [known._chain]
        # The newest of the longest; of what does not go on, mostly one id is compared.
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
        """Return the training samples in the order of the episode, and how many were dropped, by name.

        Args:
            limits: what a sample may be.
            opening_ids: how every prompt begins, but for chains that have an opening of their own.
            training_ids: what stands in its place in the samples (stripped of guidance, say); None: the same.

        The dropped are `prompt_too_long`, `response_too_long`, `opening_edited` (a prompt does not begin with the ids
        of its opening, so that nothing can be put in their place) and `over_max_samples`.
        """
        dropped: Counter[str] = Counter()
        samples: list[TrainingSample] = []
        episodes = None if training_ids is None else Opening(opening_ids, training_ids)
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


def runs(messages: Iterable[Message]) -> Runs:
    """Return the numbers of messages as runs (first, last) of consecutive ones, in the order in which they stand."""
    found: list[list[int]] = []
    for message in messages:
        if found and message.number == found[-1][1] + 1:
            found[-1][1] = message.number
        else:
            found.append([message.number, message.number])
    return tuple((first, last) for first, last in found)


def _sample(chain: _Chain, limits: SampleLimits, opening: Opening | None) -> TrainingSample | str:
    """Return a chain's sample, stripped where other ids take the place of the opening;
    or why there is none as `name: text`.

    To strip is to put the ids of the plain opening (`experience_manager.guide.Injection.plain`) where those of the
    guided one stood: nothing is cut out of a text, and what was sampled stays as it is.

    What a first prompt has beyond `max_prompt_tokens` goes to the front of the response, with a mask of 0: where the
    prompt ends and the response begins means nothing to the gradient.
    """
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
    """Choose the samples of a long episode that are kept, at most `limits.max_samples`, in their order."""
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
    """Return the samples with their shares: of the sampled tokens of all of them."""
    counts = [sum(sample.response_mask) for sample in samples]
    return [replace(sample, share=count / sum(counts)) for sample, count in zip(samples, counts, strict=True)]
