"""Bytes per second of the statistics kernel, against a copy on the device.

One launch for one tensor; the target is 0.85 of what a copy moves (bytes read and
written), at 1 GiB.  Every row is compared with the reference's before it is timed.
"""

from __future__ import annotations

import statistics

import torch

from benchmarks._harness import check, check_close
from benchmarks.gpu._device import Device, RowCapture, options
from benchmarks.gpu._result import Result
from tdbg import _core
from tdbg.run.directory import writer_directories

TARGET = 0.85
GIB = 1 << 30
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float64": torch.float64,
    "int32": torch.int32,
    "int64": torch.int64,
}


def main() -> None:
    given = options(__doc__).parse_args()
    device, result = Device(given.device), Result(given.out)
    largest = 1 << 16 if given.small else GIB
    rounds = 3 if given.small else 20
    rate = device.copy_rate(largest, rounds)
    result.add("copy_bytes_per_second", rate)
    result.line(
        "copy on the device, read and written", f"{rate['moved'] / 1e9:.0f} GB/s"
    )
    for name, dtype in DTYPES.items():
        for n_bytes in sizes(largest):
            if n_bytes < largest and name not in {"float32", "bfloat16"}:
                continue
            tensor = values(dtype, max(1, n_bytes // dtype.itemsize), device.name)
            label = f"{name}, {n_bytes} bytes"
            row_capture = RowCapture(given.folder / f"{name}-{n_bytes}", {"x": tensor})
            times = measured(device, row_capture, rounds)
            seconds = statistics.median(times)
            verify(row_capture, tensor, label)
            share = n_bytes / seconds / rate["moved"]
            found = {"seconds": seconds, "of_copy": share, "samples": times}
            result.add(label, found)
            is_goal = n_bytes == largest and not given.small and device.is_cuda
            result.line(
                f"statistics of {label}",
                f"{n_bytes / seconds / 1e9:.0f} GB/s, {share:.2f} of the copy",
                f"at least {TARGET}" if is_goal and name == "float32" else "",
                share >= TARGET if is_goal and name == "float32" else None,
            )
            del tensor


def sizes(largest: int) -> list[int]:
    """Powers of 32 up to the largest."""
    return [largest >> shift for shift in (15, 10, 5, 0)]


def values(dtype: torch.dtype, n: int, device: str) -> torch.Tensor:
    """Elements such as trainings have."""
    torch.manual_seed(1)
    if not dtype.is_floating_point:
        return torch.randint(-100, 100, (n,), device=device).to(dtype)
    part = torch.randn(min(n, 1 << 24), device=device).to(dtype).view(torch.uint8)
    n_bytes = n * dtype.itemsize
    # As bytes: not every type can be put together on every device.
    return part.repeat(-(-n_bytes // part.numel()))[:n_bytes].view(dtype)


def measured(device: Device, row_capture: RowCapture, rounds: int) -> list[float]:
    """Seconds of one launch: several in a row, so that the launch itself is hidden."""
    in_a_row = 4

    def several() -> None:
        for _ in range(in_a_row):
            row_capture.take()

    row_capture.step()
    times = []
    for _ in range(rounds + 1):
        times.append(device.seconds(several) / in_a_row)
        row_capture.end()
    return times[1:]


def verify(row_capture: RowCapture, tensor: torch.Tensor, label: str) -> None:
    """The row of the last step says what PyTorch says of the tensor in float64."""
    row_capture.close()
    (writer,) = writer_directories(row_capture.path)
    rows = _core.RunReader(str(writer.path)).rows()
    check(len(rows) > 0, f"no row of {label}")
    total, absolute, squares = 0.0, 0.0, 0.0
    least, greatest = float("inf"), float("-inf")
    for chunk in tensor.split(1 << 24):
        wide = chunk.to(torch.float64)
        total += float(wide.sum())
        absolute += float(wide.abs().sum())
        squares += float((wide * wide).sum())
        least = min(least, float(wide.min()))
        greatest = max(greatest, float(wide.max()))
    row = rows[-1]
    check(int(row["count"]) == tensor.numel(), f"count of {label}")
    off = abs(float(row["mean"]) * tensor.numel() - total)
    check(off <= 1e-7 * absolute, f"mean of {label}: {row['mean']}")
    check_close(float(row["l1"]), absolute, 1e-7, f"l1 of {label}")
    check_close(float(row["l2"]), squares**0.5, 1e-7, f"l2 of {label}")
    kind = "float64" if tensor.dtype.is_floating_point else "int64"
    for key, expected in (("min", least), ("max", greatest)):
        value = float(rows[key][-1:].copy().view(kind)[0])
        check(value == expected, f"{key} of {label}: {value}, not {expected}")


if __name__ == "__main__":
    main()
