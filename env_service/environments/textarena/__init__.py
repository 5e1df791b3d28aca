"""TextArena's games for two and more players: the agent has one seat, the task names the other players."""
