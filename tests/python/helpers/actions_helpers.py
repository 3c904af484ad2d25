"""Findings, a server and actions, for tests of actions."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tdbg.modes import ModeKeys
from tdbg.run.findings import Finding, Phase, Severity

__all__ = ["Failing", "Remembering", "Server", "finding", "served", "servers"]


def finding(
    tensor: str = "fc.weight",
    severity: Severity = Severity.ERROR,
    phase: Phase = "begin",
    rule: str = "DeadRelu",
    step: int = 7,
) -> Finding:
    return Finding(
        rule=rule,
        severity=severity,
        step=step,
        mode=ModeKeys.TRAIN,
        tensor=tensor,
        message="60 of 64 units are dead",
        advice="lower the learning rate",
        first_step=step,
        last_step=step,
        phase=phase,
    )


class Remembering:
    name = "remembering"

    def __init__(self, delay: float = 0.0) -> None:
        self.seen: list[Finding] = []
        self.delay = delay

    def __call__(self, found: Finding) -> None:
        time.sleep(self.delay)
        self.seen.append(found)


class Failing:
    name = "failing"

    def __call__(self, _: Finding) -> None:
        msg = "no"
        raise ValueError(msg)


class Server:
    """A real server, which answers with the given codes, then with 200."""

    def __init__(self, *codes: int, delay: float = 0.0) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.headers: dict[str, str] = {}
        answers = list(codes)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.requests.append((self.path, dict(self.headers), body))
                time.sleep(delay)
                code = answers.pop(0) if answers else 200
                self.send_response(code)
                if code // 100 == 3:
                    self.send_header("Location", "/elsewhere")
                for name, value in outer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook?token=secret"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Server]]:
    monkeypatch.setattr("tdbg.actions.webhook.BACKOFF_SECONDS", 0.01)
    made: list[Server] = []
    yield made
    for server in made:
        server.close()


def served(servers: list[Server], *codes: int, delay: float = 0.0) -> Server:
    servers.append(Server(*codes, delay=delay))
    return servers[-1]
