"""Command lines that need a configuration and a manager, such as `python -m task_manager`."""
