"""The life of a hook: its copies, its end, and a training that is resumed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from tdbg.capture.policy import Policy
from tdbg.capture.resuming import counters_of, parse_counters, resume
from tdbg.capture.session import Session
from tdbg.capture.sink import NullSink
from tdbg.collections import CollectionRegistry
from tdbg.modes import TRAIN, TRAINING, ModeKeys

__all__ = ["Lifetime", "dead_session"]


def dead_session() -> Session:
    """A session that never does anything."""
    return Session(NullSink(), Policy(CollectionRegistry()), is_live=False)


class Lifetime:
    """What a hook does beyond capturing.

    A copy of a hook, by ``copy``, ``pickle`` or ``torch.save``, alone or inside a
    model, is one that does nothing: there is one writer of a run.
    """

    _session: Session
    _taps: list[Any]
    _current_mode: Callable[[], ModeKeys]
    _prepare: Callable[[], None]

    def _set_up(self, session: Session) -> None:
        raise NotImplementedError

    # ---- resuming --------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where the training is, for its checkpoint: plain numbers, a few bytes.

            torch.save({"model": model.state_dict(), "tdbg": hook.state_dict()}, path)

        The step under way is not over, so a training that resumes repeats it.
        """
        return counters_of(self._session.machine)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting steps from where a checkpoint was taken.

            hook = td.Hook("runs/digits")  # A new attempt in the same run.
            hook.load_state_dict(torch.load(path)["tdbg"])

        To be called before the first step. Steps never go back: where this process
        has made later ones already, the call changes nothing but the log.

        Raises:
            ConfigurationError: If *state* is none of ``state_dict``.
        """
        counters = parse_counters(state)
        if self._session.is_live:
            resume(self._session.machine, counters)

    def resume_at(self, step: int) -> None:
        """The same where the checkpoint has only the number of training steps done.

        Other modes count from 0, and the global number is that of the training: use
        ``state_dict`` where evaluation is captured as well.

        Raises:
            ConfigurationError: If *step* is no such number.
        """
        self.load_state_dict({"version": 1, "step": step, "modes": {TRAIN.name: step}})

    def begin_call(self, module: Any) -> None:
        """A module was registered while its call had begun already.

        Raises:
            TrainingStopped: If somebody asked for it.
        """
        for tap in self._taps:
            if tap.module is module:
                self._session.run(tap.begin, module)

    # ---- forwards that are no call of a registered module ----------------------

    @contextlib.contextmanager
    def forward_pass(self) -> Iterator[None]:
        """What runs inside is one forward of the training.

        For a training that calls parts of its model one by one, and never the module
        that was registered::

            with hook.forward_pass():
                loss = criterion(model.decoder(model.encoder(x)), y)

        Calls of registered modules inside belong to it.

        Raises:
            TrainingStopped: At the beginning, if somebody asked for it.
        """
        session = self._session
        mode = self._current_mode()
        session.run(self._begin_pass, mode)
        try:
            yield
        except BaseException:
            session.run(session.forward_lost)
            raise
        session.run(session.forward_ends)

    def _begin_pass(self, mode: ModeKeys) -> None:
        is_training = mode in TRAINING
        if is_training:
            self._prepare()
        context = self._session.forward_begins(id(self), mode)
        if context is None or not context.takes:
            return
        for tap in self._taps:
            if not is_training or not self._session.machine.optimizers:
                tap.parameters.capture(context, gradients=False)
            else:
                tap.parameters.begin_values(context)

    # ---- the end ---------------------------------------------------------------

    def close(self, timeout: float = 5.0) -> bool:
        """Take all hooks off and end the run; True if everything was written."""
        return self._session.close("closed", timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._session.close("closed" if kind is None else kind.__name__)

    # ---- copies ----------------------------------------------------------------

    def __reduce__(self) -> tuple[Any, ...]:
        return _make_inert, (type(self),)


def _make_inert(kind: type[Lifetime]) -> Lifetime:
    hook = kind.__new__(kind)
    hook._set_up(dead_session())
    return hook
