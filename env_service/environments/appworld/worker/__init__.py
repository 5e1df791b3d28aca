"""Processes of the AppWorld venv: a fork server, and a process for each episode and each grading.

Nothing here may import the rest of the project: no repository is on the path of a process that executes an agent's
code.
"""
