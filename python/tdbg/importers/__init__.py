"""What other tools wrote, as runs.

``local_run`` is what everything that opens a run asks first.
"""

from __future__ import annotations

from tdbg.importers.cache import is_cached
from tdbg.importers.opening import is_converted, local_run, trouble_of, wait_for_run

__all__ = ["is_cached", "is_converted", "local_run", "trouble_of", "wait_for_run"]
