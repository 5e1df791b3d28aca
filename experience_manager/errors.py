"""Exceptions of the experience manager. Every message names the file and says what to do."""


class ExperienceError(RuntimeError):
    pass


class StoreError(ExperienceError):
    """The store refused or failed; nothing was changed."""


class StoreCorrupt(StoreError):
    """The file is damaged, or not a store. It is left as it is."""


class StoreUnwritable(StoreError):
    pass


class StoreBusy(StoreError):
    """Another process kept the store locked for too long."""


class EncoderMismatch(StoreError):
    """The stored vectors come from another encoder."""


class UnknownExperience(StoreError):
    """No experience has this id, or several ids begin with it."""
