"""``smdebug.mxnet.collection``: collections, to which blocks of Gluon are added.

The names of a block's tensors begin with the block's own name, so a block may be added
before the hook knows it.
"""

from __future__ import annotations

import re

from mxnet.gluon import Block

from tdbg.compat.smdebug.core import collection as core
from tdbg.compat.smdebug.core.collection import CollectionKeys
from tdbg.compat.smdebug.exceptions import SMDebugTypeError

__all__ = ["Collection", "CollectionKeys", "CollectionManager"]


class Collection(core.Collection):
    """A named set of tensors of a training with Gluon."""

    def add_block_tensors(
        self, block: Block, inputs: bool = False, outputs: bool = True
    ) -> None:
        """Add the inputs, the outputs or both of a block.

        Raises:
            SMDebugTypeError: If *block* is no block.
        """
        given: object = block
        if not isinstance(given, Block):
            msg = f"expected a gluon.Block, not {given!r}"
            raise SMDebugTypeError(msg)
        for requested, direction in ((inputs, "input"), (outputs, "output")):
            if requested:
                self.include(rf"^{re.escape(given.name)}_{direction}_\d+$")


class CollectionManager(core.CollectionManager):
    """The collections of a training with Gluon; by default those of every hook."""

    kind = Collection
    _creates_default = True
