r"""Parses a proposal into blocks, and refuses invalid ones.

A proposal is `<question>...</question>`, at most one `<program>...</program>` and at most one `\boxed{answer}`. The
kind of a refusal is the word before the colon of `refused`:

- empty, too_long: the message is blank or over the limit
- malformed: blocks are missing, doubled, nested or unclosed, or the question does not suit its world
- injection: hidden characters, chat markers, fences, forged answers of a tool
- asks_for_files: the question or the program needs files, processes or the network
- answer_in_question: the question reveals its answer
- off_seed: the question is not what was asked for
- other_program: in calc, the program computes another question
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from env_service.environments.calc.grammar import DIGITS, MAX_OPERANDS, QuestionError, parse_question
from env_service.environments.propose.attacks import (
    chat_marker,
    file_access,
    forged,
    hidden_character,
    program_access,
    told_answer,
)
from env_service.environments.propose.seeds import CalcSeed, PythonSeed, Seed
from env_service.environments.propose.topics import TOPICS
from env_service.environments.python_tool.actions import boxed

LONGEST = {"message": 12_000, "question": 1500, "program": 4000, "answer": 300}
"""Characters that are read."""

_THINK = re.compile(r"\A.*</think>|\A\s*<think>.*\Z", re.DOTALL)
_TAG = re.compile(r"<\s*+(/?)\s*+(question|program)\b[^<>]*+>", re.IGNORECASE)
_FENCED = re.compile(r"\A```(?:python3?|py)?[ \t]*\n(.*?)\n?```\Z", re.DOTALL | re.IGNORECASE)
_BOX = re.compile(r"\\boxed\s{0,3}\{")


@dataclass(frozen=True, slots=True)
class Read:
    """A parsed proposal. `refused` is the reason for a refusal, or ""; `warning` names a defect that was ignored."""

    question: str = ""
    program: str | None = None
    answer: str | None = None
    refused: str = ""
    warning: str = ""


class _Refused(Exception):
    """`word: sentence`."""


NOTHING_YET = Read(refused="empty: nothing was proposed")


def read_proposal(text: str, seed: Seed, *, wants_program: bool) -> Read:
    """Parse a message; never raises, whatever a policy writes.

    `wants_program`: whether a problem of the world python must include a program.
    """
    found = NOTHING_YET
    try:
        found = _blocks(text)
        _check(found)
        if isinstance(seed, CalcSeed):
            return _calc(found, seed)
        _python(found, seed, wants_program)
    except _Refused as error:
        return _shortened(replace(found, refused=str(error)))
    return found


def _blocks(text: str) -> Read:
    if not text.strip():
        raise _Refused("empty: the message is blank")
    if len(text) > LONGEST["message"]:
        raise _Refused(f"too_long: {len(text)} characters, of which {LONGEST['message']} are read")
    text = _THINK.sub("", text)
    if hidden := hidden_character(text):
        raise _Refused(f"injection: the hidden character {hidden}")
    if marker := chat_marker(text):
        raise _Refused(f"injection: {marker!r} is a marker of the chat's or a tool's")
    blocks: dict[str, str] = {}
    rest, at, opened = [], 0, ""
    for tag in _TAG.finditer(text):
        closes, name = bool(tag[1]), tag[2].lower()
        if closes != bool(opened) or (closes and name != opened) or name in blocks:
            raise _Refused(f"malformed: {tag[0][:40]!r} where no such tag can be; each block stands there once")
        if closes:
            blocks[name], opened = text[at : tag.start()].strip(), ""
        else:
            rest.append(text[at : tag.start()])
            opened = name
        at = tag.end()
    if opened:
        raise _Refused(f"malformed: the block {opened} does not end")
    rest.append(text[at:])
    if not blocks.get("question"):
        raise _Refused("malformed: there is no <question>...</question> with a text")
    around = "\n".join(part for part in rest if part.strip())
    if len(_BOX.findall(around)) > 1:
        raise _Refused("malformed: more than one \\boxed{...}")
    answer = boxed(around) or None
    program = blocks.get("program")
    if program is not None and (fenced := _FENCED.match(program)):
        program = fenced[1].strip()
    return Read(blocks["question"], program or None, answer, warning=_warning(around, answer))


def _warning(around: str, answer: str | None) -> str:
    if answer is not None:
        around = re.sub(r"\\boxed\s{0,3}\{\s*" + re.escape(answer) + r"\s*\}", "", around)
    left = around.strip("$. \t\r\n")
    return f"text_around: {len(left)} characters beside the blocks" if left else ""


def _check(found: Read) -> None:
    for name, text in (("question", found.question), ("program", found.program), ("answer", found.answer)):
        if text is not None and len(text) > LONGEST[name]:
            raise _Refused(f"too_long: a {name} of {len(text)} characters, of which {LONGEST[name]} are read")
    for name, text in (("question", found.question), ("answer", found.answer)):
        if forgery := forged(text or ""):
            raise _Refused(f"injection: {forgery[:80]!r} in the {name}")
    if access := file_access(found.question) or program_access(found.program or ""):
        raise _Refused(f"asks_for_files: {access[:80]!r}")
    if telling := told_answer(found.question, found.answer):
        raise _Refused(f"answer_in_question: {telling[:80]!r}")


def _calc(found: Read, seed: CalcSeed) -> Read:
    words = found.question.split()
    if "=" in found.question or "answer" in words:
        raise _Refused("answer_in_question: a question ends with its last operand")
    if len(words) > 2 * MAX_OPERANDS:
        raise _Refused(f"too_long: more than {MAX_OPERANDS} operands")
    try:
        question = parse_question(found.question)
    except QuestionError as error:
        raise _Refused(f"malformed: {error}") from error
    began = CalcSeed(question.family, str(question.operands[0]), question.operators[0])
    if began != seed:
        raise _Refused(f"off_seed: the question does not begin with {str(seed)!r}")
    if found.answer is not None and found.answer not in DIGITS:
        raise _Refused(f"malformed: the answer {found.answer[:40]!r} is no digit")
    if found.program is not None and found.program.split() != words:
        raise _Refused("other_program: the program of a question of calc is the question")
    return replace(found, question=str(question), program=str(question))


def _python(found: Read, seed: PythonSeed, wants_program: bool) -> None:
    if found.answer is None:
        raise _Refused("malformed: there is no \\boxed{...} with an answer after the blocks")
    if wants_program and found.program is None:
        raise _Refused("malformed: there is no <program>...</program> with a text")
    question, words = found.question.casefold(), TOPICS[seed.topic].words
    if not any(re.search(rf"(?<![a-z]){re.escape(word)}", question) for word in words):
        raise _Refused(f"off_seed: none of the words of {seed.topic} is in the question")


def _shortened(found: Read) -> Read:
    """Shorten the parts of a refused proposal to the limits of valid ones, for the record."""
    program = found.program and found.program[: LONGEST["program"]]
    answer = found.answer and found.answer[: LONGEST["answer"]]
    return replace(found, question=found.question[: LONGEST["question"]], program=program, answer=answer)
