"""A live dashboard in the browser: docs/dashboard.md.

Needs the ``ui`` extra (starlette and uvicorn); ``tdbg ui`` starts it.  The page is
TypeScript in ``frontend/``, built into ``static/``, which is what a wheel has.  The
server answers for what a page shows, in raw typed arrays, and a stream of events says
only that there is something new.
"""

from __future__ import annotations

from tdbg.ui.app import create_app
from tdbg.ui.security import Access
from tdbg.ui.server import Settings, serve

__all__ = ["Access", "Settings", "create_app", "serve"]
