"""Built-in teacher: a rule-based stand-in for a language model, for the pocket world and `pocket_app` (the
summariser of contexts: also for `pocket_long`).

It speaks the OpenAI chat API, so that the whole loop runs, is tested and can be watched without a key. It is no
language model: it plays the roles of docs/llm.md by reading what stands in the prompt (opening, profile, observations,
transcript), knows these worlds' tools and some English wordings, and nothing of a world that the prompt does not
show; it imports nothing of the environment. A seeded share of what it says is wrong on purpose, as a model's would be.
What it does not understand it answers with HTTP 400.
"""
