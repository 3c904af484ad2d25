"""Whoever is told of findings may be sick or hostile: it costs bounded time and memory.

What a server sends without end does end, late: a client that waits for it takes the
end for success, or takes all of it.
"""

from __future__ import annotations

import logging
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actions_helpers import Server, finding, served, servers
from hostile_servers import (
    ENOUGH_BYTES,
    MAIL_BEHAVIOURS,
    WEB_BEHAVIOURS,
    Behaviour,
    HostileServer,
    accept_mail,
    endless_body_of,
    redirect_to,
    say_nothing,
)
from tdbg import actions
from tdbg.actions import ActionSpec, notify, webhook
from tdbg.actions.delivery import Background
from tdbg.actions.notify import Notify
from tdbg.actions.webhook import Webhook
from tdbg.errors import TdbgError
from tdbg.rules import Engine, ExplodingTensor
from tdbg.trial import create_trial

__all__ = ["servers"]

# A module that apprise imports has a successor from Python 3.13 on.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated")

# What the buffers of two sockets may hold.
BUFFERS = 32 << 20
Starts = Callable[..., HostileServer]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Starts]:
    """Starts servers, which end with the test."""
    monkeypatch.setattr(webhook, "BACKOFF_SECONDS", 0.01)
    made: list[HostileServer] = []

    def started(behave: Behaviour, certificate: Path | None = None) -> HostileServer:
        made.append(HostileServer(behave, certificate))
        return made[-1]

    yield started
    for server in made:
        server.close()


def post(url: str, *, timeout: float = 0.4, retries: int = 1) -> str:
    """What went wrong when a finding was posted; empty: nothing."""
    action = Webhook("runs/a", url, timeout=timeout, retries=retries)
    try:
        action(finding())
        said = ""
    except TdbgError as error:
        said = str(error)
    assert action.close(1.0) == []
    assert "secret" not in said
    assert len(said) < 300
    return said


# ---- webhooks --------------------------------------------------------------------


@pytest.mark.parametrize("name", WEB_BEHAVIOURS)
def test_a_webhook_ends_in_time_whatever_the_server_does(
    start: Starts, name: str
) -> None:
    server = start(WEB_BEHAVIOURS[name])
    trouble = post(server.url())
    assert trouble.startswith("127.0.0.1 ")
    # Whoever answers that it will not have it is not asked again.
    assert server.n_connections == (1 if name == "an endless refusal" else 2)
    assert server.n_sent < BUFFERS


@pytest.mark.parametrize("code", [200, 500, 503])
def test_the_body_of_an_answer_is_nobodys(start: Starts, code: int) -> None:
    server = start(endless_body_of(code))
    trouble = post(server.url())
    assert trouble == ("" if code == 200 else f"127.0.0.1 answered {code}")
    assert server.n_sent < BUFFERS < ENOUGH_BYTES


@pytest.mark.parametrize("scheme", ["http", "https", "file", "gopher", "itself"])
def test_a_redirection_is_not_followed_anywhere(start: Starts, scheme: str) -> None:
    elsewhere = start(say_nothing)
    location = "file:///etc/passwd" if scheme == "file" else elsewhere.url(scheme)
    server = start(redirect_to("/hook" if scheme == "itself" else location))
    assert post(server.url()) == "127.0.0.1 answered 307"
    assert (server.n_connections, elsewhere.n_connections) == (1, 0)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate that nobody has signed, with its key."""
    folder = tmp_path_factory.mktemp("certificate")
    key, made = folder / "key.pem", folder / "made.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes"]
    command += ["-keyout", str(key), "-out", str(made), "-days", "2"]
    try:
        subprocess.run(
            [*command, "-subj", "/CN=127.0.0.1"], check=True, capture_output=True
        )
    except FileNotFoundError:
        pytest.skip("there is no openssl")
    made.write_bytes(made.read_bytes() + key.read_bytes())
    return made


def test_a_certificate_that_nobody_has_signed_is_refused_with_the_reason(
    start: Starts, certificate: Path
) -> None:
    server = start(say_nothing, certificate)
    trouble = post(server.url("https"), timeout=20.0)
    assert "127.0.0.1 could not be reached: SSLError (self" in trouble
    assert server.heard == []


@pytest.mark.parametrize(
    "asked",
    [
        "9" * 5000,
        "-5",
        "nan",
        "1e9",
        "soon",
        "\N{SUPERSCRIPT TWO}",
        "Fri, 31 Dec 9999 23:59:59 GMT",
        "Fri, 31 Dec 99999999999 23:59:59 GMT",
        "Thu, 01 Jan 1970 00:00:00 GMT",
    ],
)
def test_an_absurd_retry_after_is_bounded_or_passed_over(
    servers: list[Server], monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    server = served(servers, 429)
    server.headers["Retry-After"] = asked
    assert post(server.url, timeout=20.0) == ""
    assert len(server.requests) == 2
    (wait,) = (seconds for seconds in waits if seconds)
    assert wait in (webhook.BACKOFF_SECONDS, webhook.MAX_RETRY_AFTER)


def test_a_webhook_that_fails_again_and_again_is_logged_once_and_counted(
    start: Starts, caplog: pytest.LogCaptureFixture
) -> None:
    server = start(endless_body_of(404))
    action = Background(Webhook("runs/a", server.url(), timeout=20.0))
    for number in range(3):
        action(finding(f"{number}"))
    assert action.close(60.0) == ["action webhook: 127.0.0.1 answered 404 (3 times)"]
    (record,) = [each for each in caplog.records if each.name == "tdbg"]
    assert record.levelno == logging.WARNING
    assert "127.0.0.1 answered 404; tdbg continues judging" in record.getMessage()


def test_the_judge_and_the_stop_do_not_wait_for_a_webhook_that_hangs(
    start: Starts, sick_run: Path
) -> None:
    server = start(say_nothing)
    spec = ActionSpec(
        name="webhook", parameters={"url": server.url(), "timeout": 100.0}
    )
    told = [actions.make(spec, str(sick_run)), actions.make("stop", str(sick_run))]
    engine = Engine(sick_run, (ExplodingTensor(),), told, record=False)
    found = engine.poll()
    assert found
    assert list((sick_run / "ctl").glob("*.json")), "the training was not asked"
    (line,) = actions.close_all(told, 0.2)
    assert "webhook: not done within 0.2 s, and given up" in line
    assert create_trial(sick_run).steps()


@pytest.fixture
def sick_run(run_dir: Path) -> Path:
    """A run with a weight that is NaN."""
    import numpy as np

    from run_builder import RunBuilder

    with RunBuilder(run_dir) as run:
        for step in range(3):
            run.step(step, {"a.weight": np.full(3, np.nan, np.float32)})
    return run_dir


# ---- collectors of metrics -------------------------------------------------------


@pytest.mark.parametrize("code", [200, 400])
def test_a_collector_may_send_without_end(start: Starts, code: int) -> None:
    server = start(endless_body_of(code))
    action = actions.make(f"opentelemetry:{server.url()}", "runs/a")
    action(finding())
    told = actions.close_all([action], 60.0)
    assert bool(told) == (code != 200)
    assert server.n_sent < BUFFERS


def test_a_collector_that_redirects_was_not_told(start: Starts) -> None:
    elsewhere = start(say_nothing)
    server = start(redirect_to(elsewhere.url()))
    action = actions.make(f"opentelemetry:{server.url()}", "runs/a")
    action(finding())
    told = actions.close_all([action], 60.0)
    assert told == ["action opentelemetry: 127.0.0.1 did not take the metrics"]
    assert elsewhere.n_connections == 0


# ---- mail ------------------------------------------------------------------------


def mail_to(server: HostileServer) -> Notify:
    return Notify(
        "runs/a",
        f"mailto://127.0.0.1:{server.port}/?smtp=127.0.0.1&from=a@example.com"
        "&to=b@example.com&mode=insecure",
    )


def test_a_mail_arrives(start: Starts) -> None:
    """Otherwise the tests below would prove nothing."""
    server = start(accept_mail)
    mail_to(server)(finding())
    assert b"DeadRelu" in b"".join(server.heard)


@pytest.mark.slow
def test_a_mail_ends_in_time_whatever_the_server_does(
    start: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "SECONDS", 6.0)
    hostile = [start(behave) for behave in MAIL_BEHAVIOURS.values()]
    mails = [Background(mail_to(server)) for server in hostile]
    for mail in mails:
        mail(finding())
    told = [mail.close(100.0) for mail in mails]
    assert ["did not take the message" in str(lines) for lines in told] == [True] * 4
    assert [server.n_connections for server in hostile] == [1] * 4
    assert hostile[-1].n_sent < 16 * ENOUGH_BYTES
