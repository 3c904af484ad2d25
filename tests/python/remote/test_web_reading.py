"""A run on a web server is read with ranged requests; tdbg only reads there.

Seen to fail when a server that sends the whole file is believed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from run_builder import RunBuilder
from store_runs import copy_run
from tdbg.errors import CorruptionError, NotARun, StorageError
from tdbg.remote import find_runs, open_store
from tdbg.rules import check
from tdbg.trial import create_trial


class Handler(SimpleHTTPRequestHandler):
    """A static server that lists folders; with ranges, as most but Python's own."""

    knows_ranges = True
    requests: list[tuple[str, str]]

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        given = self.headers.get("Range", "")
        self.requests.append((self.path, given))
        path = Path(self.translate_path(self.path))
        if not given or not self.knows_ranges or not path.is_file():
            super().do_GET()
            return
        start, stop = given.removeprefix("bytes=").split("-")
        whole = path.read_bytes()
        content = whole[int(start) : int(stop) + 1]
        self.send_response(206)
        self.send_header("ETag", f'"{path.stat().st_ino}-{path.stat().st_mtime_ns}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, type[Handler]]]:
    """The URL of a server of tmp_path, and what answers there."""

    class Own(Handler):
        requests: list[tuple[str, str]] = []  # noqa: RUF012 - of this server

    handler = partial(Own, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,)).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", Own
        server.shutdown()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A local run, which is also shipped to tmp_path/runs/digits."""
    with RunBuilder(tmp_path / "local", codec="none") as run:
        for step in range(10):
            run.step(step, {"w": np.full(50_000, step, np.float32)})
    copy_run(tmp_path / "local", open_store(f"file://{tmp_path}/runs/digits"))
    return tmp_path / "local"


def test_a_run_on_a_web_server_is_read_by_ranges(
    run: Path, served: tuple[str, type[Handler]]
) -> None:
    url, handler = served
    trial = create_trial(f"{url}/runs/digits")
    assert trial.steps() == create_trial(run).steps()
    np.testing.assert_array_equal(trial.tensor("w").value(7), np.full(50_000, 7.0))
    asked = [given for path, given in handler.requests if path.endswith(".tds")]
    assert asked
    assert all(asked)
    assert len(handler.requests) <= 10
    assert trial.problems() == []


@pytest.mark.usefixtures("run")
def test_runs_on_a_web_server_are_found_and_named(
    served: tuple[str, type[Handler]],
) -> None:
    url, _ = served
    assert find_runs(f"{url}/runs") == [f"{url}/runs/digits"]
    with pytest.raises(NotARun, match="digits"):
        create_trial(f"{url}/runs/digitz")


@pytest.mark.usefixtures("run")
def test_a_server_that_knows_no_ranges_is_refused_at_once(
    served: tuple[str, type[Handler]],
) -> None:
    url, handler = served
    handler.knows_ranges = False
    with pytest.raises(StorageError, match="does not know ranges") as it:
        create_trial(f"{url}/runs/digits")
    assert it.value.kind == "unsupported"


@pytest.mark.usefixtures("run")
def test_a_run_on_a_web_server_is_judged_and_not_written(
    tmp_path: Path, served: tuple[str, type[Handler]]
) -> None:
    url, _ = served
    before = sorted(tmp_path.rglob("*"))
    report = check(f"{url}/runs/digits")
    assert report.n_steps == 10
    (note,) = report.notes
    assert "only reads from web servers" in note
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.usefixtures("run")
def test_an_object_that_was_replaced_between_two_reads_is_no_data(
    tmp_path: Path, served: tuple[str, type[Handler]]
) -> None:
    url, _ = served
    trial = create_trial(f"{url}/runs/digits")
    assert trial.tensor("w").value(1)[0] == 1
    (shard,) = (tmp_path / "runs/digits").glob("w/*/*.tds")
    content = shard.read_bytes()
    shard.unlink()
    shard.write_bytes(content)  # Even if it says the same.
    with pytest.raises(CorruptionError, match="was replaced while it was read"):
        trial.tensor("w").value(8)
    assert create_trial(f"{url}/runs/digits").tensor("w").value(8)[0] == 8
