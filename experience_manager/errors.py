"""Exceptions of the experience manager. Every message names the file and says what to do."""


class ExperienceError(RuntimeError):
    """Base of the experience manager's errors."""


class StoreError(ExperienceError):
    """The store refused or failed; nothing was changed."""


class StoreCorrupt(StoreError):
    """The file is no store, or is damaged. It is left as it is."""


class StoreUnwritable(StoreError):
    """The disk is full, or the file cannot be written."""


class StoreBusy(StoreError):
    """Another process kept the store locked for too long."""


class EncoderMismatch(StoreError):
    """The store's vectors are another encoder's."""


class UnknownExperience(StoreError):
    """No experience has this id, or several begin with it."""
