"""Seed policy of the environments `calc` and `propose`: one small Qwen2 as executor and proposer."""
