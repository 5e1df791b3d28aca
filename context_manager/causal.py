"""The causal template: one growing conversation, append only, one training sample per trajectory."""

from __future__ import annotations

from context_manager.template import ContextTemplate


class CausalTemplate(ContextTemplate):
    """Every prompt is the previous prompt, the ids sampled after it, and the tokens of what came next. No id is
    computed twice."""

    append_only = True
