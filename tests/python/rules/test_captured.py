"""Asking for a rule captures what it needs, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from rules_asked import STEPS, asks, need, run
from tdbg import rules
from tdbg.config import Kind, Needs
from tdbg.config.collections import BUILT_IN
from tdbg.config.needs import every_need
from tdbg.pytorch import CollectionConfig, Hook
from tdbg.rules.registry import is_default
from tdbg.trial import Trial, create_trial
from torch_helpers import digits

ALWAYS = frozenset({"loss", "scalar"})
WITH_UNITS = frozenset({Kind.RELU})
PAIR = ("prediction", "label")
# What the training below has of the roles that a need may name.
OF_THE_NET = frozenset(
    {*PAIR, "weight", "bias", "gradient", "output", "input", "model_input", "update"}
)


def selects(each: Needs, role: str, called: set[str | None]) -> bool:
    """Whether a tensor is needed, of a module of this class and kind."""
    roles = {r.name.lower() for name in each.collections for r in BUILT_IN[name]}
    return role in roles and (not each.modules or bool(called & each.modules))


def due(each: Needs, interval: int) -> set[int]:
    """The steps at which a need wants anything."""
    end = STEPS if each.first_steps is None else min(STEPS, each.first_steps)
    return set(range(0, end, each.interval or interval))


def check(trial: Trial, needs: tuple[Needs, ...]) -> None:
    """The run holds what the needs say, at these steps, and nothing else."""
    (model_info,) = trial.model_info()
    found = {name: trial.tensor(name) for name in trial.tensor_names()}
    found = {name: t for name, t in found.items() if t.role not in ALWAYS}
    for name, tensor in found.items():
        called = {model_info.module_of(name), model_info.kind_of(name)}
        role = tensor.role
        if name.startswith("unit/"):
            role = "gradient" if name.startswith("unit/gradient/") else "output"
        mine = [each for each in needs if selects(each, role, called)]
        expected = {
            "statistics": [due(each, 10) for each in mine if each.statistics],
            "values": [due(each, 500) for each in mine if each.raw],
            "histograms": [due(each, 10) for each in mine if each.histogram],
        }
        if name.startswith("unit/"):
            counted = [each for each in mine if each.unit_summaries]
            counted = [each for each in counted if called & (each.modules | WITH_UNITS)]
            expected = {"values": [due(each, 10) for each in counted]}
        for what, steps in expected.items():
            assert set(tensor.steps(what=what)) == set().union(*steps), (name, what)
    roles = {tensor.role for tensor in found.values()}
    for each in needs:
        requested = {r.name.lower() for n in each.collections for r in BUILT_IN[n]}
        if (each.statistics or each.raw or each.histogram) and not each.modules:
            assert requested & OF_THE_NET <= roles, each
        if each.unit_summaries and "outputs" in each.collections:
            assert "unit_summary" in roles


@pytest.mark.parametrize("name", sorted(filter(is_default, rules.BUILT_IN)))
def test_a_rule_alone_captures_what_it_needs(name: str, tmp_path: Path) -> None:
    rule = rules.make(name)
    trial = run(tmp_path / "run", [name])
    check(trial, every_need(rule.needs))
    (told,) = trial.configuration()["hook"]["rules"]
    assert told["name"] == name
    assert set(told) == {"name", *rule.parameters()}


def test_several_needs_are_honoured_one_by_one(tmp_path: Path) -> None:
    needs = (
        need("labels", "predictions", statistics=False, raw=True, interval=5),
        need("weights", interval=7),
        need("weights", "biases", first_steps=3, interval=1, raw=True),
        need("outputs", modules={"Tanh", "Sigmoid"}, unit_summaries=True, interval=4),
        need("gradients", histogram=True),
        need("model_inputs", interval=6),
    )
    trial = run(tmp_path / "run", [asks(*needs)])
    check(trial, needs)
    names = set(trial.tensor_names())
    assert {"CrossEntropyLoss_input_0", "CrossEntropyLoss_input_1"} <= names
    assert {"tanh_output_0", "unit/tanh_output_0", "Net_input_0"} <= names
    assert not {"relu_output_0", "unit/relu_output_0", "fc1_input_0"} & names
    roles = {f"CrossEntropyLoss_input_{i}": role for i, role in enumerate(PAIR)}
    for name, role in (*roles.items(), ("Net_input_0", "model_input")):
        assert trial.tensor(name).role == role
    assert [each["collections"] for each in trial.configuration()["hook"]["needs"]] == [
        sorted(each.collections) for each in needs
    ]


def test_labels_are_those_of_the_batch(tmp_path: Path) -> None:
    asked = asks(need("labels", statistics=False, raw=True, interval=1))
    trial = run(tmp_path / "run", [asked], 3)
    batches = digits(16)
    for step in range(3):
        value = trial.tensor("CrossEntropyLoss_input_1").value(step)
        assert (value == next(batches)[1].numpy()).all()


def test_a_value_above_the_limit_is_not_kept_and_that_is_told_once(
    tmp_path: Path,
) -> None:
    # fc1.weight has 6144 bytes, fc2.weight 1536.
    asked = asks(need("weights", raw=True, interval=5, raw_limit=2000))
    trial = run(tmp_path / "run", [asked])
    weight, small = trial.tensor("fc1.weight"), trial.tensor("fc2.weight")
    assert weight.steps(what="values") == []
    assert weight.steps(what="statistics") == [0, 5, 10, 15, 20]
    assert small.steps(what="values") == [0, 5, 10, 15, 20]
    changes = [each.data for each in trial.events("change")]
    (told,) = [each for each in changes if each.get("what") == "raw_limit"]
    assert told["tensors"] == {"fc1.weight": {"bytes": 6144, "limit": 2000}}


def test_a_narrower_collection_of_the_user_stays_as_it_is(tmp_path: Path) -> None:
    weights = CollectionConfig("weights", {"save_interval": "12"})
    trial = run(
        tmp_path / "run", [asks(need("weights", interval=8))], collections=[weights]
    )
    assert trial.tensor("fc1.weight").steps(what="values") == [0, 12, 24]
    steps = trial.tensor("fc1.weight").steps(what="statistics")
    assert steps == [0, 8, 12, 16, 24]


def saturated(
    tmp_path: Path, module: nn.Module, given: torch.Tensor
) -> tuple[list[int], list[int]]:
    """Which elements of one unit are active and beyond, by module."""
    kind = type(module).__name__
    asked = asks(need("outputs", modules={kind}, unit_summaries=True, interval=1))
    model = nn.Sequential(module)
    model.eval()
    path = tmp_path / kind
    with Hook(path, rules=[asked], min_free_bytes=0) as hook:
        hook.register_module(model)
        model(given.reshape(1, -1))
    table = create_trial(path).tensor("unit/0_output_0").value(0)
    assert (table[2] == 1).all()
    return table[0].tolist(), table[1].tolist()


@pytest.mark.parametrize(
    ("module", "given", "active", "beyond"),
    [
        (nn.Tanh(), [-4.0, -0.5, 0.5, 4.0], [0, 0, 1, 1], [1, 0, 0, 1]),
        (nn.Sigmoid(), [-6.0, -1.0, 1.0, 6.0], [1, 1, 1, 1], [1, 0, 0, 1]),
        (nn.Hardtanh(-2, 2), [-2.0, -1.99, 1.0, 3.0], [0, 0, 1, 1], [1, 0, 0, 1]),
        (nn.Hardsigmoid(), [-3.0, -2.0, 2.0, 3.0], [0, 1, 1, 1], [1, 0, 0, 1]),
        (nn.ReLU6(), [-1.0, 0.5, 5.9, 6.0], [0, 1, 1, 1], [0, 0, 0, 1]),
        (nn.LeakyReLU(), [-9.0, -1.0, 1.0, 9.0], [0, 0, 1, 1], [0, 0, 0, 0]),
        (nn.SiLU(), [-9.0, -1.0, 1.0, 9.0], [0, 0, 1, 1], [0, 0, 0, 0]),
        (nn.GELU(), [-1.0, -0.5, 1.0, 9.0], [0, 0, 1, 1], [0, 0, 0, 0]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_unit_is_beyond_where_its_module_is_saturated(
    module: nn.Module,
    given: list[float],
    active: list[int],
    beyond: list[int],
    tmp_path: Path,
) -> None:
    assert saturated(tmp_path, module, torch.tensor(given)) == (active, beyond)


@pytest.mark.parametrize("sparse", [False, True])
def test_rows_of_an_embedding_are_units_of_its_gradient(
    sparse: bool, tmp_path: Path
) -> None:
    asked = asks(
        need(
            "gradients",
            modules={"Embedding"},
            statistics=False,
            unit_summaries=True,
            interval=1,
        )
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 4, sparse=sparse), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Hook(tmp_path / "run", rules=[asked], min_free_bytes=0) as hook:
        hook.register_module(model)
        for tokens in ([0, 3, 3], [1, 1, 1]):
            optimizer.zero_grad()
            model(torch.tensor(tokens)).sum().backward()
            optimizer.step()
        assert hook.counters()["refused_tensors"] == 0
    trial = create_trial(tmp_path / "run")
    names = [name for name in trial.tensor_names() if "unit" in name]
    assert names == ["unit/gradient/0.weight"]
    first, second = (trial.tensor(names[0]).value(step) for step in range(2))
    assert (first > 0).tolist()[0] == [True, False, False, True, False]
    assert second[0].tolist() == [0, 4, 0, 0, 0]
    assert first[2].tolist() == [4] * 5
    assert not first[1].any()


def test_arguments_of_a_loss_have_their_roles(tmp_path: Path) -> None:
    """Of a pair of predictions, a label by its name, and what is neither."""
    asked = asks(need("inputs", interval=1))

    def criterion(
        pair: tuple[torch.Tensor, torch.Tensor],
        target: torch.Tensor,
        weight: torch.Tensor,
    ) -> torch.Tensor:
        return ((pair[0] + pair[1] - target) * weight).sum()

    with Hook(tmp_path / "run", rules=[asked], min_free_bytes=0) as hook:
        loss = hook.register_loss(criterion)
        one = torch.ones(2, requires_grad=True)
        loss((one, one), target=torch.zeros(2), weight=torch.ones(2)).backward()
    trial = create_trial(tmp_path / "run")
    found = [trial.tensor(f"criterion_input_{i}").role for i in range(4)]
    assert found == ["prediction", "prediction", "label", "input"]
