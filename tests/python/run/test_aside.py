"""A function that may never return is called aside, and waited for only so long."""

from __future__ import annotations

import gc
import threading

import pytest

from tdbg.run.aside import Aside, Unanswered, call_aside

LONG = 60.0


def names() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def test_it_returns_and_raises_what_the_function_does() -> None:
    aside = Aside("tdbg-test")
    assert aside.call(threading.get_ident, LONG) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        aside.call(lambda: 1 // 0, LONG)
    assert aside.call(lambda: 2, LONG) == 2
    assert names().count("tdbg-test") == 1
    aside.close()
    assert call_aside(lambda: 3, LONG) == 3


def test_what_does_not_return_is_waited_for_once_and_its_answer_is_not_lost() -> None:
    aside, go = Aside("tdbg-test"), threading.Event()
    calls = []

    def slow() -> str:
        go.wait(LONG)
        return "late"

    with pytest.raises(Unanswered):
        aside.call(slow, 0.01)
    with pytest.raises(Unanswered):  # At once, or this would take a minute.
        aside.call(lambda: calls.append(1), LONG)
    go.set()
    answer = None
    while answer is None:
        try:
            answer = aside.call(lambda: calls.append(1), LONG)
        except Unanswered:
            continue
    assert answer == "late"
    assert calls == [], "that was asked while the one before was not answered"
    aside.close()


def test_the_thread_ends_with_the_object_also_after_an_error() -> None:
    class Owner:
        def __init__(self) -> None:
            self.aside = Aside("tdbg-owned")

        def ask(self) -> None:
            with pytest.raises(OSError, match="no"):
                self.aside.call(self._fail, LONG)

        def _fail(self) -> None:
            msg = "no"
            raise OSError(msg)

    gc.disable()
    try:
        owner = Owner()
        owner.ask()
        (thread,) = (t for t in threading.enumerate() if t.name == "tdbg-owned")
        del owner
        thread.join(LONG)
        assert not thread.is_alive()
    finally:
        gc.enable()


def test_where_no_thread_can_begin_the_function_is_called_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        msg = "can't create new thread at interpreter shutdown"
        raise RuntimeError(msg)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert call_aside(threading.get_ident, LONG) == threading.get_ident()
