"""Step numbers: what makes a step safe to repeat.

A caller may number its steps from 0. The ledger remembers the last number with its answer, so that the same number
again returns the same answer without a second execution, whatever happened to the first reply on its way. Each number
is executed at most once.
"""

from __future__ import annotations

from dataclasses import dataclass

from env_service.errors import ServiceError, StepOutOfOrder


@dataclass(slots=True)
class StepLedger:
    """The last numbered step of one instance: `answer` is the JSON that was replied, or the failure."""

    last: int = -1
    answer: bytes | ServiceError | None = None

    def recall(self, index: int) -> bytes | None:
        """Return the remembered reply if `index` is the last one, None if it is the next one; raise what was raised
        before.

        Raises StepOutOfOrder for any other number.
        """
        if index == self.last + 1:
            return None
        if index != self.last:
            raise StepOutOfOrder(
                f"step_index {index} is out of order: the last one was {self.last}, so send {self.last + 1}"
                + (f", or {self.last} to get its reply again" if self.last >= 0 else "")
            )
        if isinstance(self.answer, ServiceError):
            raise self.answer.with_traceback(None)
        return self.answer

    def record(self, index: int, answer: bytes | ServiceError) -> None:
        """Remember the answer to the step that was executed as `index`."""
        self.last, self.answer = index, answer
