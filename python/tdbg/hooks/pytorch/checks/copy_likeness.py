"""Compare a copy with its model from step to step: is it the model, or a share of it?

An average keeps a share of itself at each update, and takes the rest from the model.
Two looks with an update between them show the share: what is left of the difference.

Thread safety: the training's thread.  Errors: none.
"""

from __future__ import annotations

import torch

__all__ = ["Likeness"]

# An average that is closer to the model than a share of a step is the model.
_SHARE_OF_STEP = 0.1
# Updates that show the share that they keep; shares that nobody means; how far these
# differ, and the direction from that of an average; rounding, in units of the format.
_ENOUGH_UPDATES, _SMALL, _SPREAD, _ASIDE, _ROUNDING = 5, 0.09, 1.2, 0.05, 20


class Likeness:
    """Whether a copy is the model itself, or the model one step before.

    Attributes:
        latest: The steps that were made before the latest look.
        n: Looks at which the model had moved since the one before.
        n_alike: Those at which both were the same.
    """

    def __init__(self) -> None:
        self.latest = -1
        self.n = self.n_alike = 0
        self._model: torch.Tensor | None = None
        self._copy: torch.Tensor | None = None
        # The share that each update of the copy has kept, if it averaged with the model
        # after the step, or before; NaN: that was no such average.
        self._shares: tuple[list[float], list[float]] = [], []

    @property
    def is_always(self) -> bool:
        """Whether both were the same whenever somebody looked."""
        return self.n == self.n_alike

    def note(self, copy: torch.Tensor, model: torch.Tensor, n_steps: int) -> None:
        """Compare some weights."""
        if self._model is not None and not torch.equal(self._model, model):
            way = float((model - self._model).norm()) / (n_steps - self.latest)
            self.n += 1
            self.n_alike += float((model - copy).norm()) <= _SHARE_OF_STEP * way
            if n_steps == self.latest + 1 and self._copy is not None:
                self._note_update(self._copy, copy, (model, self._model))
        self._model, self._copy, self.latest = model, copy, n_steps

    def left(self) -> float:
        """Return the small share that all updates have kept; 0: not seen."""
        for few in self._shares:
            is_seen = len(few) >= _ENOUGH_UPDATES and all(each > 0 for each in few)
            if is_seen and max(few) <= min(_SMALL, _SPREAD * min(few)):
                return sum(few) / len(few)
        return 0.0

    def _note_update(
        self,
        before: torch.Tensor,
        after: torch.Tensor,
        models: tuple[torch.Tensor, ...],
    ) -> None:
        """Note the share that an update of the copy between two steps has kept."""
        if torch.equal(before, after):
            return
        rounding = _ROUNDING * torch.finfo(torch.float32).eps * float(after.norm())
        for model, shares in zip(models, self._shares, strict=True):
            old, new = before - model, after - model
            left = float(old @ new) / max(float(old @ old), 1e-300)
            aside = float((new - left * old).norm())
            size = float(new.norm())
            is_average = size > rounding and aside <= max(_ASIDE * size, rounding / 4)
            shares.append(left if is_average else float("nan"))
