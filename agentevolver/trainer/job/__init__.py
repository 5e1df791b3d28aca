"""The main job of a training run."""
