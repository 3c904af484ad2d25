"""Copies local runs to a store as docs/format.md says, without the uploader.

So that tests of reading can decide what is there, and what is told of it.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterable
from pathlib import Path

from tdbg.remote import BlockObject, Manifest, ShippedFile, Store
from tdbg.remote.layout import blocks_name, manifest_name

__all__ = ["COMPLETE", "copy_run", "copy_writer", "opening_of"]

COMPLETE = (".tds", ".tdi")
_WHOLE = 16 * 1024


def opening_of(path: Path) -> tuple[tuple[int, bytes], ...]:
    """What a reader needs first: all of a small index, both ends of a shard."""
    content = path.read_bytes()
    if path.suffix == ".tdi":
        return ((0, content),) if len(content) <= _WHOLE else ()
    if len(content) <= 512:
        return ((0, content),)
    return ((0, content[:128]), (len(content) - 256, content[-256:]))


def copy_writer(
    run: Path,
    name: str,
    store: Store,
    *,
    state: str = "closed",
    number: int = 1,
    n_files: int | None = None,
    age: float = 0.0,
    change: Callable[[Manifest], Manifest] = lambda manifest: manifest,
    listed: Callable[[Iterable[ShippedFile]], Iterable[ShippedFile]] = lambda f: f,
) -> Manifest:
    """Copy files of a writer, and one block object and manifest that name them."""
    folder = run / "w" / name
    paths = sorted(path for path in folder.iterdir() if path.suffix in COMPLETE)
    paths = [path for path in paths if path.stat().st_size][:n_files]
    for path in paths:
        store.write(f"w/{name}/{path.name}", path.read_bytes())
    files = tuple(
        listed(ShippedFile(p.name, p.stat().st_size, opening_of(p)) for p in paths)
    )
    block = BlockObject(name, files).encode()
    store.write(f"m/{name}/{blocks_name(number)}", block)
    commit = folder / "COMMIT"
    manifest = Manifest(
        run=json.loads((run / "RUN.json").read_text()),
        writer=name,
        number=number,
        time=dt.datetime.now(dt.UTC) - dt.timedelta(seconds=age),
        state=state,
        commit=commit.read_bytes().rstrip(b"\0") if commit.exists() else b"",
        blocks=((blocks_name(number), len(block)),),
        n_files=len(files),
        n_bytes=sum(file.size for file in files),
    )
    manifest = change(manifest)
    store.write(f"m/{name}/{manifest_name(number)}", manifest.encode())
    return manifest


def copy_run(run: Path, store: Store, **options: object) -> None:
    """Copy all writers of a run."""
    store.write("RUN.json", (run / "RUN.json").read_bytes())
    for folder in sorted((run / "w").iterdir()):
        copy_writer(run, folder.name, store, **options)  # type: ignore[arg-type]
