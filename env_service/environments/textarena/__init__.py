"""TextArena's games for two and more players: the agent has one seat, others are played by whom the task names."""
