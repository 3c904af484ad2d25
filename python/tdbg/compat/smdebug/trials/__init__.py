"""``smdebug.trials``: reading runs."""

from __future__ import annotations

from tdbg.compat.smdebug.trials.s3_trial import S3Trial
from tdbg.compat.smdebug.trials.trial import LocalTrial, Trial
from tdbg.compat.smdebug.trials.utils import create_trial

__all__ = ["LocalTrial", "S3Trial", "Trial", "create_trial"]
