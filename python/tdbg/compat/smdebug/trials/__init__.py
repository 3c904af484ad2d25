"""``smdebug.trials``: reading runs."""

from __future__ import annotations

from tdbg.compat.smdebug.trials.trial import LocalTrial, S3Trial, Trial, create_trial

__all__ = ["LocalTrial", "S3Trial", "Trial", "create_trial"]
