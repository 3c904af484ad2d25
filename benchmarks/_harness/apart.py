"""Contenders in processes of their own, that take turns all the same.

What is hung on a process (a hook on all optimizers, a compiler's caches) would cost
every contender in it.  Here each has a process, which works only while it is asked:

    with apart({"plain": (Training, ()), "watched": (Training, ("watch",))}) as runs:
        samples = interleave(runs, baseline="plain", rounds=100)
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any

from benchmarks._harness.verify import WrongAnswer

__all__ = ["Maker", "apart"]

#: What makes a contender, called in its process, and the arguments: it returns what is
#: called for each run, and what is called at the end.
Maker = tuple[
    Callable[..., tuple[Callable[[], Any], Callable[[], None]]], tuple[Any, ...]
]

_RUN, _END = "run", "end"


@contextlib.contextmanager
def apart(makers: Mapping[str, Maker]) -> Iterator[dict[str, Callable[[], Any]]]:
    """Start a process for each contender; one starts when the one before is ready.

    At the end, unless something failed, each is ended in turn.

    Args:
        makers: By name; importable functions and arguments that can be pickled.

    Yields:
        By name, what runs the contender once and answers what it answers.

    Raises:
        WrongAnswer: If a process failed, with what it said.
    """
    context = multiprocessing.get_context("spawn")
    processes, runs, ends = [], {}, []
    try:
        for name, (make, arguments) in makers.items():
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(theirs, make, arguments), daemon=True
            )
            process.start()
            processes.append(process)
            theirs.close()
            _answer(name, ours)
            runs[name] = _asking(name, ours, _RUN)
            ends.append(_asking(name, ours, _END))
        yield runs
        for end in ends:
            end()
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _asking(name: str, connection: Connection, what: str) -> Callable[[], Any]:
    def ask() -> Any:
        connection.send(what)
        return _answer(name, connection)

    return ask


def _answer(name: str, connection: Connection) -> Any:
    try:
        has_failed, answer = connection.recv()
    except EOFError:
        has_failed, answer = True, "ended"
    if has_failed:
        msg = f"{name}: {answer}"
        raise WrongAnswer(msg)
    return answer


def _serve(connection: Connection, make: Any, arguments: tuple[Any, ...]) -> None:
    """In the process of a contender."""
    try:
        run, end = make(*arguments)
        connection.send((False, None))
        while connection.recv() == _RUN:
            connection.send((False, run()))
        end()
        connection.send((False, None))
    except BaseException as error:
        connection.send((True, f"{type(error).__name__}: {error}"))
        raise
