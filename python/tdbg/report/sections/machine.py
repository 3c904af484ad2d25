"""The machine: loaders, cores and GPUs, memory, energy, ranks, operators and lines."""

from __future__ import annotations

import math

from tdbg.config.quantities import number, plural
from tdbg.drawing.markup import Child, tag
from tdbg.drawing.time_charts import (
    depth_chart,
    lateness_map,
    memory_chart,
    usage_map,
    what_if_chart,
)
from tdbg.report.page import Section, table
from tdbg.report.sections.overview import size
from tdbg.report.subject import Subject
from tdbg.view.time import (
    Forecast,
    Line,
    LoaderUse,
    Operators,
    UsageRow,
    duration_text,
    percent_text,
    span_text,
)

__all__ = ["cores_and_gpus", "data_loading", "memory", "programs", "ranks"]

UNKNOWN = "not measured"


def data_loading(subject: Subject) -> Section | None:
    """Tell how long loaders take, and what other numbers of workers would give."""
    view = subject.time
    if not view.loading:
        return None
    rows = [_loader(each) for each in view.loading]
    columns = (
        *("loader", "batches", "workers", "ready"),
        *("wait (95 %)", "fetch (95 %)", "on a core"),
    )
    content: list[Child] = [table(columns, rows, right=columns[1:]), depth_chart(view)]
    first = view.loading[0]
    if first.what_if is not None:
        content += [
            tag("h3", "What if"),
            tag("p", f"{first.what_if.text(first.workers)}."),
            what_if_chart(first),
        ]
    return Section("loading", "Data loading", content)


def _loader(each: LoaderUse) -> tuple[str, ...]:
    room = f" of {each.capacity:,}" if each.capacity > 0 else ""
    ready = f"{number(each.depth)}{room}" if math.isfinite(each.depth) else UNKNOWN
    computing = UNKNOWN
    if math.isfinite(each.fetch_cpu_share):
        computing = percent_text(each.fetch_cpu_share)
    return (
        f"loader {each.loader}",
        f"{each.n_batches:,}",
        str(each.workers),
        ready,
        _median_and_p95(each.wait_ns),
        _median_and_p95(each.fetch_ns),
        computing,
    )


def _median_and_p95(ns: tuple[float, float]) -> str:
    if not math.isfinite(ns[0]):
        return UNKNOWN
    return f"{duration_text(ns[0])} ({duration_text(ns[1])})"


def cores_and_gpus(subject: Subject) -> Section | None:
    """Tell how busy cores and GPUs were over the run."""
    view = subject.time
    rows = view.machine.table()
    if not rows:
        return None
    has_node = any(each.node for each in rows)
    figures = ("least", "median", "95 %", "99 %", "greatest")
    columns = ("metric", *(["node"] if has_node else []), *figures)
    listed = [_usage(each, has_node=has_node) for each in rows]
    content = [usage_map(view), table(columns, listed, right=figures)]
    return Section("machine", "Cores and GPUs", content)


def _usage(row: UsageRow, *, has_node: bool) -> tuple[str, ...]:
    values = (row.least, row.p50, row.p95, row.p99, row.greatest)
    node = (row.node,) if has_node else ()
    return (row.name, *node, *(_value(each, row.unit) for each in values))


def _value(value: float, unit: str) -> str:
    if unit == "share":
        return percent_text(value)
    if unit == "bytes":
        return size(value)
    return f"{size(value)}/s" if unit == "bytes/s" else f"{number(value)} {unit}"


def memory(subject: Subject) -> Section | None:
    """Tell how memory went, when it will be full, and how much energy the run used."""
    view = subject.time
    uses, span = view.machine.memories(), view.machine.span
    if not uses or span is None:
        return None
    on_device = [each for each in uses if each.name.startswith("GPU")]
    on_host = [each for each in uses if not each.name.startswith("GPU")]
    content: list[Child] = [
        memory_chart(part, span[0]) for part in (on_host, on_device) if part
    ]
    content += [
        tag("p", _forecast(each.name, each.forecast)) for each in uses if each.forecast
    ]
    content.append(tag("p", f"Energy: {view.energy.statement}."))
    return Section("memory", "Memory and energy", content)


def _forecast(name: str, found: Forecast) -> str:
    return (
        f"{name[:1].upper()}{name[1:]} memory grows by {size(found.slope)} a second "
        f"and reaches {size(found.limit)} {span_text(found.seconds * 1e9)} after the "
        "last sample, if it goes on so."
    )


def ranks(subject: Subject) -> Section | None:
    """Tell which rank the others wait for."""
    lateness = subject.time.lateness
    if lateness is None:
        return None
    rows = [
        (
            each.worker,
            duration_text(each.median_ns),
            percent_text(each.last_share),
            duration_text(each.own_ns),
        )
        for each in sorted(lateness.ranks, key=lambda each: -each.median_ns)
    ]
    columns = ("rank", "usually late by", "the last in", "own work of a step")
    content = [lateness_map(subject.time), table(columns, rows, right=columns[1:])]
    return Section("ranks", "Ranks beside each other", content)


def programs(subject: Subject) -> Section | None:
    """Tell which operators and lines of Python take the time."""
    view = subject.time
    content: list[Child] = []
    for each in view.operators:
        content += [
            tag("h3", f"Operators on {each.device}, newest window"),
            _operators(each),
        ]
    if view.python_lines:
        rows = [
            (each.phase_name, _place(each), *_shares(each))
            for each in view.python_lines
        ]
        columns = ("phase", "line", "of the phase", "of all")
        content += [
            tag("h3", "Python lines by phase"),
            table(columns, rows, right=columns[2:]),
        ]
    return Section("programs", "Operators and lines", content) if content else None


def _place(line: Line) -> Child:
    """The line, and the line of the program that called it."""
    place = tag("code", line.short_place, title=line.place)
    if not line.caller:
        return place
    caller = tag("code", line.short_caller, title=line.caller)
    return [place, tag("br"), tag("small", "called by ", caller)]


def _shares(line: Line) -> tuple[str, str]:
    return percent_text(line.share), percent_text(line.share_of_all)


def _operators(found: Operators) -> Child:
    rows = [
        (
            tag("code", each.name),
            f"{each.calls:,}",
            duration_text(each.self_ns),
            percent_text(each.share),
        )
        for each in found.listed
    ]
    columns = ("operator", "calls", "self time", "share")
    more = f"{plural(found.n_others, 'other')} below 2 %" if found.n_others else None
    return table(columns, rows, right=columns[1:], caption=more)
