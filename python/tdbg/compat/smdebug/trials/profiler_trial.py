"""``smdebug.trials.profiler_trial``: a profile as rules of smdebug read it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from tdbg.compat.smdebug.core.base import get_logger
from tdbg.compat.smdebug.exceptions import NoMoreProfilerData
from tdbg.compat.smdebug.profiler.readers import (
    LocalAlgorithmMetricsReader,
    LocalSystemMetricsReader,
)
from tdbg.compat.smdebug.profiler.runs import has_ended

__all__ = ["ProfilerTrial"]

_PERIOD = 1.0


class ProfilerTrial:
    """Reads a profile by time: of smdebug's profiler, or of a run of tdbg.

    Times are microseconds since the epoch.

    Args:
        name: What to call it.
        trial_dir: A directory as for ``LocalSystemMetricsReader``.
        output_dir: Where a rule writes; made when it is given.

    Raises:
        MissingCollectionFiles: If there is no profile.
        SMDebugNotImplementedError: If it is on S3.
    """

    def __init__(
        self,
        name: str,
        trial_dir: str | os.PathLike[str],
        output_dir: str | os.PathLike[str] = "",
    ) -> None:
        self.name = name
        self.path = str(trial_dir)
        self.output_dir = str(output_dir)
        self.system_metrics_reader = LocalSystemMetricsReader(trial_dir)
        self.framework_metrics_reader = LocalAlgorithmMetricsReader(trial_dir)
        self.first_timestamp = self.get_first_timestamp()
        if self.output_dir:
            Path(output_dir).mkdir(parents=True, exist_ok=True)

    def job_finished(self) -> bool:
        """Return whether the training has ended; a profile of smdebug has."""
        return has_ended(self.path)

    def get_first_timestamp(self) -> int:
        """Return when the profile begins; 0: there is nothing in it."""
        return min(self._times("get_timestamp_of_first_available_file"), default=0)

    def get_latest_timestamp(self) -> int:
        """Return up to when both sides of the profile are there; 0: nothing is."""
        return min(self._times("get_timestamp_of_latest_available_file"), default=0)

    def _times(self, method: str) -> list[int]:
        readers = (self.system_metrics_reader, self.framework_metrics_reader)
        for reader in readers:
            reader.refresh_event_file_list()
        return [at for reader in readers if (at := getattr(reader, method)())]

    def wait_for_data(self, end_time: float, start_time: float) -> None:
        """Wait until the profile reaches a time, or the training has ended.

        Raises:
            NoMoreProfilerData: If it ended before *start_time*.
        """
        while (latest := self.get_latest_timestamp()) < end_time:
            if self.job_finished():
                if start_time >= latest:
                    raise NoMoreProfilerData(end_time)
                return
            get_logger().info("waiting for %s; the profile is at %s", end_time, latest)
            time.sleep(_PERIOD)

    def get_system_metrics(self, start_time: float, end_time: float) -> list[Any]:
        """Return the metrics of the system between two times."""
        return self.system_metrics_reader.get_events(start_time, end_time)

    def get_framework_metrics(self, start_time: float, end_time: float) -> list[Any]:
        """Return the events of the training between two times."""
        return self.framework_metrics_reader.get_events(start_time, end_time)
