"""The step machine, against its table of situations and against a model of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tdbg.capture.steps import Step, StepChange, StepMachine
from tdbg.modes import ModeKeys
from tdbg.run.schema import StepFlag

TRAIN, EVAL, PREDICT = ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT


class Training:
    """Drives a machine as a hook does, and keeps what came out of it."""

    def __init__(self) -> None:
        self.machine = StepMachine()
        self.begun: list[Step] = []
        self.ended: list[Step] = []

    def note(self, change: StepChange) -> Step | None:
        self.ended += change.ended
        if change.began:
            assert change.step is not None
            self.begun.append(change.step)
        return change.step

    def forward(
        self, mode: ModeKeys = TRAIN, root: str = "net", failed: bool = False
    ) -> Step:
        step = self.note(self.machine.forward_begins(root, mode))
        self.note(self.machine.forward_ends(failed=failed))
        assert step is not None
        return step

    def optimizer(self, key: str = "sgd", skipped: bool = False) -> Step:
        step = self.note(self.machine.optimizer_begins(key, TRAIN))
        self.note(self.machine.optimizer_ends(key, skipped=skipped))
        assert step is not None
        return step

    def close(self) -> None:
        self.note(self.machine.close())

    def table(self) -> list[tuple[int, ModeKeys, int, int, int]]:
        return [
            (step.number, step.mode, step.mode_step, step.flags, step.micro_batches)
            for step in self.ended
        ]


def test_a_step_holds_its_forward_and_ends_with_the_optimizer() -> None:
    training = Training()
    for number in range(3):
        assert training.forward().number == number
        assert training.optimizer().number == number
        assert len(training.ended) == number + 1
    assert training.table() == [(n, TRAIN, n, 0, 1) for n in range(3)]


def test_micro_batches_belong_to_one_step() -> None:
    training = Training()
    training.machine.optimizer_found("sgd")
    for _ in range(2):
        assert [training.forward().micro_batch for _ in range(4)] == [0, 1, 2, 3]
        training.optimizer()
    assert training.table() == [(0, TRAIN, 0, 0, 4), (1, TRAIN, 1, 0, 4)]


def test_without_an_optimizer_each_forward_is_a_step() -> None:
    training = Training()
    for _ in range(3):
        training.forward()
    training.close()
    assert training.table() == [(n, TRAIN, n, 0, 1) for n in range(3)]


def test_forwards_after_the_optimizers_have_stopped_are_steps_until_one_steps() -> None:
    training = Training()
    training.forward()
    training.optimizer()
    for _ in range(3):
        training.forward()
    training.machine.optimizers_stop()
    assert training.forward(root="decoder").number == 1, "joins the step"
    assert [training.forward().number for _ in range(2)] == [2, 3]
    training.machine.optimizers_stop()
    assert training.optimizer().number == 3
    assert [training.forward().number for _ in range(2)] == [4, 4]
    training.close()
    interrupted = StepFlag.INTERRUPTED.value
    assert training.table() == [
        (0, TRAIN, 0, 0, 1),
        (1, TRAIN, 1, interrupted, 3),
        (2, TRAIN, 2, 0, 1),
        (3, TRAIN, 3, 0, 1),
        (4, TRAIN, 4, interrupted, 2),
    ]


def test_without_an_optimizer_another_root_joins_the_step() -> None:
    training = Training()
    for _ in range(2):
        training.forward(root="encoder")
        training.forward(root="decoder")
    training.close()
    assert training.table() == [(0, TRAIN, 0, 0, 1), (1, TRAIN, 1, 0, 1)]


def test_evaluation_leaves_the_open_training_step_alone() -> None:
    training = Training()
    training.machine.optimizer_found("sgd")
    train = training.forward()
    first, second = training.forward(EVAL), training.forward(EVAL)
    assert (first.mode_step, second.mode_step) == (0, 1)
    assert training.ended == [first]
    assert training.optimizer() is train
    assert training.forward().number == 3
    assert training.table() == [
        (1, EVAL, 0, 0, 1),
        (0, TRAIN, 0, 0, 1),
        (2, EVAL, 1, 0, 1),
    ]


def test_a_loss_belongs_to_the_open_step_of_the_present_mode() -> None:
    training = Training()
    training.machine.optimizer_found("sgd")
    train = training.forward()
    evaluation = training.forward(EVAL)
    assert training.machine.module_called(EVAL).step is evaluation
    assert training.machine.module_called(TRAIN).step is train


def test_a_module_called_by_itself_opens_a_step_of_its_mode() -> None:
    training = Training()
    evaluation = training.note(training.machine.module_called(EVAL))
    assert evaluation is not None
    assert training.machine.module_called(EVAL).step is evaluation
    following = training.note(training.machine.module_called(EVAL, again=True))
    assert following is not evaluation
    assert training.ended == [evaluation]
    prediction = training.note(training.machine.module_called(PREDICT))
    assert prediction is not None
    assert prediction.mode is PREDICT
    step = training.note(training.machine.module_called(TRAIN))
    assert step is not None
    assert training.forward() is step
    assert training.optimizer() is step


def test_an_optimizer_without_a_forward_makes_a_step() -> None:
    training = Training()
    training.optimizer()
    training.optimizer()
    assert [step.number for step in training.ended] == [0, 1]


def test_a_skipped_step_is_a_step_and_flagged() -> None:
    training = Training()
    training.forward()
    training.optimizer(skipped=True)
    training.forward()
    training.optimizer()
    assert [step.flags for step in training.ended] == [StepFlag.SKIPPED, 0]


def test_the_first_optimizer_that_steps_ends_the_step() -> None:
    training = Training()
    for _ in range(3):
        training.forward()
        training.optimizer("first")
        training.optimizer("second")
        assert not training.optimizer("third").is_open
    assert training.table() == [(n, TRAIN, n, 0, 1) for n in range(3)]


def test_the_last_of_optimizers_that_take_turns_with_a_forward_ends_the_step() -> None:
    for keys in (("judge", "maker"), ("a", "b", "c")):
        training = Training()
        for _ in range(5):
            for key in keys:
                training.forward(root=key)
                training.optimizer(key)
        training.close()
        assert [step.number for step in training.ended] == list(range(5)), keys
        assert [step.micro_batches for step in training.ended][2:] == [1, 1, 1]


def test_an_optimizer_that_steps_twice_in_a_turn_does_not_wait_for_others() -> None:
    training = Training()
    for _ in range(3):
        for key in ("critic", "critic", "maker"):
            training.forward(root=key)
            training.optimizer(key)
    training.close()
    # Those of the critic, and the last one of the maker, which nothing follows.
    assert len(training.ended) == 3 * 2 + 1


def test_an_explicit_optimizer_ends_the_step() -> None:
    training = Training()
    training.machine.optimizer_found("generator", defines_step=True)
    for number in range(3):
        training.forward(root="discriminator")
        training.optimizer("discriminator")
        training.forward(root="generator")
        training.forward(root="discriminator")
        assert training.optimizer("generator").number == number
    assert training.table() == [(n, TRAIN, n, 0, 2) for n in range(3)]


def test_an_optimizer_that_replaces_another_takes_over() -> None:
    training = Training()
    for _ in range(2):
        training.forward()
        training.optimizer("warmup")
    for _ in range(4):
        training.forward()
        training.optimizer("main")
    # Its first step is that of a stranger; from the second on it defines.
    assert [step.micro_batches for step in training.ended] == [1, 1, 2, 1, 1]


def test_a_dead_optimizer_is_replaced_at_once() -> None:
    training = Training()
    training.forward()
    training.optimizer("warmup")
    training.machine.optimizer_gone("warmup")
    training.forward()
    training.optimizer("main")
    assert [step.micro_batches for step in training.ended] == [1, 1]


def test_all_evaluations_of_a_closure_are_one_step_and_the_first_is_taken() -> None:
    training = Training()
    machine = training.machine
    for number in range(2):
        step = training.note(machine.optimizer_begins("lbfgs", TRAIN))
        assert step is not None
        for evaluation in range(3):
            machine.closure_begins()
            assert step.is_taken == (evaluation > 0)
            assert training.forward() is step
            machine.closure_ends()
        training.note(machine.optimizer_ends("lbfgs"))
        assert training.ended[-1].number == number
    assert len(training.ended) == 2


def test_an_inner_optimizer_does_not_end_the_step() -> None:
    training = Training()
    for _ in range(3):
        training.forward()
        training.note(training.machine.optimizer_begins("outer", TRAIN))
        training.optimizer("inner")
        training.note(training.machine.optimizer_ends("outer"))
    assert len(training.ended) == 3


def test_a_forward_that_raises_ends_its_step_as_interrupted() -> None:
    training = Training()
    training.machine.optimizer_found("sgd")
    training.forward(failed=True)
    training.forward()
    training.optimizer()
    assert [step.flags for step in training.ended] == [StepFlag.INTERRUPTED, 0]


def test_an_optimizer_that_raises_ends_its_step_at_the_next_forward() -> None:
    training = Training()
    training.forward()
    training.note(training.machine.optimizer_begins("sgd", TRAIN))
    training.forward()
    training.optimizer()
    assert [step.flags for step in training.ended] == [StepFlag.INTERRUPTED, 0]


def test_a_forward_that_vanished_is_interrupted() -> None:
    training = Training()
    training.machine.optimizer_found("sgd")
    training.note(training.machine.forward_begins("net", TRAIN))
    training.note(training.machine.forward_lost())
    training.forward()
    training.optimizer()
    assert [step.flags for step in training.ended] == [StepFlag.INTERRUPTED, 0]


def test_a_nested_root_is_part_of_the_outer_one() -> None:
    training = Training()
    machine = training.machine
    outer = training.note(machine.forward_begins("outer", TRAIN))
    assert training.note(machine.forward_begins("inner", EVAL)) is outer
    training.note(machine.forward_ends())
    assert machine.depth
    training.note(machine.forward_ends())
    assert outer is not None
    assert outer.micro_batches == 1


def test_values_given_after_the_end_belong_to_the_step_that_ended() -> None:
    training = Training()
    training.forward()
    done = training.optimizer()
    assert training.machine.record_given(TRAIN).step is done
    evaluation = training.forward(EVAL)
    assert training.machine.record_given(EVAL).step is evaluation
    assert training.machine.record_given(TRAIN).step is done


def test_a_value_given_before_anything_opens_the_first_step() -> None:
    training = Training()
    step = training.note(training.machine.record_given(TRAIN))
    assert step is not None
    assert training.forward() is step


def test_a_step_left_open_is_interrupted_only_if_its_optimizer_never_came() -> None:
    with_optimizer, without = Training(), Training()
    with_optimizer.machine.optimizer_found("sgd")
    for training in (with_optimizer, without):
        training.forward()
        training.close()
    assert [step.flags for step in with_optimizer.ended] == [StepFlag.INTERRUPTED]
    assert [step.flags for step in without.ended] == [0]


EVENTS = st.lists(
    st.one_of(
        st.tuples(
            st.just("forward"),
            st.sampled_from([TRAIN, TRAIN, EVAL, PREDICT]),
            st.booleans(),
        ),
        st.tuples(st.just("begin"), st.sampled_from([TRAIN, EVAL]), st.just(False)),
        st.tuples(st.just("end"), st.just(TRAIN), st.booleans()),
        st.tuples(
            st.just("optimizer"), st.sampled_from(["a", "b", "c"]), st.booleans()
        ),
        st.tuples(st.just("raises"), st.sampled_from(["a", "b"]), st.just(False)),
        st.tuples(st.just("closure"), st.sampled_from(["a", "b"]), st.booleans()),
        st.tuples(
            st.sampled_from(["called", "given"]),
            st.sampled_from([TRAIN, EVAL]),
            st.just(False),
        ),
        st.tuples(st.sampled_from(["lost", "gone"]), st.just("a"), st.just(False)),
    ),
    max_size=60,
)


@given(EVENTS)
def test_whatever_happens_steps_are_numbered_without_gaps_and_end_once(
    events: list[tuple[str, object, bool]],
) -> None:
    training = Training()
    machine = training.machine
    for kind, value, flag in events:
        _play(training, machine, kind, value, flag)
        is_open = [step for step in training.begun if step.is_open]
        assert len([step for step in is_open if step.mode is TRAIN]) <= 1
        assert len([step for step in is_open if step.mode is not TRAIN]) <= 1
    training.close()
    assert [step.number for step in training.begun] == list(range(len(training.begun)))
    assert sorted(step.number for step in training.ended) == list(
        range(len(training.begun))
    )
    for mode in ModeKeys:
        of_mode = [step.mode_step for step in training.begun if step.mode is mode]
        assert of_mode == list(range(len(of_mode)))
    assert all(0 <= s.micro_batch < s.micro_batches for s in training.ended)


def _play(  # noqa: PLR0912 - one branch an event
    training: Training, machine: StepMachine, kind: str, value: object, flag: bool
) -> None:
    if isinstance(value, ModeKeys):
        if kind == "forward":
            training.forward(value, failed=flag)
        elif kind == "begin":
            training.note(machine.forward_begins("net", value))
        elif kind == "end":
            training.note(machine.forward_ends(failed=flag))
        elif kind == "called":
            training.note(machine.module_called(value))
        else:
            training.note(machine.record_given(value))
    elif isinstance(value, str):
        if kind == "optimizer":
            training.optimizer(value, skipped=flag)
        elif kind == "raises":
            training.note(machine.optimizer_begins(value, TRAIN))
        elif kind == "closure":
            training.note(machine.optimizer_begins(value, TRAIN))
            machine.closure_begins()
            training.forward()
            if flag:
                machine.closure_fails()
            else:
                machine.closure_ends()
                training.note(machine.optimizer_ends(value))
        elif kind == "lost":
            training.note(machine.forward_lost())
        else:
            machine.optimizer_gone(value)


def test_training_steps_are_numbered_alike_whatever_is_evaluated() -> None:
    machine = StepMachine()
    numbers = []
    for _ in range(3):
        numbers.append(machine.training_number)
        machine.forward_begins("net", ModeKeys.EVAL)
        machine.forward_ends()
        machine.forward_begins("net", ModeKeys.TRAIN)
        numbers.append(machine.training_number)
        machine.forward_ends()
        machine.optimizer_begins("optimizer", ModeKeys.TRAIN)
        machine.optimizer_ends("optimizer")
    assert numbers == [0, 0, 1, 1, 2, 2]


def evaluated() -> tuple[Training, Step]:
    """A training whose last forward was in evaluation, with gradients."""
    (training := Training()).forward()
    training.optimizer()
    step = training.forward(EVAL)
    step.may_train = True
    return training, step


def test_what_an_optimizer_uses_of_evaluation_is_of_training() -> None:
    training, step = evaluated()
    assert training.machine.evaluation_trains("sgd") is step
    assert training.machine.trains_in_evaluation
    assert training.optimizer() is step
    assert training.table() == [(0, TRAIN, 0, 0, 1), (1, TRAIN, 1, 0, 1)]
    training.forward(EVAL)
    assert training.machine.latest(EVAL) == (2, 0)  # The number is free again.


def test_what_it_cannot_have_used_stays_of_evaluation() -> None:
    training, step = evaluated()
    assert training.machine.evaluation_trains("adam") is None
    step.may_train = False
    assert training.machine.evaluation_trains("sgd") is None
    training, _ = evaluated()
    training.forward()
    assert training.machine.evaluation_trains("sgd") is None
    assert not training.machine.trains_in_evaluation
