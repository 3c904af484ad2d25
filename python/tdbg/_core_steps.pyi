"""The part of ``tdbg._core`` that counts steps, and measures them.

No module of its own: cpp/bindings/bind_step_counter.cc, bind_step_clock.cc.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, final

class StepClock:
    """Divides the time of a training into steps and phases: cpp/sampler/step_clock.h.

    Phases are ``tdbg.run.profile_tables.Phase``; another number raises ValueError.
    """

    def __init__(self) -> None: ...
    def start(self) -> None:
        """Begin the first step; the calling thread is that of the training."""

    def stop(self) -> None: ...
    @property
    def is_on(self) -> bool: ...
    def enter(self, phase: int) -> None:
        """Begin a phase inside the present one."""

    def leave(self, phase: int = -1) -> None:
        """End the innermost phase of this kind with all inside it; -1: of any kind."""

    def stand_in(self) -> None:
        """Let the calling thread act for the training's, which waits for it."""

    def stand_down(self) -> None:
        """Act for the training's thread no longer."""

    def loss_begins(self) -> None:
        """Begin a loss, which belongs to the forward before it."""

    def loss_ends(self) -> None: ...
    def tdbg_begins(self) -> int:
        """Give the time to tdbg from now on; return it, monotonic, in ns."""

    def tdbg_ends(self) -> int:
        """Give the time to the phase under way again; return it."""

    def collects(self, phase: str, info: object) -> None:
        """Note that Python's collector starts or stops; one of ``gc.callbacks``."""

    def spend(self, ns: int) -> None:
        """Give time to tdbg that the present phase has just taken."""

    def spend_in(self, phase: int, ns: int) -> None:
        """Give time to tdbg that a phase has taken."""

    def move(self, to: int, ns: int) -> None:
        """Give time to a phase that the present one has just taken."""

    def add_batch(self, args: tuple[Any, ...], kwargs: Any = None) -> None:
        """Add the batch that the model is called with, by its first tensor."""

    def add_samples(self, samples: int, tokens: int = -1) -> None:
        """Add a batch; -1: unknown."""

    def step_passes(self) -> None:
        """End a step of training, whose number comes later."""

    def end_step(
        self, global_step: int, mode_step: int, mode: int, micro_batches: int
    ) -> bool:
        """End a step of training; return whether rows are due to be written."""

    def number_steps(
        self, n: int, global_step: int, mode_step: int, mode: int, micro_batches: int
    ) -> bool:
        """Give the oldest *n* steps without numbers theirs, given the last one's."""

    def end_evaluation(self) -> None:
        """End a forward of evaluation."""

    def keep_evaluation(
        self, global_step: int, mode_step: int, mode: int, micro_batches: int
    ) -> None:
        """Keep the row of the latest evaluation."""

    def forget_evaluation(self) -> None:
        """Forget the latest evaluation: it was training."""

    def set_is_repeating(self, is_repeating: bool) -> None:
        """Leave the phases alone meanwhile: events are reported again."""

    def take_rows(self) -> bytes:
        """Return the complete rows, of ``profile_tables.STEP``, and forget them."""

    @property
    def n_lost(self) -> int: ...
    @property
    def phase(self) -> int:
        """The phase under way; any thread may ask."""

    @property
    def global_step(self) -> int:
        """Number of the step that ended last; -1: none."""

    @property
    def coming_step(self) -> int:
        """The step under way, after those that have passed without a number yet."""

    @property
    def n_steps(self) -> int:
        """How many steps of training have ended."""

class StepCounter:
    """Counts steps that repeat one: cpp/python_capture/step_counter.h."""

    def __init__(self) -> None: ...
    def begin(
        self,
        events: tuple[object, ...],
        most: int,
        until_ns: int,
        first_noted: int = 0,
        noted_every: int = 0,
    ) -> None:
        """Count steps of these events, compared by identity; they must stay alive.

        Numbers of the step *first_noted* from now, and of each *noted_every* steps
        after it (0: of none), are noted by whoever reports events.
        """

    def end(self) -> tuple[int, int, int]:
        """Count no longer: steps that are over, their duration in nanoseconds, and
        events of the one under way."""

    def measure_by(self, clock: StepClock | None) -> None:
        """Measure the phases of steps that are counted."""

    def fingerprint_by(self, fingerprints: Fingerprints | None) -> None:
        """Hash the samples of steps that are counted."""

    @property
    def is_over(self) -> bool:
        """Whether as many steps were counted, or as much time has passed, as may."""

    @property
    def is_noted(self) -> bool:
        """Whether numbers of the step under way are noted."""

    @property
    def is_quiet(self) -> bool:
        """Whether a step is under way of which nothing is noted."""

    @property
    def n(self) -> int:
        """Steps that were counted, and are over."""

    @property
    def index(self) -> int:
        """Events of the step under way."""

    @property
    def duration_ns(self) -> int: ...
    @property
    def depth(self) -> int:
        """Calls of modules under way in a step that is counted."""

    @property
    def n_events(self) -> int:
        """All that were ever counted."""

@final
class CountedHook:
    """Stands in for a hook; its class and its attributes are those of the hook.

    *kind* is a word, such as "forward_begins": cpp/python_capture/counted_hook.h has
    them all.  An unknown one raises ValueError.
    """

    def __new__(
        cls, kind: str, counter: StepCounter, event: object, hook: Callable[..., Any],
        backward_id: Callable[[], int], references: tuple[weakref.ref[Any], ...],
        asks: Callable[[Any], bool] | None, /,
    ) -> CountedHook: ...  # fmt: skip
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    @property
    def stands_for(self) -> Any:
        """The hook."""

@final
class CountedCall:
    """A function whose calls are followed, but in steps that are only counted.

    Calls *followed* in the place of *function*, or that if ``counter.is_quiet``.
    Each call is a *phase* of these *clocks*; a loss, if that is the forward.
    """

    counter: StepCounter | None
    clocks: tuple[StepClock, ...]
    def __new__(
        cls,
        function: Callable[..., Any],
        followed: Callable[..., Any],
        phase: int = 0,
        /,
    ) -> CountedCall: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

@final
class Fingerprints:
    """Hashes of the samples of a training: cpp/python_capture/fingerprints.h.

    Args:
        batch: A ``BatchCapture``, which reads the tensors.
        most_trained: Samples of training that are hashed at most.
        most_others: Samples of other modes.
        training_mode: The number of the mode of training.
    """

    def __init__(
        self, batch: object, most_trained: int, most_others: int, training_mode: int
    ) -> None: ...
    def add_root(self, event: object, name: str) -> None: ...
    def add_loss(self, name: str) -> int:
        """Return the number of a loss of that name."""

    def begin_counting(self, step: int) -> None:
        """Note that counted steps come after this one."""

    def take_inputs(
        self, event: object, step: int, mode: int, args: Any, kwargs: Any = None
    ) -> bool:
        """Hash what a root is called with; return whether rows are due to be taken."""

    def take_labels(self, loss: int, args: Any, kwargs: Any = None) -> bool:
        """Hash the second argument of a loss; return whether rows are due."""

    def take(self) -> list[tuple[str, bytes]]:
        """Return the rows of each tensor (``FINGERPRINT``), and forget them."""

    def is_full(self, is_training: bool) -> bool: ...
    def n_hashed(self, is_training: bool) -> int: ...
    @property
    def n_beyond(self) -> int:
        """Samples beyond the bound of a call."""

    @property
    def n_on_devices(self) -> int:
        """Tensors that were not read because they lie on a device."""

    @property
    def spent_ns(self) -> int:
        """Time spent in calls that Python does not measure."""
