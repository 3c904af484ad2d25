"""Markdown tables and PNG plots of all results that are kept in build/benchmarks.

    python -m benchmarks.report                       every result
    python -m benchmarks.report overhead writer       those whose names begin so
    python -m benchmarks.report --plots docs/images  draw the plots there
    python -m benchmarks.report --exclude-quick       only full runs

Tables and plots of the same name in several results (a model in one run, another in
the next) are put together; a later result replaces what an earlier one said of the
same row.  Plots need matplotlib: the environment `tdbg` has it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks._harness.machine import machine_line
from benchmarks._harness.plots import draw
from benchmarks._harness.report import results_folder
from benchmarks._harness.tables import Table


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="beginnings of names of results")
    parser.add_argument("--plots", type=Path, help="folder to draw the plots in")
    parser.add_argument("--exclude-quick", action="store_true")
    given = parser.parse_args()

    documents = [
        document
        for document in load(results_folder())
        if document["name"].startswith(tuple(given.names) or "")
        and not (given.exclude_quick and document["quick"])
    ]
    print("\n".join(f"- {line}" for line in machines(documents)) + "\n")
    for table in tables(documents):
        print(table.markdown())
    if given.plots:
        for plot in plots(documents):
            path = given.plots / f"{plot['name']}.png"
            draw(plot, path)
            print(f"![{plot['title']}]({path})")


def load(folder: Path) -> list[dict[str, Any]]:
    """All results, the oldest first."""
    files = [path for path in folder.rglob("*.json") if is_result(path, folder)]
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    # An interrupted program leaves what it measured with.
    documents = [one for one in documents if "machine" in one]
    return sorted(documents, key=lambda one: (one["machine"]["time"], one["name"]))


def is_result(path: Path, folder: Path) -> bool:
    """Whether it is a result, and not a file of an environment that lies there."""
    return not path.relative_to(folder).parts[0].startswith(("env-", "wheel"))


def machines(documents: list[dict[str, Any]]) -> list[str]:
    """A line for each machine and commit, with all versions and the range of loads."""
    merged: dict[str, dict[str, Any]] = {}
    loads: dict[str, list[float]] = {}
    for document in documents:
        where = {**document["machine"], "load": "", "time": ""}
        key = machine_line({**where, "versions": {}})
        present = {k: v for k, v in where["versions"].items() if v != "none"}
        merged.setdefault(key, {**where, "versions": {}})["versions"] |= present
        loads.setdefault(key, []).append(document["machine"]["load"])
    for key, where in merged.items():
        where["load"] = f"{min(loads[key])} to {max(loads[key])}"
    return [machine_line(where) for where in merged.values()]


def tables(documents: list[dict[str, Any]]) -> list[Table]:
    """Of all results, put together by their titles, in the order of the names."""
    merged: dict[str, Table] = {}
    for document in documents:
        for one in document["tables"]:
            table = Table(**one)
            if table.title in merged:
                merged[table.title].merge(table)
            else:
                merged[table.title] = table
    return list(merged.values())


def plots(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of all results, put together by their names."""
    merged: dict[str, dict[str, Any]] = {}
    for document in documents:
        for one in document["plots"]:
            plot = merged.setdefault(one["name"], {**one, "series": {}})
            for label, points in one["series"].items():
                plot["series"][label] = (
                    with_later(plot["series"].get(label, []), points)
                    if one["kind"] == "curves"
                    else points
                )
    return list(merged.values())


def with_later(earlier: list[list[float]], later: list[list[float]]) -> Any:
    """The points of both, the later ones where both have the same x."""
    by_x = {point[0]: point for point in [*earlier, *later]}
    return [by_x[x] for x in sorted(by_x)]


if __name__ == "__main__":
    main()
