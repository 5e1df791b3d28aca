"""The examples of docs/context_manager.md run as they stand there."""

import re
import sys
import types
from pathlib import Path

from agentevolver.rollout.flows import flow_class
from agentevolver.types import StopReason
from context_manager.registry import template_class
from context_manager.settings import ContextSettings
from context_manager.template import ContextLimits
from tests.agentevolver.rollout.flows.harness import play
from tests.context_manager.episodes import begin, shown, turn

PAGE = (Path(__file__).parents[2] / "docs" / "context_manager.md").read_text()


def example(monkeypatch, name, holding):
    """The page's Python block that holds some words, as a module of that name."""
    (source,) = [block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if holding in block]
    module = types.ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(source, name, "exec"), module.__dict__)
    return module


def test_the_template_does_what_the_page_says(monkeypatch, renderer):
    example(monkeypatch, "my_templates", "class FirstLines")
    template = template_class("my_templates:FirstLines")
    limits = ContextLimits(100, 2_000, 3_000, 40, 200)
    context = begin(template, renderer, limits, ContextSettings(context_trigger_tokens=500, context_keep_turns=2))
    for step in range(12):
        prompt = turn(context, f"act{step}\nmore", f"first{step}\n" + "o" * 60, step)
    assert context.edits and {edit["kind"] for edit in context.edits} == {"shorten"}
    text = shown(context, prompt)
    assert all(f"act{step}\nmore" in text and f"first{step}" in text for step in range(11))
    assert text.count("o" * 60) < 11
    samples = context.samples()
    assert sorted(step for sample in samples for step in sample.steps) == list(range(12)) and len(samples) > 1


def test_the_flow_is_a_flow_and_both_its_calls_are_trained(monkeypatch, renderer):
    example(monkeypatch, "my_flows", "class ThinkAloud")
    ids = [[*renderer.encode(text), renderer.tokenizer.eos_token_id] for text in ("hm", "act")]
    played = play(renderer, "causal", flow_class("my_flows:ThinkAloud")(), ids, [("user", "seen", False)], max_steps=3)
    trajectory = played.rollout.trajectory
    assert trajectory.stop_reason is StopReason.MAX_STEPS and played.env.given == ["act"] * 3
    assert [step.kind for step in trajectory.steps] == ["remark", "action"] * 3
    assert [sample.steps for sample in played.rollout.samples] == [[0, 1, 2, 3, 4, 5]]
