"""``smdebug.profiler.analysis.notebook_utils.training_job``: a job on this machine."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, TypeVar

from tdbg.compat.smdebug.exceptions import (
    NoMoreProfilerData,
    SMDebugNotImplementedError,
    SMDebugValueError,
)
from tdbg.compat.smdebug.profiler.readers import (
    LocalAlgorithmMetricsReader,
    LocalSystemMetricsReader,
    MetricsReaderBase,
    is_profile,
)
from tdbg.compat.smdebug.profiler.runs import has_ended, status_of
from tdbg.compat.smdebug.profiler.utils import (
    local_path_of,
    us_since_epoch_to_human_readable_time,
)

_PERIOD = 1.0
_STATUSES = {
    "running": "InProgress",
    "stalled": "InProgress",
    "closed": "Completed",
    "dead": "Failed",
}
_Reader = TypeVar("_Reader", bound=MetricsReaderBase)


class TrainingJob:
    """A training whose profile is on this machine.

    Args:
        training_job_name: Its directory: a run of tdbg, or what smdebug's profiler
            wrote.
        region: Accepted; there is none.

    Raises:
        SMDebugNotImplementedError: If it is on S3.
        SMDebugValueError: If it is the name of a job of SageMaker: no such directory.
    """

    def __init__(
        self, training_job_name: str | os.PathLike[str], region: str | None = None
    ) -> None:
        del region
        self.name = str(training_job_name)
        self._path = local_path_of(training_job_name)
        if not self._path.is_dir():
            msg = (
                f"{self.name!r} is no directory: tdbg asks no SageMaker; "
                "give the directory of a run, or a copy of the job's profiler-output"
            )
            raise SMDebugValueError(msg)
        self.profiler_config: Any = None
        self.profiler_s3_output_path = None
        self.system_metrics_reader: LocalSystemMetricsReader | None = None
        self.framework_metrics_reader: LocalAlgorithmMetricsReader | None = None

    def get_systems_metrics_reader(self) -> LocalSystemMetricsReader | None:
        """Return the reader of metrics of the system; None until they are there."""
        return self.system_metrics_reader

    def get_framework_metrics_reader(self) -> LocalAlgorithmMetricsReader | None:
        """Return the reader of events of the training; None until they are there."""
        return self.framework_metrics_reader

    def get_sm_client(self) -> Any:
        """Fail: there is no SageMaker.

        Raises:
            SMDebugNotImplementedError: Always.
        """
        msg = "tdbg talks to no SageMaker; use boto3"
        raise SMDebugNotImplementedError(msg)

    def wait_for_sys_profiling_data_to_be_available(
        self, timeout: float | None = None
    ) -> None:
        """Wait until there are metrics of the system.

        Args:
            timeout: Seconds; None: for as long as the training of a run lives.

        Raises:
            NoMoreProfilerData: If there are none by then.
        """
        reader = self._wait(LocalSystemMetricsReader, "system", timeout)
        self.system_metrics_reader = reader

    def wait_for_framework_profiling_data_to_be_available(
        self, timeout: float | None = None
    ) -> None:
        """Wait until there are events of the training.

        Args:
            timeout: Seconds; None: for as long as the training of a run lives.

        Raises:
            NoMoreProfilerData: If there are none by then.
        """
        reader = self._wait(LocalAlgorithmMetricsReader, "framework", timeout)
        self.framework_metrics_reader = reader
        at = reader.get_timestamp_of_latest_available_file()
        _say(f"The newest event is of {us_since_epoch_to_human_readable_time(at)} UTC")

    def _wait(self, kind: type[_Reader], what: str, timeout: float | None) -> _Reader:
        end = None if timeout is None else time.monotonic() + timeout
        is_told = False
        while True:
            # Asked first: what it wrote before it ended is there in any case.
            is_over = end is None and has_ended(self._path)
            if is_profile(self._path):
                reader: _Reader = kind(self._path)  # type: ignore[call-arg]
                if reader.get_timestamp_of_latest_available_file():
                    _say(f"Profiler data from {what} is available")
                    return reader
            is_late = end is not None and time.monotonic() > end
            if is_over or is_late:
                raise NoMoreProfilerData(time.time())
            if not is_told:
                is_told = True
                _say(f"Profiler data from {what} is not available yet")
            time.sleep(_PERIOD)

    def describe_training_job(self) -> dict[str, str]:
        """Return the name and the status of the training, as SageMaker calls them."""
        status = status_of(self._path)
        return {
            "TrainingJobName": self._path.absolute().name,
            "TrainingJobStatus": _STATUSES.get(status, "Unknown"),
            "SecondaryStatus": status,
        }


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
