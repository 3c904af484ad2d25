"""The metrics of CatBoost: which are new, and which of them are losses.

Thread safety: the training's thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from tdbg.hooks.trees.rounds import Score, is_maximized

__all__ = ["Scores", "scores_of_folds", "scores_of_rounds"]

# What CatBoost calls the data that a model is trained by.
LEARN = "learn"
#: The metrics that CatBoost's documentation calls maximized, and those of which its
#: names could be taken for such ("Objectives and metrics", columns "Optimization").
_MAXIMIZED = frozenset(
    {
        "AUC",
        "Accuracy",
        "AverageGain",
        "BalancedAccuracy",
        "DCG",
        "ERR",
        "F",
        "F1",
        "FilteredDCG",
        "Kappa",
        "LogLikelihoodOfPrediction",
        "MAP",
        "MCC",
        "MRR",
        "NDCG",
        "NormalizedGini",
        "PFound",
        "PRAUC",
        "PairAccuracy",
        "Precision",
        "PrecisionAt",
        "QueryAUC",
        "QueryAverage",
        "R2",
        "Recall",
        "RecallAt",
        "TotalF1",
        "WKappa",
    }
)
_MINIMIZED = frozenset({"BrierScore"})


def _is_loss(metric: str, maximized: Collection[str]) -> bool:
    # Parameters of a metric follow a colon: "AUC:type=Mu".
    name = metric.partition(":")[0]
    if metric in maximized or name in maximized or name in _MAXIMIZED:
        return False
    return name in _MINIMIZED or not is_maximized(name)


class Scores:
    """Reads the metrics of a training round by round.

    With ``metric_period`` CatBoost computes some in some rounds only: a round has those
    that are new.

    Args:
        maximized: Names of metrics that are no losses, beside those that are known.
    """

    def __init__(self, maximized: Collection[str]) -> None:
        self._maximized = maximized
        self._n_known: dict[tuple[str, str], int] = {}

    def read(self, metrics: Mapping[str, Any]) -> Sequence[Score]:
        """Return the metrics that are new since the last call."""
        scores = []
        for data_set, by_metric in metrics.items():
            for metric, values in by_metric.items():
                key = data_set, metric
                if len(values) > self._n_known.get(key, 0):
                    self._n_known[key] = len(values)
                    is_loss = _is_loss(metric, self._maximized)
                    is_training = data_set == LEARN
                    value = float(values[-1])
                    scores.append(Score(data_set, metric, value, is_training, is_loss))
        return scores


def scores_of_rounds(
    results: Mapping[str, Any], n_rounds: int, maximized: Collection[str]
) -> Iterable[Sequence[Score]]:
    """Yield the metrics of each round of a training that is over.

    Args:
        results: What ``get_evals_result`` returns: values by data set and metric.
        n_rounds: How many rounds there were; metrics with fewer values, which
            ``metric_period`` computes in some rounds only, are left out.
        maximized: As of ``Scores``.
    """
    complete = [
        (data_set, metric, values)
        for data_set, by_metric in results.items()
        for metric, values in by_metric.items()
        if len(values) == n_rounds
    ]
    for i in range(n_rounds):
        yield [
            Score(d, m, float(v[i]), d == LEARN, _is_loss(m, maximized))
            for d, m, v in complete
        ]


def scores_of_folds(
    results: Mapping[str, Any], maximized: Collection[str]
) -> Iterable[tuple[int, Sequence[Score]]]:
    """Yield rounds of a cross-validation, and their metrics: means over the folds.

    Args:
        results: What ``catboost.cv`` returns: columns such as ``test-Logloss-mean``,
            ``test-Logloss-std`` and ``iterations``.
        maximized: As of ``Scores``.
    """
    end = "-mean"
    means = [str(name)[: -len(end)] for name in results if str(name).endswith(end)]
    for i, number in enumerate(results["iterations"]):
        scores = []
        for name in means:
            data_set, _, metric = name.partition("-")
            mean, deviation = (
                float(list(results[f"{name}-{each}"])[i]) for each in ("mean", "std")
            )
            scores.append(
                Score(
                    data_set,
                    metric,
                    mean,
                    data_set == "train",
                    _is_loss(metric, maximized),
                    deviation,
                )
            )
        yield int(number), scores
