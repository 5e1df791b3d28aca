"""What the page is told when something cannot be shown. Each error has a status of HTTP and one line."""


class ViewError(RuntimeError):
    """Base of everything that the package raises of its own."""

    status = 500


class NotAnExperiment(ViewError):
    """The folder holds no run."""

    status = 404


class NotThere(ViewError):
    """What was asked for does not exist (yet)."""

    status = 404


class BadRequest(ViewError):
    """What was asked for makes no sense."""

    status = 400


class Unreadable(ViewError):
    """A file of the run cannot be read."""

    status = 503
