"""What a stage found, written as it is found: a stage that is killed leaves it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["Result"]


class Result:
    """Figures of a stage, and the lines of the table.

    Args:
        path: The JSON file, written anew after every addition.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._data: dict[str, Any] = {}
        self._lines: list[list[str]] = []

    def add(self, name: str, value: Any) -> None:
        """A figure, in basic units."""
        self._data[name] = value
        self._write()

    def line(
        self, what: str, value: str, target: str = "", met: bool | None = None
    ) -> None:
        """A line of the table.

        Args:
            what: Was measured.
            value: With its unit.
            target: What it should be; empty: nothing was promised.
            met: Whether it is; None where there is no target.
        """
        verdict = "" if met is None else "met" if met else "missed"
        print(f"  {what}: {value} {target} {verdict}".rstrip(), flush=True)
        self._lines.append([what, value, target, verdict])
        self._write()

    def _write(self) -> None:
        document = {"data": self._data, "lines": self._lines}
        beside = self._path.with_suffix(".new")
        beside.write_text(json.dumps(document, indent=1), encoding="utf-8")
        beside.replace(self._path)
