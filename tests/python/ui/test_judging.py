"""What the server judges by itself: what it shows, one run at a time, in a process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from dashboard import Dashboard, dashboard
from run_builder import RunBuilder
from tdbg.config import Role
from tdbg.modes import ModeKeys
from tdbg.ui.judging import Judges, Judging
from tdbg.ui.runs import Runs

# What judges has the lowest priority: beside five programs that are busy, a second of
# work takes minutes.  It is awaited for as long as a test may last.
SECONDS = 280.0


def make_run(path: Path, steps: int = 30, evaluated: int = 0) -> Path:
    """A run with a NaN that nobody has judged."""
    with RunBuilder(path) as builder:
        for step in range(steps):
            value = np.nan if step > steps // 2 else 0.1
            tensors = {"gradient/w": np.full(4, value, np.float32)}
            builder.step(step, tensors, what="statistics")
        for step in range(steps, steps + evaluated):
            loss = np.array(0.1, np.float32)
            builder.save(step, "loss_output_0", loss, role=Role.LOSS)
            builder.end_step(step, ModeKeys.EVAL)
    return path


def until_judged(judges: Judges, ids: list[str]) -> Iterator[dict[str, Judging | None]]:
    """How far runs are, again and again, until all are judged or failed."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        states = {each: judges.state(each) for each in ids}
        yield states
        if all(each and not each.is_under_way for each in states.values()):
            return
        time.sleep(0.002)
    pytest.fail("nobody judged")


def document_of(served: Dashboard) -> dict[str, object]:
    """The run's document once it has been judged."""
    path, end = f"/api/run?run={served.run_id()}", time.monotonic() + SECONDS
    while time.monotonic() < end:
        found: dict[str, object] = served.ask(path).json
        judging = found["judging"]
        if isinstance(judging, dict) and judging["state"] in ("judged", "failed"):
            return found
    pytest.fail("nobody judged")


def fields_of(pid: int) -> list[str]:
    """State, parent, ... of a process; its nice value is the seventeenth."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ["X"]
    return text.rpartition(")")[2].split()


def children(parent: int) -> list[int]:
    pids = [int(each.name) for each in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if fields_of(pid)[1:2] == [str(parent)]]


def at_last(holds: Callable[[], object]) -> None:
    end = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_run_on_the_screen_is_judged_by_itself(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "run")
    with dashboard(tmp_path / "runs", judge=True) as served:
        found = document_of(served)
        assert found["judging"] == {"state": "judged", "reason": "", "steps": 30}
        assert "ExplodingTensor in gradient/w" in str(found["verdict"])
        # It has been judged, and is not judged again.
        assert (
            served.ask(f"/api/run?run={served.run_id()}").json["judging"]
            == (found["judging"])
        )


def test_a_run_with_evaluation_is_judged_once(tmp_path: Path) -> None:
    make_run(tmp_path / "run", evaluated=12)
    runs = Runs([str(tmp_path / "run")])
    (id_,) = runs.found()
    judges = Judges(runs.open)
    judges.start(runs.open(id_))
    list(until_judged(judges, [id_]))
    document = {"recorded": 42, "state": "closed", "verdict": {"tone": "error"}}
    assert judges.show(runs.open(id_), document) == Judging("judged", "", 42)


def test_a_server_that_shall_not_judge_waits_to_be_asked(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "run")
    with dashboard(tmp_path / "runs", judge=False) as served:
        path = f"run={served.run_id()}"
        assert served.ask(f"/api/run?{path}").json["judging"] is None
        asked = served.ask(f"/api/judge?{path}", method="POST", body={})
        assert asked.json["state"] == "waiting"
        assert "ExplodingTensor" in str(document_of(served)["verdict"])


def test_what_judges_is_a_process_of_low_priority_that_ends_with_the_server(
    tmp_path: Path,
) -> None:
    make_run(tmp_path / "runs" / "run", steps=2000)
    with dashboard(tmp_path / "runs", judge=True) as served:
        served.ask(f"/api/run?run={served.run_id()}")
        at_last(lambda: children(served.process.pid))
        (judge,) = children(served.process.pid)
        at_last(lambda: fields_of(judge)[16:17] == ["19"])
    at_last(lambda: fields_of(judge)[0] in "XZ")


def test_runs_of_a_list_are_judged_one_at_a_time_the_shown_one_first(
    tmp_path: Path,
) -> None:
    for name in "abc":
        make_run(tmp_path / name)
    runs = Runs([str(tmp_path)])
    ids = {runs.name(id_): id_ for id_ in runs.found()}
    documents = [
        {
            "id": ids[name],
            "state": "closed",
            "recorded": 30,
            "verdict": {"tone": "unjudged"},
        }
        for name in "abc"
    ]
    judges = Judges(runs.open)
    judges.list(documents)
    judges.show(runs.open(ids["c"]), documents[2])
    order: list[str] = []
    for states in until_judged(judges, list(ids.values())):
        under_way = [id_ for id_, each in states.items() if each == Judging("judging")]
        assert len(under_way) <= 1
        done = [id_ for id_, each in states.items() if each and each.state == "judged"]
        order += [each for each in done if each not in order]
    # The first of the list may be under way when the other one is shown.
    assert order.index(ids["c"]) < order.index(ids["b"])
    assert order.index(ids["a"]) < order.index(ids["b"])
    assert all(len(runs.open(id_).trial.rule_statuses()) > 20 for id_ in order)


@pytest.mark.parametrize(
    ("document", "is_due"),
    [
        ({"recorded": 44, "state": "running"}, False),
        ({"recorded": 46, "state": "running"}, True),
        ({"recorded": 30, "state": "closed"}, False),
        ({"recorded": 31, "state": "closed"}, True),
    ],
)
def test_a_training_that_goes_on_is_judged_again_when_it_has_grown(
    tmp_path: Path, document: dict[str, object], is_due: bool
) -> None:
    make_run(tmp_path / "run")
    runs = Runs([str(tmp_path / "run")])
    (id_,) = runs.found()
    judges = Judges(runs.open)
    judges.start(runs.open(id_))
    list(until_judged(judges, [id_]))
    judges.show(runs.open(id_), {**document, "verdict": {"tone": "error"}})
    state = judges.state(id_)
    assert state is not None
    assert state.is_under_way == is_due
    list(until_judged(judges, [id_]))


def test_what_keeps_a_run_from_being_judged_is_said_and_it_may_be_asked_again(
    tmp_path: Path,
) -> None:
    run, hidden = make_run(tmp_path / "run"), tmp_path / "hidden"
    runs = Runs([str(run)])
    (id_,) = runs.found()
    opened = runs.open(id_)
    judges = Judges(runs.open)
    run.rename(hidden)
    judges.start(opened)
    *_, states = until_judged(judges, [id_])
    failed = states[id_]
    assert failed is not None
    assert failed.state == "failed"
    assert "run" in failed.reason
    hidden.rename(run)
    assert judges.start(opened)["state"] == "waiting"
    # Who asks meanwhile asks for the same.
    assert judges.start(opened)["state"] in ("waiting", "judging", "judged")
    *_, states = until_judged(judges, [id_])
    assert states[id_] == Judging("judged", steps=30)
