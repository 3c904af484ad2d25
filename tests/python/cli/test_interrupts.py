"""The first Ctrl-C asks, the second one interrupts."""

from __future__ import annotations

import gc
import signal
import weakref

import pytest

from tdbg.cli.watch import first_interrupt


def interrupt(_: object = None) -> None:
    signal.raise_signal(signal.SIGINT)


def test_the_first_interrupt_calls_and_the_second_raises() -> None:
    calls: list[int] = []
    with first_interrupt(lambda: calls.append(1)):
        interrupt()
        assert calls == [1]
        with pytest.raises(KeyboardInterrupt):
            interrupt()
    assert calls == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_in_the_callback_of_a_weak_reference_is_not_lost() -> None:
    """Sabotaged, by an exception in the place of the call: Python only reports it."""

    class Gone:
        pass

    calls: list[int] = []
    gone = Gone()
    reference = weakref.ref(gone, interrupt)
    with first_interrupt(lambda: calls.append(1)):
        del gone
        gc.collect()
    assert reference() is None
    assert calls == [1]


def test_what_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        calls: list[int] = []
        with first_interrupt(lambda: calls.append(1)):
            interrupt()
        assert calls == []
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
