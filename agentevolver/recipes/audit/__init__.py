"""Audit: how far the roles of language models agree with the world."""
