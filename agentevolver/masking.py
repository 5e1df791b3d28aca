"""Values that may not be shown or written down, told by their key."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

_SECRET_KEY = re.compile(r"(^|[_.])(api_key|secret|password|token)$")


def is_secret(key: Any) -> bool:
    """Whether what stands under a key is a secret."""
    return isinstance(key, str) and bool(_SECRET_KEY.search(key))


def masked_tree(tree: Any) -> Any:
    """Return nested mappings and lists in which secrets read `***`; references to environment variables stay."""
    if isinstance(tree, Mapping):
        return {key: "***" if _hidden(key, value) else masked_tree(value) for key, value in tree.items()}
    return [masked_tree(item) for item in tree] if isinstance(tree, Iterable) and not isinstance(tree, str) else tree


def _hidden(key: Any, value: Any) -> bool:
    return is_secret(key) and isinstance(value, str) and "${" not in value
