"""The names of tensors of JAX: paths in pytrees, joined by slashes.

Thread safety: pure functions.
"""

from __future__ import annotations

import functools
from typing import Any

import jax

from tdbg.config.collections import Role

__all__ = ["join", "parameter_role", "path_name"]

# What Flax puts around all parameters of a model, and around each of them in NNX.
_COLLECTION, _VARIABLE = "params", "value"


def path_name(path: Any) -> str:
    """Return the name of a leaf by its path in a pytree.

    Example:
        >>> paths, _ = jax.tree_util.tree_flatten_with_path({"params": {"a": [1.0]}})
        >>> path_name(paths[0][0])
        'a/0'
    """
    parts = list(path)
    if len(parts) > 1 and getattr(parts[-1], "name", "") == _VARIABLE:
        parts.pop()
    name: str = jax.tree_util.keystr(tuple(parts), simple=True, separator="/")
    head, _, rest = name.partition("/")
    return rest if head == _COLLECTION and rest else name


def join(*parts: str) -> str:
    """Join the parts of a path, without those that are empty."""
    return "/".join(part for part in parts if part)


@functools.lru_cache(maxsize=65536)
def parameter_role(name: str) -> Role:
    """Return BIAS where the last key is ``b`` or has the word, else WEIGHT."""
    key = name.rpartition("/")[2]
    return Role.BIAS if key == "b" or "bias" in key else Role.WEIGHT
