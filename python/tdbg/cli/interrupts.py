"""What Ctrl-C does while a verb follows a run.

Thread safety: the main thread, in which Python handles signals.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["first_interrupt"]


@contextmanager
def first_interrupt(call: Callable[[], None]) -> Iterator[None]:
    """Make the first Ctrl-C call *call*, and raise nothing; a second one raises.

    ``KeyboardInterrupt`` comes out of whatever is running: half of a poll, or the
    callback of a weak reference, where Python reports it and goes on.

    Args:
        call: May be called between any two instructions of the main thread, so it
            must take no lock.
    """
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    if not is_main or before is not signal.default_int_handler:
        yield  # Somebody else handles it, or nobody is to.
        return

    def interrupted(_: int, __: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        call()

    signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
