"""Margins: what trees add up to before a link function, and what follows from them.

Predictions and contributions (SHAP) of a model are sums over its rounds, so those of
the new rounds are added to a running sum and a capture costs the same at any round.

Thread safety: pure functions; ``RunningSum`` belongs to the training's thread.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["RunningSum", "derivatives_of", "margin_of", "prediction_of", "spread_of"]

Floats = NDArray[np.float64]


class RunningSum:
    """A sum over rounds, of which the model gives the terms of some rounds at a time.

    Args:
        of_rounds: Returns the sum of the rounds from a first one to before a last one,
            with the base added once.
        base: Returns the base; None while it cannot be told, with a single round.
    """

    def __init__(
        self,
        of_rounds: Callable[[int, int], Floats],
        base: Callable[[], Floats | float | None],
    ) -> None:
        self._of_rounds = of_rounds
        self._find_base = base
        self._base: Floats | float | None = None
        self._sum: Floats | None = None
        self._n_rounds = 0

    def forget(self) -> None:
        """Start again, because terms of old rounds have changed."""
        self._sum, self._n_rounds = None, 0

    def up_to(self, n_rounds: int) -> Floats:
        """Return the sum of the first *n_rounds* rounds with the base.

        A number of rounds that is smaller than before begins anew.
        """
        if self._sum is None or n_rounds < self._n_rounds:
            self._sum = self._of_rounds(0, n_rounds)
        elif n_rounds > self._n_rounds:
            if self._base is None:
                self._base = self._find_base()
            if self._base is None:
                self._sum = self._of_rounds(0, n_rounds)
            else:
                new = self._of_rounds(self._n_rounds, n_rounds)
                self._sum = self._sum + (new - self._base)
        self._n_rounds = n_rounds
        return self._sum


def prediction_of(objective: str, margin: Floats) -> Floats:
    """Return what the model predicts, by the inverse of the objective's link function.

    Args:
        objective: XGBoost's name, such as ``binary:logistic``.
        margin: Samples, or samples x classes.

    Returns:
        Probabilities for the objectives of classification, expected values for those
        of counts, and the margin itself for any other one.

    Example:
        >>> prediction_of("binary:logistic", np.zeros(1))
        array([0.5])
    """
    if objective in _LOGISTIC:
        return _sigmoid(margin)
    if objective in _SOFTMAX:
        return _softmax(margin)
    if objective in _EXPONENTIAL:
        return np.exp(margin)
    return margin


def margin_of(objective: str, prediction: Floats) -> Floats | None:
    """Return the margin of which ``prediction_of`` is a prediction; None: unknown.

    Example:
        >>> margin_of("binary:logistic", np.array([0.5]))
        array([0.])
    """
    if objective in _LOGISTIC or objective == "binary:logitraw":
        with np.errstate(divide="ignore"):
            return np.log(prediction) - np.log1p(-prediction)
    if objective in _SOFTMAX or objective == "reg:squarederror":
        return prediction
    return None


def derivatives_of(
    objective: str, margin: Floats, label: Floats, weight: Floats | None = None
) -> tuple[Floats, Floats] | None:
    """Return gradient and hessian of the loss by the margin, as the trees are fit to.

    They never leave XGBoost; of these objectives the formulas give them (T. Chen,
    C. Guestrin: XGBoost, KDD 2016, section 2.2):

    - ``reg:squarederror``: m - y and 1;
    - ``binary:logistic``, ``reg:logistic``, ``binary:logitraw``: p - y and p (1 - p)
      with p = 1 / (1 + exp(-m));
    - ``multi:softprob``, ``multi:softmax``: p - 1[class = y] and 2 p (1 - p) with p =
      softmax(m), the upper bound of the diagonal that XGBoost takes.

    Args:
        objective: XGBoost's name.
        margin: Samples, or samples x classes.
        label: Samples.
        weight: Of the samples, which multiplies both; None: 1.

    Returns:
        None for any other objective.
    """
    if objective == "reg:squarederror" and margin.shape == label.shape:
        gradient, hessian = margin - label, np.ones_like(margin)
    elif (objective in _LOGISTIC or objective == "binary:logitraw") and (
        margin.shape == label.shape
    ):
        p = _sigmoid(margin)
        gradient, hessian = p - label, p * (1.0 - p)
    elif objective in _SOFTMAX and margin.ndim == 2 and label.ndim == 1:
        p = _softmax(margin)
        gradient = p - (np.arange(p.shape[1]) == label[:, None])
        hessian = 2.0 * p * (1.0 - p)
    else:
        return None
    if weight is not None and len(weight) == len(margin):
        by_sample = weight.reshape(-1, *[1] * (margin.ndim - 1))
        gradient, hessian = gradient * by_sample, hessian * by_sample
    return gradient, hessian


_LOGISTIC = frozenset({"binary:logistic", "reg:logistic"})
_SOFTMAX = frozenset({"multi:softprob", "multi:softmax"})
_EXPONENTIAL = frozenset(
    {"count:poisson", "reg:gamma", "reg:tweedie", "survival:cox", "survival:aft"}
)


def _sigmoid(margin: Floats) -> Floats:
    # exp of a negative number only, which cannot overflow.
    small = np.exp(-np.abs(margin))
    return np.where(margin >= 0, 1.0, small) / (1.0 + small)


def _softmax(margin: Floats) -> Floats:
    powers = np.exp(margin - margin.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def spread_of(labels: Floats) -> tuple[float, ...]:
    """Return the lowest label, the mean, the highest, and the standard deviation."""
    if not labels.size or not np.isfinite(labels).all():
        return ()
    return tuple(float(f(labels)) for f in (np.min, np.mean, np.max, np.std))
