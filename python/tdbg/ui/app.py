"""The server's answers: which address gives what.

Every answer is an ordinary one to an ordinary request; ``api/events`` says only that
there is something new.  Addresses in pages are relative, so that any proxy may put a
path before them.

Errors: 400 where what is asked for can never be answered, 404 where it is not there,
409 where it cannot be read, each with ``{"error": reason}``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from functools import partial
from typing import Any, NamedTuple

# np.unique imports it when it is called first.  Two threads that do so at once end in a
# RecursionError: numpy.__getattr__ calls itself until the other one has it.
import numpy.ma  # noqa: F401
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from tdbg.compare import Axis
from tdbg.config.messages import check_known
from tdbg.errors import ConfigurationError, QueryError, TdbgError
from tdbg.modes import ModeKeys
from tdbg.run.json_values import load_json
from tdbg.trial import DURATION_FIELD, Trial
from tdbg.ui import (
    comparison,
    control,
    documents,
    elements,
    rows,
    series,
    times,
)
from tdbg.ui.control import estimate
from tdbg.ui.judging import Judges, Judging
from tdbg.ui.packing import MEDIA_TYPE
from tdbg.ui.page_files import respond
from tdbg.ui.reads import GivesBack, ReaderGone, Reading, Turns, in_threads
from tdbg.ui.runs import OpenRun, Runs
from tdbg.ui.security import EVENTS, TOKEN_HEADER, Access, Guard
from tdbg.view.time import TimeView

__all__ = ["create_app"]

NO_STORE = {"cache-control": "no-store"}
STREAM = {**NO_STORE, "x-accel-buffering": "no"}
# Which tab of a browser asks, so that each has a turn; without it, the machine.
TAB_HEADER = "x-tdbg-tab"
MAX_TAB = 64
# What a server says for itself that nobody waited for.
CLIENT_GONE = 499
# A stream looks so often at the runs that it is about, less often where nothing has
# changed for a while, and proves so often that it lives.
LOOK_SECONDS = 0.01
REST_SECONDS = 0.05
LIVELY_SECONDS = 2.0
LIST_SECONDS = 1.0
HEARTBEAT_SECONDS = 15.0
MAX_WATCHED = 64
MAX_BINS = 256
MAX_COMPARED = 8
MAX_TOLD = 2048
# As many as are open at once, so that charts of them all open none twice.
MAX_DRAWN = 128
MAX_ASKED = 1 << 40

_Answer = Callable[["_Question"], Any]


class _Handler(NamedTuple):
    """How a path is answered; *is_heavy*: by reading much, in the client's turn."""

    method: str
    answer: _Answer
    is_heavy: bool = False


def create_app(runs: Runs, access: Access, *, judges: bool = True) -> ASGIApp:
    """The application, guarded.

    Args:
        runs: What it shows.
        access: Who may do what.
        judges: Whether it judges by itself what it shows and nobody has judged.

    Example:
        app = create_app(Runs(["runs"]), Access())
        uvicorn.run(app, port=8321)
    """
    judged = Judges(runs.open, by_itself=judges)
    handlers = {
        "/api/runs": _Handler("GET", partial(_list, judged)),
        "/api/run": _Handler("GET", partial(_run, judged)),
        "/api/tensors": _Handler("GET", _tensors),
        "/api/envelope": _Handler("GET", _envelope, is_heavy=True),
        "/api/ranks": _Handler("GET", _ranks, is_heavy=True),
        "/api/curve": _Handler("GET", _curve),
        "/api/curves": _Handler("GET", _curves, is_heavy=True),
        "/api/herd": _Handler("GET", _herd, is_heavy=True),
        "/api/trees": _Handler("GET", _trees, is_heavy=True),
        "/api/time": _Handler("GET", _time, is_heavy=True),
        "/api/time_maps": _Handler("GET", _time_maps, is_heavy=True),
        "/api/rows": _Handler("GET", _rows),
        "/api/values": _Handler("GET", _values),
        "/api/histograms": _Handler("GET", _histograms, is_heavy=True),
        "/api/differences": _Handler("GET", _differences, is_heavy=True),
        "/api/ratio": _Handler("GET", _ratio, is_heavy=True),
        "/api/divergence": _Handler("GET", _divergence, is_heavy=True),
        "/api/estimate": _Handler("GET", _estimate, is_heavy=True),
        "/api/answer": _Handler("GET", _request_answer),
        "/api/stop": _Handler("POST", _stop),
        "/api/capture": _Handler("POST", _capture),
        "/api/annotate": _Handler("POST", _annotate),
        "/api/delete": _Handler("POST", _delete),
        "/api/judge": _Handler("POST", partial(_judge, judged)),
    }
    turns, gives_back = Turns(), GivesBack()
    routes = [
        Route(
            path,
            _endpoint(runs, access, turns, gives_back, handler),
            methods=[handler.method],
        )
        for path, handler in handlers.items()
    ]
    routes.append(Route("/api/rows_of_runs", _telling(runs, judged), methods=["GET"]))
    routes.append(Route(EVENTS, _events(runs), methods=["GET"]))
    routes.append(Route("/{name:path}", respond, methods=["GET"]))
    return Guard(Starlette(routes=routes), access)


class _Question:
    """A request, with its parameters checked where they are read."""

    def __init__(
        self,
        runs: Runs,
        access: Access,
        request: Request,
        body: object,
        check: Callable[[], None],
    ) -> None:
        self.runs = runs
        self.check = check
        self.query = request.query_params
        self.may_control = access.may_control(request.headers.get(TOKEN_HEADER, ""))
        self._body = body

    @property
    def run(self) -> OpenRun:
        return self.runs.open(self.text("run"))

    @property
    def other(self) -> OpenRun:
        """The run that ``run`` is compared with."""
        return self.runs.open(self.text("other"))

    @property
    def compared(self) -> list[OpenRun]:
        """Several runs."""
        return [self.runs.open(id_) for id_ in self.ids(MAX_COMPARED)]

    def ids(self, most: int) -> list[str]:
        """Return the ids of the runs asked for."""
        found = self.query.getlist("run")
        if not 1 <= len(found) <= most:
            msg = f"name from 1 to {most} runs, not {len(found)}"
            raise ConfigurationError(msg)
        return found

    @property
    def axis(self) -> Axis:
        """Return the axis that steps are aligned by."""
        text = self.query.get("by", Axis.STEP)
        if text not in [*Axis]:
            msg = f"by must be one of {', '.join(Axis)}"
            raise ConfigurationError(msg)
        return Axis(text)

    @property
    def worker(self) -> str | None:
        """The worker that is looked at alone; None: all of them."""
        return self.text("worker") if "worker" in self.query else None

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
            "axis": self.axis,
        }


def _endpoint(
    runs: Runs, access: Access, turns: Turns, gives_back: GivesBack, handler: _Handler
) -> Callable[..., Any]:
    async def endpoint(request: Request) -> Response:
        body: object = None
        if request.method == "POST":
            try:
                body = load_json(await request.body())
            except ValueError:
                return _error(400, "the body is not JSON")
        reading = Reading()
        question = _Question(runs, access, request, body, reading.check)
        turn = turns.turn(_client(request)) if handler.is_heavy else _AT_ONCE
        watching = asyncio.create_task(reading.watch(request.receive))
        try:
            async with turn:
                reading.check()
                return await run_in_threadpool(_answered, handler.answer, question)
        except ReaderGone:
            return Response(status_code=CLIENT_GONE)
        finally:
            watching.cancel()
            gives_back.soon()

    return endpoint


_AT_ONCE: contextlib.nullcontext[None] = contextlib.nullcontext()


def _client(request: Request) -> str:
    host = request.client.host if request.client else ""
    return f"{host} {request.headers.get(TAB_HEADER, '')[:MAX_TAB]}"


def _answered(answer: _Answer, question: _Question) -> Response:
    try:
        found = answer(question)
    except ConfigurationError as error:
        return _error(400, str(error))
    except QueryError as error:
        return _error(404, str(error))
    except TdbgError as error:
        return _error(409, str(error))
    if isinstance(found, Response):
        return found
    if isinstance(found, bytes):
        return Response(found, media_type=MEDIA_TYPE, headers=NO_STORE)
    return _as_json(found)


def _as_json(found: object) -> Response:
    return JSONResponse(found, headers=NO_STORE)


def _error(status: int, reason: str) -> Response:
    return JSONResponse({"error": reason}, status, headers=NO_STORE)


def _list(judges: Judges, asked: _Question) -> object:
    found = rows.list_runs(asked.runs)
    judges.list(found["runs"])
    return {**_judged(judges, found), "may_control": asked.may_control}


def _judged(judges: Judges, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return rows of runs with how far their judging is."""
    told = [_with_judging(each, judges.state(each["id"])) for each in found["runs"]]
    return {**found, "runs": told}


def _with_judging(
    document: Mapping[str, Any], judging: Judging | None
) -> dict[str, Any]:
    return {**document, "judging": None if judging is None else judging.to_json()}


def _run(judges: Judges, asked: _Question) -> object:
    run = asked.run
    found = documents.describe_run(asked.runs, run, may_control=asked.may_control)
    judging = judges.show(run, found)
    # One that has ended counts from the document that has its verdict.
    is_ahead = judging is not None and not judging.is_under_way
    return found if is_ahead else _with_judging(found, judging)


def _tensors(asked: _Question) -> object:
    run = asked.run
    # The text is a sixth of what it is made of, and of 100,000 tensors it is kept, too.
    return run.kept("tensors", lambda: _as_json(_tensors_of(run.trial)))


def _tensors_of(trial: Trial) -> object:
    return {"tensors": documents.tensors_of(trial)}


def _trees(asked: _Question) -> object:
    run = asked.run
    return run.kept("trees", lambda: documents.tree_sections(run.trial))


def _time(asked: _Question) -> object:
    run = asked.run
    return run.kept("time", lambda: times.facts(run.trial, _time_view(run)))


def _time_view(run: OpenRun) -> TimeView:
    return run.kept("time view", lambda: times.view_of_time(run.trial))


def _time_maps(asked: _Question) -> object:
    run = asked.run
    start, stop = asked.number("start"), asked.number("stop")
    return times.maps(run.trial, _time_view(run), start, stop, asked.columns())


def _envelope(asked: _Question) -> object:
    trial = asked.run.trial
    names = series.names_asked(
        trial, asked.query.getlist("name"), asked.query.get("role")
    )
    return series.envelope(
        trial,
        names,
        asked.text("field"),
        columns=asked.columns(),
        worker=asked.worker,
        check=asked.check,
        **asked.range(),
    )


def _ranks(asked: _Question) -> object:
    trial = asked.run.trial
    field = asked.text("field")
    name = None
    if field != DURATION_FIELD:
        (name,) = series.names_asked(trial, [asked.text("name")], None)
    return series.ranks(
        trial,
        name,
        field,
        columns=asked.columns(),
        check=asked.check,
        **asked.range(),
    )


def _curve(asked: _Question) -> object:
    trial = asked.run.trial
    name = asked.text("name")
    series.names_asked(trial, [name], None)
    found = series.curve(
        trial,
        name,
        columns=asked.columns(),
        worker=asked.worker,
        check=asked.check,
        **asked.range(),
    )
    return found.packed()


def _curves(asked: _Question) -> object:
    return comparison.curves(
        [asked.runs.open(id_) for id_ in asked.ids(MAX_DRAWN)],
        asked.text("name"),
        axis=asked.axis,
        start=asked.number("start", most=series.MAX_PLACE) or 0,
        stop=asked.number("stop", most=series.MAX_PLACE) or 0,
        columns=asked.columns(),
        check=asked.check,
    )


def _herd(asked: _Question) -> object:
    return comparison.herd_of(
        [asked.runs.open(id_) for id_ in asked.ids(MAX_DRAWN)],
        asked.query.getlist("healthy"),
        of=asked.text("of") if "of" in asked.query else None,
        role=asked.text("role"),
        field=asked.text("field"),
        axis=asked.axis,
        start=asked.number("start", most=series.MAX_PLACE) or 0,
        stop=asked.number("stop", most=series.MAX_PLACE) or 0,
        columns=asked.columns(),
        check=asked.check,
    )


def _rows(asked: _Question) -> object:
    start = asked.number("start") or 0
    stop = asked.number("stop")
    stop = start + 1 if stop is None else stop
    trial, name = asked.run.trial, asked.text("name")
    around = asked.number("around")
    return series.rows(trial, name, start, stop, asked.worker, around)


def _values(asked: _Question) -> object:
    at = asked.number("at")
    at = 1 << 62 if at is None else at
    return elements.values(asked.run.trial, asked.text("name"), at, asked.worker)


def _histograms(asked: _Question) -> object:
    start, stop = asked.number("start") or 0, asked.number("stop")
    bins = max(1, asked.number("bins", most=MAX_BINS) or 64)
    return series.histograms(
        asked.run.trial,
        asked.text("name"),
        start,
        1 << 62 if stop is None else stop,
        asked.columns(),
        bins,
        asked.number("at"),
        asked.worker,
        asked.check,
    )


def _differences(asked: _Question) -> object:
    return comparison.differing([run.trial for run in asked.compared])


def _ratio(asked: _Question) -> object:
    return comparison.ratio(
        asked.run.trial,
        asked.other.trial,
        role=asked.text("role"),
        field=asked.text("field"),
        axis=asked.axis,
        start=asked.number("start", most=series.MAX_PLACE),
        stop=asked.number("stop", most=series.MAX_PLACE),
        columns=asked.columns(),
        check=asked.check,
    )


def _divergence(asked: _Question) -> object:
    percent = asked.number("percent", most=100) or 0
    return comparison.divergence_points(
        asked.run.trial,
        asked.other.trial,
        axis=asked.axis,
        tolerance=percent / 100,
        check=asked.check,
    )


def _request_answer(asked: _Question) -> object:
    return control.answer_of(asked.run.trial, asked.text("request"))


def _estimate(asked: _Question) -> object:
    return estimate(
        asked.run.trial,
        collections=asked.query.getlist("collection"),
        regex=asked.query.getlist("regex"),
        interval=max(1, asked.number("interval", most=MAX_ASKED) or 1),
        steps=max(1, asked.number("steps", most=MAX_ASKED) or 1),
        raw=asked.query.get("raw") == "true",
    ).to_json()


def _judge(judges: Judges, asked: _Question) -> object:
    check_known(asked.body, [])
    return judges.start(asked.run)


def _annotate(asked: _Question) -> object:
    return control.annotate_runs(asked.runs, asked.body)


def _delete(asked: _Question) -> object:
    return control.delete_runs(asked.runs, asked.body)


def _stop(asked: _Question) -> object:
    return control.ask_to_stop(asked.run.trial, asked.body)


def _capture(asked: _Question) -> object:
    return control.ask_to_capture(asked.run.trial, asked.body)


# --- Streams ------------------------------------------------------------------


def _telling(runs: Runs, judges: Judges) -> Callable[[Request], Any]:
    async def telling(request: Request) -> Response:
        ids = request.query_params.getlist("run")
        if not 1 <= len(ids) <= MAX_TOLD:
            return _error(400, f"name from 1 to {MAX_TOLD} runs, not {len(ids)}")
        lines = _lines(rows.tell_runs(runs, ids), judges)
        return StreamingResponse(lines, headers=STREAM, media_type="application/jsonl")

    return telling


async def _lines(
    parts: Generator[dict[str, Any]], judges: Judges
) -> AsyncIterator[bytes]:
    """Rows as they are read, a line of JSON for each part."""
    told: list[Mapping[str, Any]] = []
    async with contextlib.aclosing(in_threads(parts)) as read:
        async for part in read:
            told += part["runs"]
            yield json.dumps(_judged(judges, part)).encode() + b"\n"
    # To judge takes the processor that reading needs, so that comes last.
    await run_in_threadpool(judges.list, told)


def _events(runs: Runs) -> Callable[[Request], Any]:
    async def events(request: Request) -> Response:
        rings = _rings(runs, request.query_params.getlist("run")[:MAX_WATCHED])
        return StreamingResponse(rings, headers=STREAM, media_type="text/event-stream")

    return events


async def _rings(runs: Runs, watched: list[str]) -> AsyncIterator[str]:
    """Say which runs have changed, and when runs have come or gone.

    State, not history: whoever is slow skips, and nothing queues.
    """
    known: dict[str, tuple[int, int, int]] = {}
    listed = ""
    clock = asyncio.get_running_loop().time
    next_list = spoke = changed_at = clock()
    yield "retry: 1000\n\n"
    while True:
        now = clock()
        said: dict[str, Any] = {}
        if now >= next_list:
            next_list = now + LIST_SECONDS
            now_listed = await run_in_threadpool(runs.listing)
            if now_listed != listed:
                listed = said["listing"] = now_listed
        versions = await run_in_threadpool(_versions, runs, watched)
        changed = {id_: v for id_, v in versions.items() if known.get(id_) != v}
        if changed:
            for i, what in enumerate(("changed", "last", "epoch")):
                said[what] = {id_: found[i] for id_, found in changed.items()}
            known, changed_at = versions, now
        if said:
            spoke = now
            yield f"data: {json.dumps(said)}\n\n"
        elif now - spoke >= HEARTBEAT_SECONDS:
            spoke = now
            yield ": still here\n\n"
        is_lively = now - changed_at < LIVELY_SECONDS
        await asyncio.sleep(LOOK_SECONDS if is_lively else REST_SECONDS)


def _versions(runs: Runs, watched: list[str]) -> dict[str, tuple[int, int, int]]:
    """Version, last complete step and epoch of each run; -1 where it is unreadable."""
    versions = {}
    for id_ in watched:
        try:
            versions[id_] = runs.seen(id_)
        except TdbgError:
            versions[id_] = -1, -1, -1
    return versions
