"""A store that cannot be reached for a while: nobody listens, no name, no certificate.

And what else is no fault of one request: an error in an answer that says 200, and a
spool that is full before the store is back.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import itertools
import json
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import s3fs.core

from fault_proxy import Answer, Fault, FaultProxy, Request, error
from object_stores import environment, reset_moto
from shipped_runs import (
    SHARD_BYTES,
    check_shipped,
    files_of,
    finished_run,
    writer_of,
)
from tdbg._core import Capture
from tdbg.errors import StorageError
from tdbg.remote import Uploader, attempts, open_store
from tdbg.remote import uploader as uploader_module
from tdbg.trial import create_trial

URL = "s3://bucket/runs/a"
MEGABYTE = 1 << 20


@pytest.fixture(autouse=True)
def settled(moto_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    reset_moto(moto_port)
    monkeypatch.setattr(uploader_module, "PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(attempts, "OPEN_PAUSE", (0.05, 0.1))
    monkeypatch.setattr(attempts, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(attempts, "LONGEST_PAUSE", 0.2)


def reach(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(url).items():
        monkeypatch.setenv(name, value)


def ship(run: Path) -> dict[str, int]:
    uploader = Uploader(run, URL, empties=False)
    uploader.prepare()
    assert uploader.run()
    return uploader.progress().uploads


def test_nobody_listens_for_a_while(
    moto_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = finished_run(tmp_path / "run", 1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    reach(f"http://127.0.0.1:{port}", monkeypatch)
    uploader = Uploader(tmp_path / "run", URL, empties=False)
    thread = threading.Thread(target=lambda: (uploader.prepare(), uploader.run()))
    thread.start()
    while uploader.progress().uploads["failures"] < 5:
        assert thread.is_alive()
    assert "cannot" in uploader.progress().error
    with FaultProxy(moto_port, port=port):
        thread.join(60)
        assert not thread.is_alive()
        check_shipped(open_store(URL), original)


def test_a_name_that_is_not_known_for_a_while(
    moto_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = finished_run(tmp_path / "run", 1)
    known = socket.getaddrinfo
    asked = itertools.count()

    def resolve(host: Any, port: Any, *rest: Any, **options: Any) -> Any:
        if host == "localhost":
            if next(asked) < 5:
                raise socket.gaierror(socket.EAI_AGAIN, "no name by the test")
            host = "127.0.0.1"
        return known(host, port, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    reach(f"http://localhost:{moto_port}", monkeypatch)
    assert ship(tmp_path / "run")["failures"] == 5
    check_shipped(open_store(URL), original)


def test_a_certificate_that_nobody_trusts_for_a_while(
    moto_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = finished_run(tmp_path / "run", 1)
    good, bad = (certificate(tmp_path / name, name) for name in ("trusted", "unknown"))
    connections = itertools.count()
    n_bad = 6

    def context() -> ssl.SSLContext:
        found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        found.load_cert_chain(bad if next(connections) < n_bad else good)
        return found

    monkeypatch.setenv("AWS_CA_BUNDLE", str(good))
    with FaultProxy(moto_port, tls=context) as proxy:
        reach(proxy.url, monkeypatch)
        counts = ship(tmp_path / "run")
        assert counts["failures"] == n_bad
        assert counts["requests"] - n_bad == len(proxy.requests)
        check_shipped(open_store(URL), original)


def certificate(path: Path, name: str) -> Path:
    """A file with a key, and a certificate of this machine that the key has signed."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    signed = (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(who)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = serialization.Encoding.PEM
    path.write_bytes(
        key.private_bytes(
            form,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + signed.public_bytes(form)
    )
    return path


def test_an_error_in_an_answer_that_says_200_is_one(
    moto_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Large files go in parts, and what joins them may say 200 before it has failed.
    monkeypatch.setattr(s3fs.core, "calculate_chunksize", lambda *_, **__: 5 * MEGABYTE)
    (tmp_path / "large").write_bytes(bytes(11 * MEGABYTE))

    def lies(request: Request) -> Fault | None:
        if request.method == "POST" and "uploadId=" in request.path:
            answer: Answer = error(200, "InternalError")(request).answer
            return Fault("200 with an error", answer)
        return None

    with FaultProxy(moto_port) as proxy:
        reach(proxy.url, monkeypatch)
        store = open_store(URL)
        with proxy.broken(lies), pytest.raises(StorageError) as it:
            store.write_file("large", tmp_path / "large")
        assert it.value.kind == "io"
        assert proxy.n_faults == 1
        assert store.list() == []
        # The parts are not left behind, where they would cost money for ever.
        assert any("uploadId" in r.path for r in proxy.requests if r.method == "DELETE")
        store.write_file("large", tmp_path / "large")
        assert store.size("large") == 11 * MEGABYTE


def test_a_spool_that_is_full_while_the_store_is_down_drops_and_counts(
    moto_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound, run = 5 * SHARD_BYTES, tmp_path / "run"
    bounds = {"queue_bytes": MEGABYTE, "spool_bytes": bound}
    writer = writer_of(run, overflow="drop", **bounds)
    with FaultProxy(moto_port) as proxy:
        reach(proxy.url, monkeypatch)
        uploader = Uploader(run, URL, empties=True)
        uploader.prepare()
        is_needed = threading.Event()
        is_needed.set()
        thread = threading.Thread(
            target=uploader.run, kwargs={"is_needed": is_needed.is_set}
        )
        thread.start()
        with proxy.broken(error(503, "SlowDown")):
            taken = write_until_full(writer)
            spooled = sum(len(each) for each in files_of(run).values())
            assert spooled < bound + 2 * SHARD_BYTES  # Looked at in between.
        # The store is back: soon there is room again.
        while not write_event(writer):
            assert thread.is_alive()
            time.sleep(0.05)
        assert writer.close()
        is_needed.clear()
        thread.join(60)
        assert not thread.is_alive()
        assert files_of(run) == {}
        trial = create_trial(URL)
        assert len(trial.events()) == taken + 1
        lost = writer.losses()["queue_full"][0]
        assert trial.lost_records().records == lost > 0


def write_until_full(writer: Capture) -> int:
    """How many events it took, until it has taken none for a while."""
    taken, refused_since = 0, time.monotonic()
    while time.monotonic() - refused_since < 0.5:
        if write_event(writer):
            taken, refused_since = taken + 1, time.monotonic()
        else:
            time.sleep(0.02)
    return taken


def write_event(writer: Capture) -> bool:
    return writer.event(0, 6, 1, json.dumps({"text": "x" * 20_000}).encode())
