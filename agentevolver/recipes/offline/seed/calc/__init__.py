"""Seed policy of the worlds `calc` and `propose`: one small Qwen2 that plays executor and proposer.

`python -m agentevolver.recipes.offline.seed.calc --out DIR [--narrow]` builds it.
"""
