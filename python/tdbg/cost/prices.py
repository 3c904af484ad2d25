"""Prices of machines, from a file of the user's: docs/cost.md, "Prices".

Thread safety: pure functions.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tdbg.errors import ConfigurationError, StorageError

__all__ = ["COLUMNS", "Instance", "Pricing", "read_prices"]

GIB = float(1 << 30)
#: The columns of a file, and whether a row may leave one empty.
COLUMNS: Mapping[str, bool] = {
    "name": False,
    "price_per_hour": False,
    "gpus": False,
    "gpu": True,
    "gpu_memory": True,
    "cpus": False,
    "memory": False,
    "network_gbps": True,
    "relative_speed": True,
}


@dataclass(frozen=True, slots=True)
class Instance:
    """A kind of machine that can be hired.

    Attributes:
        name: What it is called.
        price_per_hour: Of one.
        gpus: How many it has.
        gpu: Their kind; "": it has none.
        gpu_memory: GiB of each; None: not said.
        cpus: Cores.
        memory: GiB.
        network_gbps: Gigabits a second; None: not said.
        relative_speed: Of one of its GPUs, in any unit that all rows share; None: not
            said.
    """

    name: str
    price_per_hour: float
    gpus: int
    gpu: str
    gpu_memory: float | None
    cpus: float
    memory: float
    network_gbps: float | None = None
    relative_speed: float | None = None


@dataclass(frozen=True, slots=True)
class Pricing:
    """The prices of the hosts of a run.

    Attributes:
        per_hour: Of one.
        now: What they are; None: nobody says what would cost less.
        candidates: What can be hired.
    """

    per_hour: float
    now: Instance | None = None
    candidates: tuple[Instance, ...] = ()


def read_prices(path: str | os.PathLike[str]) -> dict[str, Instance]:
    """Return the machines of a price file by name: CSV with a header, or JSON.

    JSON is a list of objects with the columns as keys, or an object that has that list
    as ``prices``.

    Raises:
        ConfigurationError: If a column is missing or unknown, a value is none, or two
            rows have one name; the message has the row and the value.
        StorageError: If the file cannot be read.

    Example:
        prices = read_prices("prices.csv")
        print(prices["gpu.small"].price_per_hour)
    """
    try:
        text = Path(path).read_text("utf-8-sig")
    except OSError as error:
        raise StorageError.of(error, "read", path) from error
    except UnicodeDecodeError as error:
        msg = f"{path} is no text in UTF-8: give CSV or JSON"
        raise ConfigurationError(msg) from error
    if not text.strip():
        msg = f"{path} is empty; give a header and a row for each machine"
        raise ConfigurationError(msg)
    is_json = text.lstrip()[:1] in {"[", "{"}
    rows = _of_json(text, path) if is_json else _of_csv(text, path)
    found: dict[str, Instance] = {}
    for where, row in rows:
        instance = _instance(row, f"{path}, {where}")
        if instance.name in found:
            msg = f"{path}, {where}: {instance.name!r} has a price already"
            raise ConfigurationError(msg)
        found[instance.name] = instance
    if not found:
        msg = f"{path} has no prices; give a row for each machine"
        raise ConfigurationError(msg)
    return found


_Rows = Iterable[tuple[str, Mapping[str, Any]]]


def _of_csv(text: str, path: object) -> _Rows:
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True, strict=True)
    try:
        _check_columns(reader.fieldnames or (), f"{path}, line 1")
        return [(f"line {reader.line_num}", row) for row in reader]
    except csv.Error as error:
        msg = f"{path}, line {reader.line_num}: {error}"
        raise ConfigurationError(msg) from error


def _of_json(text: str, path: object) -> _Rows:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        msg = f"{path} is no JSON: {error}"
        raise ConfigurationError(msg) from error
    rows = content.get("prices") if isinstance(content, dict) else content
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        msg = f'{path}: give a list of objects, or {{"prices": [...]}}'
        raise ConfigurationError(msg)
    for number, row in enumerate(rows, start=1):
        _check_columns(row, f"{path}, entry {number}")
    return [(f"entry {number}", row) for number, row in enumerate(rows, start=1)]


def _check_columns(given: Iterable[str], where: str) -> None:
    names = list(given)
    missing = [name for name in COLUMNS if name not in names]
    unknown = [name for name in names if name not in COLUMNS]
    if missing or unknown:
        what = f"is missing {', '.join(missing)}" if missing else ""
        extra = f"has the unknown {', '.join(map(repr, unknown))}" if unknown else ""
        msg = (
            f"{where}: the price file {' and '.join(filter(None, (what, extra)))}; its "
            f"columns are {', '.join(COLUMNS)}"
        )
        raise ConfigurationError(msg)


def _instance(row: Mapping[str, Any], where: str) -> Instance:
    if None in row or None in row.values():
        # The csv module's way to say so; null in JSON is an empty cell.
        row = {name: "" if value is None else value for name, value in row.items()}
        if None in row:
            msg = f"{where}: the row has more cells than the header"
            raise ConfigurationError(msg)
    name = str(row["name"]).strip()
    if not name:
        msg = f"{where}: the row has no name"
        raise ConfigurationError(msg)
    where = f"{where} ({name})"
    gpus = _number(row, "gpus", where) or 0.0
    if gpus != int(gpus):
        msg = f"{where}: gpus is {gpus:g}; give a whole number"
        raise ConfigurationError(msg)
    return Instance(
        name,
        _number(row, "price_per_hour", where) or 0.0,
        int(gpus),
        str(row["gpu"]).strip(),
        _number(row, "gpu_memory", where),
        _number(row, "cpus", where) or 0.0,
        _number(row, "memory", where) or 0.0,
        _number(row, "network_gbps", where),
        _number(row, "relative_speed", where),
    )


def _number(row: Mapping[str, Any], column: str, where: str) -> float | None:
    text = str(row[column]).strip()
    if not text and COLUMNS[column]:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        msg = f"{where}: {column} is {text!r}; give a number, 0 or more"
        raise ConfigurationError(msg)
    return value
