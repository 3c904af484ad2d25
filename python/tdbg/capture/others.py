"""Tensors that the core's taker could not read as they were given.

Of a tensor that ranks share, what lies here is taken by the taker after all, all of
them in one call; the rest is taken one by one, or refused and counted.

Thread safety: the recorder's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from tdbg.capture.plans import TensorPlan
from tdbg.capture.remote import Site
from tdbg.capture.single import SingleTensors
from tdbg.capture.steps import Step
from tdbg.capture.tensors import Part, TensorRef, Tensors
from tdbg.capture.wants import UNITS

__all__ = ["OtherTensors"]


class _Given(NamedTuple):
    """A tensor, or what is here of it."""

    plan: TensorPlan
    tensor: Any
    wanted: int
    part: Part | None = None


class OtherTensors:
    """Takes what the taker has left.

    Args:
        tensors: How the framework's tensors are read.
        single: Takes them one by one.
    """

    def __init__(self, tensors: Tensors, single: SingleTensors) -> None:
        self._tensors = tensors
        self._single = single

    def take(
        self,
        step: Step,
        given: Iterable[tuple[TensorPlan, Any, int]],
        site: Site = Site(0, 0, 0),  # noqa: B008 - a value
        scale: Any = 1.0,
        *,
        reuses: bool = False,
    ) -> None:
        """Take what is wanted of them, now.

        Args:
            step: The step.
            given: Plans and tensors, with what is wanted.
            site: Of which call.
            scale: As for ``Recorder.take``.
            reuses: As for ``Recorder.take``.
        """
        shared: list[_Given] = []
        for plan, tensor, wanted in given:
            local = self._tensors.local(tensor)
            if local is None:
                self._take_single(step, _Given(plan, tensor, wanted), site, scale)
            elif local.tensor is None:
                self._single.refuse(step.number, 1, 0)
            else:
                part, kept = local.part, wanted
                if wanted & UNITS and _splits_units(plan, part):
                    self._single.refuse(step.number, 1, 0)  # Each rank has others.
                    kept &= ~UNITS
                shared.append(_Given(plan, local.tensor, kept, part))
        if not shared:
            return
        left: Iterable[int] | None = range(len(shared))
        if self._tensors.taker is not None:
            left = self._tensors.taker.take(
                step.number,
                [self._slot(each.plan, each.part) for each in shared],
                [each.tensor for each in shared],
                [each.wanted for each in shared],
                site.call,
                site.micro_batch,
                scale,
                reuses,
            )
        for index in left or ():
            self._take_single(step, shared[index], site, scale)

    def _slot(self, plan: TensorPlan, part: Part | None) -> Any:
        if part is None:
            return plan.slot
        slot = plan.parts.get(part)
        if slot is None:
            units = "" if plan.units is None else plan.units.name
            slot = plan.parts[part] = self._tensors.make_slot(
                plan.name,
                int(plan.role),
                plan.aliases,
                units,
                *part,
                **plan.question._asdict(),
            )
            if plan.raw_limit:
                plan.limit_raw(plan.raw_limit)
        return slot

    def _take_single(self, step: Step, given: _Given, site: Site, scale: Any) -> None:
        ref = self._tensors.describe(given.tensor)
        if ref is None:
            self._take_row(step, given, site, scale)
            return
        if given.part is not None:
            ref = ref._replace(part=given.part)
        self._single.take(step, given.plan, ref, given.wanted, site, scale)

    def _take_row(self, step: Step, given: _Given, site: Site, scale: Any) -> None:
        row = None
        if isinstance(scale, float):
            row = self._tensors.compute_row(given.tensor, scale)
        if row is None:
            self._single.refuse(step.number, 1, 0)
            return
        ref = TensorRef(0, row.dtype, row.shape, part=given.part)
        self._single.take_row(
            step, given.plan, ref, row.words, given.wanted, site, scale
        )
        if given.wanted & UNITS and given.plan.units is not None:
            table = self._tensors.compute_units(given.tensor)
            self._single.take_units(step, given.plan, table, site)


def _splits_units(plan: TensorPlan, part: Part | None) -> bool:
    if part is None or plan.units is None:
        return False
    return part.splits(plan.question.axis(len(part.global_shape)))
