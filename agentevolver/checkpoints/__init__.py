"""Checkpoints on the disk, without torch: which one is whole, which one a run goes on from, how ranks share it."""
