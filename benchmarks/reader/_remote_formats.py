"""The same tensors and rows as tdbg and peers keep them in a store, and read them.

Each contender reads as its own documentation has it for S3, through fsspec and s3fs,
except safetensors, which has no reader for stores: its header and one tensor are
asked for by their ranges, as Hugging Face's hub does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import pandas as pd
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import s3fs
import zarr
from numpy.typing import NDArray
from safetensors.numpy import save as to_safetensors

from benchmarks.reader._remote_store import BUCKET
from tdbg import _core
from tdbg.config import Role
from tdbg.modes import ModeKeys
from tdbg.remote import Uploader
from tdbg.run.directory import create_run
from tdbg.trial import create_trial

__all__ = ["Rows", "Shards", "Tensors", "fresh"]

Array = NDArray[np.float32]
Answers = dict[str, Callable[[], Any]]


def fresh() -> s3fs.S3FileSystem:
    """A client that remembers nothing."""
    return s3fs.S3FileSystem(skip_instance_cache=True)


def open_group(name: str, mode: Literal["r", "w"]) -> zarr.Group:
    """A group of zarr, by a client that remembers no listing.

    One client serves all: zarr leaves its loop before a client of one answer closes.
    """
    endpoint = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"]}
    storage = {"client_kwargs": endpoint, "use_listings_cache": False}
    return zarr.open_group(f"{BUCKET}/{name}", mode=mode, storage_options=storage)


def ship(run: Path, url: str) -> None:
    """Send a finished run."""
    uploader = Uploader(run, url, empties=False)
    uploader.prepare()
    with ThreadPoolExecutor() as pool:
        while not uploader.step(pool):
            uploader.pause()


class Writing:
    """Writes a local run."""

    def __init__(self, path: Path, **options: Any) -> None:
        run = create_run(path)
        self.capture = _core.Capture(
            str(path),
            run_uuid=run.uuid,
            attempt_uuid=bytes(16),
            min_free_bytes=0,
            codec="none",
            **options,
        )
        self._ids: dict[str, int] = {}

    def step(self, number: int, arrays: dict[str, Array], *, values: bool) -> None:
        """Statistics of one step, or values."""
        for name, array in arrays.items():
            if name not in self._ids:
                made = self.capture.define(
                    name, int(Role.WEIGHT), "float32", array.shape
                )
                self._ids[name] = made
        ids = [self._ids[name] for name in arrays]
        pointers = [array.ctypes.data for array in arrays.values()]
        if values:
            for one, pointer in zip(ids, pointers, strict=True):
                self.capture.values(number, one, pointer)
        else:
            self.capture.statistics(number, ids, pointers)
        self.capture.end_step(number, ModeKeys.TRAIN.value, number)

    def close(self) -> None:
        self.capture.flush()
        self.capture.close(60.0)


class Tensors:
    """One tensor at one step of a run of values.

    Args:
        n_steps: How many.
        n_tensors: At each.
        n: Elements of each.
    """

    def __init__(self, n_steps: int, n_tensors: int, n: int) -> None:
        dice = np.random.default_rng(0)
        self.steps = [
            {
                f"t{i:03}": dice.standard_normal(n, dtype=np.float32)
                for i in range(n_tensors)
            }
            for _ in range(n_steps)
        ]
        self.at, self.name = n_steps // 2, f"t{n_tensors // 2:03}"

    @property
    def expected(self) -> Array:
        return self.steps[self.at][self.name]

    def write(self, folder: Path) -> None:
        """Store them as all contenders do."""
        run = Writing(folder / "values", shard_bytes=64 << 20)
        fs, names = fresh(), list(self.steps[0])
        for number, arrays in enumerate(self.steps):
            run.step(number, arrays, values=True)
            name = f"bucket/tensors/safetensors/{number:06}.safetensors"
            fs.pipe_file(name, to_safetensors(arrays))
        run.close()
        ship(folder / "values", f"{BUCKET}/tensors/tdbg")
        group = open_group("tensors/zarr", "w")
        with h5py.File(folder / "values.h5", "w") as file:
            for name in names:
                whole = np.stack([arrays[name] for arrays in self.steps])
                chunks = (1, whole.shape[1])
                file.create_dataset(name, data=whole, chunks=chunks)
                made = group.create_array(
                    name, shape=whole.shape, dtype="float32", chunks=chunks,
                    compressors=None,
                )  # fmt: skip
                made[:] = whole
        fs.put_file(str(folder / "values.h5"), "bucket/tensors/run.h5")

    def answers(self) -> Answers:
        at, name = self.at, self.name

        def safetensors() -> Array:
            fs, path = fresh(), f"bucket/tensors/safetensors/{at:06}.safetensors"
            start = fs.cat_file(path, start=0, end=100_000)
            n = int.from_bytes(start[:8], "little")
            first, stop = json.loads(start[8 : 8 + n])[name]["data_offsets"]
            found = fs.cat_file(path, start=8 + n + first, end=8 + n + stop)
            return np.frombuffer(found, np.float32)

        def by_h5py() -> Array:
            fs = fresh()
            with fs.open("bucket/tensors/run.h5") as raw, h5py.File(raw) as file:
                return np.asarray(file[name][at])

        def by_zarr() -> Array:
            group = open_group("tensors/zarr", "r")
            return np.asarray(group[name][at])

        return {
            "safetensors": safetensors,
            "tdbg": lambda: (
                create_trial(f"{BUCKET}/tensors/tdbg").tensor(name).value(at)
            ),
            "h5py": by_h5py,
            "zarr": by_zarr,
        }


class Shards:
    """Opening what many files make up: the steps, or rows, that there are."""

    def __init__(self, n: int) -> None:
        self.expected = n

    def write(self, folder: Path) -> None:
        """A shard a step, and a Parquet file a step."""
        run = Writing(folder / "shards", shard_bytes=100_000)
        dice = np.random.default_rng(1)
        fs = fresh()
        rows = pd.DataFrame({"tensor": ["w"], "step": [0], "l2": [1.0]})
        with fs.open("bucket/shards/first.parquet", "wb") as file:
            rows.to_parquet(file)
        one = fs.cat_file("bucket/shards/first.parquet")
        fs.rm_file("bucket/shards/first.parquet")
        names = [f"bucket/shards/parquet/{i:06}.parquet" for i in range(self.expected)]
        fs.pipe(dict.fromkeys(names, one))
        for number in range(self.expected):
            value = dice.standard_normal(25_600, dtype=np.float32)
            run.step(number, {"w": value}, values=True)
            run.capture.flush()
        run.close()
        ship(folder / "shards", f"{BUCKET}/shards/tdbg")

    def answers(self) -> Answers:
        def parquet() -> int:
            found = ds.dataset("bucket/shards/parquet", filesystem=fresh())
            return int(found.count_rows())

        return {
            "Parquet, count of rows": parquet,
            "tdbg": lambda: len(create_trial(f"{BUCKET}/shards/tdbg").steps()),
        }


class Rows:
    """Norms of all rows of statistics into pandas, beside name and step.

    Args:
        n_tensors: How many, each with a row at each step.
        n_steps: How many.
    """

    def __init__(self, n_tensors: int, n_steps: int) -> None:
        self.names = [f"layer{i:05}.weight" for i in range(n_tensors)]
        self.n_steps = n_steps
        self.expected = 0.0

    def write(self, folder: Path) -> None:
        """Rows of two random elements each, which nothing compresses."""
        run, dice = Writing(folder / "rows"), np.random.default_rng(2)
        for number in range(self.n_steps):
            values = dice.standard_normal((len(self.names), 2), dtype=np.float32)
            arrays = dict(zip(self.names, values, strict=True))
            run.step(number, arrays, values=False)
            self.expected += float(np.linalg.norm(values.astype(float), axis=1).sum())
        run.close()
        ship(folder / "rows", f"{BUCKET}/rows/tdbg")
        self._write_peers(folder)

    def _write_peers(self, folder: Path) -> None:
        fs, table = fresh(), create_trial(folder / "rows").to_arrow()
        with fs.open("bucket/rows/rows.parquet", "wb") as file:
            pq.write_table(table, file)
        numbers = table.drop_columns(["tensor", "role", "mode"])
        tensors = np.asarray(table["tensor"].combine_chunks().indices)
        columns = {
            "tensor": tensors,
            **{n: numbers[n].to_numpy() for n in numbers.column_names},
        }
        group = open_group("rows/zarr", "w")
        with h5py.File(folder / "rows.h5", "w") as h5:
            for name, column in columns.items():
                h5.create_dataset(name, data=column)
                group.create_array(name, data=column)
        fs.put_file(str(folder / "rows.h5"), "bucket/rows/rows.h5")

    def answers(self) -> Answers:
        asked = ["tensor", "step", "l2"]

        def by_h5py() -> pd.DataFrame:
            fs = fresh()
            with fs.open("bucket/rows/rows.h5") as raw, h5py.File(raw) as file:
                return pd.DataFrame({name: file[name][:] for name in asked})

        def by_zarr() -> pd.DataFrame:
            group = open_group("rows/zarr", "r")
            return pd.DataFrame({name: np.asarray(group[name][:]) for name in asked})

        def parquet() -> pd.DataFrame:
            with fresh().open("bucket/rows/rows.parquet") as file:
                return pq.read_table(file, columns=asked).to_pandas()

        def tdbg() -> pd.DataFrame:
            return create_trial(f"{BUCKET}/rows/tdbg").to_pandas(columns=asked)

        asks = {"Parquet": parquet, "tdbg": tdbg, "h5py": by_h5py, "zarr": by_zarr}

        def total(ask: Callable[[], pd.DataFrame]) -> float:
            return float(ask()["l2"].sum())

        return {name: (lambda ask=ask: total(ask)) for name, ask in asks.items()}
