"""The bar that shows how far a verb is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import Progress

from tdbg.cli.output import console

__all__ = ["progress_bar"]


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show on a terminal how much is done, of a total (0: it is unknown)."""
    out = console(stderr=True)
    with Progress(console=out, transient=True, disable=not out.is_terminal) as bar:
        task = bar.add_task(what, total=None)

        def update(done: int, total: int) -> None:
            told = what if total else f"{what}, {done:,}"
            bar.update(task, completed=done, total=total or None, description=told)

        yield update
