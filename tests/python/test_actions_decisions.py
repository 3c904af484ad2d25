"""Each decision of the actions themselves: how often, how long, what is final."""

from __future__ import annotations

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

from actions_helpers import Server, finding, served, servers
from tdbg import actions
from tdbg.actions import background, webhook
from tdbg.actions.background import Background
from tdbg.actions.command import Command
from tdbg.actions.notify import Notify
from tdbg.actions.stop import Stop
from tdbg.actions.tally import Tally
from tdbg.actions.webhook import Webhook
from tdbg.errors import ConfigurationError, TdbgError
from tdbg.findings import Finding, Severity
from tdbg.modes import ModeKeys

__all__ = ["servers"]

# A module that apprise imports has a successor from Python 3.13 on.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated")


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
    command = Command("runs/a", f"sleep 60 & echo $! > {pid}; wait", timeout=0.3)
    with pytest.raises(TdbgError, match=r"more than 0\.3 s and was killed"):
        command(finding())
    child = int(pid.read_text())
    end = time.monotonic() + 10
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
    command = f"setsid sleep 20 & echo $! > {pid}; wait"
    began = time.monotonic()
    with pytest.raises(TdbgError, match="was killed"):
        Command("runs/a", command, timeout=0.3)(finding())
    assert time.monotonic() - began < 15
    os.kill(int(pid.read_text()), signal.SIGKILL)


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
    monkeypatch.setattr(background, "MAX_WAITING", 3)
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
        "action blocked: 2 findings were dropped, for 3 were waiting"
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
    assert second.endswith("2 findings were dropped, for 3 were waiting")


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
