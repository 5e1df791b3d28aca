"""Exceptions of the experience manager. Every message names the file and says what to do."""


class ExperienceError(RuntimeError):
    """Base of everything that the experience manager raises of its own."""


class StoreError(ExperienceError):
    """The store cannot do what was asked; nothing was changed."""


class StoreCorrupt(StoreError):
    """The file is no store, or is damaged. It is left as it is."""


class StoreUnwritable(StoreError):
    """Nothing can be written: the disk is full, the file may not be written to, or the medium fails."""


class StoreBusy(StoreError):
    """Another process kept the store locked for too long."""


class EncoderMismatch(StoreError):
    """The store's vectors are another encoder's, so that nothing can be compared with them."""


class UnknownExperience(StoreError):
    """There is no experience of this id, or more than one begins with it."""
