"""``smdebug.mxnet.hook``: a hook of Gluon with smdebug's arguments and modes.

docs/migrating-from-smdebug.md lists the differences.
"""

from __future__ import annotations

from typing import Any

from tdbg.compat.smdebug.core.base import del_hook, set_hook
from tdbg.compat.smdebug.core.framework_hook import SmdebugHook, SmdebugNames, getter
from tdbg.compat.smdebug.mxnet.collection import CollectionManager
from tdbg.hooks.mxnet.hook import Hook as GluonHook

__all__ = ["DEFAULT_INCLUDE_COLLECTIONS", "Hook", "del_hook", "get_hook", "set_hook"]

DEFAULT_INCLUDE_COLLECTIONS = [*SmdebugHook._by_default]


class Hook(SmdebugHook, GluonHook):
    """Captures a training; by default only its losses, every 500 steps.

    Its arguments are those of ``SmdebugHook``.
    """

    _make_manager = CollectionManager
    _make_names = SmdebugNames

    def register_hook(self, block: Any) -> None:
        """Call ``register_block``, by the name that other frameworks' hooks have."""
        self.register_block(block)


get_hook = getter(Hook)
