"""Settings that tests share, and settings whose constants (ClassVars of the model) have other values."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel

Model = TypeVar("Model", bound=BaseModel)
ENDPOINT = ("llm.base_url=http://127.0.0.1:9/v1", "llm.model=m", "llm.api_key_env=null")
"""A language model for configurations whose roles are not called: the default is a recipe's stand-in."""


def settings_with(model: type[Model], /, **values: object) -> Model:
    """Return settings of a model from fields and constants alike."""
    constants = {name: value for name, value in values.items() if name in model.__class_vars__}
    kind: type[Model] = type(model.__name__, (model,), {"__module__": __name__, **constants})
    return kind(**{name: value for name, value in values.items() if name not in constants})
