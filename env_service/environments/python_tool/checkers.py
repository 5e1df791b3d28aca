"""Checkers of an answer against the reference: `exact` text, `numeric` value, or `math-verify` for any expression.

numeric: integers must match exactly, other numbers within a relative 1e-6 (or the task's absolute tolerance).
math-verify evaluates, so an answer must also state a value (`4=3` is not 3). It runs in a sandbox; an answer on which
the sandbox hangs is wrong.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from env_service.environments.python_tool.sandbox.host import Sandbox, SandboxLimits
from env_service.environments.python_tool.settings import GRADER_PACKAGES, metadata_of, paths_of

RELATIVE_TOLERANCE = Fraction(1, 10**6)
LONGEST_ANSWER = 2000
_LONGEST_NUMBER = 400
_LARGEST_EXPONENT = 400
_GRADER = Path(__file__).with_name("expressions.py")
_GRADER_LIMITS = SandboxLimits(wall_s=30.0, cpu_s=30)

_FRACTION = re.compile(r"\\[dt]?frac\{([^{}]+)\}\{([^{}]+)\}")
_SHORT_FRACTION = re.compile(r"\\[dt]?frac(\d)(\d)")
_NAMED = re.compile(r"[A-Za-z]\w*\s*=\s*(.+)", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(\D|$))")
_CURRENCY = re.compile(r"\\?[$€£¥]\s*")
_TEXT = re.compile(r"\\(?:text|mathrm|mathbf|textbf)\{([^{}]*)\}")


@dataclass(frozen=True)
class PythonTask:
    """One question with its answer; `tolerance` is an absolute one for numeric answers."""

    id: str
    question: str
    answer: str
    checker: str
    split: str = "train"
    tolerance: float | None = None
    family: str = ""
    level: int = 0


def _unwrapped(text: str) -> str:
    r"""Drop typesetting: dollar signs, \text{}, thin spaces, a final full stop, quotes around the whole."""
    text = text.strip().strip("$").replace("\\!", "").replace("\\,", " ").replace("\\left", "").replace("\\right", "")
    text = _TEXT.sub(r"\1", text).replace("\N{MINUS SIGN}", "-").strip()
    if text.endswith(".") and not text.endswith(".."):
        text = text[:-1].strip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'`":
        text = text[1:-1]
    return text.strip()


def _plain_number(text: str) -> Fraction | None:
    match = _NUMBER.fullmatch(text.replace(" ", ""))
    if match is None or len(text) > _LONGEST_NUMBER or abs(int((match[2] or "e0")[1:])) > _LARGEST_EXPONENT:
        return None
    return Fraction(match[0])


def parse_number(text: str) -> Fraction | None:
    """Return the rational number in a text, or None."""
    text = _unwrapped(text)
    if named := _NAMED.fullmatch(text):
        text = named[1]
    text = _CURRENCY.sub("", text.replace("{,}", ","))
    text = _SHORT_FRACTION.sub(r"\1/\2", _FRACTION.sub(r"\1/\2", text))
    text = _THOUSANDS.sub("", text)
    per_cent = text.endswith("%")
    text = text.removesuffix("%").removesuffix("\\").strip()
    above, slash, below = text.partition("/")
    numerator = _plain_number(above.strip(" ()"))
    denominator = _plain_number(below.strip(" ()")) if slash else Fraction(1)
    if numerator is None or not denominator:
        return None
    return numerator / denominator / (100 if per_cent else 1)


def same_number(reference: str, answer: str, tolerance: float | None = None) -> bool:
    wanted, given = parse_number(reference), parse_number(answer)
    if wanted is None:
        raise ValueError(f"the reference answer {reference!r} is not a number")
    if given is None:
        return False
    if tolerance is not None:
        return abs(wanted - given) <= Fraction(tolerance)
    if wanted.denominator == 1:
        return wanted == given
    return abs(wanted - given) <= RELATIVE_TOLERANCE * abs(wanted)


def comparable(text: str) -> str:
    """Return the text without typesetting, its white space normalised."""
    return re.sub(r"\s*([^\w\s])\s*", r"\1", " ".join(_unwrapped(text).split()))


def same_text(reference: str, answer: str) -> bool:
    return comparable(reference) == comparable(answer)


def _is_balanced(text: str) -> bool:
    depth = 0
    for brace in re.findall(r"(?<!\\)[{}]", text):
        depth += 1 if brace == "{" else -1
        if depth < 0:
            return False
    return depth == 0


def same_expression(reference: str, answer: str) -> bool:
    """Whether math-verify finds both expressions equal and the answer states a value (`expressions.is_worked_out`).

    Raises ValueError if the reference is unreadable.
    """
    # Text that leaves its box is refused: several candidates must not be graded as one.
    if not _is_balanced(answer) or "\\boxed" in answer:
        return False
    nonce = secrets.token_hex(8)
    source = _GRADER.read_text(encoding="utf-8") + f"\nprint({nonce!r}, verdict({reference!r}, {answer!r}))\n"
    sandbox = Sandbox(_GRADER_LIMITS, [*paths_of(GRADER_PACKAGES), metadata_of("antlr4-python3-runtime")])
    try:
        result = sandbox.run(source)
    finally:
        sandbox.close()
    if f"{nonce} unreadable" in result.output:
        raise ValueError(f"math-verify cannot read the reference answer {reference!r}")
    return f"{nonce} True" in result.output


def check_reference(task: PythonTask) -> None:
    """Raise ValueError if the task's reference answer cannot be compared."""
    if len(task.answer) > LONGEST_ANSWER:
        raise ValueError(f"`answer` has {len(task.answer)} characters, more than the {LONGEST_ANSWER} of a reply")
    if task.checker == "numeric":
        same_number(task.answer, task.answer, task.tolerance)
    elif not comparable(task.answer) or (task.checker == "math-verify" and not _is_balanced(task.answer)):
        raise ValueError(f"the reference answer {task.answer!r} is empty, or its braces do not match")


def is_correct(task: PythonTask, answer: str) -> bool:
    if len(answer) > LONGEST_ANSWER:
        return False
    if task.checker == "exact":
        return same_text(task.answer, answer)
    if task.checker == "numeric":
        return same_number(task.answer, answer, task.tolerance)
    return same_text(task.answer, answer) or same_expression(task.answer, answer)
