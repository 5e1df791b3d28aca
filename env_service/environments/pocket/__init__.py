"""PocketWorld: the built-in environment. Deterministic, standard library only, small enough for a CPU to learn."""
