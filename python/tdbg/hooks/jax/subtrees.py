"""The part of a pytree that has the structure and the shapes of another one.

Thread safety: pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

__all__ = ["Form", "find_subtree", "form_of", "subtree_at"]


class Form(NamedTuple):
    """A structure by which pytrees of the same arrays are recognized later."""

    structure: Any
    shapes: tuple[tuple[int, ...], ...]

    @property
    def is_container(self) -> bool:
        """Whether the structure has arrays, and is more than one array."""
        return bool(self.shapes) and not jax.tree_util.treedef_is_leaf(self.structure)


def form_of(tree: Any) -> Form:
    """Return the form of a pytree of arrays, or of tracers."""
    leaves, structure = jax.tree_util.tree_flatten(tree)
    return Form(structure, tuple(tuple(np.shape(leaf)) for leaf in leaves))


def find_subtree(tree: Any, form: Form) -> tuple[int, ...] | None:
    """Return the way to the first subtree of a form, outermost first; None: none is.

    Example:
        >>> params = {"w": np.ones((2, 3)), "b": np.ones(3)}
        >>> find_subtree((np.ones(4), [params, 1.0]), form_of(params))
        (1, 0)
    """
    level: list[tuple[tuple[int, ...], Any]] = [((), tree)]
    while level:
        below: list[tuple[tuple[int, ...], Any]] = []
        for way, node in level:
            if form_of(node) == form:
                return way
            children = _children(node)
            if len(children) != 1 or children[0] is not node:
                below += [((*way, i), each) for i, each in enumerate(children)]
        level = below
    return None


def subtree_at(tree: Any, way: Sequence[int]) -> Any:
    """Return the subtree at the end of a way of ``find_subtree``."""
    for index in way:
        tree = _children(tree)[index]
    return tree


def _children(node: Any) -> list[Any]:
    return list(jax.tree_util.tree_leaves(node, is_leaf=lambda each: each is not node))
