"""Verdicts: when a turn ends, the package's checkers compare it with the turn's reference calls.

State check: the APIs' public states equal those after the reference calls. Response check: the agent's results contain
every result of the reference calls. Irrelevance check: the agent makes no call while a needed function or parameter is
missing. An episode is solved if each turn passed; without the irrelevance check that is the package's
`multi_turn_checker`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from env_service.environments.bfcl.backend import BfclBackend
from env_service.environments.bfcl.calls import parse_reference
from env_service.environments.bfcl.package import BfclPackage, BfclTask

EMPTY_TURN = "multi_turn:empty_turn_model_response"
IRRELEVANT_CALLS = "multi_turn:irrelevance_error:decoder_success"


@dataclass(frozen=True)
class BfclVerdict:
    """The checkers' verdict on one turn: None, or the package's error type and the difference."""

    error_type: str | None
    detail: str = ""
    expects_calls: bool = True

    def passed(self, irrelevance: bool) -> bool:
        return self.error_type is None or (self.error_type == IRRELEVANT_CALLS and not irrelevance)


class Referee:
    def __init__(self, task: BfclTask, package: BfclPackage) -> None:
        self._task, self._package = task, package
        self._reference = BfclBackend(task, package)
        self.verdicts: list[BfclVerdict] = []

    def close_turn(self, agent: BfclBackend, results: Sequence[str], calls_this_turn: int) -> BfclVerdict:
        """Judge the turn that just ended.

        `results` are the texts of all the agent's calls since the episode began, `calls_this_turn` how many of them
        this turn made.
        """
        turn = len(self.verdicts)
        expected = [self._reference.call(parse_reference(text)) for text in self._task.truth[turn]]
        if not expected:
            verdict = self._judge_abstention(calls_this_turn)
        elif not calls_this_turn:
            verdict = BfclVerdict(EMPTY_TURN, f"{len(expected)} reference calls, none made")
        else:
            verdict = self._compare(agent, results, expected, turn)
        self.verdicts.append(verdict)
        return verdict

    def _judge_abstention(self, calls_this_turn: int) -> BfclVerdict:
        if calls_this_turn and self._task.checks_irrelevance:
            return BfclVerdict(
                IRRELEVANT_CALLS, f"{calls_this_turn} calls in a turn that offers no way to act", expects_calls=False
            )
        return BfclVerdict(None, expects_calls=False)

    def _compare(self, agent: BfclBackend, results: Sequence[str], expected: list[str], turn: int) -> BfclVerdict:
        state = self._package.state_checker(agent.instances, self._reference.instances)
        if not state["valid"]:
            return BfclVerdict(
                state["error_type"], f"{state['error_message']} Different: {sorted(state['details']['differences'])}"
            )
        response = self._package.response_checker(list(results), expected, turn)
        if not response["valid"]:
            return BfclVerdict(response["error_type"], response["error_message"])
        return BfclVerdict(None)

    def solved(self, irrelevance: bool) -> bool:
        return len(self.verdicts) == len(self._task.truth) and all(
            verdict.passed(irrelevance) for verdict in self.verdicts
        )

    def share(self, irrelevance: bool) -> float:
        """Return the share of turns that passed, in 0..1.

        Turns that pass without a call count only if another turn passed with calls.
        """
        passed = [verdict for verdict in self.verdicts if verdict.passed(irrelevance)]
        if not any(verdict.expects_calls for verdict in passed):
            return 0.0
        return len(passed) / len(self._task.truth)
