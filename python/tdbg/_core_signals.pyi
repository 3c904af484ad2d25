"""The part of ``tdbg._core`` whose threads send signals to their own process.

No module of its own: cpp/bindings/bind_signals.cc.
"""

from __future__ import annotations

from tdbg._core_steps import StepClock

class DumpListener:
    """Answers questions where this process is; docs/format.md, "Stacks"."""

    def __init__(
        self,
        folder: str,
        name: str,
        identity: str,
        signal: int,
        dump_fd: int,
        interval: float = 1.0,
        clock: StepClock | None = None,
    ) -> None: ...
    @property
    def n_answered(self) -> int: ...

class SignalTimer:
    """Sends a signal to the main thread at an interval in seconds."""

    def __init__(self, signal: int, interval: float) -> None: ...
    def handled(self) -> None:
        """Say in the handler that it runs; no signal is sent before."""
    @property
    def n_sent(self) -> int: ...
    @property
    def is_taken(self) -> bool:
        """Whether somebody else handles the signal now, so that none is sent."""

def is_signal_free(signal: int) -> bool:
    """Whether a signal has its default action: nobody handles or ignores it."""
