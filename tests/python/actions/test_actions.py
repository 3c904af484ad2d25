"""Actions do what they say, and harm nobody when they fail."""

from __future__ import annotations

import gzip
import json
import logging
import os
import signal
import threading
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from actions_helpers import Server, finding, served, servers
from tdbg import actions
from tdbg.actions import ActionSpec, delivery, webhook
from tdbg.actions.command import Command
from tdbg.actions.delivery import Background
from tdbg.actions.metrics import Tally
from tdbg.actions.notify import Notify
from tdbg.actions.stop import Stop
from tdbg.actions.webhook import Webhook
from tdbg.errors import ConfigurationError, TdbgError
from tdbg.modes import ModeKeys
from tdbg.run.findings import Finding, Severity

__all__ = ["servers"]

# A module that apprise imports has a successor from Python 3.13 on.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated")


# ---- the actions -----------------------------------------------------------------


def test_a_command_has_the_finding_in_variables_and_as_json(tmp_path: Path):
    command = f'cat > {tmp_path}/in; echo "$TDBG_RULE $TDBG_STEP" > {tmp_path}/env'
    action = actions.make(f"command:{command}", "runs/a")
    action(finding())
    assert actions.close_all([action]) == []
    document = json.loads((tmp_path / "in").read_text())
    assert (document["run"], document["rule"]) == ("runs/a", "DeadRelu")
    assert (tmp_path / "env").read_text() == "DeadRelu 7\n"


@pytest.mark.parametrize("text", ["x" * 200_000, "half of \ud83d", "a\0b"])
def test_a_message_of_any_length_and_content_reaches_a_command(
    tmp_path: Path, text: str
):
    command = f'cat > {tmp_path}/in; printf "%s" "$TDBG_MESSAGE" > {tmp_path}/env'
    action = actions.make(f"command:{command}", "runs/a")
    sent = replace(finding(), message=text)
    action(sent)
    assert actions.close_all([action]) == []
    read = json.loads((tmp_path / "in").read_text())["message"]
    assert read == text.replace("\ud83d", "?")
    shown = (tmp_path / "env").read_text()
    assert shown == read.replace("\0", "")[:100_000]


def test_a_command_that_fails_is_told_with_what_it_said():
    action = actions.make("command:echo broken; exit 3", "runs/a")
    action(finding())
    (line,) = actions.close_all([action])
    assert "ended with 3: broken" in line


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path):
    spec = ActionSpec(
        name="command",
        parameters={
            "command": f"(sleep 30; touch {tmp_path}/late) & sleep 30",
            "timeout": 0.2,
        },
    )
    action = actions.make(spec, "runs/a")
    action(finding())
    (line,) = actions.close_all([action])
    assert "more than 0.2 s and was killed" in line


def test_a_webhook_posts_json(servers: list[Server]):
    server = served(servers)
    spec = ActionSpec(
        name="webhook",
        parameters={"url": server.url, "headers": {"Authorization": "Bearer x"}},
    )
    action = actions.make(spec, "runs/a")
    action(finding())
    assert actions.close_all([action]) == []
    ((path, headers, body),) = server.requests
    assert path == "/hook?token=secret"
    assert headers["Authorization"] == "Bearer x"
    assert headers["Content-Type"] == "application/json"
    document = json.loads(body)
    assert document["event"] == "finding"
    assert document["finding"]["tensor"] == "fc.weight"
    assert "error in runs/a: DeadRelu at step 7" in document["text"]


def test_text_for_slack_calls_nobody_and_links_nowhere(servers: list[Server]):
    server = served(servers)
    action = actions.make(f"webhook:{server.url}", "runs/a")
    action(replace(finding(), tensor="<!channel> & <http://evil.example|click>"))
    assert actions.close_all([action]) == []
    document = json.loads(server.requests[0][2])
    assert (
        "&lt;!channel&gt; &amp; &lt;http://evil.example|click&gt;" in document["text"]
    )
    assert document["finding"]["tensor"].startswith("<!channel>")


def test_a_message_with_half_a_character_reaches_a_webhook(servers: list[Server]):
    server = served(servers)
    action = actions.make(f"webhook:{server.url}", "runs/a")
    action(replace(finding(), message="half of \ud83d"))
    assert actions.close_all([action]) == []
    ((_, _, body),) = server.requests
    assert json.loads(body)["finding"]["message"] == "half of ?"


def test_a_webhook_tries_again_and_then_says_so_without_the_secret(
    servers: list[Server],
):
    patient = served(servers, 503, 500)
    action = actions.make(f"webhook:{patient.url}", "runs/a")
    action(finding())
    assert actions.close_all([action]) == []
    assert len(patient.requests) == 3
    refusing = served(servers, *[404] * 9)
    action = actions.make(f"webhook:{refusing.url}", "runs/a")
    action(finding())
    (line,) = actions.close_all([action])
    assert "127.0.0.1 answered 404" in line
    assert len(refusing.requests) == 1
    broken = served(servers, *[503] * 9)
    action = actions.make(f"webhook:{broken.url}", "runs/a")
    action(finding())
    (line,) = actions.close_all([action])
    assert line == "action webhook: 127.0.0.1 answered 503"
    assert "secret" not in line


def test_a_webhook_nobody_hears_is_told():
    spec = ActionSpec(
        name="webhook",
        parameters={"url": "http://127.0.0.1:9/x?token=secret", "retries": 0},
    )
    action = actions.make(spec, "runs/a")
    action(finding())
    (line,) = actions.close_all([action])
    assert "127.0.0.1 could not be reached" in line
    assert "secret" not in line


def test_a_webhook_that_hangs_times_out(servers: list[Server]):
    server = served(servers, delay=1.0)
    spec = ActionSpec(
        name="webhook",
        parameters={"url": server.url, "timeout": 0.1, "retries": 1},
    )
    action = actions.make(spec, "runs/a")
    action(finding())
    (line,) = actions.close_all([action])
    assert "Timeout" in line


def test_a_notification_is_sent_through_apprise(servers: list[Server]):
    server = served(servers)
    url = server.url.replace("http://", "json://").partition("?")[0]
    action = actions.make(f"notify:{url}", "runs/a")
    action(finding())
    assert actions.close_all([action]) == []
    document = json.loads(server.requests[0][2])
    assert document["title"] == "tdbg: DeadRelu"
    assert document["type"] == "failure"
    assert "lower the learning rate" in document["message"]


def test_a_notification_that_is_refused_is_told(servers: list[Server]):
    server = served(servers, *[500] * 9)
    url = server.url.replace("http://", "json://").partition("?")[0]
    action = actions.make(f"notify:{url}", "runs/a")
    action(finding())
    (line,) = actions.close_all([action])
    assert "did not take the message" in line


def test_prometheus_reads_what_is_and_what_was(tmp_path: Path):
    file = tmp_path / "tdbg.prom"
    action = actions.make(f"prometheus:{file}", "runs/a")
    assert file.exists()
    action(finding(severity=Severity.WARNING))
    action(finding(severity=Severity.ERROR, phase="worse", step=9))
    action(finding("other"))
    action(finding("other", phase="end", step=20))
    kinds = {
        family.name: family.type
        for family in text_string_to_metric_families(file.read_text())
    }
    assert kinds == {
        "tdbg_findings": "counter",
        "tdbg_findings_active": "gauge",
        "tdbg_last_finding_step": "gauge",
    }
    found = {
        (sample.name, sample.labels.get("severity")): sample.value
        for family in text_string_to_metric_families(file.read_text())
        for sample in family.samples
    }
    assert found == {
        ("tdbg_findings_total", "warning"): 1,
        ("tdbg_findings_total", "error"): 2,
        ("tdbg_findings_active", "warning"): 0,
        ("tdbg_findings_active", "error"): 1,
        ("tdbg_last_finding_step", None): 20,
    }


def test_a_collector_gets_metrics_over_otlp(servers: list[Server]):
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )

    server = served(servers)
    endpoint = server.url.partition("/hook")[0] + "/v1/metrics"
    action = actions.make(f"opentelemetry:{endpoint}", "runs/a")
    action(finding())
    action(finding("other"))
    action(finding("other", phase="end"))
    assert actions.close_all([action]) == []
    request = ExportMetricsServiceRequest.FromString(_unzipped(server.requests[-1]))
    points = {
        metric.name: metric.sum.data_points[0].as_int
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert points == {"tdbg.findings": 2, "tdbg.findings.active": 1}


def test_a_collector_that_is_not_there_is_told_once_and_without_its_address(
    capfd: pytest.CaptureFixture[str],
):
    action = actions.make("opentelemetry:http://127.0.0.1:9/v1/secret", "runs/a")
    action(finding())
    assert actions.close_all([action], 0.5) == [
        "action opentelemetry: 127.0.0.1 did not take the metrics"
    ]
    assert capfd.readouterr().err == ""


def test_a_collector_that_refuses_is_told(servers: list[Server]):
    server = served(servers, *[400] * 9)
    action = actions.make(f"opentelemetry:{server.url}", "runs/a")
    assert actions.close_all([action]) == []  # Nothing to say, nothing lost.
    action = actions.make(f"opentelemetry:{server.url}", "runs/a")
    action(finding())
    assert "did not take the metrics" in str(actions.close_all([action]))


def _unzipped(request: tuple[str, dict[str, str], bytes]) -> bytes:
    _, headers, body = request
    return gzip.decompress(body) if headers.get("Content-Encoding") == "gzip" else body


# ---- decisions: how often, how long, what is final -------------------------------


# A module that apprise imports has a successor from Python 3.13 on.


# As it is, for the servers of these tests make it shorter.
BACKOFF = webhook.BACKOFF_SECONDS


# ---- stop ------------------------------------------------------------------------


def test_a_training_is_asked_once_and_with_the_reason(monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[Any, dict[str, Any]]] = []
    monkeypatch.setattr(
        "tdbg.actions.stop.request_stop", lambda run, **said: asked.append((run, said))
    )
    stop = Stop("runs/a")
    stop(finding(phase="end"))
    assert (asked, stop.requested) == ([], None)
    first = finding("a", step=7)
    stop(first)
    stop(finding("b", step=9))
    assert asked == [
        (
            "runs/a",
            {
                "reason": "DeadRelu at step 7: a: 60 of 64 units are dead",
                "rule": "DeadRelu",
                "step": 7,
            },
        )
    ]
    assert stop.requested is first


def test_a_request_that_failed_is_made_again_through_the_gate(
    monkeypatch: pytest.MonkeyPatch,
):
    asked: list[str] = []

    def request(_: Any, *, reason: str, **__: Any) -> None:
        asked.append(reason)
        if len(asked) == 1:
            msg = "no disk"
            raise TdbgError(msg)

    monkeypatch.setattr("tdbg.actions.stop.request_stop", request)
    stop = actions.make("stop", "runs/a")
    with pytest.raises(TdbgError):
        stop(finding("a"))
    stop(finding("a", phase="worse"))
    stop(finding("b"))
    assert len(asked) == 2


# ---- webhook ---------------------------------------------------------------------


def posts(server: Server, **parameters: Any) -> str:
    """What became of a finding; empty: it was taken."""
    action = Webhook("runs/a", server.url, **parameters)
    try:
        action(finding())
    except TdbgError as error:
        return str(error)
    finally:
        assert action.close(1.0) == []
    return ""


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_it_is_tried_again_so_many_times(servers: list[Server], retries: int):
    server = served(servers, *[503] * 9)
    assert "answered 503" in posts(server, retries=retries)
    assert len(server.requests) == 1 + retries
    server = served(servers, *[503] * retries)
    assert posts(server, retries=retries) == ""


def test_three_times_where_nothing_is_said(servers: list[Server]):
    server = served(servers, *[503] * 9)
    assert "answered 503" in posts(server)
    assert len(server.requests) == 4


@pytest.mark.parametrize(
    ("code", "tries", "said"),
    [
        *((code, 2, "") for code in (408, 425, 429, 500, 502, 503, 504)),
        *((code, 1, "") for code in (200, 201, 202, 204)),
        *((code, 1, f"answered {code}") for code in (300, 400, 401, 403, 404, 501)),
        # Whoever redirects may lead anywhere.
        *((code, 1, f"answered {code}") for code in (301, 302, 307)),
    ],
)
def test_which_answers_are_final(
    servers: list[Server], code: int, tries: int, said: str
):
    server = served(servers, code)
    assert said in posts(server, retries=3)
    assert len(server.requests) == tries
    assert bool(said) == bool(posts(served(servers, code), retries=3))


def test_it_waits_longer_from_try_to_try(
    servers: list[Server], monkeypatch: pytest.MonkeyPatch
):
    """0.5, 1, 2, ... seconds, but what the server asks for if it does."""
    monkeypatch.setattr(webhook, "BACKOFF_SECONDS", BACKOFF)
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    server = served(servers, *[503] * 4)
    assert "answered 503" in posts(server, retries=3)
    waits = [seconds for seconds in slept if seconds]
    # The first comes at once, or after the shortest of them: urllib3 decides.
    assert waits[-2:] == [1.0, 2.0]


@pytest.mark.parametrize(("asked", "slept"), [("2", 2), ("86400", 30)])
def test_a_server_that_asks_for_a_later_try_is_heeded_in_bounds(
    servers: list[Server], monkeypatch: pytest.MonkeyPatch, asked: str, slept: int
):
    """Sabotaged: what waits behind it would wait for a day."""
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    server = served(servers, 503)
    server.headers["Retry-After"] = asked
    assert posts(server, retries=1) == ""
    assert [seconds for seconds in waits if seconds] == [slept]


@pytest.mark.parametrize("retries", [-1, 11, 2.5, "3", None])
def test_tries_are_a_small_number(retries: object):
    with pytest.raises(ConfigurationError, match="give 0 to 10"):
        Webhook("runs/a", "http://x", retries=retries)  # type: ignore[arg-type]
    assert Webhook("runs/a", "http://x", retries=10)


# ---- command ---------------------------------------------------------------------


def test_the_children_of_a_command_that_hangs_are_gone(tmp_path: Path):
    """Sabotaged: killed alone, the shell leaves its child behind."""
    pid = tmp_path / "pid"
    # Time enough to write it.
    command = Command("runs/a", f"sleep 600 & echo $! > {pid}; wait", timeout=3.0)
    with pytest.raises(TdbgError, match=r"more than 3 s and was killed"):
        command(finding())
    child = int(pid.read_text())
    end = time.monotonic() + 60
    while _lives(child):
        assert time.monotonic() < end, "it was left behind"
        time.sleep(0.01)


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    # A dead one may wait for whoever has to collect it.
    return state not in "ZX"


def test_a_command_hears_nothing_of_our_terminal_and_all_of_our_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OF_OURS", "here")
    out = tmp_path / "out"
    said = "$OF_OURS $TDBG_RUN $TDBG_SEVERITY $TDBG_TENSOR $TDBG_MESSAGE $TDBG_ADVICE"
    Command("runs/a", f'echo "{said}" > {out}; ps -o sid= -p $$ >> {out}')(
        replace(finding(), message="m\0m")
    )
    line, session = out.read_text().splitlines()
    assert line == "here runs/a error fc.weight mm lower the learning rate"
    assert int(session) != os.getsid(0)


def test_a_command_that_cannot_be_killed_altogether_is_given_up(tmp_path: Path):
    """Sabotaged: who left the group of the command holds its output open."""
    pid = tmp_path / "pid"
    command = f"setsid sleep 600 & echo $! > {pid}; wait"
    with pytest.raises(TdbgError, match="was killed"):
        Command("runs/a", command, timeout=3.0)(finding())
    child = int(pid.read_text())
    assert _lives(child), "it was waited for"
    os.kill(child, signal.SIGKILL)


def test_of_what_a_command_prints_little_is_held():
    tracemalloc.start()
    try:
        with pytest.raises(TdbgError, match=r"ended with 3: .*last$"):
            Command("runs/a", "head -c 30000000 /dev/zero; echo last; exit 3")(
                finding()
            )
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()


def test_what_a_failed_command_said_last_is_told():
    command = Command("runs/a", "printf 'x%.0s' $(seq 900); echo end >&2; exit 7")
    with pytest.raises(TdbgError) as raised:
        command(finding())
    assert str(raised.value).startswith("the command ended with 7: xxx")
    assert str(raised.value).endswith("xend")
    assert len(str(raised.value)) <= 530
    with pytest.raises(TdbgError, match=r"ended with 1$"):
        Command("runs/a", "exit 1")(finding())


# ---- metrics ---------------------------------------------------------------------


def test_an_episode_is_counted_once_at_each_severity():
    tally = Tally()
    begin = finding(severity=Severity.WARNING)
    for found in (begin, replace(begin, phase="worse", step=8)):
        tally.add(found)
    assert tally.total == {("DeadRelu", "warning"): 1}
    assert tally.active == {("DeadRelu", "warning"): 1}
    tally.add(finding(severity=Severity.ERROR, phase="worse", step=9))
    assert tally.total[("DeadRelu", "error")] == 1
    assert tally.active == {("DeadRelu", "warning"): 0, ("DeadRelu", "error"): 1}
    # The same tensor while it is evaluated is another one.
    tally.add(replace(finding(step=11), mode=ModeKeys.EVAL))
    tally.add(finding(rule="Overfit", step=10))
    assert tally.total[("DeadRelu", "error")] == 2
    tally.add(finding(phase="end", step=12))
    assert tally.active[("DeadRelu", "error")] == 1
    # That one had not begun, as far as it is known here.
    tally.add(finding("x", phase="end", step=13))
    assert tally.active[("DeadRelu", "error")] == 1
    assert tally.last_step == {"DeadRelu": 13, "Overfit": 10}


# ---- in the background -----------------------------------------------------------


class Blocked:
    """Acts when it is let."""

    name = "blocked"

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun = threading.Event()
        self.seen: list[str] = []

    def __call__(self, found: Finding) -> None:
        self.begun.set()
        self.go.wait(60)
        self.seen.append(found.tensor)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Iterator[Background]:
    """One finding is acted upon, three wait, and two were dropped."""
    monkeypatch.setattr(delivery, "MAX_WAITING", 3)
    action = Blocked()
    slow = Background(action)
    slow(finding("0"))
    assert action.begun.wait(60)
    for i in range(1, 6):
        slow(finding(f"{i}"))
    yield slow
    action.go.set()


def test_what_is_dropped_is_counted_and_what_waits_is_done(full: Background):
    full._action.go.set()  # type: ignore[attr-defined]
    assert full.close(60.0) == [
        "action blocked dropped 2 findings, because 3 were waiting"
    ]
    assert full._action.seen == ["0", "1", "2", "3"]  # type: ignore[attr-defined]


def test_an_end_waits_for_no_action_that_hangs(full: Background):
    """Nor for a place in its queue, nor does the process."""
    assert full._thread is not None
    assert full._thread.daemon
    assert full._thread.name == "tdbg-action-blocked"
    said: list[str] = []
    closing = threading.Thread(target=lambda: said.extend(full.close(0.05)))
    closing.start()
    closing.join(60)
    assert not closing.is_alive()
    first, second = said
    assert first.startswith("action blocked: not done within 0.05 s, and given up; ")
    assert first.endswith("findings that waited for it: 3")
    assert second.endswith("dropped 2 findings, because 3 were waiting")
    action = full._action
    assert isinstance(action, Blocked)
    action.go.set()
    full._thread.join()  # Its thread has nothing more to wait for.
    assert action.seen == ["0"]


def test_an_action_that_was_never_taken_is_closed_at_once():
    slow = Background(Blocked())
    assert slow.close(60.0) == []
    assert slow._thread is None


# ---- secrets ---------------------------------------------------------------------


def test_a_notification_says_nothing_of_its_address(
    servers: list[Server], caplog: pytest.LogCaptureFixture
):
    """Apprise logs what it does, and to whom."""
    caplog.set_level(logging.DEBUG)
    server = served(servers, 500)
    host = server.url.removeprefix("http://").partition("/")[0]
    notify = Notify("runs/a", f"json://user:secret@{host}/")
    caplog.clear()
    with pytest.raises(TdbgError, match="did not take the message"):
        notify(finding())
    assert len(server.requests) == 1
    assert [each for each in caplog.records if each.name.startswith("apprise")] == []
