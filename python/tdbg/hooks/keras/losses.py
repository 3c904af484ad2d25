"""Losses of Keras: the loss of a batch, and what it is computed of.

What Keras calls ``loss`` in its logs is the mean of the epoch so far.  The loss of a
batch is what the model's loss trackers are given; where no tap sees that, it is how
much their totals have grown in the step.  The total before a step is that after the
step before; only if nobody has read that, it is read before the step.

Under ``tf.distribute`` a metric has numbers of its own on each replica, which Keras
adds up when it reads them.  Their growth in a step is the loss of one replica's share
of the batch.

Thread safety: the training's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tdbg.capture.naming import MAX_CALLS, activation_name
from tdbg.capture.recorder import StepContext
from tdbg.capture.session import Session
from tdbg.capture.tensor_entry import TensorEntry
from tdbg.config.collections import Role
from tdbg.config.kinds import InputHandling, Kind
from tdbg.hooks.keras.backend import Backend, State, number_in
from tdbg.hooks.keras.kinds import input_handling_of, loss_class, loss_kind
from tdbg.hooks.keras.replicas import numbers_of_replicas
from tdbg.hooks.keras.samples import CountedSamples
from tdbg.hooks.keras.tracing import Patches, Taps, tap_key
from tdbg.modes import TRAIN, ModeKeys

__all__ = [
    "LossFunction",
    "LossRecords",
    "Losses",
    "ReplicaTracker",
    "Totals",
    "Tracker",
    "growth",
    "labels_as_given",
    "reader_of",
    "trackers_of",
]

_DEFAULT = "loss"


# The sum of the losses in a metric, and that of their weights: numbers, or what the
# backend has not computed yet.
Totals = tuple[Any, Any]


class _Key(Protocol):
    def __call__(self, name: str, role: Role) -> str | None: ...


class LossFunction:
    """A loss that a model was compiled with, or has as an attribute.

    Attributes:
        name: What the names of its tensors begin with.
        class_name: Its class.
        kind: Its kind; None: of none.
        input_handling: What it does to its inputs first; None: nothing.
    """

    def __init__(self, name: str, loss: Any) -> None:
        self.name = name
        self.loss = loss
        self.class_name = loss_class(loss)
        self.kind: Kind | None = loss_kind(loss)
        self.input_handling: InputHandling | None = input_handling_of(loss)


class Tracker:
    """A metric that means a loss over the batches of an epoch.

    Args:
        metric: The metric of Keras.

    Attributes:
        metric: As given.
        name: Its name in Keras.
        tapped_in: The modes in which taps see what it is given.
        before: What its totals are before the next step; None: nobody knows.
    """

    def __init__(self, metric: Any) -> None:
        self.metric = metric
        self.name = str(metric.name)
        self.tapped_in: set[ModeKeys] = set()
        self.before: Totals | None = None

    @property
    def is_known(self) -> bool:
        """Whether it is known what its totals are before the next step."""
        return self.before is not None

    def begin(self, before: Totals | None) -> None:
        """Note what its totals are before the next step; None: nobody knows."""
        self.before = before

    def grown(self, total: float, count: float) -> float | None:
        """The mean loss of what was added since the last call; None: nobody knows.

        Args:
            total: The sum of the losses in the metric.
            count: The sum of their weights.
        """
        before, self.before = self.before, (total, count)
        return None if before is None else growth(before, self.before)


def growth(before: Totals, after: Totals) -> float | None:
    """The mean loss of what was added to totals; None: nothing was."""
    if after[1] <= before[1]:  # They were reset in between.
        before = (0.0, 0.0)
    added = after[1] - before[1]
    return (after[0] - before[0]) / added if added > 0 else None


class Losses:
    """The losses of one model.

    Args:
        prefix: What comes before the names of this model.
        backend: The backend of Keras.
        follow: Makes what follows a metric.

    Attributes:
        trackers: The metrics that mean losses, as of the last ``look``.
        are_logged: Whether steps return losses that no tracker is given.
    """

    def __init__(
        self,
        prefix: str,
        backend: Backend,
        follow: Callable[[Any], Tracker] = Tracker,
    ) -> None:
        self._prefix = prefix
        self._follow = follow
        self._backend = backend
        # The losses that were seen to find the scores of which outputs were made.
        self._finding_scores: set[str] = set()
        self._names: dict[int, str] = {}
        self.are_logged = False
        self.trackers: list[Tracker] = []
        # Whether Keras had made all losses of the model at the last look.
        self._is_built = False
        self._given: list[Any] = []

    def add(self, model: Any, loss: Any) -> LossFunction:
        """Know a loss that the model does not have; return how it is called."""
        if not any(each is loss for each in self._given):
            self._given.append(loss)
        return next(each for each in self.functions(model) if each.loss is loss)

    def look(self, model: Any) -> None:
        """Look for losses and metrics: the model may have been compiled anew."""
        self._names.clear()
        self._is_built = _is_built(model)
        known = {id(each.metric): each for each in self.trackers}
        self.trackers = [
            known.get(id(metric)) or self._follow(metric)
            for metric in trackers_of(model)
        ]

    def look_again(self, model: Any) -> None:
        """Look, if Keras has made the losses of single outputs in a trace."""
        if not self._is_built and _is_built(model):
            self.look(model)

    def functions(self, model: Any) -> list[LossFunction]:
        """The losses that were given, those of `compile`, and those in attributes."""
        found: list[LossFunction] = []
        taken: dict[str, int] = {}
        for loss in (*self._given, *_losses_of(model)):
            if any(each.loss is loss for each in found):
                continue
            name = self._prefix + loss_class(loss)
            number = taken[name] = taken.get(name, 0) + 1
            function = LossFunction(f"{name}_{number}" if number > 1 else name, loss)
            if function.name in self._finding_scores:
                function.input_handling = InputHandling.FIND_SCORES
            found.append(function)
        return found

    @property
    def n_finding_scores(self) -> int:
        """How many losses were seen to find the scores of which outputs were made."""
        return len(self._finding_scores)

    def see_prediction(self, function: LossFunction, prediction: Any) -> None:
        """Note whether a loss finds the scores of which a prediction was made."""
        # A prediction of another type is converted, and then it does not find them.
        dtype = getattr(function.loss, "dtype", None)
        is_kept = dtype is None or str(dtype) in str(prediction.dtype)
        if is_kept and self._backend.has_scores(prediction):
            self._finding_scores.add(function.name)

    def name_of_log(self, name: str) -> str:
        """The name of a loss that a step returns itself for the logs."""
        return f"{self._prefix}{name}_output_0"

    def name_of(self, model: Any, tracker: Tracker) -> str:
        """The name of a tracker's loss: of the loss function, if that is all of it.

        REQUIRES: a step of the model was run or traced, or is about to update metrics.
        """
        known = self._names.get(id(tracker))
        if known is None:
            known = self._names[id(tracker)] = self._name_of(model, tracker)
        return known

    def _name_of(self, model: Any, tracker: Tracker) -> str:
        if tracker.metric is getattr(model, "_loss_tracker", None):
            functions = self.functions(model)
            if len(functions) == 1 and not _adds_losses(model):
                return f"{functions[0].name}_output_0"
        return f"{self._prefix}{tracker.name}_output_0"

    def install(self, model: Any, patches: Patches, taps: Taps, key: _Key) -> None:
        """Tap what losses are given, and what trackers of losses are."""
        tapped: set[int] = set()

        def tap_new() -> None:
            self.look_again(model)
            for function in self.functions(model):
                if id(function.loss) not in tapped:
                    tapped.add(id(function.loss))
                    self._tap_inputs(function, patches, taps, key)
            for tracker in self.trackers:
                if id(tracker.metric) not in tapped:
                    tapped.add(id(tracker.metric))
                    make = self._holding(model, tracker, taps, key)
                    patches.wrap(tracker.metric, "update_state", make)

        tap_new()
        if not _is_built(model):
            # Keras makes the losses of single outputs in the first trace.
            patches.wrap(model._compile_loss, "build", _followed_by(tap_new, taps))

    def _tap_inputs(
        self, function: LossFunction, patches: Patches, taps: Taps, key: _Key
    ) -> None:
        """Tap predictions and labels, in this order, whatever the loss calls them."""

        def hold(prediction: Any, label: Any) -> None:
            call = taps.count_call(function.name)
            self.see_prediction(function, prediction)
            label = labels_as_given(function, label, self._backend.operations)
            roles = ((prediction, Role.PREDICTION), (label, Role.LABEL))
            for index, (tensor, role) in enumerate(roles):
                name = activation_name(function.name, "input", index, call)
                held = key(name, role) if call < MAX_CALLS else None
                if held is not None:
                    taps.hold(held, tensor)

        def make(call: Callable[..., Any]) -> Callable[..., Any]:
            def tapped(y_true: Any, y_pred: Any, *args: Any, **kwargs: Any) -> Any:
                taps.run(hold, y_pred, y_true)
                return call(y_true, y_pred, *args, **kwargs)

            return tapped

        patches.wrap(function.loss, "call", make)

    def _holding(
        self, model: Any, tracker: Tracker, taps: Taps, key: _Key
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def hold(values: Any) -> None:
            held = key(self.name_of(model, tracker), Role.LOSS)
            if held is not None:
                taps.hold(held, values)

        def make(update_state: Callable[..., Any]) -> Callable[..., Any]:
            def tapped(values: Any, *args: Any, **kwargs: Any) -> Any:
                taps.run(hold, values)
                return update_state(values, *args, **kwargs)

            return tapped

        return make


def _is_built(model: Any) -> bool:
    compiled = getattr(model, "_compile_loss", None)
    return compiled is None or bool(compiled.built)


def trackers_of(model: Any) -> Iterator[Any]:
    """The metrics of a model that mean losses: means with ``loss`` in their names."""
    for metric in model.metrics:
        is_mean = hasattr(metric, "total") and hasattr(metric, "count")
        if is_mean and _DEFAULT in str(metric.name).lower():
            yield metric


def reader_of(
    named: Sequence[tuple[TensorEntry, Tracker]],
    read: Callable[[Sequence[Any]], list[Any]],
    number: Callable[[Any], float],
    samples: CountedSamples,
) -> Callable[[Any], list[tuple[TensorEntry, float]]]:
    """Return what reads the losses of the step that has just been computed.

    Args:
        named: The trackers of the losses, with their names.
        read: Reads variables.
        number: Makes a number of what it has read.
        samples: Counts the samples of these steps, which are of training.
    """
    metrics = [tracker.metric for _, tracker in named]
    totals = [each for metric in metrics for each in (metric.total, metric.count)]

    def losses(_: Any) -> list[tuple[TensorEntry, float]]:
        values = map(number, read(totals))
        found = []
        for entry, tracker in named:
            before = tracker.before
            loss = tracker.grown(next(values), next(values))
            if before is not None and tracker.before is not None:
                samples.note(tracker.metric, TRAIN, before[1], tracker.before[1])
            if loss is not None:
                found.append((entry, loss))
        return found

    return losses


def _losses_of(model: Any) -> Iterator[Any]:
    compiled = getattr(model, "_compile_loss", None)
    for each in getattr(compiled, "_flat_losses", None) or ():
        yield each.loss
    for name, value in list(vars(model).items()):
        is_loss = hasattr(value, "reduction") and hasattr(value, "call")
        if is_loss and name not in {"_compile_loss", "loss"}:
            yield value


def _adds_losses(model: Any) -> bool:
    """Whether anything is added to what the loss function computes."""
    layers = list(model._flatten_layers())
    if any(getattr(layer, "activity_regularizer", None) for layer in layers):
        return True
    if any(getattr(layer, "_losses", None) for layer in layers):
        return True
    return any(
        getattr(variable, "regularizer", None) is not None
        for variable in model.trainable_variables
    )


def labels_as_given(function: LossFunction, label: Any, operations: Any) -> Any:
    """Labels as Keras was given them: a loss makes numbers of classes floats."""
    is_number = function.class_name.startswith("Sparse")
    if is_number and "float" in str(getattr(label, "dtype", "")):
        return operations.cast(label, "int32")  # JAX warns of wider ones.
    return label


def _followed_by(
    after: Callable[[], None], taps: Taps
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(method: Callable[..., Any]) -> Callable[..., Any]:
        def followed(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            taps.run(after)
            return result

        return followed

    return make


# The sum of the losses in a metric, and that of their weights.
_Numbers = tuple[float, float]


class ReplicaTracker(Tracker):
    """Follows a metric that means a loss, on each replica."""

    def __init__(self, metric: Any) -> None:
        super().__init__(metric)
        self._of_replicas: Sequence[_Numbers | None] = [None] * len(self._read())

    def begin(self, before: _Numbers | None) -> None:
        """Begin a step, and read what each replica has of the numbers now."""
        super().begin(before)
        n = len(self._of_replicas)
        if before is None or not any(before):
            self._of_replicas = [before] * n
        else:
            self._of_replicas = self._read()

    def record(
        self, session: Session, context: StepContext, entry: TensorEntry | None
    ) -> None:
        """Record the loss of each replica in the step that is over.

        Args:
            session: Receives the losses.
            context: The step.
            entry: The name of the loss; None: the loss was recorded already.
        """
        before, self._of_replicas = self._of_replicas, self._read()
        if entry is None:
            return
        flags = (context.step_plan.of_entry(entry),)
        micro_batch = context.step.micro_batch
        for replica, now in enumerate(self._of_replicas):
            loss = _grown(before[replica], now)
            if loss is not None:
                tensors = (np.asarray(loss, np.float32),)
                session.replicas.take(
                    replica, context, (entry,), tensors, flags, micro_batch
                )

    def _read(self) -> list[Any]:
        read = map(numbers_of_replicas, (self.metric.total, self.metric.count))
        return list(zip(*read, strict=True))


def _grown(before: _Numbers | None, now: _Numbers) -> float | None:
    """The mean of the losses in between; None: there were none, or nobody knows."""
    if before is None or np.array_equal(before, now, equal_nan=True):
        return None  # An empty share leaves them as they are.
    if now[1] <= before[1]:  # They were reset.
        before = (0.0, 0.0)
    added = now[1] - before[1]
    return (now[0] - before[0]) / added if added > 0 else None


class LossRecords:
    """Records the losses of the steps of one model.

    Where steps are computed asynchronously a step that is over ends when its losses
    have been computed: nobody waits for them.

    Args:
        session: Receives them.
        backend: Reads numbers.
        losses: The losses of the model.
        samples: Counts the samples of its steps.
    """

    def __init__(
        self,
        session: Session,
        backend: Backend,
        losses: Losses,
        samples: CountedSamples,
    ) -> None:
        self._samples = samples
        self._session = session
        self._backend = backend
        self._losses = losses

    def step_begins(self, mode: ModeKeys, state: State, *, has_taps: bool) -> None:
        """Know what trackers hold before a step, as far as its losses follow from it.

        Args:
            mode: The mode of the step.
            state: The variables before it.
            has_taps: Whether it is to be run with taps.
        """
        for tracker in self._losses.trackers:
            if tracker.is_known or (has_taps and mode in tracker.tapped_in):
                continue
            if not self._session.may_capture(Role.LOSS):
                return
            tracker.begin(self._totals(tracker, state))

    def step_ended(
        self,
        model: Any,
        context: StepContext,
        tensors: Mapping[str, Any],
        state: State,
        logs: Mapping[str, Any],
    ) -> None:
        """Record the losses of a step that is over.

        A tracker that was given nothing is none of the step: what the step has called
        a loss in its logs is its loss, and not a mean over the epoch so far.

        Args:
            model: The model.
            context: The step.
            tensors: What taps hold of it.
            state: The variables as it has left them.
            logs: What the step has returned for the logs.
        """
        mode = context.step.mode
        alone = {
            name: value for name, value in logs.items() if _DEFAULT in name.lower()
        }
        for tracker in self._losses.trackers:
            entry = self._session.entry(self._losses.name_of(model, tracker), Role.LOSS)
            if tap_key(entry.name, Role.LOSS) in tensors:
                alone.pop(tracker.name, None)
                tracker.tapped_in.add(mode)
                tracker.begin(None)
                continue
            if not tracker.is_known:  # Taps were to see it, and did not.
                tracker.tapped_in.discard(mode)
            if not context.step_plan.of_entry(entry):
                tracker.begin(None)
            elif isinstance(tracker, ReplicaTracker):
                alone.pop(tracker.name, None)
                tracker.record(self._session, context, entry)
            else:
                before, after = tracker.before, self._totals(tracker, state)
                tracker.begin(after)
                logged = alone.pop(tracker.name, None)
                if before is not None and self._backend.as_async is None:
                    self._samples.note(tracker.metric, mode, before[1], after[1])
                self._record(context, entry, (before, after), tracker.name, logged)
        for name, value in alone.items():
            self._record(context, None, None, name, value)

    def metrics_are_reset(self) -> None:
        """Keras has reset its metrics."""
        for tracker in self._losses.trackers:
            tracker.begin((0.0, 0.0))

    def _totals(self, tracker: Tracker, state: State) -> Totals:
        """Read the numbers of a tracker, or copy them if they are still computed."""
        numbers = state.read([tracker.metric.total, tracker.metric.count])
        as_async = self._backend.as_async
        total, count = as_async.copies(numbers) if as_async else self._numbers(numbers)
        return total, count

    def _numbers(self, totals: Sequence[Any]) -> tuple[float, float]:
        total, count = (number_in(self._backend, each) for each in totals)
        return total, count

    def _record(
        self,
        context: StepContext,
        entry: TensorEntry | None,
        totals: tuple[Totals | None, Totals] | None,
        name: str,
        logged: Any,
    ) -> None:
        """Record a loss when it has been computed.

        Args:
            context: The step.
            entry: The name of the loss of a tracker.
            totals: Of the tracker, before and after the step.
            name: How the step calls the loss in its logs.
            logged: What it is there; None: it is not there.
        """
        before, after = totals or (None, None)
        numbers = [] if before is None or after is None else [*before, *after]
        numbers += [] if logged is None else [logged]
        if not numbers:
            return
        session = self._session
        micro_batch = context.step.micro_batch

        def deliver() -> None:
            grown = None
            if before is not None and after is not None:
                grown = growth(self._numbers(before), self._numbers(after))
            found, loss = entry, grown
            if loss is None and logged is not None:
                found = session.entry(self._losses.name_of_log(name), Role.LOSS)
                loss = number_in(self._backend, logged)
                self._losses.are_logged = True
            if found is None or loss is None or not context.step_plan.of_entry(found):
                return
            flags = context.step_plan.of_entry(found)
            session.note_data(context)
            arrays = (np.asarray(loss, np.float32),)
            session.take(context, (found,), arrays, (flags,), 0, micro_batch)

        as_async = self._backend.as_async
        if as_async is not None:
            session.note_data(context)  # Its record waits for the result.
            session.expect(context, as_async.computed(numbers), deliver)
        else:
            deliver()
