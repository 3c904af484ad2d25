"""The part of ``tdbg._core`` that samples the machine.

No module of its own: cpp/bindings/bind_system_sampler.cc.
"""

from __future__ import annotations

from tdbg._core import Capture

class SystemSampler:
    """Samples the machine into a run, unless another process of the node does.

    Its threads know nothing of Python.  Rows are tables ``profile/<table>`` of
    tdbg.run.profile_tables, events are those of docs/profiler-system.md.
    """

    def __init__(
        self,
        capture: Capture,
        interval: float,
        node_file: str = "",
        nvml_library: str = "libnvidia-ml.so.1",
    ) -> None:
        """Start; *interval* is in seconds, and *node_file* what a node's processes
        share ("": nothing, and this process samples).

        tdbg.errors.ConfigurationError for an interval below 0.05 s or a file of
        another user, tdbg.errors.StorageError if the system refuses.
        """

    def add_process(self, pid: int, rank: int, kind: int, worker: int = -1) -> bool:
        """Follow a process until it ends; False if there is none."""

    def set_interval(self, interval: float) -> None:
        """Sample at another interval from now on, in seconds; as the constructor's."""

    def close(self, timeout: float = 1.0) -> None:
        """Take a last sample and end the threads."""

    @property
    def is_sampling(self) -> bool:
        """Whether this process is the one that samples."""

    @property
    def cpu_ns(self) -> int:
        """Processor time of the threads so far."""

    @property
    def n_samples(self) -> int:
        """Samples so far, of the host, the processes and the GPUs, all counted."""

def sampled_columns() -> dict[str, str]:
    """The columns that the core writes, by table; ``core`` as of four cores."""
