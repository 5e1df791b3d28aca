"""The main job of a run, phase by phase."""
