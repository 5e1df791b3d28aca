"""The player: a server of frozen policies, which plays episodes with whatever checkpoint it is asked for."""
