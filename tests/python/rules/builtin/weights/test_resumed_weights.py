"""ResumptionMisuse, on weights that programs load and models do not have."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tdbg
import tdbg.pytorch as td
from tdbg.run.findings import Finding, Severity

pytestmark = pytest.mark.torch

State = dict[str, Any]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16))
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.backbone(x))


def checkpoint() -> State:
    torch.manual_seed(7)
    return Net().state_dict()


def judged(
    run_dir: Path,
    prepare: Callable[[nn.Module], object],
    *,
    watches_before: bool = False,
    n_steps: int = 6,
) -> list[Finding]:
    """Prepare a model, and train it."""
    torch.manual_seed(0)
    model, criterion = Net(), nn.CrossEntropyLoss()
    if not watches_before:
        prepare(model)
    options: State = {"out": run_dir, "budget": "off", "min_free_bytes": 0}
    with td.watch(model, criterion, **options) as hook:
        if watches_before:
            prepare(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.02)
        for _ in range(n_steps):
            x = torch.randn(16, 8)
            optimizer.zero_grad()
            criterion(model(x), (x[:, 0] > 0).long()).backward()
            optimizer.step()
    assert hook.counters()["internal_errors"] == 0
    rule = tdbg.rules.ResumptionMisuse()
    return list(tdbg.rules.check(run_dir, rule, record=False).findings)


def load(model: nn.Module, state: State) -> Any:
    return model.load_state_dict(state, strict=False)


def prefixed(prefix: str, state: State) -> State:
    return {prefix + name: each for name, each in state.items()}


# ---- nothing is restored ------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "told", "advised"),
    [
        (
            lambda: prefixed("module.", checkpoint()),
            'They begin with "module."',
            "DistributedDataParallel has added it",
        ),
        (
            lambda: prefixed("_orig_mod.", checkpoint()),
            'They begin with "_orig_mod."',
            "torch.compile has added it",
        ),
        (
            lambda: {"epoch": 3, "state_dict": checkpoint()},
            'in its entry "state_dict"',
            'checkpoint["state_dict"]',
        ),
        (
            lambda: {"weights": torch.zeros(3)},
            "the names in the state are others",
            "Compare the names",
        ),
    ],
    ids=["parallel", "compiled", "whole", "unknown"],
)
@pytest.mark.parametrize("watches_before", [False, True])
def test_a_load_that_restores_nothing(
    run_dir: Path,
    state: Callable[[], State],
    told: str,
    advised: str,
    *,
    watches_before: bool,
) -> None:
    (finding,) = judged(
        run_dir, lambda model: load(model, state()), watches_before=watches_before
    )
    assert (finding.tensor, finding.severity) == ("Net", Severity.WARNING)
    assert "restored none of the 6 tensors of Net" in finding.message
    assert told in finding.message
    assert advised in finding.advice


def test_a_backbone_without_the_name_that_it_has_in_the_model(run_dir: Path) -> None:
    torch.manual_seed(7)
    state = Net().backbone.state_dict()
    (finding,) = judged(run_dir, lambda model: load(model, state))
    assert 'In the model, they begin with "backbone."' in finding.message
    assert "model.backbone.load_state_dict()" in finding.advice


def test_a_state_of_the_own_weights(run_dir: Path) -> None:
    """The checkpoint was filtered by name, and nothing was left."""

    def prepare(model: nn.Module) -> None:
        own = model.state_dict()
        given = prefixed("module.", checkpoint())
        own.update({name: each for name, each in given.items() if name in own})
        model.load_state_dict(own)

    (finding,) = judged(run_dir, prepare)
    assert finding.severity is Severity.INFO
    assert "got the own weights of Net back" in finding.message


def test_loads_of_something(run_dir: Path) -> None:
    def with_another_head(model: nn.Module) -> None:
        state = checkpoint()
        state["fc.weight"], state["fc.bias"] = (
            state.pop(f"head.{name}") for name in ("weight", "bias")
        )
        load(model, state)

    assert judged(run_dir, with_another_head) == []


def tries_names(model: nn.Module) -> None:
    """The last of several attempts succeeds."""
    state = prefixed("module.", checkpoint())
    load(model, state)
    load(model, {name.removeprefix("module."): state[name] for name in state})


def copies_by_hand(model: nn.Module) -> None:
    state = prefixed("module.", checkpoint())
    load(model, state)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(state[f"module.{name}"])


def completes_its_own(model: nn.Module) -> None:
    own = model.state_dict()
    own.update({n: each for n, each in checkpoint().items() if "backbone" in n})
    model.load_state_dict(own)


def assigns(model: nn.Module) -> None:
    model.load_state_dict(checkpoint(), assign=True)


def loads_a_part(model: nn.Module) -> None:
    model.get_submodule("backbone").load_state_dict(Net().backbone.state_dict())


def loads_another_model(_: nn.Module) -> None:
    other = Net()
    load(other, prefixed("module.", checkpoint()))


@pytest.mark.parametrize(
    "prepare",
    [
        tries_names,
        copies_by_hand,
        completes_its_own,
        assigns,
        loads_a_part,
        loads_another_model,
    ],
)
def test_healthy_loads(run_dir: Path, prepare: Callable[[nn.Module], None]) -> None:
    assert judged(run_dir, prepare) == []


# ---- and an initialization afterwards -----------------------------------------------


def initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)


def reset(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        module.reset_parameters()


@pytest.mark.parametrize("wipe", [initialize, reset])
@pytest.mark.parametrize("watches_before", [False, True])
def test_an_initialization_that_wipes_what_was_loaded(
    run_dir: Path, wipe: Callable[[nn.Module], None], *, watches_before: bool
) -> None:
    def prepare(model: nn.Module) -> None:
        model.load_state_dict(checkpoint())
        model.apply(wipe)

    (finding,) = judged(run_dir, prepare, watches_before=watches_before)
    assert finding.severity is Severity.WARNING
    assert "An initialization has wiped the weights that Net loaded" in finding.message
    assert "Initialize first" in finding.advice


def initializes_before(model: nn.Module) -> None:
    model.apply(initialize)
    model.load_state_dict(checkpoint())


def makes_a_new_head(model: nn.Module) -> None:
    model.load_state_dict(checkpoint())
    initialize(model.get_submodule("head"))


def rounds(model: nn.Module) -> None:
    model.load_state_dict(checkpoint())
    with torch.no_grad():
        for each in model.parameters():
            each.copy_(each.bfloat16())


def prunes(model: nn.Module) -> None:
    model.load_state_dict(checkpoint())
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(each.abs() > each.abs().median())


def loads_others(model: nn.Module) -> None:
    model.load_state_dict(checkpoint())
    model.load_state_dict(copy.deepcopy(Net().state_dict()))


@pytest.mark.parametrize(
    "prepare", [initializes_before, makes_a_new_head, rounds, prunes, loads_others]
)
def test_loads_that_last(run_dir: Path, prepare: Callable[[nn.Module], None]) -> None:
    assert judged(run_dir, prepare) == []


# ---- the state of the optimizer ------------------------------------------------------


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def trains(model: nn.Module, optimizer: torch.optim.Optimizer, n_steps: int) -> None:
    for _ in range(n_steps):
        x = torch.randn(16, 8)
        loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def whole_checkpoint() -> State:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    trains(model, optimizer, 10)
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def in_one_process(run_dir: Path, *, restores: bool) -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with td.watch(model, out=run_dir, budget="off", min_free_bytes=0):
        trains(model, optimizer, 20)
        kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        model.load_state_dict(kept[0])
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        if restores:
            optimizer.load_state_dict(kept[1])
        trains(model, optimizer, 20)


def in_another(run_dir: Path, *, restores: bool) -> None:
    loaded = whole_checkpoint()
    model = network()
    model.load_state_dict(loaded["model"])
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    if restores:
        optimizer.load_state_dict(loaded["optimizer"])
    with td.watch(model, out=run_dir, budget="off", min_free_bytes=0):
        trains(model, optimizer, 20)


def with_a_new_head(run_dir: Path, *, restores: bool) -> None:
    del restores
    loaded = whole_checkpoint()
    model = network()
    model.load_state_dict(loaded["model"])
    model[2] = nn.Linear(16, 2)
    optimizer = torch.optim.Adam(model[2].parameters(), 1e-3)
    with td.watch(model, out=run_dir, budget="off", min_free_bytes=0):
        trains(model, optimizer, 20)


def without_a_load(run_dir: Path, *, restores: bool) -> None:
    del restores
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with td.watch(model, out=run_dir, budget="off", min_free_bytes=0):
        trains(model, optimizer, 20)
        kept = copy.deepcopy(optimizer.state_dict())
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        trains(model, optimizer, 20)
    assert kept["state"]


@pytest.mark.parametrize(
    ("go", "restores", "severities"),
    [
        (in_one_process, False, [Severity.WARNING]),
        (in_another, False, [Severity.INFO]),
        (in_one_process, True, []),
        (in_another, True, []),
        (with_a_new_head, False, []),
        (without_a_load, False, []),
    ],
)
def test_a_state_of_the_optimizer_that_nobody_loads(
    run_dir: Path, go: Callable[..., None], restores: bool, severities: list[Severity]
) -> None:
    go(run_dir, restores=restores)
    rule = tdbg.rules.ResumptionMisuse()
    found = tdbg.rules.check(run_dir, rule, record=False).findings
    assert [each.severity for each in found] == severities
    for each in found:
        assert "(Adam) begins anew although your program has a state" in each.message
        assert "optimizer.load_state_dict()" in each.advice
