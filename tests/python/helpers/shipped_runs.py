"""Local runs to ship, and what must hold of a store at any moment."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from tdbg._core import Capture
from tdbg.remote import BlockObject, Manifest, ShippedFile, Store, newest_manifests
from tdbg.remote.layout import manifest_name
from tdbg.run.directory import create_run

SHARD_BYTES = 100_000


def writer_of(run: Path, *, rank: int = 0, **options: object) -> Capture:
    """A writer with small shards."""
    made = create_run(run)
    given = {"shard_bytes": SHARD_BYTES, "flush_interval": 0.01, **options}
    return Capture(
        str(run),
        run_uuid=made.uuid,
        attempt_uuid=uuid.uuid4().bytes,
        rank=rank,
        **given,  # type: ignore[arg-type]
    )


def write_shards(writer: Capture, n: int) -> None:
    """Write events until *n* shards more are sealed, or nearly."""
    for i in range(n):
        for _ in range(6):
            text = json.dumps({"text": "x" * 20_000, "n": i})
            assert writer.event(i, 6, 1, text.encode())
        writer.flush()


def finished_run(run: Path, n_shards: int, **options: object) -> dict[str, bytes]:
    """A run whose writer has closed: its shards and indexes, by their paths."""
    writer = writer_of(run, **options)
    write_shards(writer, n_shards)
    assert writer.close()
    return files_of(run)


def files_of(run: Path) -> dict[str, bytes]:
    """Shards and indexes of a local run, by their paths in it."""
    return {
        path.relative_to(run).as_posix(): path.read_bytes()
        for path in sorted(run.glob("w/*/*.td?"))
    }


def newest_of(store: Store) -> dict[str, Manifest]:
    """The newest manifest of each writer."""
    names = newest_manifests([each.name for each in store.list("m")])
    return {
        writer: Manifest.decode(store.read(f"m/{writer}/{manifest_name(n)}"), writer)
        for writer, n in names.items()
    }


def named_by(store: Store, manifest: Manifest) -> list[ShippedFile]:
    """The files that a manifest names, by its block objects."""
    found: list[ShippedFile] = []
    for name, size in manifest.blocks:
        content = store.read(f"m/{manifest.writer}/{name}")
        assert len(content) == size
        found += BlockObject.decode(content, name).files
    return found


def check_promises(store: Store, original: dict[str, bytes]) -> int:
    """Whatever a manifest names is there, whole and right; returns how many files."""
    sizes = {each.name: each.size for each in store.list()}
    for path, size in sizes.items():
        # No partial object is visible, whether a manifest names it or not.
        if path in original:
            assert size == len(original[path]), path
    n = 0
    for each in [each for each in sizes if each.endswith(".json") and each[:2] == "m/"]:
        manifest = Manifest.decode(store.read(each), each)
        files = named_by(store, manifest)
        assert manifest.n_files == len(files)
        assert manifest.n_bytes == sum(file.size for file in files)
        names = [file.name for file in files]
        assert names == sorted(names, key=lambda name: (name[:6], name[-1] == "i"))
        for file in files:
            path = f"w/{manifest.writer}/{file.name}"
            assert sizes[path] == file.size == len(original[path])
            for offset, some in file.ranges:
                assert original[path][offset : offset + len(some)] == some
        n = max(n, len(files))
    return n


def check_shipped(store: Store, original: dict[str, bytes]) -> None:
    """Everything is there, and said to be."""
    check_promises(store, original)
    manifests = newest_of(store)
    named = {
        f"w/{writer}/{file.name}"
        for writer, manifest in manifests.items()
        for file in named_by(store, manifest)
    }
    assert named == set(original)
    for path, content in original.items():
        assert store.read(path) == content
