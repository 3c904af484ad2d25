"""``smdebug.trials.local_trial``."""

from __future__ import annotations

from tdbg.compat.smdebug.trials.trial import LocalTrial

__all__ = ["LocalTrial"]
