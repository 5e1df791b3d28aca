"""Command lines that need an experiment's configuration and a manager:
`python -m task_manager`, `python -m experience_manager`."""
