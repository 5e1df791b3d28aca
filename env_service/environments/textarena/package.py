"""The package textarena, imported from a folder of its own.

It imports nltk, requests and websockets for word games and online play. The games here do not need nltk, so a stub
module takes its place.
"""

from __future__ import annotations

import importlib
import os
import sys
from functools import cache
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from env_service.own_venv import is_importable, use_site

SETUP = "bash env_service/environments/textarena/setup.sh"
VERSION = "0.7.4"
_SITE = "TEXTARENA_SITE"


class TextarenaNotInstalled(RuntimeError):
    pass


class _NoNltk(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _refuse


def _refuse(*_: Any, **__: Any) -> Any:
    raise TextarenaNotInstalled("nltk is not installed: word games of textarena are not offered here")


def installed() -> bool:
    use_site("textarena", _SITE, "textarena")
    return is_importable("textarena")


@cache
def package() -> Any:
    """Return the module `textarena` (0.25 s the first time); raises TextarenaNotInstalled."""
    use_site("textarena", _SITE, "textarena")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # no thread of numpy's: processes are forked from this one
    stands_in = [name for name in ("nltk", "nltk.corpus") if name not in sys.modules and not is_importable("nltk")]
    for name in stands_in:
        sys.modules[name] = _NoNltk(name)
        sys.modules[name].__spec__ = ModuleSpec(name, None)
    try:
        return importlib.import_module("textarena")
    except ImportError as error:
        raise TextarenaNotInstalled(
            f"the textarena environment could not import `textarena` ({error}). Run `{SETUP}`, or set {_SITE} to a "
            f"site-packages folder that holds textarena {VERSION} and chess."
        ) from error
    finally:
        for name in stands_in:
            del sys.modules[name]


def make(env_id: str) -> Any:
    """Return a new game of the package's registry, without its wrappers; raises TextarenaNotInstalled."""
    return package().make(f"{env_id}-raw")


def wraps_actions(env_id: str) -> bool:
    arena = package()
    spec = arena.envs.registration.ENV_REGISTRY[env_id]
    return arena.wrappers.ActionFormattingWrapper in (spec.default_wrappers or ())
