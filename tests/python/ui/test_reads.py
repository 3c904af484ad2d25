"""Reads of the server: they end with who asked, and a client has one heavy one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from starlette.types import Message

from run_builder import simple_run
from tdbg.trial import Trial
from tdbg.ui import Access, app, comparison, create_app
from tdbg.ui.app import TAB_HEADER
from tdbg.ui.reads import ReaderGone, Reading, Turns
from tdbg.ui.runs import Runs

# Longer than anything takes; nothing waits so long.
LONG = 60.0


class LongRead:
    """In place of ``Trial.envelope``: a read that goes on until it is told to end."""

    def __init__(self) -> None:
        self.begun, self.ended = threading.Semaphore(0), threading.Semaphore(0)
        self.finish = threading.Event()
        self.n_running = self.most_running = 0
        self._lock = threading.Lock()

    def __call__(self, *_: Any, check: Callable[[], None], **__: Any) -> Any:
        with self._lock:
            self.n_running += 1
            self.most_running = max(self.most_running, self.n_running)
        self.begun.release()
        try:
            while not self.finish.wait(0.001):
                check()
            msg = "finished"
            raise LookupError(msg)
        finally:
            with self._lock:
                self.n_running -= 1
            self.ended.release()


@pytest.fixture
def long_read(monkeypatch: pytest.MonkeyPatch) -> LongRead:
    found = LongRead()
    monkeypatch.setattr(Trial, "envelope", found)
    return found


class Client:
    """Asks the application without a socket, and may go away."""

    def __init__(self, run: Path) -> None:
        runs = Runs([str(run)])
        self.id = next(iter(runs.found()))
        self.access = Access()
        self.app = create_app(runs, self.access)

    async def ask(
        self, tab: str, gone: asyncio.Event, path: str = "envelope"
    ) -> list[Message]:
        query = f"run={self.id}&role=gradient&field=rms"
        told: list[Message] = []
        messages: list[Message] = [{"type": "http.request", "body": b""}]

        async def receive() -> Message:
            if messages:
                return messages.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            told.append(message)

        headers = {
            "host": "localhost",
            "x-tdbg-token": self.access.view,
            TAB_HEADER: tab,
        }
        scope = {
            "type": "http",
            "method": "GET",
            "path": f"/api/{path}",
            "raw_path": b"/api/envelope",
            "query_string": query.encode(),
            "headers": [(n.encode(), v.encode()) for n, v in headers.items()],
            "client": ("127.0.0.1", 1),
        }
        await self.app(scope, receive, send)
        return told


@pytest.fixture
def client(tmp_path: Path) -> Client:
    simple_run(tmp_path / "run")
    return Client(tmp_path / "run")


async def begun(read: LongRead) -> None:
    assert await asyncio.to_thread(read.begun.acquire, timeout=LONG)


def test_a_client_that_goes_away_or_zooms_on_ends_its_read(
    client: Client, long_read: LongRead
) -> None:
    async def scenario() -> None:
        gone = asyncio.Event()
        answer = asyncio.create_task(client.ask("a", gone))
        await begun(long_read)
        gone.set()
        told = await asyncio.wait_for(answer, LONG)
        assert told[0]["status"] == 499
        assert long_read.n_running == 0

    asyncio.run(scenario())


def test_a_tab_has_one_heavy_read_at_a_time_and_others_have_theirs(
    client: Client, long_read: LongRead
) -> None:
    async def scenario() -> None:
        leave = {name: asyncio.Event() for name in ("a1", "a2", "b1")}
        tasks = {
            name: asyncio.create_task(client.ask(name[0], gone))
            for name, gone in leave.items()
        }
        await begun(long_read)
        await begun(long_read)
        # Of tab "a" one waits, and begins when the other has ended.
        assert not long_read.begun.acquire(blocking=False)
        leave["a1"].set()
        await begun(long_read)
        leave["a2"].set()
        leave["b1"].set()
        await asyncio.wait_for(asyncio.gather(*tasks.values()), LONG)
        assert long_read.most_running == 2

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("path", "module", "name"),
    [("estimate", app, "estimate"), ("differences", comparison, "differing")],
)
def test_questions_about_all_tensors_take_a_turn(
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    module: ModuleType,
    name: str,
) -> None:
    read = LongRead()
    monkeypatch.setattr(module, name, lambda *_, **__: read(check=lambda: None))

    async def scenario() -> None:
        stays = asyncio.Event()
        tasks = [
            asyncio.create_task(client.ask(tab, stays, path)) for tab in ("a", "a", "b")
        ]
        await begun(read)
        await begun(read)
        # Of tab "a" one waits until the other has ended.
        assert not read.begun.acquire(blocking=False)
        read.finish.set()
        await asyncio.wait(tasks, timeout=LONG)
        assert read.most_running == 2

    asyncio.run(scenario())


def test_who_leaves_while_it_waits_for_its_turn_reads_nothing(
    client: Client, long_read: LongRead
) -> None:
    async def scenario() -> None:
        first, second = asyncio.Event(), asyncio.Event()
        tasks = [asyncio.create_task(client.ask("a", gone)) for gone in (first, second)]
        await begun(long_read)
        second.set()
        first.set()
        told = await asyncio.wait_for(asyncio.gather(*tasks), LONG)
        assert [each[0]["status"] for each in told] == [499, 499]
        assert not long_read.begun.acquire(blocking=False)

    asyncio.run(scenario())


def test_all_clients_together_have_a_few_heavy_reads_at_once() -> None:
    async def scenario() -> None:
        turns, leave = Turns(at_once=2), asyncio.Event()
        inside: list[str] = []

        async def read(name: str) -> None:
            async with turns.turn(name):
                inside.append(name)
                await leave.wait()

        tasks = [asyncio.create_task(read(str(i))) for i in range(5)]
        for _ in range(20):
            await asyncio.sleep(0)
        assert inside == ["0", "1"]
        leave.set()
        await asyncio.gather(*tasks)
        assert len(inside) == 5

    asyncio.run(scenario())


def test_a_reading_is_over_when_its_client_disconnects() -> None:
    async def scenario() -> None:
        reading = Reading()
        messages = [{"type": "http.request"}, {"type": "http.disconnect"}]

        async def receive() -> Message:
            return messages.pop(0)

        reading.check()
        await reading.watch(receive)
        with pytest.raises(ReaderGone):
            reading.check()

    asyncio.run(scenario())


def test_threads_that_answer_at_once_import_nothing_of_numpy() -> None:
    # Two that import numpy.ma at the same time, as np.unique does, both fail.
    program = (
        "import sys, tdbg.ui.app\n"
        "before = {name for name in sys.modules if name.startswith('numpy')}\n"
        "import numpy; numpy.unique([1, 1])\n"
        "after = {name for name in sys.modules if name.startswith('numpy')}\n"
        "print(sorted(after - before))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
