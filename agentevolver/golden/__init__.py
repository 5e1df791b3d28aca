"""Golden set, what good replies to our prompts hold: a golden set of inputs with predicates,
and a report of how a model does on it."""
