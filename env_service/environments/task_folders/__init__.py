"""Tasks that are folders, each with a container of its own."""
