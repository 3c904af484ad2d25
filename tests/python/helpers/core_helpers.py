"""What the tests of ``tdbg._core`` share: captures and the arrays they take."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tdbg import _core
from tdbg.run.directory import create_run

ATTEMPT = bytes(range(16))
WEIGHT = 1
OTHER = 15

NAMED = [
    *(np.dtype(name) for name in ("bool", "float16", "float32", "float64")),
    *(np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *(np.dtype(name) for name in ("complex64", "complex128")),
    np.dtype(ml_dtypes.bfloat16),
    np.dtype(ml_dtypes.float8_e4m3fn),
    np.dtype(ml_dtypes.float8_e5m2),
    np.dtype(ml_dtypes.float8_e4m3fnuz),
    np.dtype(ml_dtypes.float8_e5m2fnuz),
    np.dtype(ml_dtypes.float8_e8m0fnu),
]
PLAIN = [
    np.dtype(text)
    for text in ("<f16", "<c32", ">f4", ">i8", "<M8[ns]", "<M8[D]", "<m8[us]")
] + [np.dtype(text) for text in ("S5", "<U3", "S1")]


def dtype_name(dtype: np.dtype[Any]) -> str:
    """The name that ``Capture.define`` takes for *dtype*."""
    return dtype.name if dtype in NAMED and dtype.isnative else dtype.str


def open_capture(run_dir: Path, **options: Any) -> _core.Capture:
    """A capture in a run that is made if need be."""
    run = create_run(run_dir)
    settings = {"min_free_bytes": 0, **options}
    return _core.Capture(
        str(run.path), run_uuid=run.uuid, attempt_uuid=ATTEMPT, **settings
    )


def define(
    capture: _core.Capture, name: str, array: np.ndarray[Any, Any], role: int = OTHER
) -> int:
    """The id of *array*'s definition."""
    return capture.define(
        name,
        role,
        dtype_name(array.dtype),
        array.shape,
        item_size=array.dtype.itemsize,
    )


def address(array: np.ndarray[Any, Any]) -> int:
    """Where the first element lies."""
    return int(array.__array_interface__["data"][0])


def take(
    capture: _core.Capture, step: int, id_: int, array: np.ndarray[Any, Any]
) -> bool:
    """Store the values of *array*."""
    return capture.values(step, id_, address(array), array.strides)


def raw_bytes(array: np.ndarray[Any, Any]) -> bytes:
    """The elements in C order, bit by bit; no conversion can touch them."""
    opaque = array.view(f"V{array.dtype.itemsize}")
    return np.ascontiguousarray(opaque).tobytes()


def random_bits(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> np.ndarray[Any, Any]:
    """An array of any bits at all: NaN payloads, subnormals, bad booleans."""
    count = int(np.prod(shape, dtype=np.int64))
    data = bytearray(rng.bytes(count * dtype.itemsize))
    return np.frombuffer(data, dtype=dtype, count=count).reshape(shape)


def layouts(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Arrays of random bits that lie in memory in every way NumPy knows."""

    def bits(*extents: int) -> np.ndarray[Any, Any]:
        return random_bits(rng, tuple(extents), dtype)

    yield "contiguous", bits(*shape)
    if len(shape) < 64:
        yield "expanded", np.broadcast_to(bits(*shape), (3, *shape))
    if not shape:
        yield "offset", bits(5)[3:4].reshape(())
        return
    yield "transposed", bits(*shape).T
    yield "fortran", np.asfortranarray(bits(*shape))
    yield "step", bits(*shape[:-1], 2 * shape[-1] + 1)[..., 1::2]
    yield "outer step", bits(3 * shape[0], *shape[1:])[::3]
    yield "reversed", bits(*shape)[..., ::-1]
    yield "all reversed", bits(*shape)[(slice(None, None, -1),) * len(shape)]
    yield "offset", bits(shape[0] + 2, *shape[1:])[1:-1]
    yield "channels last", np.moveaxis(bits(*shape[1:], shape[0]), -1, 0)
    yield "expanded inside", np.broadcast_to(bits(*shape[:-1], 1), shape)
