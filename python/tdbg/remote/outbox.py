"""What a guest of a run at a URL writes there: an engine of rules, its findings.

A guest makes no run, and carries no requests.  It sends from a folder of its own by a
thread, and waits at its end: what it says can be found out again, so that nothing of it
outlives the process.

Thread safety: none; the thread touches nothing that others do.

Errors: opening raises; after that nothing does.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from pathlib import Path

from tdbg.remote.shipping import ship_seconds
from tdbg.remote.stores import check_url
from tdbg.remote.uploader import Uploader

__all__ = ["Outbox"]

_LOOK_SECONDS = 0.05
# Few records: whoever reads them waits about as long as for a manifest.
SHARD_AGE_SECONDS = 10.0


class Outbox:
    """A run directory of this process: what is written there is sent to a URL.

    Args:
        url: Of a run.

    Attributes:
        url: Of the run.
        path: The directory.
        shard_age: After how many seconds a writer there is to begin a new file.

    Raises:
        ConfigurationError: If the URL is bad, or a library is missing.
        NotARun: If there is no run.
        StorageError: If the store refuses or does not answer.

    Example:
        >>> outbox = Outbox("s3://bucket/run")  # doctest: +SKIP
        >>> write_to(outbox.path)  # doctest: +SKIP
        >>> outbox.close()  # doctest: +SKIP
        ''
    """

    def __init__(self, url: str) -> None:
        self.url = check_url(url)
        self.shard_age = SHARD_AGE_SECONDS
        self.path = Path(tempfile.mkdtemp(prefix="tdbg-outbox-"))
        self._is_written = threading.Event()
        self._is_over = threading.Event()
        try:
            self._uploader = Uploader(
                self.path,
                self.url,
                empties=True,
                is_guest=True,
                is_over=self._is_over.is_set,
            )
            self._uploader.prepare()
        except BaseException:
            shutil.rmtree(self.path, ignore_errors=True)
            raise
        self._is_written.set()
        self._thread = threading.Thread(
            target=self._uploader.run,
            kwargs={"is_needed": self._is_written.is_set},
            name="tdbg-outbox",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> str:
        """Send the rest, when the writers have closed, and remove the directory.

        Waits ``$TDBG_SHIP_SECONDS``, or a minute, unless the store refuses.

        Returns:
            Why not everything is there, or "".
        """
        self._is_written.clear()
        deadline = time.monotonic() + ship_seconds()
        while self._thread.is_alive() and time.monotonic() < deadline:
            if self._uploader.is_refused:
                break
            self._thread.join(_LOOK_SECONDS)
        is_sent = not self._thread.is_alive() and not self._uploader.refused
        self._is_over.set()
        self._thread.join(1.0)
        shutil.rmtree(self.path, ignore_errors=True)
        return "" if is_sent else self._trouble()

    def _trouble(self) -> str:
        refused = list(self._uploader.refused.values())
        error = self._uploader.progress().error
        return next(iter([*refused, error]), "") or f"{self.url} did not answer in time"
