"""Seed policy of the worlds `calc` and `propose`: one small Qwen2 that plays executor and proposer.

`python -m agentevolver.builtin.seed.calc --out DIR [--narrow]` builds it.
"""
