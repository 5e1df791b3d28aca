"""The python world: sums whose values are known."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from typing import Any

from agentevolver.llm.prompts import StepText
from tests.llm.minds.families import FamiliesWorld, Family, Slots
from tests.llm.minds.world import Lesson, same

_OUTPUT = re.compile(r"Output:\n(`{3,})\n(.*?)\n\1", re.DOTALL)
_BOXED = re.compile(r"\\boxed\{(.*)\}", re.DOTALL)
_CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)


def _printing(expression: str) -> Any:
    return lambda slots, opening: [f"```python\n{expression.format(**slots)}\n```"]


def _read(slots: Slots, observations: Sequence[str]) -> str | None:
    found = _OUTPUT.search(observations[-1]) if observations else None
    return found[2].strip() if found is not None else None


def _numbers(**bounds: tuple[int, int]) -> Any:
    def draw(rng: random.Random) -> Slots:
        return {name: str(rng.randint(*bound)) for name, bound in bounds.items()}

    return draw


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % k for k in range(2, math.isqrt(number) + 1))


def _fibonacci(place: int) -> int:
    a, b = 0, 1
    for _ in range(place):
        a, b = b, a + b
    return a


TRUTHS = {
    "squares": lambda n: sum(i * i for i in range(1, n + 1)),
    "primes": lambda n: sum(map(_is_prime, range(n))),
    "fibonacci": _fibonacci,
    "divisor": math.gcd,
    "digits": lambda n: sum(map(int, str(2**n))),
    "remainder": lambda a, b, m: a**b % m,
    "ways": math.comb,
}
_PRIMES = "print(sum(all(n % k for k in range(2, int(n**0.5) + 1)) for n in range(2, {n})))"
_FIBONACCI = "a, b = 0, 1\nfor _ in range({n}):\n    a, b = b, a + b\nprint(a)"


class PythonWorld(FamiliesWorld):
    """Sums with an interpreter."""

    env_type = "python"
    families = (
        Family("squares", "What is the sum of the squares of the whole numbers from 1 to {n}?", _numbers(n=(5, 900)),
               _printing("print(sum(i * i for i in range(1, {n} + 1)))"), _read),
        Family("primes", "How many prime numbers are there below "
                         "{n}?", _numbers(n=(10, 3000)), _printing(_PRIMES), _read),
        Family("fibonacci", "Which is Fibonacci number {n}, when number 0 is 0 and number 1 is 1?", _numbers(n=(5, 90)),
               _printing(_FIBONACCI), _read),
        Family("divisor", "Find the greatest common divisor of {a} and {b}.", _numbers(a=(100, 9999), b=(100, 9999)),
               _printing("import math\nprint(math.gcd({a}, {b}))"), _read),
        Family("digits", "What do the digits of 2 to the power of {n} add up to?", _numbers(n=(10, 400)),
               _printing("print(sum(map(int, str(2 ** {n}))))"), _read),
        Family("remainder", "What remains of {a} to the power of {b} when it is divided by {m}?",
               _numbers(a=(2, 99), b=(2, 60), m=(3, 997)), _printing("print(pow({a}, {b}, {m}))"), _read),
        Family("ways", "In how many ways can {k} be chosen out of {n}, whatever their order?", lambda rng: _choice(rng),
               _printing("import math\nprint(math.comb({n}, {k}))"), _read),
    )  # fmt: skip
    lessons = (
        Lesson("when a task asks for a number that takes many steps to work out",
               "Write one Python block that prints the number, read the output, and then answer with it in a message "
               "without code.",
               "Answer with a number at once, running code never helps."),
        Lesson("when a result has to be shown by "
               "code", "Print what you want to see, because only printed text comes back.",
               "Leave out print, because all variables are shown anyway."),
        Lesson("when the answer is known", "Put the bare number into boxed braces in a message without any code block.",
               "Put the answer into a code block, since only code is read."),
    )  # fmt: skip

    def recognises(self, opening: str) -> bool:
        return "with the help of a Python interpreter" in opening

    def closing(self, answer: str | None) -> str | None:
        return f"\\boxed{{{answer or 'done'}}}"

    def answered(self, action: str) -> str | None:
        if "```python" in action or "<tool_call>" in action:
            return None
        found = _BOXED.search(action)
        return found[1] if found is not None else None

    def canonical(self, action: str) -> str:
        found = _CODE.search(action)
        return (found[1] if found is not None else action).strip()

    def changes(self, action: str) -> bool:
        return False

    def refused(self, step: StepText) -> bool:
        return "Traceback (most recent call last)" in step.observation

    def call(self, action: str) -> tuple[str, dict[str, Any]] | None:
        found = _CODE.search(action)
        return ("python", {"code": found[1]}) if found is not None else None

    def right(self, seed_task_id: str, query: str, solution: Sequence[str]) -> bool:
        answers = [answer for action in solution if (answer := self.answered(action)) is not None]
        for family in self.families:
            if (slots := family.slots(query)) is not None:
                truth = TRUTHS[family.kind](*(int(slots[name]) for name in _PLACES.get(family.kind, slots)))
                return bool(answers) and same(answers[-1], str(truth))
        return False


# Where a wording names them in another order.
_PLACES = {"ways": ("n", "k")}


def _choice(rng: random.Random) -> Slots:
    n = rng.randint(6, 40)
    return {"n": str(n), "k": str(rng.randint(2, n - 2))}


PLAYER = PythonWorld()
