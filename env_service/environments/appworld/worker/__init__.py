"""Processes of the AppWorld venv: a fork server, and the processes it forks,
one for each episode and one for each grading.

Nothing here may import the rest of the project: `start.py` loads this folder under a name of its own, so that neither
the repository nor its packages are on the path of a process that executes an agent's code.
"""
