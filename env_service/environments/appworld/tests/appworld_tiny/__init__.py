"""A tiny AppWorld of our own: people, rows, tasks, solutions and checks, all written here; the apps are AppWorld's.

`build.py` runs in the AppWorld venv and writes a data folder outside the repository. `task.py` and the `tasks_*.py`
need nothing but the standard library, because the tests import them too.
"""
