"""``smdebug.analysis.utils``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tdbg.compat.smdebug.exceptions import SMDebugValueError
from tdbg.compat.smdebug.trials.trial import Trial

__all__ = ["no_refresh", "parse_bool", "parse_list_from_str", "refresh"]


@contextlib.contextmanager
def no_refresh(trials: Trial | list[Trial]) -> Iterator[Any]:
    """Within the block, trials do not read what is new."""
    with _refreshing(trials, False):
        yield trials


@contextlib.contextmanager
def refresh(trials: Trial | list[Trial]) -> Iterator[Any]:
    """Within the block, trials read what is new, even inside ``no_refresh``."""
    with _refreshing(trials, True):
        yield trials


def parse_list_from_str(arg: str | list[str] | None, delimiter: str = ",") -> list[str]:
    """Split a text at its commas; a list is returned as it is, None as an empty one."""
    if arg is None or arg == "":
        return []
    return arg.split(delimiter) if isinstance(arg, str) else list(arg)


def parse_bool(arg: object, default: bool) -> bool:
    """Parse a bool, or the text of one; returns *default* for None.

    Raises:
        SMDebugValueError: If *arg* is none of these.
    """
    if arg is None:
        return default
    if isinstance(arg, bool):
        return arg
    if arg in {"True", "true"}:
        return True
    if arg in {"False", "false"}:
        return False
    msg = f"expected True or False, not {arg!r}"
    raise SMDebugValueError(msg)


@contextlib.contextmanager
def _refreshing(trials: Trial | list[Trial], value: bool) -> Iterator[None]:
    every = [trials] if isinstance(trials, Trial) else list(trials)
    before = [trial.dynamic_refresh for trial in every]
    try:
        for trial in every:
            trial.dynamic_refresh = value
        yield
    finally:
        for trial, was in zip(every, before, strict=True):
            trial.dynamic_refresh = was
