"""Options of the hook that reach the core, and what is compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

from tdbg import create_trial
from tdbg.errors import ConfigurationError
from tdbg.pytorch import Collection, Hook, SaveConfig, watch
from tdbg.stats import reference
from torch_helpers import Recorded, digits, make_hook, mlp, train

pytestmark = pytest.mark.torch


def trained(hook: Hook, n_steps: int = 3) -> nn.Module:
    model, criterion = mlp(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook.register_module(model)
    hook.register_loss(criterion)
    train(model, criterion, optimizer, digits(32), n_steps)
    hook.close()
    assert hook.counters()["internal_errors"] == 0
    return model


def histograms(run_dir: Path) -> dict[str, set[int]]:
    """Steps of each tensor's histograms."""
    recorded = Recorded(run_dir)
    found: dict[str, set[int]] = {}
    for place in recorded.histograms:
        name = recorded.definitions[int(place["definition"])].name
        found.setdefault(name, set()).add(int(place["step"]))
    return found


def test_histograms_are_stored_of_the_collections_that_ask(run_dir: Path) -> None:
    every_second = SaveConfig(statistics_interval=2, save_interval=1000)
    hook = make_hook(
        run_dir,
        save_config=every_second,
        include_collections=["weights", "biases"],
        collections=[Collection("gradients", save_histogram=True)],
    )
    trained(hook)
    found = histograms(run_dir)
    assert found == {
        f"gradient/{layer}.{kind}": {0, 2}
        for layer in ("fc1", "fc2")
        for kind in ("weight", "bias")
    }
    told = Recorded(run_dir).collections
    assert told["gradients"]["save_histogram"] is True
    assert told["weights"]["save_histogram"] is None
    histogram = create_trial(run_dir).tensor("gradient/fc1.weight").histogram(0)
    assert histogram.count == 24 * 64


def test_a_hook_can_store_them_of_all_but_losses(run_dir: Path) -> None:
    hook = make_hook(
        run_dir,
        save_histogram=True,
        save_all=True,
        collections=[Collection("biases", save_histogram=False)],
    )
    trained(hook, 1)
    found = histograms(run_dir)
    # `all` holds everything, and it has them: any collection that says so decides.
    assert {"fc1.weight", "fc1.bias", "relu_output_0", "gradient/fc2.bias"} <= set(
        found
    )
    assert Recorded(run_dir).events(1)[0]["hook"]["save_histogram"] is True


def test_histograms_of_gradients_are_scaled_as_their_rows(run_dir: Path) -> None:
    parameter = nn.Parameter(torch.full((3,), 8.0))
    model = nn.Module()
    model.weight = parameter
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    with make_hook(run_dir, save_histogram=True) as hook:
        hook.register_module(model)
        scaler.scale((parameter * 2.0).sum()).backward()
        scaler.step(optimizer)  # Whose gradients are 4, and which halves them.
    trial = create_trial(run_dir).tensor("gradient/weight")
    assert trial.reduction_value(0, "max") == 2.0
    assert trial.histogram(0).quantile(0.5) == pytest.approx(2.0, rel=0.01)


def test_precision_threads_and_budget_stand_in_the_configuration(
    run_dir: Path,
) -> None:
    trained(make_hook(run_dir, precise=True, threads=2), 1)
    told = Recorded(run_dir).events(1)[0]["hook"]
    assert (told["precise"], told["threads"], told["budget"]) == (True, 2, None)


def trained_on_hard_weights(run_dir: Path, *, precise: bool) -> None:
    """A training with weights whose squares all round the same way in float32."""
    model, criterion = mlp(), nn.CrossEntropyLoss()
    signs = torch.tensor([1.0, -1.0]).repeat(model.fc1.weight.numel() // 2)
    hard = 1e8 * signs.reshape(model.fc1.weight.shape)
    model.fc1.weight.data = hard + model.fc1.weight.data
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with make_hook(run_dir, precise=precise) as hook:
        hook.register_module(model)
        hook.register_loss(criterion)
        train(model, criterion, optimizer, digits(32), 2)


def test_precise_rows_of_a_training_are_nearer_to_the_reference(
    tmp_path: Path,
) -> None:
    errors = {}
    for precise in (False, True):
        run_dir = tmp_path / f"precise-{precise}"
        trained_on_hard_weights(run_dir, precise=precise)
        weight = create_trial(run_dir).tensor("fc1.weight")
        expected = reference.row(weight.value(1))
        stored = weight.reduction_value(1, "l2")
        errors[precise] = abs(stored / expected.l2 - 1)
    assert errors[True] <= 1e-12
    assert 1e-10 < errors[False] <= 1e-7


@pytest.mark.parametrize("n_threads", [1, 3])
def test_threads_follow_pytorch_unless_given(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, n_threads: int
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: n_threads)
    make_hook(run_dir).close()
    assert Recorded(run_dir).events(1)[0]["hook"]["threads"] == n_threads
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    make_hook(run_dir).close()
    assert Recorded(run_dir).events(1)[0]["hook"]["threads"] == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 0}, "threads must be from 1 to 256, not 0"),
        ({"threads": 1000}, "threads must be"),
        ({"threads": True}, "threads must be"),
        ({"threads": "2"}, "threads must be"),
        ({"precise": 1}, "precise must be True or False"),
        ({"save_histogram": "yes"}, "save_histogram must be True or False"),
        ({"codec": "zip"}, "codec: unknown 'zip'"),
        ({"overflow": "smple"}, "did you mean 'sample'"),
        ({"overflow": ["block"]}, "overflow: unknown"),
    ],
)
def test_bad_options_are_refused_at_construction(
    run_dir: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_hook(run_dir, **options)
    assert not run_dir.exists() or not list(run_dir.glob("w/*"))


def test_a_collection_refuses_a_bad_save_histogram() -> None:
    with pytest.raises(ConfigurationError, match="save_histogram"):
        Collection("weights", save_histogram=1)  # type: ignore[arg-type]


def test_watch_passes_them_on(run_dir: Path) -> None:
    hook = watch(mlp(), out=run_dir, budget=0.5, threads=1, precise=True)
    hook.close()
    told = Recorded(run_dir).events(1)[0]["hook"]
    assert (told["budget"], told["threads"], told["precise"]) == (0.5, 1, True)


@pytest.mark.parametrize("part", ["", "0", "0.fc1"])
def test_what_is_compiled_trains_as_it_does_without_and_is_compiled_once(
    run_dir: Path, part: str
) -> None:
    """Sabotaged: flags read before is_compiling() are guarded and compile anew."""

    def run(hooked: bool) -> tuple[list[float], int]:
        torch.compiler.reset()
        model, criterion = nn.Sequential(mlp()), nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if hooked:
            every_other = SaveConfig(statistics_interval=2)
            hook = make_hook(run_dir, save_all=True, save_config=every_other)
            hook.register_module(model)
            hook.register_loss(criterion)
        counter = CompileCounter()
        model.get_submodule(part).compile(backend=counter)
        losses = train(model, criterion, optimizer, digits(16), 6)
        if hooked:
            hook.close()
            assert hook.counters()["internal_errors"] == 0
            rows = Recorded(run_dir).rows("gradient/0.fc1.weight")
            assert sorted(rows) == [0, 2, 4]
        return losses, counter.frame_count

    losses, n_compiled = run(True)
    assert n_compiled == 1
    assert losses == run(False)[0]
