"""All weights and gradients of a model of a billion parameters, in one step.

About 600 tensors in bfloat16, as a decoder of 16 layers has them; the target is 1.3
times one read of them at the rate at which a copy moves bytes.  Also what it costs
the thread that trains, and how much memory of the device is held.
"""

from __future__ import annotations

import statistics
import time

import torch

from benchmarks._harness import check
from benchmarks.gpu._device import Device, RowCapture, options
from benchmarks.gpu._result import Result
from tdbg import _core
from tdbg.run.directory import writer_directories

TARGET = 1.3
MEMORY_TARGET = 64 << 20


def main() -> None:
    given = options(__doc__).parse_args()
    device, result = Device(given.device), Result(given.out)
    rounds = 3 if given.small else 30
    tensors = parameters(device.name, given.small)
    n_bytes = sum(each.numel() * each.element_size() for each in tensors.values())
    rate = device.copy_rate(1 << 16 if given.small else 1 << 30, rounds)
    one_read = n_bytes / rate["moved"]
    free = device.free_bytes()
    row_capture = RowCapture(given.folder / "table", tensors)
    row_capture.step()
    held = free - device.free_bytes()
    times = device.samples(row_capture.step, rounds)
    seconds = statistics.median(times)
    thread = []
    for _ in range(rounds):
        start = time.perf_counter()
        row_capture.step()
        thread.append(time.perf_counter() - start)
        device.wait()
    verify(row_capture, tensors)
    ratio = seconds / one_read
    result.add("tensors", len(tensors))
    result.add("bytes", n_bytes)
    result.add("copy_bytes_per_second", rate)
    result.add("seconds", seconds)
    result.add("samples", times)
    result.add("thread_seconds", statistics.median(thread))
    result.add("device_bytes_held", held)
    counts = device.is_cuda and not given.small
    result.line(
        f"weights and gradients, {len(tensors)} tensors, {n_bytes / 1e9:.2f} GB",
        f"{1e3 * seconds:.2f} ms, {ratio:.2f} of one read",
        f"at most {TARGET}",
        ratio <= TARGET if counts else None,
    )
    result.line(
        "the training's thread for that", f"{1e3 * statistics.median(thread):.2f} ms"
    )
    result.line(
        "memory of the device for statistics",
        f"{held / 2**20:.0f} MiB",
        "at most 64 MiB",
        held <= MEMORY_TARGET if counts else None,
    )


def parameters(device: str, small: bool) -> dict[str, torch.Tensor]:
    """Weights and gradients: of each layer 9 matrices and vectors, and embeddings."""
    width, layers, vocabulary = (16, 2, 100) if small else (1792, 32, 50304)
    shapes: dict[str, tuple[int, ...]] = {"embedding": (vocabulary, width)}
    for layer in range(layers):
        for name in ("query", "key", "value", "out"):
            shapes[f"{layer}.{name}"] = (width, width)
        shapes[f"{layer}.up"] = (2 * width, width)
        shapes[f"{layer}.gate"] = (2 * width, width)
        shapes[f"{layer}.down"] = (width, 2 * width)
        shapes[f"{layer}.norm_1"] = (width,)
        shapes[f"{layer}.norm_2"] = (width,)
    shapes["norm"] = (width,)
    torch.manual_seed(2)
    made = {}
    for name, shape in shapes.items():
        for prefix, size in (("", 0.02), ("gradient/", 1e-4)):
            normal = torch.randn(shape, device=device, dtype=torch.bfloat16)
            made[prefix + name] = normal * size
    return made


def verify(row_capture: RowCapture, tensors: dict[str, torch.Tensor]) -> None:
    """The last step has a row of every tensor, with its l2."""
    row_capture.close()
    (writer,) = writer_directories(row_capture.path)
    reader = _core.RunReader(str(writer.path))
    names = {each.id: each.name for each in reader.definitions()}
    rows = reader.rows()
    last = rows[rows["step"] == rows["step"].max()]
    found = {names[int(row["definition"])]: row for row in last}
    check(set(found) == set(tensors), "not every tensor has a row")
    for name, tensor in tensors.items():
        expected = float(tensor.to(torch.float64).norm())
        off = abs(float(found[name]["l2"]) - expected)
        check(off <= 1e-7 * expected, f"l2 of {name}: {found[name]['l2']}, {expected}")


if __name__ == "__main__":
    main()
