"""A dashboard that serves runs in a process of its own, and questions to it by HTTP."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tdbg.ui import Access, Settings, serve
from tdbg.ui.packing import unpack

__all__ = ["Answer", "Dashboard", "dashboard", "page_address"]


# Not that of whoever runs the tests.
CACHE = str(Path(tempfile.gettempdir()) / "tdbg-tests-cache")


@dataclass(frozen=True)
class Answer:
    """What the server answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def arrays(self) -> dict[str, Any]:
        return unpack(self.body)[1]

    @property
    def header(self) -> dict[str, Any]:
        return unpack(self.body)[0]


@dataclass(frozen=True)
class Dashboard:
    """A server that runs."""

    port: int
    access: Access
    process: subprocess.Popen[str]

    @property
    def address(self) -> str:
        """What a user opens."""
        token = self.access.control or self.access.view
        return f"http://127.0.0.1:{self.port}/#t={token}"

    @property
    def icon(self) -> str:
        """The address of a picture: whoever opens it has asked for no run."""
        return f"http://127.0.0.1:{self.port}/icon.svg"

    def ask(
        self,
        path: str,
        *,
        method: str = "GET",
        body: object = None,
        token: str | None = "",
        **headers: str,
    ) -> Answer:
        """Ask; by default with the token that may do everything."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            given["x-tdbg-token"] = token or self.access.control or self.access.view
        content = body if isinstance(body, bytes) else None
        if body is not None and content is None:
            content = json.dumps(body).encode()
            given.setdefault("content-type", "application/json")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, content, given)
            found = connection.getresponse()
            headers = {n.lower(): v for n, v in found.getheaders()}
            return Answer(found.status, headers, found.read())
        finally:
            connection.close()

    def run_name(self) -> str:
        """The name of the only run."""
        (run,) = self.ask("/api/runs").json["runs"]
        return str(run["name"])

    def run_id(self, name: str | None = None) -> str:
        """The id of the run of that name, or of the only one."""
        runs = self.ask("/api/runs").json["runs"]
        found = [each["id"] for each in runs if name in (None, each["name"])]
        assert len(found) == 1, [each["name"] for each in runs]
        return str(found[0])


def page_address(served: Dashboard, run: str | None = None, **state: object) -> str:
    """The address of a state of the page."""
    head, _, token = served.address.partition("#")
    given = {} if run is None else {"run": served.run_id(run)}
    query = "&".join(f"{name}={value}" for name, value in {**given, **state}.items())
    return f"{head}{'?' if query else ''}{query}#{token}"


@contextmanager
def dashboard(
    *paths: Path | str,
    access: Access | None = None,
    port: int = 0,
    judge: bool = False,
) -> Iterator[Dashboard]:
    """Serve these runs on a free port of this machine, in a process of its own.

    It judges by itself only where a test looks at that.
    """
    held = access or Access()
    order = {
        "paths": [str(path) for path in paths],
        "port": port,
        "judge": judge,
        "view": held.view,
        "control": held.control,
        "hosts": sorted(held.hosts),
    }
    process = subprocess.Popen(
        [sys.executable, __file__, json.dumps(order)],
        stdout=subprocess.PIPE,
        text=True,
        env={"XDG_CACHE_HOME": CACHE, **os.environ},
    )
    try:
        assert process.stdout is not None
        found = int(process.stdout.readline())
        yield Dashboard(found, held, process)
    finally:
        process.kill()
        process.communicate()


def main() -> None:
    order = json.loads(sys.argv[1])
    access = Access(order["view"], order["control"], frozenset(order["hosts"]))

    def announce(address: str, _: Access) -> None:
        print(address.rpartition("/")[0].rpartition(":")[2], flush=True)

    settings = Settings(port=order["port"], browser=False, judge=order["judge"])
    serve(order["paths"], settings, announce, access)


if __name__ == "__main__":
    main()
