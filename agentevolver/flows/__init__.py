"""Agent flows: how an agent acts in an episode, independent of what it sees (context templates) and of where it
runs."""
