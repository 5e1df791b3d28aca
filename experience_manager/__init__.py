"""Experience pool of a run (self-navigating): advice distilled from earlier rollouts, retrieved and injected into the
prompts of later ones. docs/experience_manager.md."""
