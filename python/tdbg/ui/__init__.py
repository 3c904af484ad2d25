"""A live dashboard in the browser: docs/dashboard.md.

Needs the ``ui`` extra (starlette and uvicorn); ``tdbg ui`` starts it.  The page is
TypeScript in ``frontend/``, built into ``static/``, which is what a wheel has.  The
server answers for what a page shows, in raw typed arrays, and a stream of events says
only that there is something new.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tdbg.ui.app import create_app
    from tdbg.ui.security import Access
    from tdbg.ui.server import Settings, serve

__all__ = ["Access", "Settings", "create_app", "serve"]

# Imported on first use: a process that reads rows for a server needs no server.
_MODULES = {
    "Access": "tdbg.ui.security",
    "Settings": "tdbg.ui.server",
    "create_app": "tdbg.ui.app",
    "serve": "tdbg.ui.server",
}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
