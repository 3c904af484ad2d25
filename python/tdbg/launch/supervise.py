"""Runs a program as a child that behaves as if it were in our place.

Signals that come from anybody but the terminal, which sends them to both, are passed
on; a child that is stopped stops us, and one that dies of a signal has us die of it.

Thread safety: ``supervise`` is for the main thread; other threads go on beside it.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NoReturn

__all__ = ["end_like", "holding_signals", "supervise"]

# Sent by the kernel: the terminal sends them to the child as well.
_FROM_KERNEL = 0x80
_PASSED_ON = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
    signal.SIGWINCH,
)
_HEARD = {*_PASSED_ON, signal.SIGCHLD}


@contextlib.contextmanager
def holding_signals() -> Iterator[set[signal.Signals]]:
    """Hold back what is to be passed on, in this thread and those that it begins.

    Threads that were begun before would get the signals in our place.

    Yields:
        Which signals were held back before.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    try:
        yield {signal.Signals(number) for number in before}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def supervise(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    held_before: Iterable[signal.Signals],
) -> int:
    """Run a program until it ends.

    REQUIRES: ``holding_signals``, which says what was held before.

    Returns:
        Its status, as ``os.waitpid`` gives it.

    Raises:
        OSError: If it cannot be started.
    """
    child = os.posix_spawnp(
        arguments[0],
        list(arguments),
        dict(environment),
        setsigmask=list(held_before),
        setsigdef=(),
    )
    while True:
        told = signal.sigwaitinfo(_HEARD)
        if told.si_signo == signal.SIGCHLD:
            status = _look_at(child)
            if status is not None:
                return status
        elif told.si_code < _FROM_KERNEL:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, told.si_signo)


def _look_at(child: int) -> int | None:
    """The status of a child that has ended; one that was stopped stops us."""
    pid, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
    if pid == 0:
        return None
    if os.WIFSTOPPED(status):
        os.kill(os.getpid(), signal.SIGSTOP)
        # Continued: so is the child, if nobody else has done it.
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGCONT)
        return None
    return status


def end_like(status: int) -> NoReturn:
    """End this process as the child ended, by exit code or signal."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        # One core is enough.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    raise SystemExit(os.waitstatus_to_exitcode(status))
