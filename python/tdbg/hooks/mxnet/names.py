"""Names of blocks and parameters: those that Gluon has given them.

Gluon numbers blocks by class for the whole process (``dense0``, ``dense1``), and so do
smdebug's users know them; ``prefix=`` gives a block a name of its own.

Thread safety: the training's thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

from tdbg.capture.naming import UniqueNames

__all__ = ["BlockNames", "parameters_of"]


class BlockNames:
    """The names of all blocks of a hook, each its own, and always the same."""

    def __init__(self) -> None:
        self._unique = UniqueNames()
        self._known: WeakKeyDictionary[Any, str] = WeakKeyDictionary()

    def of(self, block: Any, path: str = "") -> str:
        """Return the name of a block.

        Args:
            block: The block.
            path: Its place in its parent, for a block that has no name (``prefix=""``).
        """
        known = self._known.get(block)
        if known is None:
            name = block.name or path or type(block).__name__.lower()
            known = self._known[block] = self._unique.take(name)
        return known

    def walk(self, root: Any) -> Iterator[tuple[str, Any]]:
        """Yield a block and all blocks inside it, each once, with their names."""
        seen: set[int] = set()
        waiting = [(self.of(root), root)]
        while waiting:
            name, block = waiting.pop()
            if id(block) in seen:
                continue
            seen.add(id(block))
            yield name, block
            children = [
                (self.of(child, f"{name}_{key}"), child)
                for key, child in block._children.items()
            ]
            waiting += reversed(children)


def parameters_of(block: Any) -> Iterator[Any]:
    """Yield the parameters that a block itself has, and not those inside it."""
    yield from block._params._params.values()
