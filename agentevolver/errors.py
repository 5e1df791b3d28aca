"""Errors that end a run with one line."""


class TrainingFailed(RuntimeError):
    """The trainer ended with an error; the message is its cause and says where the rest is written."""
