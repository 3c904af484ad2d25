"""``smdebug.trials.s3_trial``."""

from __future__ import annotations

from typing import Any

from tdbg.compat.smdebug.exceptions import SMDebugNotImplementedError
from tdbg.compat.smdebug.trials.trial import Trial

__all__ = ["S3Trial"]


class S3Trial(Trial):
    """A run on S3: not yet.

    Raises:
        SMDebugNotImplementedError: Always.
    """

    def __init__(
        self, name: str | None, bucket_name: str, prefix_name: str, **_: Any
    ) -> None:
        del name
        msg = (
            f"s3://{bucket_name}/{prefix_name}: only local runs can be read; copy it, "
            "for example with `aws s3 sync`"
        )
        raise SMDebugNotImplementedError(msg)
