"""Rows of the table of runs, by name, with all of their settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tdbg.ui.rows import list_runs, tell_runs
from tdbg.ui.runs import Runs

__all__ = ["listed", "told"]

Rows = dict[str, dict[str, Any]]


def listed(runs: Runs) -> Rows:
    """What is known of every run at once."""
    return _by_name([list_runs(runs)])


def told(runs: Runs, *ids: str) -> Rows:
    """What is told of some runs, or of every one."""
    return _by_name(tell_runs(runs, ids or list(runs.found())))


def _by_name(parts: Iterable[Mapping[str, Any]]) -> Rows:
    return {
        row["name"]: _whole(row, part["common"])
        for part in parts
        for row in part["runs"]
    }


def _whole(row: dict[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    if "record" not in row:
        return row
    settings = {**common, **row["record"]["settings"]}
    return {**row, "record": {**row["record"], "settings": settings}}
