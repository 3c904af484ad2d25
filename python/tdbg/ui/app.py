"""The server's answers: which address gives what.

Every answer is an ordinary one to an ordinary request; ``api/events`` says only that
there is something new.  Addresses in pages are relative, so that any proxy may put a
path before them.

Errors: 400 where what is asked for can never be answered, 404 where it is not there,
409 where it cannot be read, each with ``{"error": reason}``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from tdbg.errors import ConfigurationError, QueryError, TdbgError
from tdbg.modes import ModeKeys
from tdbg.ui import control, documents, series
from tdbg.ui.packing import MEDIA_TYPE
from tdbg.ui.page_files import respond
from tdbg.ui.runs import OpenRun, Runs
from tdbg.ui.security import TOKEN_HEADER, Access, Guard

__all__ = ["create_app"]

NO_STORE = {"cache-control": "no-store"}
# A stream looks so often at the runs that it is about, and proves so often that it
# lives; a page is about one run, and the screen of all of them about all.
LOOK_SECONDS = 0.05
LIST_SECONDS = 1.0
HEARTBEAT_SECONDS = 15.0
MAX_WATCHED = 64
MAX_BINS = 256

_Answer = Callable[["_Question"], Any]


def create_app(runs: Runs, access: Access) -> ASGIApp:
    """The application, guarded.

    Args:
        runs: What it shows.
        access: Who may do what.

    Example:
        app = create_app(Runs(["runs"]), Access())
        uvicorn.run(app, port=8321)
    """
    answers: dict[str, tuple[str, _Answer]] = {
        "/api/runs": ("GET", _list),
        "/api/run": ("GET", _run),
        "/api/tensors": ("GET", _tensors),
        "/api/envelope": ("GET", _envelope),
        "/api/curve": ("GET", _curve),
        "/api/rows": ("GET", _rows),
        "/api/histograms": ("GET", _histograms),
        "/api/answer": ("GET", _request_answer),
        "/api/stop": ("POST", _stop),
        "/api/capture": ("POST", _capture),
    }
    routes = [
        Route(path, _endpoint(runs, access, answer), methods=[method])
        for path, (method, answer) in answers.items()
    ]
    routes.append(Route("/api/events", _events(runs), methods=["GET"]))
    routes.append(Route("/{name:path}", respond, methods=["GET"]))
    return Guard(Starlette(routes=routes), access)


class _Question:
    """A request, with its parameters checked where they are read."""

    def __init__(
        self, runs: Runs, access: Access, request: Request, body: object
    ) -> None:
        self.runs = runs
        self.query = request.query_params
        self.may_control = access.may_control(request.headers.get(TOKEN_HEADER, ""))
        self._body = body

    @property
    def run(self) -> OpenRun:
        return self.runs.open(self.text("run"))

    @property
    def body(self) -> dict[str, Any]:
        if not isinstance(self._body, dict):
            msg = "the body must be an object of JSON"
            raise ConfigurationError(msg)
        return self._body

    def text(self, name: str) -> str:
        found = self.query.getlist(name)
        if len(found) != 1:
            msg = f"give {name} once"
            raise ConfigurationError(msg)
        return found[0]

    def number(self, name: str, *, most: int = 1 << 62) -> int | None:
        """A whole number from 0 on; None where it is not given.  Capped at *most*."""
        if name not in self.query:
            return None
        text = self.text(name)
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            msg = f"{name} must be a whole number from 0 on"
            raise ConfigurationError(msg)
        return min(int(text), most)

    def columns(self) -> int:
        return max(1, self.number("columns", most=series.MAX_COLUMNS) or 1000)

    def range(self) -> dict[str, Any]:
        mode = self.query.get("mode")
        if mode is not None and mode not in ModeKeys.__members__:
            msg = f"mode must be one of {', '.join(ModeKeys.__members__)}"
            raise ConfigurationError(msg)
        return {
            "start": self.number("start"),
            "stop": self.number("stop"),
            "mode": None if mode is None else ModeKeys[mode],
        }


def _endpoint(runs: Runs, access: Access, answer: _Answer) -> Callable[..., Any]:
    async def endpoint(request: Request) -> Response:
        body: object = None
        if request.method == "POST":
            try:
                body = json.loads(await request.body())
            except (ValueError, RecursionError):
                return _error(400, "the body is not JSON")
        question = _Question(runs, access, request, body)
        return await run_in_threadpool(_answered, answer, question)

    return endpoint


def _answered(answer: _Answer, question: _Question) -> Response:
    try:
        found = answer(question)
    except ConfigurationError as error:
        return _error(400, str(error))
    except QueryError as error:
        return _error(404, str(error))
    except TdbgError as error:
        return _error(409, str(error))
    if isinstance(found, bytes):
        return Response(found, media_type=MEDIA_TYPE, headers=NO_STORE)
    return JSONResponse(found, headers=NO_STORE)


def _error(status: int, reason: str) -> Response:
    return JSONResponse({"error": reason}, status, headers=NO_STORE)


def _list(asked: _Question) -> object:
    return documents.list_runs(asked.runs)


def _run(asked: _Question) -> object:
    return documents.describe_run(asked.runs, asked.run, may_control=asked.may_control)


def _tensors(asked: _Question) -> object:
    run = asked.run
    return {"tensors": run.kept("tensors", lambda: documents.tensors_of(run.trial))}


def _envelope(asked: _Question) -> object:
    run = asked.run
    names = series.names_asked(
        run.trial, asked.query.getlist("name"), asked.query.get("role")
    )
    with run.lock:
        return series.envelope(
            run.trial,
            names,
            asked.text("field"),
            columns=asked.columns(),
            **asked.range(),
        )


def _curve(asked: _Question) -> object:
    run = asked.run
    name = asked.text("name")
    series.names_asked(run.trial, [name], None)
    found = series.curve(run.trial, name, columns=asked.columns(), **asked.range())
    return found.packed()


def _rows(asked: _Question) -> object:
    start = asked.number("start") or 0
    stop = asked.number("stop")
    stop = start + 1 if stop is None else stop
    return series.rows(asked.run.trial, asked.text("name"), start, stop)


def _histograms(asked: _Question) -> object:
    run = asked.run
    start, stop = asked.number("start") or 0, asked.number("stop")
    bins = max(1, asked.number("bins", most=MAX_BINS) or 64)
    with run.lock:
        return series.histograms(
            run.trial,
            asked.text("name"),
            start,
            1 << 62 if stop is None else stop,
            asked.columns(),
            bins,
        )


def _request_answer(asked: _Question) -> object:
    return control.answer_of(asked.run.trial, asked.text("request"))


def _stop(asked: _Question) -> object:
    return control.ask_to_stop(asked.run.trial, asked.body)


def _capture(asked: _Question) -> object:
    return control.ask_to_capture(asked.run.trial, asked.body)


# --- The doorbell -------------------------------------------------------------


def _events(runs: Runs) -> Callable[[Request], Any]:
    async def events(request: Request) -> Response:
        watched = request.query_params.getlist("run")[:MAX_WATCHED]
        return StreamingResponse(
            _rings(runs, watched),
            media_type="text/event-stream",
            headers={**NO_STORE, "x-accel-buffering": "no"},
        )

    return events


async def _rings(runs: Runs, watched: list[str]) -> AsyncIterator[str]:
    """Say which runs have changed, and when runs have come or gone.

    State, not history: whoever is slow skips, and nothing queues.
    """
    known: dict[str, int] = {}
    listed: list[str] | None = None
    clock = asyncio.get_running_loop().time
    next_list = spoke = clock()
    yield "retry: 1000\n\n"
    while True:
        now = clock()
        said: dict[str, Any] = {}
        if now >= next_list:
            next_list = now + LIST_SECONDS
            found = list(await run_in_threadpool(runs.found))
            if found != listed:
                listed, said["runs"] = found, found
        versions = await run_in_threadpool(_versions, runs, watched)
        changed = {id_: v for id_, v in versions.items() if known.get(id_) != v}
        if changed:
            said["changed"] = changed
            known = versions
        if said:
            spoke = now
            yield f"data: {json.dumps(said)}\n\n"
        elif now - spoke >= HEARTBEAT_SECONDS:
            spoke = now
            yield ": still here\n\n"
        await asyncio.sleep(LOOK_SECONDS)


def _versions(runs: Runs, watched: list[str]) -> dict[str, int]:
    """The version of each run; -1 of one that is gone or cannot be read."""
    versions = {}
    for id_ in watched:
        try:
            versions[id_] = runs.open(id_).version()
        except TdbgError:
            versions[id_] = -1
    return versions
