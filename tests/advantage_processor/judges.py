"""Judges for tests: plain objects with the `chat` of `agentevolver.llm.LLM`."""

import asyncio
import json

from advantage_processor.labels import LabelError, read_some
from agentevolver.llm import LLMReply
from agentevolver.llm.prompts import read_sections, read_steps


def labels_for(messages, wrong=()):
    """What an honest judge says of a prompt: the steps asked for, GOOD if their action begins with "good"; `wrong`
    indices turned round."""
    sections = read_sections(messages[1]["content"])
    first, last = map(int, sections["indices"].split("-"))
    steps = [step for step in read_steps(sections["transcript"]) if first <= step.index <= last]
    return [(step.index, step.action.startswith("good") != (step.index in wrong)) for step in steps]


def as_json(labels):
    return json.dumps(
        {
            "steps": [
                {"index": i, "analysis": f"it was step {i}", "label": "GOOD" if good else "BAD"} for i, good in labels
            ]
        }
    )


def read_labels(text, indices):
    """One label for each of the indices, in their order; raises LabelError if a reply does not hold them all."""
    found = read_some(text, indices)
    if found.problem:
        raise LabelError(found.problem)
    return [found.labels[index] for index in indices]


class FakeJudge:
    """Answers each call with the next of `replies`, the last one for ever: text, an exception, or a function of the
    messages."""

    def __init__(self, *replies, latency=0.0):
        self.replies = list(replies) or [lambda messages: as_json(labels_for(messages))]
        self.latency = latency
        self.calls = []
        self.in_flight = self.most_in_flight = 0

    async def chat(self, role, messages, **sampling):
        assert role == "attributor"
        self.calls.append(messages)
        reply = self.replies[min(len(self.calls), len(self.replies)) - 1]
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(self.latency)
        finally:
            self.in_flight -= 1
        if isinstance(reply, BaseException):
            raise reply
        text = reply(messages) if callable(reply) else reply
        return LLMReply(text, 1000, 50, self.latency, False)
