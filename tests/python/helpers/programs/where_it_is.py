"""A rank that can be asked where it is: ``where_it_is.py RUN RANK WHAT``."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

from tdbg.profiler.stacks import StackAnswers, StackSite


def sleep() -> None:
    time.sleep(600)


def hold_the_lock() -> None:
    """Hang in C and never give the interpreter's lock back."""
    library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    os.write(1, b"ready\n")
    library.pthread_mutex_lock(mutex)


def wait_for_the_lock() -> None:
    """Let another thread hold it."""
    threading.Thread(target=hold_the_lock).start()
    while True:
        pass


def take_the_signals() -> None:
    for number in range(signal.SIGRTMIN + 11, signal.SIGRTMIN + 15):
        signal.signal(number, lambda *_: None)
    os.write(1, b"ready\n")
    sleep()


def close_all_files() -> None:
    os.closerange(3, 256)
    os.open("/dev/null", os.O_RDONLY)
    os.write(1, b"ready\n")
    sleep()


def answer_in_a_child() -> None:
    """A child answers for itself, one does not, and the parent still does."""
    for is_worker in (True, False):
        if os.fork() == 0:
            child = StackSite(sys.argv[1], 0, "worker", 1, 0, os.getppid())
            kept = StackAnswers(child, 0.02) if is_worker else None
            os.write(1, b"ready\n")
            sleep()
            del kept
    os.write(1, b"ready\n")
    sleep()


if __name__ == "__main__":
    run, rank, what = sys.argv[1:]
    answers = StackAnswers(StackSite(run, int(rank)), 0.02)
    if what == "sleep":
        os.write(1, b"ready\n")
    if what == "end":
        os.write(1, b"ready\n")
        sys.stdin.read()
        answers.close()
    else:
        globals()[what]()
