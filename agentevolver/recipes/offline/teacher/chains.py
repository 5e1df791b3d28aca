"""Explorer, synthesiser, verifier and judge in the world calc, by what a transcript shows of its operators.

What the operators do is known to calc's calculator and not here: a chain is made up, solved or accepted only where
the calls of the transcript prove each of its steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentevolver.llm.prompts import StepText
from agentevolver.recipes.offline.teacher.calls import without_thought
from agentevolver.recipes.offline.teacher.explorer import said
from agentevolver.recipes.offline.teacher.prompt import Draws, NotUnderstood, Prompt
from agentevolver.recipes.offline.teacher.proposer import LENGTHS
from env_service.environments.calc.grammar import (
    DIGITS,
    FAMILIES,
    OPERATORS,
    Question,
    QuestionError,
    parse_question,
)

Call = tuple[str, str, str]
"""First digit, operator, second digit."""
Table = dict[Call, str]
"""What the calculator said of the calls of a transcript."""

MARK = "only the tool calc knows"
"""What calc's opening says in full, and no other environment's."""
# How often a thread of calls, each on the result of the one before, is left for a new one.
_NEW_THREAD = 0.15
_TRIES = 200


def is_told(prompt: Prompt) -> bool:
    """Whether a prompt is of calc."""
    return MARK in prompt.sections.get("opening", "")


def explore(prompt: Prompt, draws: Draws) -> dict[str, Any] | str:
    """`explorer/act`: a call whose answer is not known; in the depth phase one on the result of the call before."""
    phase = prompt.text("phase").strip()
    if phase not in ("breadth", "depth"):
        raise NotUnderstood(f"explorer/act: <phase> must be breadth or depth, not {phase[:40]!r}")
    steps = prompt.steps()
    known = observed(steps)
    new = [(a, op, b) for a in DIGITS for op in OPERATORS for b in DIGITS if (a, op, b) not in known]
    if phase == "depth" and (value := _digit(steps[-1].observation) if steps else None) is not None:
        place = _place_of_result(steps)
        if place is None or draws.rng.random() < _NEW_THREAD:
            place = draws.rng.choice((0, 2))
        new = [call for call in new if call[place] == value] or new
    call = draws.rng.choice(new) if new else (DIGITS[0], OPERATORS[0], DIGITS[0])
    thought = "what this operator makes of them" if phase == "breadth" else "go on with what came out"
    return said(thought, _written(call), prompt, draws)


def solve(prompt: Prompt, draws: Draws) -> dict[str, Any] | str:
    """`verifier/solve`: the first call of the chain that the transcript does not show, then the answer."""
    known = observed(prompt.steps())
    missing, answer = worked_out(_question(prompt), known)
    action = f"answer {answer}" if missing is None else _written(missing)
    return said("the next operator of the chain", action, prompt, draws)


def tasks(prompt: Prompt, draws: Draws) -> dict[str, Any]:
    """`synthesiser/tasks`: chains of the calls that the transcript shows, as many as are wanted; a seeded share has
    another answer or another end than was proven."""
    text = prompt.sections.get("count", "5").strip()
    if not text.isdecimal():
        raise NotUnderstood(f"synthesiser/tasks: <count> must be a whole number, not {text[:40]!r}")
    known = observed(prompt.steps())
    taken = {line.removeprefix("- ").strip() for line in prompt.sections.get("existing", "").splitlines()}
    made: list[dict[str, Any]] = []
    for _ in range(_TRIES if known else 0):
        if len(made) >= int(text):
            break
        calls, chain = _drawn(known, draws)
        if chain in taken:
            continue
        taken.add(chain)
        made.append(_task(chain, calls, known, draws))
    return {"tasks": made}


def accept(prompt: Prompt, draws: Draws) -> dict[str, Any]:
    """`judge/accept`: whether the answer of a transcript is what its calls prove the chain to come to."""
    steps = prompt.steps()
    known = observed([*steps, *(prompt.steps("attempt") if "attempt" in prompt.sections else [])])
    missing, wanted = worked_out(_question(prompt), known)
    given = next((found for step in reversed(steps) if (found := _answer_in(step.action)) is not None), None)
    if missing is not None:
        problem = f"nothing shows what {_written(missing)} comes to"
    elif given != wanted:
        problem = f"the answer is {given or 'missing'}, the observations say {wanted}"
    else:
        problem = ""
    accepted = not problem
    if draws.errs(draws.rates.wrong_accepts):
        draws.plant("wrong accept", query=prompt.text("task"), right=accepted)
        accepted = not accepted
    reason = problem or "each step of the chain was looked up, and the answer is the last one's"
    return {"reason": reason, "accepted": accepted, "confidence": round(0.8 + 0.15 * draws.rng.random(), 2)}


def observed(steps: Sequence[StepText]) -> Table:
    """Return what the steps of a transcript show of the operators."""
    known: Table = {}
    for step in steps:
        call, value = _call_in(step.action), _digit(step.observation)
        if call is not None and value is not None:
            known[call] = value
    return known


def worked_out(question: Question, known: Table) -> tuple[Call | None, str]:
    """Return the first call of a chain that is not known, or None and its answer."""
    operands, operators = [str(operand) for operand in question.operands], list(question.operators)
    while operators:
        at = 0 if question.family == FAMILIES[0] else len(operators) - 1
        call = (operands[at], operators.pop(at), operands[at + 1])
        if call not in known:
            return call, ""
        operands[at : at + 2] = [known[call]]
    return None, operands[0]


def _drawn(known: Table, draws: Draws) -> tuple[list[Call], str]:
    """Return the calls of a chain that they prove, and the chain: as long as was drawn, or as the calls go."""
    family, length = draws.rng.choice(FAMILIES), draws.pick(LENGTHS)
    place = 0 if family == FAMILIES[0] else 2
    calls = [draws.rng.choice(list(known))]
    words = list(calls[0])
    while len(calls) < length - 1:
        fitting = [call for call in known if call[place] == known[calls[-1]]]
        if not fitting:
            break
        first, operator, second = draws.rng.choice(fitting)
        calls.append((first, operator, second))
        words = [*words, operator, second] if place == 0 else [first, operator, *words]
    return calls, " ".join((family, *words))


def _task(chain: str, calls: list[Call], known: Table, draws: Draws) -> dict[str, Any]:
    answer = known[calls[-1]]
    if draws.errs(draws.rates.hallucinated):
        if draws.rng.random() < 0.5:
            answer = DIGITS[(int(answer) + 1) % len(DIGITS)]
            draws.plant("wrong answer", query=chain, right=known[calls[-1]])
        else:
            words = chain.split()
            words[-1] = DIGITS[(int(words[-1]) + 1) % len(DIGITS)]
            draws.plant("another chain", query=" ".join(words), right=chain)
            chain = " ".join(words)
    solution = [*map(_written, calls), f"answer {answer}"]
    return {"query": chain, "solution": solution, "confidence": round(0.98 - 0.05 * draws.rng.random(), 2)}


def _question(prompt: Prompt) -> Question:
    try:
        return parse_question(prompt.text("task"))
    except QuestionError as error:
        raise NotUnderstood(f"{prompt.task}: the task is no chain of calc: {error}") from error


def _place_of_result(steps: Sequence[StepText]) -> int | None:
    """Return where the last call has the result of the one before: 0 on the left, 2 on the right, None where it has it
    in neither place, or in both."""
    last = _call_in(steps[-1].action)
    before = _digit(steps[-2].observation) if len(steps) > 1 else None
    places = [] if last is None else [place for place in (0, 2) if last[place] == before]
    return places[0] if len(places) == 1 else None


def _words(action: str) -> list[str]:
    return without_thought(action).split()


def _call_in(action: str) -> Call | None:
    match _words(action):
        case ["calc", first, operator, second] if {first, second} <= set(DIGITS) and operator in OPERATORS:
            return first, operator, second
    return None


def _answer_in(action: str) -> str | None:
    match _words(action):
        case ["answer", answer]:
            return answer
    return None


def _digit(observation: str) -> str | None:
    found = observation.strip()
    return found if found in DIGITS else None


def _written(call: Call) -> str:
    return " ".join(("calc", *call))
