"""Several workers, and trainings that were resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from run_builder import RunBuilder, new_attempt
from tdbg import _core
from tdbg.config import Role
from tdbg.errors import InvalidWorker, QueryError, TensorUnavailableForStep
from tdbg.run.schema import EventKind
from tdbg.trial import StepState, create_trial, opening, waiting_for_steps

ONES = np.ones(3, np.float32)


def test_a_step_is_complete_when_all_workers_have_it(run_dir: Path) -> None:
    first = RunBuilder(run_dir, rank=0, world_size=2)
    second = RunBuilder(run_dir, rank=1, world_size=2)
    trial = create_trial(run_dir)
    for step in (0, 1):
        first.step(step, {"w": ONES * step})
    second.step(0, {"w": ONES})
    first.flush()
    second.flush()
    assert trial.refresh()
    assert trial.workers() == ["worker_0", "worker_1"]
    assert trial.steps() == [0]
    assert trial.steps(show_incomplete_steps=True) == [0, 1]
    assert trial.tensor("w").steps() == [0]
    assert trial.has_passed_step(1) is StepState.NOT_YET_AVAILABLE
    assert trial.step_table()["complete"].tolist() == [True, False]
    assert trial.step_table()["workers"].tolist() == [2, 1]
    assert trial.last_complete_step == 0
    assert trial.tensor("w").workers(0) == ["worker_0", "worker_1"]
    assert trial.tensor("w").workers(1) == ["worker_0"]
    second.step(1, {"w": ONES})
    second.flush()
    trial.refresh()
    assert trial.steps() == [0, 1]
    assert trial.step_table()["complete"].all()
    first.close()
    second.close()
    with pytest.raises(InvalidWorker, match="worker_7"):
        trial.tensor("w").value(0, worker="worker_7")


def test_a_worker_that_saves_nothing_at_a_step_does_not_hold_it_up(
    run_dir: Path,
) -> None:
    first = RunBuilder(run_dir, rank=0, world_size=2)
    second = RunBuilder(run_dir, rank=1, world_size=2)
    for step in range(4):
        first.step(step, {"w": ONES})
    for step in (0, 3):
        second.step(step, {"w": ONES})
    first.flush()
    second.flush()
    trial = create_trial(run_dir)
    assert trial.steps() == [0, 1, 2, 3]
    assert trial.step_table()["complete"].all()
    first.close()
    second.close()


def test_a_step_that_a_dead_worker_lacks_is_settled_but_not_complete(
    run_dir: Path,
) -> None:
    first = RunBuilder(run_dir, rank=0, world_size=2)
    second = RunBuilder(run_dir, rank=1, world_size=2)
    for step in range(3):
        first.step(step, {"w": ONES})
    second.step(0, {"w": ONES})
    first.flush()
    second.close()
    trial = create_trial(run_dir)
    assert trial.steps() == [0, 1, 2]
    assert trial.step_table()["complete"].tolist() == [True, False, False]
    assert trial.step_table()["lossless"].tolist() == [True, False, False]
    assert not trial.loaded_all_steps
    first.close()
    assert trial.refresh()
    assert trial.loaded_all_steps


def test_a_worker_that_is_not_there_yet_is_waited_for(run_dir: Path) -> None:
    first = RunBuilder(run_dir, rank=0, world_size=2)
    for step in range(3):
        first.step(step, {"w": ONES})
    first.flush()
    trial = create_trial(run_dir)
    assert trial.steps() == []
    assert trial.last_complete_step == -1
    for step in range(3, 1100):
        first.end_step(step)
    first.flush()
    trial.refresh()
    assert trial.steps() == [0, 1, 2]  # Enough is enough.
    first.close()


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_that_never_showed_up_are_named_once(
    run_dir: Path, caplog: pytest.LogCaptureFixture, world_size: int
) -> None:
    first = RunBuilder(run_dir, rank=1, world_size=world_size)
    for step in range(999):
        first.end_step(step)
    first.flush()
    trial = create_trial(run_dir)
    assert trial.last_complete_step == -1
    assert caplog.messages == []
    for step in range(999, 1003):
        first.end_step(step)
        first.flush()
        assert trial.last_complete_step == step
    absent = ["worker_0", "worker_2"][: world_size - 1]
    assert [each.partition(":")[0] for each in caplog.messages] == [
        f"{worker} has not shown up" for worker in absent
    ]
    first.close()


def test_the_absent_are_those_that_were_to_write(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of 8 ranks only 2 and 5 write: 0 and 1 are not missed."""
    with RunBuilder(run_dir, rank=2, world_size=2) as run:
        said = json.dumps({"workers": [2, 5]}).encode()
        run.capture.event(-1, EventKind.CONFIGURATION.value, 0, said)
        run.end_step(0)
    trial = create_trial(run_dir)
    assert trial.steps(show_incomplete_steps=True) == []
    assert trial.step_table()["complete"].tolist() == [True]
    (message,) = caplog.messages
    assert message.startswith("worker_5 has not shown up")


def test_how_long_ranks_are_waited_for_can_be_set(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = RunBuilder(run_dir, rank=0, world_size=2)
    for step in range(3):
        run.end_step(step)
    run.flush()
    with waiting_for_steps(4):
        longer = create_trial(run_dir)
    with waiting_for_steps(3):
        trial = create_trial(run_dir)
    assert (trial.last_complete_step, longer.last_complete_step) == (2, -1)
    assert len(caplog.messages) == 1
    run.close()


def test_a_resumed_training_replaces_what_it_repeats(run_dir: Path) -> None:
    with RunBuilder(run_dir, attempt=new_attempt()) as run:
        for step in range(6):
            run.step(step, {"w": ONES * step, "old": ONES})
    trial = create_trial(run_dir)
    assert trial.steps() == [0, 1, 2, 3, 4, 5]
    resumed = RunBuilder(run_dir, attempt=new_attempt(), ordinal=1)
    resumed.step(3, {"w": ONES * 103}, mode_step=3)
    resumed.flush()
    trial.refresh()
    # Steps 4 and 5 came after the checkpoint: they never were.
    assert trial.steps() == [0, 1, 2, 3]
    assert not trial.loaded_all_steps
    assert trial.has_passed_step(4) is StepState.NOT_YET_AVAILABLE
    resumed.step(4, {"w": ONES * 104})
    resumed.close()
    trial.refresh()
    weights = trial.tensor("w")
    assert [v[0] for v in weights.values().values()] == [0, 1, 2, 103, 104]
    assert {s: v[0] for s, v in weights.values_between(2, 4).items()} == {2: 2, 3: 103}
    assert trial.statistics(["w"]).mean.tolist() == [[0, 1, 2, 103, 104]]
    assert trial.tensor("old").steps() == [0, 1, 2]
    assert trial.workers() == ["worker_0"]
    assert [a.number for a in trial.attempts()] == [0, 1]
    assert [a.first_step for a in trial.attempts()] == [0, 3]
    assert trial.attempts()[1].writers == ("train-0-2",)


def test_an_older_attempt_stays_readable(run_dir: Path) -> None:
    for ordinal in range(3):
        with RunBuilder(run_dir, attempt=new_attempt(), ordinal=ordinal) as run:
            for step in range(2 * ordinal, 6 + ordinal):
                run.step(step, {"w": ONES * (100 * ordinal + step)})
    assert create_trial(run_dir, attempt=0).steps() == [0, 1, 2, 3, 4, 5]
    middle = create_trial(run_dir, attempt=1)
    assert middle.steps() == [2, 3, 4, 5, 6]
    assert middle.tensor("w").value(5)[0] == 105
    assert middle.loaded_all_steps
    newest = create_trial(run_dir, attempt=-1)
    assert newest.steps() == [4, 5, 6, 7]
    assert create_trial(run_dir).steps() == list(range(8))
    assert create_trial(run_dir).tensor("w").value(3)[0] == 103
    with pytest.raises(QueryError, match="has 3"):
        create_trial(run_dir, attempt=3)


def test_a_training_that_starts_again_hides_the_first(run_dir: Path) -> None:
    for value in (1, 2):
        with RunBuilder(run_dir, attempt=new_attempt()) as run:
            for step in range(5 - value):
                run.step(step, {"w": ONES * value})
    trial = create_trial(run_dir)
    assert trial.steps() == [0, 1, 2]
    assert trial.statistics().mean.tolist() == [[2, 2, 2]]


def test_ranks_that_did_not_agree_on_an_attempt_are_one_all_the_same(
    run_dir: Path,
) -> None:
    for rank in range(3):
        options: dict[str, Any] = {
            "rank": rank,
            "world_size": 3,
            "attempt": new_attempt(),
        }
        with RunBuilder(run_dir, **options) as run:
            run.step(0, {"net_output_0": ONES})
    trial = create_trial(run_dir)
    assert len(trial.attempts()) == 1
    assert trial.workers() == ["worker_0", "worker_1", "worker_2"]
    assert trial.statistics().count.tolist() == [[9]]


def test_a_rank_that_joins_a_resumed_training_belongs_to_it(run_dir: Path) -> None:
    with RunBuilder(run_dir, attempt=new_attempt()) as run:
        for step in range(3):
            run.step(step, {"net_output_0": ONES})
    attempt = new_attempt()
    for rank, ordinal in ((0, 1), (1, 0)):
        options: dict[str, Any] = {"rank": rank, "ordinal": ordinal, "attempt": attempt}
        with RunBuilder(run_dir, world_size=2, **options) as run:
            run.step(2, {"net_output_0": ONES})
    trial = create_trial(run_dir)
    assert [len(a.writers) for a in trial.attempts()] == [1, 2]
    assert trial.statistics().count.tolist() == [[3, 3, 6]]
    assert trial.step_table()["complete"].all()


def test_a_rank_that_was_restarted_replaces_only_itself(run_dir: Path) -> None:
    attempt = new_attempt()
    other = RunBuilder(run_dir, rank=1, world_size=2, attempt=attempt)
    for step in range(4):
        other.step(step, {"net_output_0": ONES})
    for start, stop in ((0, 3), (2, 4)):
        run = RunBuilder(run_dir, rank=0, world_size=2, attempt=attempt)
        with run:
            for step in range(start, stop):
                run.step(step, {"net_output_0": ONES * (10 + start)})
    other.close()
    trial = create_trial(run_dir)
    assert trial.steps() == [0, 1, 2, 3]
    assert trial.step_table()["complete"].all()
    first = trial.tensor("net_output_0")
    got = [v[0] for v in first.values(worker="worker_0").values()]
    assert got == [10, 10, 12, 12]
    assert trial.statistics().count.tolist() == [[6, 6, 6, 6]]


def test_workers_are_ordered_by_rank_and_not_by_name(run_dir: Path) -> None:
    for rank in (10, 2, 0):
        with RunBuilder(run_dir, rank=rank, world_size=3) as run:
            run.step(0, {"w": ONES * rank})
    trial = create_trial(run_dir)
    assert trial.workers() == ["worker_0", "worker_2", "worker_10"]
    assert trial.tensor("w").value(0)[0] == 0
    assert trial.tensor("w").value(0, worker="worker_10")[0] == 10


# --- What a reader says of a worker ---------------------------------------


class TellingReader(_core.RunReader):
    """A reader that is told what to say of its writer, by rank."""

    said: ClassVar[dict[int, str]] = {}
    lost: ClassVar[dict[int, tuple[int, int]]] = {}

    def liveness(self) -> str:
        return self.said.get(self.identity()["rank"]) or super().liveness()

    def gaps(self, start: int = 0) -> NDArray[np.void]:
        lost = self.lost.get(self.identity()["rank"])
        if lost is None:
            return super().gaps(start)
        found = np.zeros(1, _core.GAP_DTYPE)
        found["first_step"], found["last_step"] = lost
        found["what"] = 8
        return found[start:]


@pytest.fixture
def telling(monkeypatch: pytest.MonkeyPatch) -> type[TellingReader]:
    monkeypatch.setattr(opening, "RunReader", TellingReader)
    monkeypatch.setattr(TellingReader, "said", {})
    monkeypatch.setattr(TellingReader, "lost", {})
    return TellingReader


@pytest.mark.parametrize(
    ("first", "second", "status", "ended"),
    [
        ("running", "dead", "running", False),
        ("stalled", "dead", "stalled", False),
        ("stalled", "running", "running", False),
        ("unknown", "closed", "unknown", False),
        ("dead", "closed", "dead", True),
        ("closed", "closed", "closed", True),
    ],
)
def test_the_status_is_that_of_the_worker_that_gives_most_hope(
    run_dir: Path,
    telling: type[TellingReader],
    first: str,
    second: str,
    status: str,
    ended: bool,
) -> None:
    for rank, said in enumerate((first, second)):
        telling.said[rank] = said
        with RunBuilder(run_dir, rank=rank, world_size=2) as run:
            run.step(0, {"w": ONES})
    trial = create_trial(run_dir)
    assert (trial.status, trial.loaded_all_steps) == (status, ended)
    expected = StepState.UNAVAILABLE if ended else StepState.NOT_YET_AVAILABLE
    assert trial.has_passed_step(1) is expected


def test_a_worker_that_hangs_alive_holds_back_no_more_than_a_thousand_steps(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = RunBuilder(run_dir, rank=0, world_size=2)
    second = RunBuilder(run_dir, rank=1, world_size=2)
    trial = create_trial(run_dir)
    for step in range(3):
        first.step(step, {"w": ONES})
        second.step(step, {"w": ONES})
    second.flush()
    for step in range(3, 1002):
        first.step(step, {"w": ONES})
    first.flush()
    assert trial.steps() == [0, 1, 2]  # 999 steps ahead.
    assert caplog.messages == []
    first.step(1002, {"w": ONES})
    first.flush()
    assert trial.steps() == list(range(1003))
    (message,) = caplog.messages
    assert message.startswith("worker_1 has not advanced since step 2")
    for step in range(1003, 1010):  # It is not waited for again, step by step.
        first.step(step, {"w": ONES})
        first.flush()
        assert trial.last_complete_step == step
    assert trial.has_passed_step(1009) is StepState.AVAILABLE
    assert trial.step_table()["complete"].tolist() == [True] * 3 + [False] * 1007
    assert len(caplog.messages) == 1
    for step in range(3, 1010):
        second.step(step, {"w": ONES})
    second.flush()
    assert trial.step_table()["complete"].all()
    first.step(1010, {"w": ONES})
    first.flush()
    assert trial.last_complete_step == 1009  # It is waited for again.
    first.close()
    second.close()


def test_a_worker_that_shows_no_life_holds_back_nothing(
    run_dir: Path, telling: type[TellingReader], caplog: pytest.LogCaptureFixture
) -> None:
    first = RunBuilder(run_dir, rank=0, world_size=2)
    second = RunBuilder(run_dir, rank=1, world_size=2)
    first.step(0, {"w": ONES})
    second.step(0, {"w": ONES})
    second.flush()
    first.step(1, {"w": ONES})
    first.flush()
    trial = create_trial(run_dir)
    assert trial.steps() == [0]
    telling.said[1] = "stalled"
    assert trial.steps() == [0, 1]
    assert trial.step_table()["complete"].tolist() == [True, False]
    assert [each.partition(":")[0] for each in caplog.messages] == [
        "worker_1 has not advanced since step 0"
    ]
    first.close()
    second.close()


def test_a_step_whose_record_was_lost_is_not_complete(
    run_dir: Path, telling: type[TellingReader]
) -> None:
    telling.lost[1] = (1, 2)
    for rank in range(2):
        with RunBuilder(run_dir, rank=rank, world_size=2) as run:
            for step in (0, 4) if rank else range(5):
                run.step(step, {"w": ONES})
    trial = create_trial(run_dir)
    table = trial.step_table()
    assert table["complete"].tolist() == [True, False, False, True, True]
    assert table["lossless"].tolist() == [True, False, False, True, True]
    assert table["settled"].all()


def test_without_a_commit_page_only_the_status_is_unknown(run_dir: Path) -> None:
    with RunBuilder(run_dir) as run:
        run.step(0, {"w": ONES})
        run.step(1, {"w": ONES})
    (run.directory / "COMMIT").unlink()
    trial = create_trial(run_dir)
    assert (trial.status, trial.loaded_all_steps) == ("unknown", False)
    assert trial.steps() == [0, 1]
    assert trial.has_passed_step(1) is StepState.AVAILABLE
    assert trial.has_passed_step(2) is StepState.NOT_YET_AVAILABLE


def test_an_epoch_ends_where_recorded_steps_are_replaced_and_only_there(
    run_dir: Path,
) -> None:
    with RunBuilder(run_dir, attempt=b"a" * 16, ordinal=0) as run:
        run.step(0, {"w": np.ones(2, np.float32)})
        run.flush()
        trial = create_trial(run_dir)
        first = trial.epoch
        run.step(1, {"w": np.ones(2, np.float32)})
    assert trial.epoch == first
    with RunBuilder(run_dir, attempt=b"b" * 16, ordinal=1) as again:
        again.flush()
        assert trial.epoch == first
        again.step(1, {"w": np.zeros(2, np.float32)})
        again.flush()
        second = trial.epoch
        assert second != first
        again.step(2, {"w": np.zeros(2, np.float32)})
    assert trial.epoch == second
    assert create_trial(run_dir).epoch == second


def test_a_value_is_of_all_workers_as_the_statistics_are(run_dir: Path) -> None:
    attempt = new_attempt()
    for rank in (1, 0):
        share = np.full((2 + rank, 3), rank, np.float32)
        with RunBuilder(run_dir, rank=rank, world_size=2, attempt=attempt) as run:
            loss = np.asarray(np.float32(rank))
            run.save(0, "loss_output_0", loss, role=Role.LOSS)
            odd = np.zeros((2, 3 + rank), np.float32)
            run.step(0, {"net_output_0": share, "fc.weight": ONES, "odd_output_0": odd})
    trial = create_trial(run_dir)
    output = trial.tensor("net_output_0")
    assert output.value(0).tolist() == 2 * [[0] * 3] + 3 * [[1] * 3]
    assert output.value(0).size == output.stats(0).count == 15
    assert output.value(0).mean() == pytest.approx(output.stats(0).mean)
    assert output.value(0, worker="worker_1").shape == (3, 3)
    assert trial.tensor("fc.weight").value(0).shape == ONES.shape
    of_all = trial.tensor("loss_output_0")
    assert float(of_all.value(0)) == of_all.stats(0).mean == 0.5
    with pytest.raises(TensorUnavailableForStep, match="use worker= to read one"):
        trial.tensor("odd_output_0").value(0)
