"""Prompts of a proposer: minimal for a seed policy in calc, else in full."""

from __future__ import annotations

from env_service.base import Message
from env_service.environments.calc.grammar import MAX_OPERANDS, MIN_OPERANDS, OPERATORS
from env_service.environments.propose.seeds import CalcSeed, PythonSeed, Seed
from env_service.environments.propose.topics import LEVELS, SKILLS, TOPICS

SYSTEM = "propose"

_CALC = (
    "You set puzzles: chains of digits and operators. The operators {operators} have nothing to do with arithmetic; a "
    "solver looks each step up with a tool. `left 3 f 4 g 7` is worked out from the left, `right 3 f 4 g 7` from the "
    "right. A chain has {least} to {most} digits, with an operator between each two and spaces around it. You are told "
    "how yours begins. Answer with the whole chain as <question>left 3 f 4 g 7</question> and nothing else."
)
_PYTHON = """You write problems for a contest in mathematics and programming, for solvers who have a Python interpreter.
Each is new: no known contest problem with other numbers, no exercise that every textbook has. It can be understood by \
itself, has exactly one answer (a number, or a short expression), and says nothing of how to solve it or of what comes \
out. A solver gets the question and an empty interpreter: there are no files, no pictures and no network.
Think it through first, and work the answer out. Then write these blocks, and nothing else:
<question>
the problem
</question>
{program}\\boxed{{the answer}}"""
_PROGRAM = """<program>
Python that works the answer out within a few seconds, with the standard library, and prints it and nothing else
</program>
"""
_ASK = "Write one problem about {topic}. A good solution needs {skill}. It is {level}. Its setting: {setting}."


def opening(seed: Seed, *, verbose: bool, wants_program: bool) -> list[Message]:
    """Return the two opening messages; the user's is only the seed."""
    match seed:
        case CalcSeed():
            rules = _CALC.format(operators=", ".join(OPERATORS), least=MIN_OPERANDS, most=MAX_OPERANDS)
            system, user = rules if verbose else SYSTEM, str(seed)
        case PythonSeed(topic, skill, level, setting):
            system = _PYTHON.format(program=_PROGRAM if wants_program else "")
            user = _ASK.format(topic=TOPICS[topic].about, skill=SKILLS[skill], level=LEVELS[level], setting=setting)
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]
