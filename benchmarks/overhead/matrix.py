"""Which contender captures what, how often, of which training: one line a program.

Each is a run of ``slowdown`` or ``growth`` in the environment of the contender.
"""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["growth", "in_quick", "save_interval", "slowdown"]

#: Environment, contender, what, intervals.  The first lines matter most.
CONFIGURATIONS = (
    ("tdbg", "tdbg", "statistics", (1, 10)),
    ("tdbg", "tdbg", "all", (1, 10)),
    ("smdebug", "smdebug", "statistics", (1, 10)),
    ("smdebug", "smdebug", "all", (1, 10)),
    ("peers", "wandb", "histograms", (1, 10)),
    ("peers", "tensorboard", "histograms", (1, 10)),
    ("tdbg", "tdbg", "weights", (1, 10)),
    ("tdbg", "tdbg", "gradients", (10,)),
    ("tdbg", "tdbg", "nothing", (1,)),
    ("tdbg", "tdbg", "losses", (1,)),
    ("tdbg", "tdbg_watch", "defaults", (10,)),
    ("tdbg", "tdbg_uncompressed", "all", (1, 10)),
    ("smdebug", "smdebug", "weights", (1, 10)),
    ("smdebug", "smdebug", "gradients", (10,)),
    ("smdebug", "smdebug", "nothing", (1,)),
    ("peers", "torch_save", "parameters", (10,)),
    ("peers", "safetensors", "parameters", (10,)),
)
MODELS = ("resnet", "lm", "cnn", "many", "tiny")

#: Beyond the last, slowdowns follow from blocks with and without a save; 100 is
#: measured too, in full runs, to see that they do.
INTERVALS = (1, 2, 5, 10, 20)
CHECKED_INTERVAL = 100
TENSORS = (10, 100, 1000, 10_000)
SIZES = tuple(2**power for power in (10, 14, 18, 22, 26, 28))

RESNET = "overhead/resnet"

#: Name, environment, module, arguments.
Program = tuple[str, str, str, list[str]]


def slowdown() -> Iterator[Program]:
    """All configurations of all models."""
    for model in MODELS:
        for where, contender, what, intervals in CONFIGURATIONS:
            for interval in intervals:
                yield one(model, where, contender, what, interval)


def save_interval(full: bool) -> Iterator[Program]:
    """The curve of the slowdown over the save interval, of the ResNet."""
    intervals = (*INTERVALS, CHECKED_INTERVAL) if full else INTERVALS
    for interval in intervals:
        for contender in ("tdbg", "smdebug"):
            for what in ("all", "weights", "statistics"):
                program = one("resnet", contender, contender, what, interval)
                yield ("save_interval" + program[0].removeprefix(RESNET), *program[1:])


def growth() -> Iterator[Program]:
    """Cost by number and by size of tensors."""
    watched = (("tdbg", "statistics"), ("tdbg", "all"), ("smdebug", "statistics"))
    for kind, sizes in (("tensors", TENSORS), ("bytes", SIZES)):
        for size in sizes:
            for contender, what in watched:
                name = f"growth/{kind}/{contender}-{what}-{size}"
                arguments = [kind, str(size), contender, what]
                yield (name, contender, "benchmarks.overhead.growth", arguments)


def in_quick(name: str) -> bool:
    """Whether a program runs where all are to run, but quickly."""
    kind, part, *rest = name.split("/")
    if kind == "overhead" and part not in {"resnet", "tiny"}:
        what, _, interval = rest[0].partition("@")
        kept = ("tdbg-statistics", "tdbg-all", "smdebug-statistics", "smdebug-all")
        # smdebug takes minutes for a few steps of thousands of tensors.
        slow = part == "many" and what.startswith("smdebug")
        return what in kept and interval == "1" and not slow
    if kind == "growth":
        return rest[0].startswith("tdbg-statistics")
    # The profiler and the page take turns with four others, for minutes.  Pictures are
    # for docs, and what the first steps cost changes with each check.
    left_out = ("profiler/always_on", "ui/clicks", "ui/pictures", "ui/report_pictures")
    return kind != "save_interval" and name not in (*left_out, "hooks/first_steps")


def one(model: str, where: str, contender: str, what: str, interval: int) -> Program:
    name = f"overhead/{model}/{contender}-{what}@{interval}"
    arguments = [model, contender, what, str(interval)]
    return (name, where, "benchmarks.overhead.slowdown", arguments)
