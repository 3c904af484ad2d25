"""What a report is about: a run as it is now, with what was found in it.

Thread safety: as the trial's; a ``Subject`` belongs to one thread.

Errors: what cannot be read is left out and counted in ``unread``; a report of a damaged
run shows the rest of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from tdbg.cost import Pricing
from tdbg.errors import TdbgError
from tdbg.modes import ModeKeys
from tdbg.run.json_values import mapping_of
from tdbg.trial import SERIES_COLUMNS, Series, Trial
from tdbg.view import Diagnosis, RunView, are_trees, loss_names, view_of
from tdbg.view.cost import RunCost, cost_view
from tdbg.view.time import TimeView, time_of

__all__ = ["Subject"]

_Value = TypeVar("_Value")
_Arguments = ParamSpec("_Arguments")
GRADIENT, UPDATE = "gradient/", "update/"


class Subject:
    """A run to be reported on.

    Args:
        trial: The run; REQUIRES: it takes in nothing new (``no_refresh``) meanwhile.
        diagnosis: What rules said of it.
        pricing: What its hosts cost; None: the report says nothing of cost.

    Attributes:
        unread: What could not be read, in words.
    """

    def __init__(
        self, trial: Trial, diagnosis: Diagnosis, pricing: Pricing | None = None
    ) -> None:
        self.trial = trial
        self.diagnosis = diagnosis
        self.pricing = pricing
        self.unread: list[str] = []

    # --- Steps --------------------------------------------------------------

    @cached_property
    def table(self) -> NDArray[np.void]:
        """The recorded steps."""
        return self.trial.step_table()

    @property
    def span(self) -> tuple[int, int]:
        """First and last training step recorded; (0, 0) without any."""
        steps = self.table["training_step"]
        return (int(steps[0]), int(steps.max())) if len(steps) else (0, 0)

    @cached_property
    def modes(self) -> list[ModeKeys]:
        """Modes that have steps."""
        return self.trial.modes()

    def mode_steps(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """The steps in the count of their modes, of global ones; -1: not recorded."""
        at = np.searchsorted(self.table["step"], steps)
        at = np.minimum(at, max(len(self.table) - 1, 0))
        if not len(self.table):
            return np.full(len(steps), -1)
        found = self.table["mode_step"][at]
        return np.where(self.table["step"][at] == steps, found, -1)

    # --- What is known of it ------------------------------------------------

    @cached_property
    def view(self) -> RunView:
        """How it is."""
        return view_of(self.trial, self.diagnosis)

    @cached_property
    def time(self) -> TimeView:
        """Where its time went."""
        return time_of(self.trial, self.diagnosis)

    @cached_property
    def cost(self) -> RunCost | None:
        """Its cost; None without a price, or without step rows."""
        pricing = self.pricing
        if pricing is None or not self.time.has_steps:
            return None
        return cost_view(
            self.trial,
            pricing.per_hour,
            now=pricing.now,
            candidates=pricing.candidates,
        )

    @cached_property
    def are_trees(self) -> bool:
        """Whether this is a training of boosted trees."""
        return are_trees(self.trial)

    @cached_property
    def configuration(self) -> dict[str, Any]:
        """How capture was configured."""
        return self.trial.configuration()

    @property
    def framework(self) -> str:
        """Name and version of the framework; empty if nothing says so."""
        told = mapping_of(self.configuration.get("framework"))
        return " ".join(str(told[k]) for k in ("name", "version") if told.get(k))

    @cached_property
    def parameters(self) -> list[str]:
        """Names of the parameters, in the order of forward.

        The model's own order, as the training told it; of runs that tell nothing, that
        in which gradients and weights first came.
        """
        named: dict[str, None] = {}
        for info in self.trial.model_info():
            named.update(dict.fromkeys(info.parameters))
        found = {*self.in_collection("weights"), *self.in_collection("biases")}
        found |= {
            name.removeprefix(GRADIENT)
            for name in self.in_collection("gradients")
            if name.startswith(GRADIENT)
        }
        rest = sorted(found - named.keys(), key=self._position)
        return [*named, *rest]

    def _position(self, parameter: str) -> tuple[int, str]:
        for name in (parameter, GRADIENT + parameter):
            if self.trial.has_tensor(name):
                return self.trial.tensor(name).position, parameter
        return 0, parameter

    @cached_property
    def _collections(self) -> dict[str, set[str]]:
        # A collection may name what was never saved.
        saved = set(self.trial.tensor_names())
        told = self.trial.collections().items()
        return {name: each.tensor_names & saved for name, each in told}

    def in_collection(self, name: str) -> set[str]:
        """The names of the tensors of a collection; empty if there is none."""
        return self._collections.get(name, set())

    # --- What it holds ------------------------------------------------------

    def read(
        self,
        what: str,
        question: Callable[_Arguments, _Value],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> _Value | None:
        """The answer to a question about *what*; None if damage or absence forbids it.

        Example:
            value = subject.read("labels", tensor.value, step)
        """
        try:
            return question(*args, **kwargs)
        except TdbgError as error:
            self.unread.append(f"{what}: {error}")
            return None

    def series(
        self,
        names: Sequence[str],
        field: str,
        mode: ModeKeys | None = None,
        columns: int = SERIES_COLUMNS,
    ) -> list[Series]:
        """The envelope of a statistic of each of some tensors that there are."""
        known = [name for name in names if self.trial.has_tensor(name)]
        envelope = self.read(
            ", ".join(known[:4]),
            self.trial.envelope,
            known,
            mode=mode,
            columns=columns,
            fields=field,
            by="training",
        )
        if envelope is None:
            return []
        # An alias asks for the tensor that has it.
        return [
            envelope.series(i, field, known[i] if i < len(known) else name)
            for i, name in enumerate(envelope.names)
        ]

    def is_number(self, name: str) -> bool:
        """Whether a tensor has one element: a loss, a metric."""
        return int(np.prod(self.trial.tensor(name).first_shape)) == 1

    def losses(self) -> list[str]:
        """The losses that are one number, *the* loss first."""
        first = loss_names(self.trial)
        found = self.in_collection("losses")
        others = sorted(found.difference(first))
        ordered = [*(name for name in first if name in found), *others]
        return [name for name in ordered if self.is_number(name)]
