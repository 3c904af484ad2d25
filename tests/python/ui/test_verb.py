"""``tdbg ui`` as users type it."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from run_builder import simple_run
from tdbg.cli import _tdbg
from tdbg.ui import server
from tdbg.ui.runs import Runs


@contextmanager
def started(
    *arguments: str, folder: Path, **variables: str
) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """The server, and what it printed until it said how to end it."""
    environment = {k: v for k, v in os.environ.items() if k != "SSH_CONNECTION"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tdbg", "ui", "--port", "0", *arguments],
        cwd=folder,
        env=environment | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line.strip())
            if line.startswith("Ctrl-C"):
                break
        yield process, lines
    finally:
        process.kill()
        process.communicate()


def ask(lines: list[str], path: str) -> int:
    """Status of an answer to whoever has the printed address."""
    found = re.fullmatch(r".* at http://127\.0\.0\.1:(\d+)/#t=(\S+)", lines[0])
    assert found, lines
    connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=30)
    method = "POST" if path.startswith("/api/stop") else "GET"
    headers = {"X-Tdbg-Token": found[2], "Content-Type": "application/json"}
    connection.request(method, path, b"{}" if method == "POST" else None, headers)
    status = connection.getresponse().status
    connection.close()
    return status


def test_the_printed_address_opens_the_runs_and_ctrl_c_ends_the_server(
    tmp_path: Path,
) -> None:
    simple_run(tmp_path / "runs" / "one")
    with started("--no-browser", folder=tmp_path) as (process, lines):
        assert len(lines) == 2
        assert ask(lines, "/api/runs") == 200
        assert ask(lines, "/api/stop?run=x") == 404
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 0
        assert (out, err) == ("", "")


def test_an_address_that_is_shared_only_looks(tmp_path: Path) -> None:
    with started("--no-browser", "--share", folder=tmp_path) as (_, lines):
        assert ask(lines, "/api/runs") == 200
        assert ask(lines, "/api/stop?run=x") == 401


def test_over_ssh_the_tunnel_is_printed_and_no_browser_is_opened(
    tmp_path: Path,
) -> None:
    variables = {"SSH_CONNECTION": "1 2 3 4", "BROWSER": "false", "DISPLAY": ":0"}
    with started(folder=tmp_path, **variables) as (_, lines):
        port = lines[0].rpartition("/#")[0].rpartition(":")[2]
        assert f"ssh -L {port}:127.0.0.1:{port} " in lines[1]


def test_on_a_desktop_the_browser_is_opened_at_the_address(tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    program = tmp_path / "browser"
    program.write_text(
        f'#!/bin/sh\necho "$1" > {opened}.new; mv {opened}.new {opened}\n'
    )
    program.chmod(0o755)
    with started(folder=tmp_path, BROWSER=f"{program} %s") as (process, lines):
        assert ask(lines, "/") == 200
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert opened.read_text().strip() == lines[0].removeprefix("The dashboard is at ")


def test_without_its_packages_the_verb_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [*sys.modules]:
        if name.partition(".")[0] == "uvicorn" or name.startswith("tdbg.ui"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    result = CliRunner().invoke(_tdbg, ["ui"])
    assert result.exit_code == 2
    assert "pip install 'tdbg[ui]'" in result.stderr


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("s3://", "name a bucket and a folder in it"),
        ("s3://bucket/runs/*", "give the folder"),
        ("s3://who:hidden-word@bucket/runs", "it must not hold credentials"),
    ],
)
def test_a_url_at_which_no_runs_can_be_is_refused_at_once(
    tmp_path: Path, given: str, reason: str
) -> None:
    result = CliRunner().invoke(_tdbg, ["ui", "--no-browser", str(tmp_path), given])
    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert reason in said
    assert "hidden-word" not in said


def test_a_url_of_this_machine_is_its_path(tmp_path: Path) -> None:
    simple_run(tmp_path / "one")
    address = f"file://{tmp_path}/one"
    with started("--no-browser", address, folder=tmp_path) as (_, lines):
        assert ask(lines, "/api/runs") == 200
    assert [*Runs([address]).found().values()] == [str(tmp_path / "one")]


def test_an_answer_does_not_wait_for_the_receipt_of_its_headers() -> None:
    # With Nagle's algorithm, the body of each answer would come 40 ms later.
    with (
        server._listen(server.Settings(port=0)) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
