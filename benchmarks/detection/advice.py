"""Is the advice the fix?  Follows the advice of what is told first, and trains again.

    python -m benchmarks.detection advice [--only raw] [--seeds 1] [--origin all]

Each training with a mistake runs as it is, watched; the first problem that ``tdbg
check`` would print has an advice.  ``FIXES`` turns its words into a change of the
program, and the program runs once more with that change and the mistake.  It *trains*
if it then reaches what its healthy twin must reach.  Advice to look at something is
nothing that a program can follow: it counts as *by hand*.
"""

from __future__ import annotations

import multiprocessing
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

import tdbg.pytorch as td
from benchmarks._harness.tables import Table
from benchmarks.detection.kit.case import Case, case_named, load
from benchmarks.detection.kit.loops import Loop, Probe
from benchmarks.detection.kit.training import Outcome
from benchmarks.detection.record import asked
from benchmarks.detection.verify import run
from tdbg.rules import check, default_rules
from tdbg.run.findings import Severity
from tdbg.view import diagnosis_of_report

__all__ = ["Tried", "advice_table", "follow_advice", "not_mended"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What following an advice changes in a program.

    Attributes:
        in_loop: Changes a loop before it begins: its data, its model, its loss.
        in_step: Called with the optimizer before each of its steps.
        after_step: Likewise after.
        rate: What every learning rate is multiplied by.
    """

    in_loop: Callable[[Loop], None] | None = None
    in_step: Callable[[Optimizer, nn.Module], None] | None = None
    after_step: Callable[[Optimizer], None] | None = None
    rate: float = 1.0


def _rate(found: re.Match[str], *, up: bool) -> list[Change]:
    text = found.group(1).replace(",", "")
    factor = float(text) * {"million": 1e6, "billion": 1e9}.get(found.group(2), 1.0)
    rate = factor if up else 1.0 / factor
    return [Change(rate=rate * more) for more in (1.0, 10.0, 0.1)]


def _clip(found: re.Match[str]) -> list[Change]:
    norm = _number(found.group(1))

    def clip(optimizer: Optimizer, _: nn.Module) -> None:
        held = [p for group in optimizer.param_groups for p in group["params"]]
        nn.utils.clip_grad_norm_(held, norm)

    return [Change(in_step=clip)]


def _normalize(_: re.Match[str]) -> list[Change]:
    """Columns of tables by their own numbers, other inputs by those of all."""

    def change(loop: Loop) -> None:
        x = loop.split.x
        axes = (0,) if x.ndim == 2 else tuple(range(x.ndim))
        mean, deviation = x.mean(axes), x.std(axes)
        deviation = deviation.where(deviation > 0, 1.0)
        loop.split = loop.split.inputs(lambda x: (x - mean) / deviation)

    return [Change(in_loop=change)]


def _normalize_targets(_: re.Match[str]) -> list[Change]:
    def change(loop: Loop) -> None:
        y = loop.split.y
        mean, deviation = y.mean(), y.std()
        loop.split = replace(
            loop.split,
            y=(y - mean) / deviation,
            y_val=(loop.split.y_val - mean) / deviation,
        )

    return [Change(in_loop=change)]


def _finite(_: re.Match[str]) -> list[Change]:
    def change(loop: Loop) -> None:
        x, y, batches = loop.split.x, loop.split.y, loop.batches
        loop.split = loop.split.take(_good(x, y).nonzero().squeeze(1))
        if batches is not None:
            loop.batches = lambda step: _repaired(*batches(step))

    return [Change(in_loop=change)]


def _without_outliers(found: re.Match[str]) -> list[Change]:
    """Leave out the samples of which a number is unlike those of the steps before.

    A step of which no sample is left is skipped.
    """
    of_loss, limit = "Loss" in found.group(1), 10 * _number(found.group(2))
    is_left = [True]

    def good(inputs: Tensor, targets: Tensor) -> Tensor:
        (judged,) = _two_axes([targets if of_loss else inputs])
        return judged.abs().flatten(1).amax(1) <= limit

    def change(loop: Loop) -> None:
        given = loop.batches
        loop.split = loop.split.take(
            good(loop.split.x, loop.split.y).nonzero().squeeze(1)
        )

        def chosen(step: int) -> tuple[Tensor, Tensor]:
            inputs, targets = given(step)
            rows = good(inputs, targets)
            is_left[0] = bool(rows.any())
            return (inputs[rows], targets[rows]) if is_left[0] else (inputs, targets)

        if given is not None:
            loop.batches = chosen

    def skip(optimizer: Optimizer, _: nn.Module) -> None:
        if not is_left[0]:
            optimizer.zero_grad()

    return [Change(in_loop=change, in_step=skip)]


def _number(text: str) -> float:
    return float(text.rstrip(".,").replace(",", ""))


def _by_hand(_: re.Match[str]) -> list[Change]:
    return []


def _repaired(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    good = _good(inputs, targets)
    return inputs[good], targets[good]


def _good(*tensors: Tensor) -> Tensor:
    rows = [each.isfinite().flatten(1).all(1) for each in _two_axes(tensors)]
    return torch.stack(rows).all(0)


def _two_axes(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [each if each.ndim > 1 else each[:, None] for each in tensors]


def _initialize(_: re.Match[str]) -> list[Change]:
    return [Change(in_loop=_by_he)]


def _by_he(loop: Loop) -> None:
    for module in loop.model.modules():
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def _lower_and_initialize(_: re.Match[str]) -> list[Change]:
    return [Change(in_loop=_by_he, rate=rate) for rate in (0.1, 0.01)]


def _relu(_: re.Match[str]) -> list[Change]:
    def change(loop: Loop) -> None:
        for module in list(loop.model.modules()):
            for name, child in module.named_children():
                if isinstance(child, nn.Sigmoid | nn.Tanh):
                    setattr(module, name, nn.ReLU())
        _by_he(loop)

    return [Change(in_loop=change)]


def _in_float32(_: re.Match[str]) -> list[Change]:
    def change(loop: Loop) -> None:
        loop.model.float()
        loop.split = loop.split.inputs(
            lambda x: x.float() if x.is_floating_point() else x
        )

    return [Change(in_loop=change)]


def _shuffle(_: re.Match[str]) -> list[Change]:
    def change(loop: Loop) -> None:
        loop.batches = None

    return [Change(in_loop=change)]


def _no_schedule(_: re.Match[str]) -> list[Change]:
    def change(loop: Loop) -> None:
        if loop.schedule is not None:
            for group in loop.schedule.optimizer.param_groups:
                group["lr"] = group.get("initial_lr", group["lr"])
            loop.schedule = None

    return [Change(in_loop=change)]


def _of_logarithms(_: re.Match[str]) -> list[Change]:
    """The logarithm takes a softmax back, up to what it does not depend on."""
    return [_of_inputs(lambda p: p.clamp_min(1e-20).log())]


def _of_logits(_: re.Match[str]) -> list[Change]:
    return [_of_inputs(lambda p: p.logit(1e-7))]


def _log_softmax(_: re.Match[str]) -> list[Change]:
    return [_of_inputs(lambda scores: scores.log_softmax(1))]


def _of_inputs(convert: Callable[[Tensor], Tensor]) -> Change:
    def change(loop: Loop) -> None:
        loop.criterion.register_forward_pre_hook(
            lambda _, given: (convert(given[0]), *given[1:])
        )

    return Change(in_loop=change)


def _weigh_classes(_: re.Match[str]) -> list[Change]:
    def change(loop: Loop) -> None:
        counts = torch.bincount(loop.split.y).clamp_min(1).float()
        loop.criterion = nn.CrossEntropyLoss(weight=counts.sum() / counts / len(counts))

    return [Change(in_loop=change)]


def _clear(_: re.Match[str]) -> list[Change]:
    return [Change(after_step=lambda optimizer: optimizer.zero_grad())]


def _train_mode(_: re.Match[str]) -> list[Change]:
    def change(loop: Loop) -> None:
        loop.model.train()
        loop.model.register_forward_pre_hook(
            lambda model, _: model.train() if torch.is_grad_enabled() else None
        )

    return [Change(in_loop=change)]


def _add_parameters(_: re.Match[str]) -> list[Change]:
    def add(optimizer: Optimizer, model: nn.Module) -> None:
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        left = [p for p in model.parameters() if id(p) not in held]
        if left:
            optimizer.add_param_group({"params": [p.requires_grad_() for p in left]})

    return [Change(in_step=add)]


def _either_rate(_: re.Match[str]) -> list[Change]:
    return [Change(rate=10.0), Change(rate=0.1)]


FOLD = r"([\d,.]+)(?: (million|billion))?-fold"
#: What a program does that follows an advice, by the words of the advice; of several
#: the first counts, and of several changes of one advice one that trains is enough.
FIXES: Sequence[tuple[str, Callable[[re.Match[str]], list[Change]]]] = (
    (rf"Lower the learning rate about {FOLD}", lambda m: _rate(m, up=False)),
    (rf"Raise the learning rate about {FOLD}", lambda m: _rate(m, up=True)),
    (r"mean from each target", _normalize_targets),
    (r"mean from each input|from each column its own mean", _normalize),
    (r"leave out or repair", _finite),
    (
        r"first: (\S+) reaches .* steps before \(([^)]+)\)\. Leave out or convert",
        _without_outliers,
    ),
    # Of two views the program has to be told which one is cut off.
    (r"^In self-supervised learning", _by_hand),
    (r"zero_grad", _clear),
    (r"Call model\.train\(\)", _train_mode),
    (r"add_param_group|requires_grad_\(True\) before", _add_parameters),
    (r"Restart with a lower learning rate", _lower_and_initialize),
    (r"Use ReLU or GELU instead", _relu),
    (
        r"Draw (weights|them)|Initialize (for|(weights )?by)|weights around zero",
        _initialize,
    ),
    (r"from before the softmax or sigmoid", _of_logarithms),
    (r"from before the softmax", _of_logarithms),
    (r"from before the sigmoid", _of_logits),
    (r"apply log_softmax over the classes", _log_softmax),
    (r"[Ss]huffle", _shuffle),
    (r"schedule (ends|has ended)", _no_schedule),
    (r"CrossEntropyLoss\(weight", _weigh_classes),
    (r"GradScaler", _in_float32),
    (r"max_norm=([\d.,e+-]+)", _clip),
    (r"10 times as high and one 10 times as low", _either_rate),
    (r"Lower the learning rate|lower the learning rate", lambda _: [Change(rate=0.1)]),
)
#: Words of an advice that name a mistake which only a person can mend, and words of the
#: diagnosis of this mistake: where other parts of the advice were followed in vain,
#: the advice counts as by hand.
NAMED_BY_HAND = ((r"labels belong to their inputs", r"labels belong to other"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What came of following the first advice of one training.

    Attributes:
        case: Its name.
        rule: Whose finding was told first; empty: nothing was.
        advice: What it advises.
        names_cause: Whether that is a rule that may name the mistake.
        trained_before: Whether it reaches what the twin must, mistake and all.
        trains: Whether it does so with the advice followed; None: by hand.
        trouble: Why it did not run.
    """

    case: str
    rule: str = ""
    advice: str = ""
    names_cause: bool = False
    trained_before: bool = False
    trains: bool | None = None
    trouble: str = ""


def follow_advice(
    chosen: Iterable[Case], seeds: Iterable[int], jobs: int, paths: Sequence[str] = ()
) -> Iterator[Tried]:
    """Try the first advice on each sick training."""
    work = [
        (one.name, seed, tuple(paths))
        for one in chosen
        if one.is_sick
        for seed in seeds
    ]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with context.Pool(jobs, maxtasksperchild=1) as pool:
        yield from pool.imap(_follow, work)


def _follow(work: tuple[str, int, tuple[str, ...]]) -> Tried:
    name, seed, paths = work
    load(paths)
    case = case_named(name)
    folder = Path(tempfile.mkdtemp(prefix="advice-"))
    try:
        return _tried(case, seed, folder)
    except Exception as error:  # The others are to be tried all the same.
        return Tried(case=name, trouble=f"{type(error).__name__}: {error}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _tried(case: Case, seed: int, folder: Path) -> Tried:
    before = _watched(case, seed, folder)
    rules = [*default_rules(), *asked(case, folder)]
    report = check(folder / "run", rules, record=False)
    problems = diagnosis_of_report(report).problems
    told = [each for each in problems if each.severity > Severity.INFO]
    learned = before.learned is True
    if not told:
        return Tried(case=case.name, trained_before=learned)
    first = told[0].worst
    changes = _changes(first.advice)
    results = [_applied(case, seed, change) for change in changes or ()]
    trains = True if True in results else False if False in results else None
    if trains is False and _is_named_for_people(case, first.advice):
        trains = None
    return Tried(
        case=case.name,
        rule=first.rule,
        advice=first.advice,
        names_cause=case.names(first.rule, first.message),
        trained_before=learned,
        trains=trains,
    )


def _watched(case: Case, seed: int, folder: Path) -> Outcome:
    hooks: list[td.Hook] = []

    def observe(
        which: str,
        model: nn.Module,
        losses: list[nn.Module],
        optimizer: Optimizer | None,
    ) -> None:
        while hooks:
            hooks.pop().close()
        loss = losses[0] if losses else None
        hook = td.watch(model, loss, optimizer, out=folder / which, budget="off")
        for each in losses[1:]:
            hook.register_loss(each)
        hooks.append(hook)

    try:
        return run(case, seed, observe)
    finally:
        for hook in hooks:
            hook.close()


def _changes(advice: str) -> list[Change] | None:
    for words, change in FIXES:
        found = re.search(words, advice)
        if found is not None:
            return change(found)
    return None


def _is_named_for_people(case: Case, advice: str) -> bool:
    return any(
        re.search(words, advice) and re.search(mistake, case.diagnosis)
        for words, mistake in NAMED_BY_HAND
    )


def _applied(case: Case, seed: int, change: Change) -> bool | None:
    """Return whether the sick training trains with a change.

    None if the change is one of a loop, and the training has one of its own.
    """
    models: list[nn.Module] = []
    saved: dict[int, list[float]] = {}
    plain = Loop.run
    n_loops = 0

    def changed_run(loop: Loop, *args: object, **more: object) -> Probe:
        nonlocal n_loops
        n_loops += 1
        if change.in_loop is not None:
            change.in_loop(loop)
        return plain(loop, *args, **more)  # type: ignore[arg-type]

    def begins(optimizer: Optimizer, *_: object) -> None:
        if change.in_step is not None and models:
            change.in_step(optimizer, models[-1])
        saved[id(optimizer)] = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] *= change.rate

    def ends(optimizer: Optimizer, *_: object) -> None:
        for group, rate in zip(
            optimizer.param_groups, saved[id(optimizer)], strict=True
        ):
            group["lr"] = rate
        if change.after_step is not None:
            change.after_step(optimizer)

    handles = [
        register_optimizer_step_pre_hook(begins),
        register_optimizer_step_post_hook(ends),
    ]
    Loop.run = changed_run  # type: ignore[method-assign, assignment]
    try:
        outcome = run(case, seed, lambda _, model, *__: models.append(model))
    finally:
        Loop.run = plain  # type: ignore[method-assign]
        for handle in handles:
            handle.remove()
    if change.in_loop is not None and not n_loops:
        return None
    return outcome.learned is True


def advice_table(tried: Sequence[Tried]) -> Table:
    """Return, for each rule reported first, how often its advice was the fix."""
    table = Table(
        "the first advice, followed",
        (
            "told first",
            "runs",
            "of them trained anyway",
            "by hand",
            "followed",
            "trains",
        ),
        note="A run trains if it reaches what its twin without the mistake must reach.",
    )
    ran = [one for one in tried if not one.trouble]
    for rule in [*sorted({one.rule for one in ran}), None]:
        here = [one for one in ran if rule is None or one.rule == rule]
        sick = [one for one in here if not one.trained_before]
        followed = [one for one in sick if one.trains is not None]
        n_trains = sum(bool(one.trains) for one in followed)
        share = f"{n_trains} ({n_trains / len(followed):.0%})" if followed else "-"
        label = "all" if rule is None else rule or "nothing"
        by_hand = len(sick) - len(followed)
        table.add(
            label, len(here), len(here) - len(sick), by_hand, len(followed), share
        )
    return table


def not_mended(tried: Sequence[Tried]) -> Table:
    """The trainings that do not train with the first advice followed."""
    table = Table(
        "advice that was followed and is not the fix", ("case", "rule", "advice")
    )
    for one in tried:
        if one.trains is False and not one.trained_before:
            table.add(one.case, one.rule, one.advice[:90])
    return table
