"""Storing all tensors of a step, until another process can read them: tdbg and peers.

    python -m benchmarks.writer.storing [small] [resnet] [--quick]

``small``: 2,000 tensors of 1 KiB.  ``resnet``: the 161 parameters of a ResNet-50,
102 MB.  Contenders take turns; after every round each step is read back and compared
with what was written.  What counts is the time over that of one ``writev`` of the same
bytes to an open file.  ``offered`` is how long the training waits for tdbg: the rest
happens in its writer thread.  Nothing is synced.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks._harness import (
    Bars,
    Measured,
    Report,
    Samples,
    Table,
    check,
    check_equal,
    interleave,
    options,
)
from benchmarks._harness.report import results_folder
from benchmarks.writer.contenders import CONTENDERS, Store, make

ENVIRONMENT = "storage"

#: Above this they are not asked: a minute and more a step.
TOO_SLOW = {"resnet": {"TensorBoard"}}


def main() -> None:
    arguments = options(__doc__)
    arguments.add_argument("what", nargs="*", default=["small", "resnet"])
    arguments.add_argument("--folder", type=Path, help="on the disk to measure")
    given = arguments.parse_args()
    for what in given.what:
        folder = given.folder or results_folder()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix="storing-") as below:
            measure(what, Path(below), given)


def arrays_of(what: str) -> dict[str, NDArray[np.float32]]:
    """Tensors by name, of values that no format stores shorter."""
    dice = np.random.default_rng(20261121)
    shapes = {"small": small, "resnet": resnet}[what]()
    return {
        name: dice.standard_normal(shape, dtype=np.float32) for name, shape in shapes
    }


def small() -> Iterator[tuple[str, tuple[int, ...]]]:
    for number in range(2000):
        yield f"layer{number // 4}.p{number % 4}", (256,)


def resnet() -> Iterator[tuple[str, tuple[int, ...]]]:
    """The parameters of torchvision's resnet50."""

    def norm(name: str, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{name}.weight", (width,)
        yield f"{name}.bias", (width,)

    yield "conv1.weight", (64, 3, 7, 7)
    yield from norm("bn1", 64)
    inside = 64
    for stage, (n_blocks, width) in enumerate(
        [(3, 64), (4, 128), (6, 256), (3, 512)], start=1
    ):
        for block in range(n_blocks):
            name = f"layer{stage}.{block}"
            yield f"{name}.conv1.weight", (width, inside, 1, 1)
            yield from norm(f"{name}.bn1", width)
            yield f"{name}.conv2.weight", (width, width, 3, 3)
            yield from norm(f"{name}.bn2", width)
            yield f"{name}.conv3.weight", (4 * width, width, 1, 1)
            yield from norm(f"{name}.bn3", 4 * width)
            if block == 0:
                yield f"{name}.downsample.0.weight", (4 * width, inside, 1, 1)
                yield from norm(f"{name}.downsample.1", 4 * width)
            inside = 4 * width
    yield "fc.weight", (1000, 2048)
    yield "fc.bias", (1000,)


def measure(what: str, folder: Path, given: argparse.Namespace) -> None:
    """One table."""
    arrays = arrays_of(what)
    n_bytes = sum(array.nbytes for array in arrays.values())
    check(n_bytes == {"small": 2_048_000, "resnet": 102_228_128}[what], "bytes")
    stores: dict[str, Store] = {}
    steps: dict[str, int] = {}
    for name in CONTENDERS:
        if name in TOO_SLOW.get(what, set()):
            continue
        home = folder / name.replace(" ", "-")
        home.mkdir()
        stores[name] = make(name, home, arrays)
        steps[name] = -1

    def verify(_: object) -> None:
        for name, store in stores.items():
            found = store.read(steps[name])
            check_equal(sorted(found), sorted(arrays), f"{name}: tensors")
            for tensor, array in arrays.items():
                check_equal(found[tensor], array, f"{name}: {tensor}")
            store.forget(steps[name])

    def write(name: str) -> Callable[[], Measured]:
        store = stores[name]

        def run() -> Measured:
            steps[name] += 1
            busy = time.process_time()
            start = time.perf_counter()
            store.write(steps[name])
            seconds = time.perf_counter() - start
            also = {"cpu": time.process_time() - busy}
            also["offered"] = getattr(store, "offered", seconds)
            return Measured(seconds, None, also)

        return run

    samples = interleave(
        {name: write(name) for name in stores},
        baseline="raw",
        rounds=given.rounds or (6 if given.quick else 25),
        warmup=2,
        seed=given.seed,
        verify=verify,
    )
    for store in stores.values():
        store.close()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    report(what, samples, given)


def report(what: str, samples: Samples, given: argparse.Namespace) -> None:
    """Print and keep."""
    title = {
        "small": "Storing 2,000 tensors of 1 KiB",
        "resnet": "Storing the parameters of a ResNet-50, 102 MB",
    }[what]
    table = Table(
        title, ("how", "ms", "time / writev's", "time / tdbg's", "processor, ms")
    )
    plot = Bars(f"storing_{what}", title, "time over that of one writev", log_x=True)
    for name in samples.seconds:
        ratio = samples.ratio(name)
        table.add(
            name,
            f"{1e3 * samples.seconds_of(name):.3g}",
            samples.text(name),
            samples.ratio(name, over="tdbg"),
            f"{1e3 * float(np.median(samples.also[name]['cpu'])):.3g}",
        )
        plot.add(name, ratio.median, ratio.low, ratio.high)
    offered = 1e3 * float(np.median(samples.also["tdbg"]["offered"]))
    table.note = (
        f"The training waits {offered:.3g} ms of tdbg's time; the rest passes in its "
        "writer thread."
    )
    packages = ("numpy", *(p for _, names in CONTENDERS.values() for p in names))
    Report(
        f"writer/storing-{what}",
        given,
        packages=tuple(dict.fromkeys(packages)),
        tables=[table],
        plots=[plot],
        data={"samples": samples.to_json()},
    ).save()


if __name__ == "__main__":
    main()
