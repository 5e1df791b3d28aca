"""Noisy demonstrator of both roles of `calc`: an executor that works questions off with mistakes, and a proposer that
writes questions of several lengths.

At each call the executor may slip (`Habits.slip`): a wrong operand or operator, the wrong end of the question, a
skipped pair, a result not carried over, an early answer, or an invalid form, after which it tries again. No kind of
slip dominates, so a policy that imitates it has no single mistake to unlearn.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from env_service.base import Message
from env_service.environments.calc.env import CalcEnv
from env_service.environments.calc.grammar import DIGITS, FAMILIES, OPERATORS, CalcQuestion, draw_question
from env_service.environments.calc.tasks import LEVELS, held_out
from env_service.environments.propose.env import ProposeEnv

# Weights of proposed questions with 2, 3, ... 8 operands.
WIDE = (0.30, 0.23, 0.17, 0.12, 0.08, 0.06, 0.04)
NARROW = (0.55, 0.35, 0.10, 0.0, 0.0, 0.0, 0.0)

_SLIPS = {"operand": 0.3, "operator": 0.15, "end": 0.15, "leave": 0.1, "keep": 0.1, "answer": 0.1, "form": 0.1}
_BROKEN = ("calc {0} {1}", "calc {0} {2}", "calc {1} {2}", "{0} {1} {2}", "calc {0} {1} {2} {1}", "calc")


@dataclass(frozen=True, slots=True)
class CalcHabits:
    """- `slip`, `slip_at_end`: probability of a slip at each call, and at the answer.
    - `proposals`: share of the conversations that are the proposer's.
    - `worked`, `proposed`: how often questions of 2, 3, ... 8 operands are worked off, and proposed.
    """

    slip: float = 0.12
    slip_at_end: float = 0.05
    proposals: float = 0.45
    worked: tuple[float, ...] = (0.16, 0.18, 0.18, 0.17, 0.14, 0.1, 0.07)
    proposed: tuple[float, ...] = WIDE

    def at_first(self) -> CalcHabits:
        """The habits for early training: few slips, and mostly the executor's role, in which operands must be found."""
        return replace(self, slip=self.slip / 5, slip_at_end=self.slip_at_end / 5, proposals=self.proposals / 2)


def demonstrate(rng: random.Random, habits: CalcHabits) -> list[Message]:
    """Return one episode of either role as a conversation that ends with an assistant message. The executor's question
    is not in dev or test."""
    if rng.random() < habits.proposals:
        return propose(_draw(rng, habits.proposed), rng)
    while str(question := _draw(rng, habits.worked)) in _HELD_OUT:
        pass
    return work_off(question, rng, habits)


_HELD_OUT = held_out()


def _draw(rng: random.Random, lengths: tuple[float, ...]) -> CalcQuestion:
    (level,) = rng.choices(LEVELS, lengths)
    return draw_question(rng, rng.choice(FAMILIES), level)


def propose(question: CalcQuestion, rng: random.Random) -> list[Message]:
    seed = f"calc.{question.family}.{question.operands[0]}.{question.operators[0]}.{rng.randrange(100_000):05}"
    messages = ProposeEnv(seed, "demo").get_init_state()["state"]
    return [*messages, {"role": "assistant", "content": f"<question>{question}</question>"}]


def work_off(question: CalcQuestion, rng: random.Random, habits: CalcHabits) -> list[Message]:
    env = CalcEnv("demo", "demo", {"problem": {"question": str(question)}})
    messages = env.get_init_state()["state"]
    is_left = question.family == "left"
    read = [str(operand) for operand in question.operands]
    values, operators = list(read), list(question.operators)
    while operators:
        slip = rng.choices(list(_SLIPS), list(_SLIPS.values()))[0] if rng.random() < habits.slip else ""
        if slip == "answer":
            break
        from_left = is_left != (slip == "end")
        at = 0 if from_left else len(operators) - 1
        if slip == "leave":
            del operators[at], values[at + 1 if from_left else at]
            continue
        call = [values[at], operators[at], values[at + 1]]
        if slip == "operand":
            call[rng.choice((0, 2))] = rng.choice(rng.choice((read, DIGITS)))
        if slip == "operator":
            call[1] = rng.choice(OPERATORS)
        text = rng.choice(_BROKEN).format(*call) if slip == "form" else "calc {} {} {}".format(*call)
        observation, is_over = _say(env, messages, text)
        if is_over:
            return messages
        if slip != "form":
            values[at : at + 2] = [rng.choice((call[0], call[2])) if slip == "keep" else observation]
            del operators[at]
    result = values[0] if is_left else values[-1]
    answer = result
    if rng.random() < habits.slip_at_end:
        answer = rng.choice((rng.choice(read), rng.choice(DIGITS), f"{result} {rng.choice(read)}", ""))
    while not _say(env, messages, f"answer {answer}".rstrip())[1]:
        answer = result
    return messages


def _say(env: CalcEnv, messages: list[Message], text: str) -> tuple[str, bool]:
    messages.append({"role": "assistant", "content": text})
    result = env.step(messages[-1])
    if not result["is_terminated"]:
        messages.extend(result["state"])
    return result["state"][0]["content"], result["is_terminated"]
