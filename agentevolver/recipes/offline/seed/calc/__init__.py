"""Seed policy of the worlds `calc` and `propose`: one small Qwen2 that plays executor and proposer."""
