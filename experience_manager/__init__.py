"""Self-navigating: what earlier attempts taught, kept, found again, and given to a part of the next ones.
docs/experience_manager.md."""
