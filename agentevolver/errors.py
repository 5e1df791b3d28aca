"""Errors that end a run with one line."""


class TrainingFailed(RuntimeError):
    """The trainer ended with an error; the message is its cause and says where the rest is written."""


def last_line(error: BaseException) -> str:
    """Return the last line of an error's text that is not empty, its type's name if there is none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
