"""Who may ask the dashboard what: each row of docs/dashboard.md, "Security"."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dashboard import Dashboard, dashboard
from run_builder import RunBuilder
from tdbg.errors import ConfigurationError
from tdbg.ui import Access, Settings, serve
from tdbg.ui.page_files import page_files
from tdbg.ui.security import MAX_BODY, host_name

JSON = "application/json"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    builder = RunBuilder(path)
    for step in range(4):
        builder.step(step, {"fc.weight": np.full(4, step, np.float32)})
    builder.close()
    return path


@pytest.fixture(scope="module")
def served(run: Path) -> Iterator[Dashboard]:
    with dashboard(run) as found:
        yield found


# --- Host ---------------------------------------------------------------------


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:9", "[::1]:8"])
def test_the_server_is_addressed_by_the_names_of_this_machine(
    served: Dashboard, host: str
) -> None:
    assert served.ask("/api/runs", host=host).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil.example:127.0.0.1",
        "[evil]",
        "[::1].evil.example",
        "[::1]evil",
        "[::1",
        "[::1]:8.evil.example",
        "",
        "localhost evil",
    ],
)
def test_a_page_that_rebound_its_name_is_refused_before_anything_else(
    served: Dashboard, host: str
) -> None:
    for path in ("/api/runs", "/", "/no/such/file"):
        assert served.ask(path, host=host).status == 403


def test_two_host_headers_address_nobody() -> None:
    assert not Access().is_host(["localhost", "localhost"])
    assert not Access().is_host([])


def test_a_name_that_was_allowed_is_compared_without_its_port(run: Path) -> None:
    access = Access(hosts=frozenset({"hub.example"}))
    with dashboard(run, access=access) as found:
        assert found.ask("/api/runs", host="Hub.example:8000").status == 200
        assert found.ask("/api/runs", host="a.hub.example").status == 403


@pytest.mark.parametrize(
    ("header", "name"),
    [("a:1", "a"), ("[::1]:1", "::1"), ("A", "a"), (":80", ":80"), ("a:b", "a:b")],
)
def test_the_name_in_a_host_header(header: str, name: str) -> None:
    assert host_name(header) == name


# --- Tokens -------------------------------------------------------------------


@pytest.mark.parametrize("token", [None, "x", "\xe9", "a" * 9999])
def test_without_the_token_nothing_is_told(
    served: Dashboard, token: str | None
) -> None:
    for path in ("/api/runs", "/api/events", "/api/no-such-thing"):
        answer = served.ask(path, token=token)
        assert answer.status == 401
        assert b"run" not in answer.body.replace(b"tdbg ui", b"")


def test_a_token_counts_in_its_header_only(served: Dashboard) -> None:
    token = served.access.view
    path = f"/api/runs?t={token}&token={token}"
    answer = served.ask(
        path, token=None, cookie=f"t={token}", authorization=f"Bearer {token}"
    )
    assert answer.status == 401


def test_tokens_have_192_bits_and_are_never_twice_the_same() -> None:
    tokens = {token for _ in range(50) for token in (Access().view, Access().control)}
    assert len(tokens) == 100
    assert all(len(str(token)) == 32 for token in tokens)


def test_whoever_may_only_look_stops_and_captures_nothing(
    served: Dashboard, run: Path
) -> None:
    view = served.access.view
    id_ = served.run_id()
    assert served.ask(f"/api/run?run={id_}", token=view).json["may_control"] is False
    assert served.ask(f"/api/run?run={id_}").json["may_control"] is True
    for verb in ("stop", "capture"):
        path = f"/api/{verb}?run={id_}"
        answer = served.ask(path, method="POST", body={}, token=view)
        assert answer.status == 401
    assert not (run / "ctl").exists() or not list((run / "ctl").iterdir())


def test_other_machines_only_look_unless_that_is_allowed() -> None:
    assert Settings().access().control is not None
    assert Settings(host="::1").access().control is not None
    assert Settings(host="0.0.0.0").access().control is None  # noqa: S104
    open_ = Settings(host="10.1.2.3", allow_control=True).access()
    assert open_.control is not None
    assert open_.is_host(["10.1.2.3:80"])


# --- Requests from other sites ------------------------------------------------


@pytest.mark.parametrize("site", ["cross-site", "same-site", "none"])
def test_a_request_from_another_site_is_refused(served: Dashboard, site: str) -> None:
    answer = served.ask("/api/stop", method="POST", body={}, sec_fetch_site=site)
    assert answer.status == 403


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded"])
def test_what_a_form_can_send_is_refused(served: Dashboard, kind: str) -> None:
    answer = served.ask("/api/stop", method="POST", body=b"{}", content_type=kind)
    assert answer.status == 415


@pytest.mark.parametrize("method", ["OPTIONS", "PUT", "DELETE", "TRACE"])
def test_a_preflight_is_refused(served: Dashboard, method: str) -> None:
    answer = served.ask("/api/stop", method=method, origin="http://127.0.0.1:1")
    assert answer.status == 405
    assert not any(name.startswith("access-control") for name in answer.headers)


# --- Headers ------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/app.js", "/api/runs", "/nothing", "/api/x"])
def test_every_answer_forbids_scripts_of_others(served: Dashboard, path: str) -> None:
    headers = served.ask(path).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "set-cookie" not in headers
    assert "server" not in headers


def test_refusals_have_these_headers_too(served: Dashboard) -> None:
    answer = served.ask("/", host="evil.example")
    assert "content-security-policy" in answer.headers


# --- Files and runs -----------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/..%2f..%2fapp.py",
        "/static/app.js",
        "//etc/passwd",
        "/app.js/../app.py",
        "/C:\\windows\\win.ini",
    ],
)
def test_no_path_leads_out_of_the_dictionary_of_files(
    served: Dashboard, path: str
) -> None:
    assert served.ask(path).status == 404


def test_runs_go_by_ids_of_the_server_never_by_paths(
    served: Dashboard, run: Path, tmp_path: Path
) -> None:
    other = RunBuilder(tmp_path / "other")
    other.close()
    for id_ in (str(run), str(tmp_path / "other"), "../run", "0" * 12, ""):
        assert served.ask(f"/api/run?run={id_}").status in (400, 404)


def test_a_run_that_is_named_twice_is_no_run(served: Dashboard) -> None:
    id_ = served.run_id()
    assert served.ask(f"/api/run?run={id_}&run={id_}").status == 400


def test_the_page_asks_for_files_by_relative_addresses() -> None:
    page = page_files()["index.html"].content.decode()
    linked = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert linked
    assert all(not link.startswith(("/", "http")) for link in linked)


# --- Limits -------------------------------------------------------------------


def test_a_body_beyond_64_kib_is_refused(served: Dashboard) -> None:
    body = {"reason": "x" * MAX_BODY}
    assert served.ask("/api/stop", method="POST", body=body).status == 413


def test_a_body_that_hides_its_length_is_refused_where_it_becomes_too_long(
    served: Dashboard,
) -> None:
    token = served.access.control
    head = (
        "POST /api/stop HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
        f"Content-Type: {JSON}\r\nX-Tdbg-Token: {token}\r\nConnection: close\r\n\r\n"
    )
    chunk = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
    with socket.create_connection(("127.0.0.1", served.port), 30) as connection:
        connection.sendall(head.encode() + 3 * chunk + b"0\r\n\r\n")
        assert b" 413 " in connection.recv(64)


@pytest.mark.parametrize(
    "query",
    [
        "field=l2&role=weight&columns=0",
        "field=l2&role=weight&columns=999999999999999999",
        "field=l2&role=weight&start=4611686018427387904",
    ],
)
def test_ranges_and_columns_are_capped(served: Dashboard, query: str) -> None:
    answer = served.ask(f"/api/envelope?run={served.run_id()}&{query}")
    assert answer.status == 200
    assert answer.arrays["low"].shape[1] <= 4096


@pytest.mark.parametrize(
    "query",
    [
        "field=l2&role=weight&columns=-1",
        "field=l2&role=weight&columns=1e3",
        "field=l2&role=weight&start=%D9%A1",
        "field=nothing&role=weight",
        "field=l2",
        "role=weight",
        "field=l2&role=weight&mode=NIGHT",
        "field=l2&" + "&".join(f"name=n{i}" for i in range(65)),
    ],
)
def test_what_can_never_be_answered_is_refused(served: Dashboard, query: str) -> None:
    answer = served.ask(f"/api/envelope?run={served.run_id()}&{query}")
    assert answer.status == 400
    assert answer.json["error"]


def test_an_address_beyond_64_kib_is_refused(served: Dashboard) -> None:
    assert served.ask("/api/runs?x=" + "y" * 60_000).status in (200, 400, 414)
    with socket.create_connection(("127.0.0.1", served.port), 30) as connection:
        request = f"GET /api/runs?x={'y' * 70_000} HTTP/1.1\r\nHost: localhost\r\n\r\n"
        connection.sendall(request.encode())
        assert connection.recv(64).split(b" ")[1] in (b"400", b"414", b"431")


def test_a_port_that_is_taken_is_said_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = Settings(port=taken.getsockname()[1], browser=False)
        with pytest.raises(ConfigurationError, match="choose another --host or --port"):
            serve([], settings, lambda *_: None)
