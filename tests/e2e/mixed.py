"""A context template and an agent flow that stand for all built-in ones in turn, so that one run covers them."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

from agentevolver.rollout.flows import AgentFlow, PlannerExecutorFlow, ReactFlow, Session
from context_manager.chat import ChatRenderer
from context_manager.reasoning import STYLES
from context_manager.registry import TEMPLATES
from context_manager.template import ContextLimits, ContextSettings, ContextTemplate

# The seed policy writes no think tags. What it says before a tool's dot is taken for a thought, so that replies are
# rewritten.
STYLES["dot"] = ("\x00", ".")


class EachInTurn(ContextTemplate):
    """Makes an episode's context: a template of the next name. Its record says which."""

    reads: ClassVar[frozenset[str]] = frozenset[str]().union(*(template.reads for template in TEMPLATES.values()))
    _names = itertools.cycle(TEMPLATES)

    def __new__(cls, renderer: ChatRenderer, limits: ContextLimits, options: ContextSettings) -> Any:
        name = next(cls._names)
        style = "dot" if name == "reasoning" else None
        made = TEMPLATES[name](renderer, limits, options.model_copy(update={"think_style": style}))
        made.note_edit("template", [], name)
        return made


class BothInTurn(AgentFlow):
    """Acts with and without a plan; every third episode has one, so that each template meets both flows."""

    def run(self, session: Session) -> Any:
        return next(_FLOWS).run(session)


_FLOWS = itertools.cycle((ReactFlow(), PlannerExecutorFlow(), ReactFlow()))
