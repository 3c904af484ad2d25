"""``smdebug.trials.utils``."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from tdbg.compat.smdebug.core.singleton_utils import current_hook
from tdbg.compat.smdebug.exceptions import SMDebugNotImplementedError
from tdbg.compat.smdebug.trials.s3_trial import S3Trial
from tdbg.compat.smdebug.trials.trial import LocalTrial, Trial
from tdbg.errors import TdbgError

__all__ = ["create_trial"]


def create_trial(
    path: str | os.PathLike[str],
    name: str | None = None,
    profiler: bool = False,
    output_dir: str = "",
    **kwargs: Any,
) -> Trial:
    """Open the run at *path*, finished or not.

    Args:
        path: Directory of the run.
        name: What to call the trial; the directory's name by default.
        profiler: Not supported.
        output_dir: Accepted; it belongs to the profiler.
        **kwargs: ``range_steps``: global steps to look at, the first and the one
            after the last. ``wait``: seconds to wait for the run to come into being.
            ``check``, ``index_mode``, ``cache`` and ``parallel`` are accepted.

    Raises:
        MissingCollectionFiles: If there is no run; it is not waited for, unless
            *wait* says so.
        SMDebugNotImplementedError: If it is on S3, or the profiler's.
        StorageError: If it cannot be read.
        ConfigurationError: If an argument can never work.
    """
    del output_dir
    _flush_own(path)
    text = os.fspath(path).strip()
    if profiler:
        msg = "tdbg reads no profiler data of smdebug's form"
        raise SMDebugNotImplementedError(msg)
    scheme, _, rest = text.partition("://")
    if rest and scheme == "s3":
        bucket, _, prefix = rest.partition("/")
        return S3Trial(name, bucket, prefix, **kwargs)
    return LocalTrial(name, text, **kwargs)


def _flush_own(path: str | os.PathLike[str]) -> None:
    """Let a program see what its own hook has recorded, as smdebug's files did."""
    hook = current_hook()
    given = Path(os.fspath(path).strip()).expanduser()
    if hook is not None and Path(hook.out_dir).absolute() == given.absolute():
        with contextlib.suppress(TdbgError):
            hook.flush(timeout=5.0)
