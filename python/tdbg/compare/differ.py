"""Two runs compared: in what they differ, and which tensor differs first.

Thread safety: one thread; the trials' locks are held inside.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tdbg.compare.difference import ComparedSteps, RunDiff
from tdbg.compare.execution import PARAMETERS, execution_of, role_named
from tdbg.compare.judging import Judge, Tolerances
from tdbg.compare.layouts import DimensionOrder
from tdbg.compare.matching import MatchedSteps, match, mode_pairs, no_match
from tdbg.compare.noise import Noise, measure_noise
from tdbg.compare.pairing import Paired, names_of, pair, read_map
from tdbg.compare.scan import RunScan
from tdbg.compare.setup import Value, differences, settings_of
from tdbg.compare.tolerance import Rounding, rounding_of
from tdbg.config.collections import Role
from tdbg.errors import ConfigurationError, QueryError
from tdbg.modes import ModeKeys
from tdbg.trial import Trial, create_trial

__all__ = ["diff"]

Run = Trial | str | os.PathLike[str]
# Of these, one that only one run has is a difference.
EXPECTED = PARAMETERS | {Role.GRADIENT}
# What is another in every run.
ALWAYS_DIFFERENT = ("program_start_ns",)


def diff(
    first: Run,
    second: Run,
    *,
    noise: Run | Sequence[Run] | None = None,
    name_map: str | os.PathLike[str] | Iterable[str] | Mapping[str, str] = (),
    tolerance: float | None = None,
    by: str = "step",
    mode: ModeKeys | str | None = None,
    regex: str | Iterable[str] = (),
) -> RunDiff:
    r"""Find in what two runs differ, and the first tensor that does.

    tdbg goes over the steps that both runs recorded.  At each step it follows the order
    of execution: the optimizer's settings, then inputs, parameters and outputs by
    module, the loss, gradients as the backward pass makes them, the optimizer's states
    and updates.  It compares values where both runs have them, else statistics.

    Args:
        first: A run: its directory, or a trial.
        second: Another one.
        noise: A run that should be the same as the first, or two that should be the
            same as each other.  A difference is then what is four times further apart
            than these are.  By default tdbg derives how far rounding takes runs apart
            from element types and depth: docs/diff.md.
        name_map: What turns the first run's names into the second's: a rule
            ``EXPRESSION -> REPLACEMENT``, several, a file of them, or a mapping.
        tolerance: A relative deviation to use for all tensors instead.
        by: "step" matches steps by their place in the training, "global" by their
            global number, "mode" by their number in their mode.
        mode: Only steps of this mode; ``"EVAL:PREDICT"`` compares two modes.
        regex: Only tensors of the first run in whose names one of these is found.

    Returns:
        The differences; ``first`` is the earliest, ``is_same`` says whether there is
        none.

    Raises:
        QueryError: If the runs share no recorded step or no name, or if nothing differs
            because rounding judges none of the steps: give *noise*.
        ConfigurationError: If an argument can never work.
        StorageError: If a run or the file of a map cannot be read.

    Example:
        found = tdbg.diff("runs/before", "runs/after")
        if found.first is not None:
            print("they part at", found.first.module, "in step", found.first.step)
    """
    _check(tolerance, noise)
    trials = _trial(first), _trial(second)
    expressions = [regex] if isinstance(regex, str) else list(regex)
    with trials[0].no_refresh(), trials[1].no_refresh():
        paired = pair(*trials, read_map(name_map), expressions)
        execution = execution_of(trials[0], names_of(trials[0]))
        rounding = rounding_of(trials, execution, paired.names)
        scan = RunScan(trials, paired.names, execution)
        word = mode.name if isinstance(mode, ModeKeys) else mode
        measured = _noise(trials[0], noise, word, by, expressions)
        tolerances = _tolerances(scan, rounding, measured, tolerance)
        explains = measured is None and tolerance is None
        judge = Judge(
            scan,
            tolerances,
            _modules(trials[0]),
            explains=explains,
            roundoff=rounding.roundoff,
            n_updates=rounding.n_updates,
            are_transposed=paired.are_transposed,
        )
        pairs = mode_pairs(*trials, mode)
        all_matched = [match(*trials, modes, by) for modes in pairs]
        if not any(map(len, all_matched)):
            raise no_match(*trials, by)
        judged = [
            judge.judge(matched, _n_updates(trials, matched)) for matched in all_matched
        ]
        steps = _steps(trials, all_matched, judged)
        source = _source(measured, tolerance)
        found = _result(trials, paired, scan, judge, steps, rounding, source)
    if found.is_same and not found.n_judged and found.caveat:
        raise QueryError(found.caveat)
    return found


def _check(tolerance: float | None, noise: object) -> None:
    if tolerance is not None and noise is not None:
        msg = "tolerances come from a number or from noise: give tolerance= or noise="
        raise ConfigurationError(msg)
    if tolerance is not None and not tolerance >= 0:
        msg = f"a tolerance must be 0 or more, not {tolerance!r}"
        raise ConfigurationError(msg)


def _trial(run: Run) -> Trial:
    return run if isinstance(run, Trial) else create_trial(run)


def _noise(
    first: Trial,
    noise: Run | Sequence[Run] | None,
    mode: str | None,
    by: str,
    regex: Sequence[str],
) -> Noise | None:
    if noise is None:
        return None
    runs = [noise] if isinstance(noise, Trial | str | os.PathLike) else list(noise)
    if not 1 <= len(runs) <= 2:
        msg = f"noise is measured with one run or two, not {len(runs)}"
        raise ConfigurationError(msg)
    trials = [_trial(run) for run in runs]
    one, other = (first, trials[0]) if len(trials) == 1 else trials
    return measure_noise(one, other, mode, by, regex)


def _tolerances(
    scan: RunScan, rounding: Rounding, noise: Noise | None, given: float | None
) -> Tolerances:
    names = scan.names

    def tolerances(
        places: NDArray[np.int64], n_updates: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        if given is not None:
            return np.full((len(names), len(places)), given)
        derived = rounding.tolerances(names, n_updates)
        if noise is None:
            return derived
        least = rounding.tolerances(names, np.zeros(1, np.int64))[:, 0]
        return noise.tolerances(names, places, derived, least)

    return tolerances


def _source(noise: Noise | None, tolerance: float | None) -> str:
    if tolerance is not None:
        return "given"
    return "rounding" if noise is None else "noise"


def _n_updates(trials: tuple[Trial, Trial], matched: MatchedSteps) -> NDArray[np.int64]:
    """Return how many updates of both runs precede each step.

    Of one that makes none, as an engine, parameters are what it was given.
    """
    one, other = (
        np.array(trial.training_steps_at(steps.tolist()), np.int64)
        for trial, steps in zip(trials, matched.steps, strict=True)
    )
    return np.minimum(one, other)


def _modules(trial: Trial) -> Mapping[str, str]:
    for info in trial.model_info()[-1:]:
        return info.modules
    return {}


def _result(
    trials: tuple[Trial, Trial],
    paired: Paired,
    scan: RunScan,
    judge: Judge,
    steps: Sequence[ComparedSteps],
    rounding: Rounding,
    source: str,
) -> RunDiff:
    places = {name: i for i, name in enumerate(scan.names)}
    found = sorted(judge.differences, key=lambda d: (d.step, places[d.name]))
    both = {scan.roles[i] for i in np.flatnonzero(judge.compared).tolist()}
    of_runs = [
        both | {role_named(e.role) for e in paired.missing if e.run == run}
        for run in (0, 1)
    ]
    missing = [
        each
        for each in paired.missing
        if role_named(each.role) in EXPECTED & of_runs[1 - each.run]
    ]
    return RunDiff(
        runs=(trials[0].name, trials[1].name),
        differences=tuple(found),
        missing=tuple(missing),
        not_compared=tuple(each for each in paired.missing if each not in missing),
        settings=tuple(_settings(trials)),
        dtypes=tuple(_dtypes(paired)),
        layouts=tuple((scan.names[i], _words(e)) for i, e in judge.layouts.items()),
        without_effect=tuple(judge.without_effect),
        steps=tuple(steps),
        n_names=int(judge.compared.sum()),
        n_by_values=len(judge.by_values),
        roundoff=rounding.roundoff,
        reduction=rounding.reduction,
        layers=rounding.layers,
        n_updates=judge.n_updates,
        has_samples=scan.has_samples,
        tolerance=source,
    )


def _settings(
    trials: tuple[Trial, Trial],
) -> list[tuple[str, tuple[Value | None, ...]]]:
    found = differences([settings_of(trial) for trial in trials])
    return [each for each in found if each[0] not in ALWAYS_DIFFERENT]


def _dtypes(paired: Paired) -> list[tuple[str, str, int]]:
    one, other = paired.described
    found = Counter((one[name].dtype, other[name].dtype) for name in paired.names)
    return [(a, b, n) for (a, b), n in found.most_common() if a != b]


def _words(layout: DimensionOrder) -> str:
    if layout.axes is None:
        return "leading dimensions joined"
    return f"transposed {layout.axes}" if len(layout.axes) > 2 else "transposed"


def _steps(
    trials: tuple[Trial, Trial],
    all_matched: Sequence[MatchedSteps],
    all_judged: Sequence[tuple[NDArray[np.bool_], NDArray[np.bool_]]],
) -> list[ComparedSteps]:
    tables = [trial.step_table()["mode"] for trial in trials]
    found = []
    for matched, (judged, left_open) in zip(all_matched, all_judged, strict=True):
        one, other = matched.modes
        others = matched.places[left_open]
        found.append(
            ComparedSteps(
                modes=(one.name, other.name),
                n=len(matched),
                recorded=(
                    int((tables[0] == one.value).sum()),
                    int((tables[1] == other.value).sum()),
                ),
                n_judged=int(judged.sum()),
                n_not_judged=len(others),
                not_judged=(int(others[0]), int(others[-1])) if len(others) else None,
            )
        )
    return found
