"""Run a program as a child, so that this process behaves as if it were the program.

Signals are passed on to the child, except those of the terminal, which sends them to
both processes.  If the child is stopped, this process stops; if a signal ends the
child, the same signal ends this process.

Thread safety: ``supervise`` is for the main thread; other threads go on meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NoReturn

__all__ = ["end_like", "holding_signals", "supervise", "was_asked_to_end"]

# From this code on the kernel sent the signal, for a terminal to the child as well.
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
_RECEIVED = {*_PASSED_ON, signal.SIGCHLD}
_ENDS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}


@contextlib.contextmanager
def holding_signals() -> Iterator[set[signal.Signals]]:
    """Block the signals that are passed on, in this thread and those that it starts.

    A thread that was started before would receive the signals.

    Yields:
        The signals that were blocked before.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _RECEIVED)
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

    Args:
        arguments: The program and its arguments.
        environment: The environment of the program.
        held_before: The signals that the program begins with as blocked.

    REQUIRES: ``holding_signals``, which yields *held_before*.

    Returns:
        The status of the program, as ``os.waitpid`` returns it.

    Raises:
        OSError: If the program cannot be started.
    """
    child = os.posix_spawnp(
        arguments[0],
        list(arguments),
        dict(environment),
        setsigmask=list(held_before),
        setsigdef=(),
    )
    while True:
        received = signal.sigwaitinfo(_RECEIVED)
        if received.si_signo == signal.SIGCHLD:
            status = _check(child)
            if status is not None:
                return status
        elif received.si_code < _FROM_KERNEL:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, received.si_signo)


def _check(child: int) -> int | None:
    """Return the status of a child that has ended; stop with one that was stopped."""
    pid, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
    if pid == 0:
        return None
    if os.WIFSTOPPED(status):
        os.kill(os.getpid(), signal.SIGSTOP)
        # This process was continued; continue the child, if nobody else has.
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGCONT)
        return None
    return status


def was_asked_to_end() -> bool:
    """Whether a blocked signal asks this process to end.

    REQUIRES: ``holding_signals``.
    """
    return signal.sigtimedwait(_ENDS, 0) is not None


def end_like(status: int) -> NoReturn:
    """End this process as the child ended, by exit code or signal."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        # The child has dumped its core; this process need not.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    raise SystemExit(os.waitstatus_to_exitcode(status))
