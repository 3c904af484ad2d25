"""A model whose code has effects outside of itself is not probed; others are."""

from __future__ import annotations

import collections
import functools
import logging
import math
import os
import random
import sys
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as scripts have it
from torch import Tensor, nn

import tdbg
import tdbg.pytorch as td
from tdbg.hooks.pytorch.checks.probes import quiet_copy
from tdbg.hooks.pytorch.checks.probes.outside_effects import ModelSurvey
from tdbg.hooks.pytorch.checks.probes.probe_batch import Unsuitable
from tdbg.run.observations import Fault

pytestmark = pytest.mark.torch

CALLS: list[Any] = []
ALL = [CALLS]
COUNT = 0
BY_NAME: dict[str, list[int]] = collections.defaultdict(list)
OPTIONS: dict[str, Any] = {"width": 4, "activation": F.relu}
MEAN = torch.zeros(4)
CRITERION = nn.MSELoss()
NORM = nn.BatchNorm1d(4)
NOISE = np.random.default_rng(0)
logger = logging.getLogger("model")
keep = CALLS.append


class Tracker:
    def __init__(self) -> None:
        self.n = 0

    def log(self, _: Any) -> None:
        self.n += 1


class Writer:
    def __init__(self, path: str) -> None:
        self.path = path

    def note(self, text: str) -> None:
        with open(self.path, "a") as file:  # noqa: PTH123
            file.write(text)


class Settings:
    width, rate = 4, 0.5

    @property
    def scale(self) -> float:
        return self.width * self.rate


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return 2 * x


TRACKER, SETTINGS = Tracker(), Settings()


def record(x: Tensor) -> Tensor:
    CALLS.append(x)
    return x


def passed_on(x: Tensor) -> Tensor:
    return record(x)


@torch.no_grad()
def wrapped(x: Tensor) -> Tensor:
    return record(x)


@functools.cache
def root(n: int) -> float:
    return math.sqrt(n)


def decorated(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(function)
    def call(*args: Any) -> Tensor:
        return function(*args)

    return call


@decorated
def scaled(x: Tensor) -> Tensor:
    return x * root(2)


class Model(nn.Module):
    """What the forwards here are forwards of."""

    seen: ClassVar[list[int]] = []

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.own = nn.Linear(4, 4), [0]
        self.n_calls = 0

    def helper(self, x: Tensor) -> Tensor:
        return record(x)

    @property
    def depth(self) -> int:
        print("asked")
        return 1


def made(forward: Callable[..., Any], **attributes: Any) -> nn.Module:
    model: nn.Module = type("Net", (Model,), {"forward": forward})()
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


def copied(model: nn.Module) -> quiet_copy.QuietCopy:
    return quiet_copy.QuietCopy(model, ModelSurvey(model))


# ---- effects -----------------------------------------------------------------


def appends(self: Any, x: Tensor) -> Tensor:
    CALLS.append(x)
    return self.layer(x)  # type: ignore[no-any-return]


def appends_to_another_name(_: Any, x: Tensor) -> Tensor:
    calls = CALLS
    calls.append(x)
    return x


def appends_to_an_item(_: Any, x: Tensor) -> Tensor:
    for each in ALL:
        each.append(x)
    return x


def counts(_: Any, x: Tensor) -> Tensor:
    global COUNT  # noqa: PLW0603
    COUNT += 1
    return x


def counts_by_name(_: Any, x: Tensor) -> Tensor:
    BY_NAME["x"].append(1)
    return x


def sets_an_item(_: Any, x: Tensor) -> Tensor:
    OPTIONS["width"] = len(x)
    return x


def has_a_default(_: Any, x: Tensor, calls: list[Any] = []) -> Tensor:  # noqa: B006
    calls.append(x)
    return x


def shares_with_its_class(self: Any, x: Tensor) -> Tensor:
    self.seen.append(1)
    return x


def sets_its_class(self: Any, x: Tensor) -> Tensor:
    type(self).n = 1
    return x


def sets_of_a_function(_: Any, x: Tensor) -> Tensor:
    record.n = 1  # type: ignore[attr-defined]
    return x


def prints(_: Any, x: Tensor) -> Tensor:
    print(x)
    return x


def logs(_: Any, x: Tensor) -> Tensor:
    logger.info("called")
    return x


def warns(_: Any, x: Tensor) -> Tensor:
    warnings.warn("called", stacklevel=2)
    return x


def opens(_: Any, x: Tensor) -> Tensor:
    with open("calls", "a") as file:  # noqa: PTH123
        file.write("called")
    return x


def saves(_: Any, x: Tensor) -> Tensor:
    torch.save(x, "x.pt")
    return x


def makes_a_folder(_: Any, x: Tensor) -> Tensor:
    os.makedirs("calls")  # noqa: PTH103
    return x


def writes(_: Any, x: Tensor) -> Tensor:
    sys.stdout.write("called")
    return x


def tracks(_: Any, x: Tensor) -> Tensor:
    TRACKER.log(x)
    return x


def keeps(_: Any, x: Tensor) -> Tensor:
    keep(x)
    return x


def calls_a_function(_: Any, x: Tensor) -> Tensor:
    return passed_on(x)


def calls_a_wrapped_one(_: Any, x: Tensor) -> Tensor:
    return wrapped(x)


def calls_a_method(self: Any, x: Tensor) -> Tensor:
    return self.helper(x)  # type: ignore[no-any-return]


def asks_a_property(self: Any, x: Tensor) -> Tensor:
    return x * self.depth  # type: ignore[no-any-return]


def calls_a_lambda(_: Any, x: Tensor) -> Tensor:
    add = lambda each: CALLS.append(each)  # noqa: E731, PLW0108
    for each in x:
        add(each)  # type: ignore[no-untyped-call]
    return x


def passes_on(self: Any, x: Tensor) -> Tensor:
    return self.layer(x, CALLS)  # type: ignore[no-any-return]


def stores(self: Any, x: Tensor) -> Tensor:
    self.calls = CALLS
    return x


def adds_in_place(_: Any, x: Tensor) -> Tensor:
    MEAN.add_(x.mean())
    return x


def writes_into(_: Any, x: Tensor) -> Tensor:
    return torch.add(x[0], 1, out=MEAN)


def calls_a_layer(_: Any, x: Tensor) -> Tensor:
    return NORM(x)  # type: ignore[no-any-return]


def draws(_: Any, x: Tensor) -> Tensor:
    return x * float(NOISE.random())


EFFECTS = {
    appends: "Net.forward uses `CALLS.append`",
    appends_to_another_name: "`CALLS.append`",
    appends_to_an_item: "`ALL.append`",
    counts: "`COUNT`",
    counts_by_name: "`BY_NAME.append`",
    sets_an_item: "`OPTIONS`",
    has_a_default: "`calls.append`",
    shares_with_its_class: "`seen.append`",
    sets_its_class: "`its class.n`",
    sets_of_a_function: "`record.n`",
    prints: "`print`",
    logs: "`logger.info`",
    warns: "`warnings.warn`",
    opens: "`open`",
    saves: "`torch.save`",
    makes_a_folder: "`os.makedirs`",
    writes: "`sys.stdout",
    tracks: "`TRACKER.log`",
    keeps: "`keep`",
    calls_a_function: "record uses `CALLS.append`",
    calls_a_wrapped_one: "record uses `CALLS.append`",
    calls_a_method: "record uses `CALLS.append`",
    asks_a_property: "Model.depth uses `print`",
    calls_a_lambda: "`CALLS.append`",
    passes_on: "`CALLS`",
    stores: "`CALLS`",
    adds_in_place: "`MEAN.add_`",
    writes_into: "`MEAN`",
    calls_a_layer: "`NORM`",
    draws: "`NOISE.random`",
}


@pytest.mark.parametrize("forward", EFFECTS, ids=lambda each: each.__name__)
def test_an_effect_outside_is_found(forward: Callable[..., Any]) -> None:
    with pytest.raises(Unsuitable) as refused:
        copied(made(forward))
    assert EFFECTS[forward].replace("Net.forward", forward.__name__) in str(refused)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (lambda x: F.relu(record(x)), "record uses `CALLS.append`"),
        (functools.partial(record), "record uses"),
        ([nn.ReLU(), record], "record uses"),
        (weakref.ref(TRACKER), "refers weakly to a Tracker"),
    ],
    ids=["lambda", "partial", "list", "weak"],
)
def test_an_attribute_outside_is_found(value: Any, reason: str) -> None:
    model = made(lambda self, x: self.call(self.layer(x)), call=value)
    with pytest.raises(Unsuitable, match=reason):
        copied(model)


def test_methods_of_objects_in_a_model_are_read() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        self.writer.note("called")
        return self.layer(x)

    with pytest.raises(Unsuitable, match=r"Writer\.note uses `open`"):
        copied(made(forward, writer=Writer("calls")))
    unused = made(lambda self, x: self.layer(x), writer=Writer("calls"))
    copied(unused)


def test_a_shared_object_is_found() -> None:
    class Single(Tracker):
        def __deepcopy__(self, _: Any) -> Single:
            return self

    def forward(self: Any, x: Tensor) -> Any:
        self.tracker.log(x)
        return self.layer(x)

    with pytest.raises(Unsuitable, match="shares a Single with it"):
        copied(made(forward, tracker=Single()))
    copied(made(forward, tracker=Tracker()))


def test_code_without_source_is_read_by_its_names() -> None:
    def without_source(text: str) -> Any:
        found: dict[str, Any] = dict(globals())
        exec(text, found)  # noqa: S102 - what has no source
        return made(found["f"])

    copied(without_source("f = lambda self, x: F.relu(self.layer(x))"))
    for text in (
        "f = lambda self, x: CALLS.append(x)",
        "f = lambda self, x: os.makedirs('calls')",
        "def f(self, x):\n    global COUNT\n    COUNT = 1",
    ):
        with pytest.raises(Unsuitable, match="lies outside of the model"):
            copied(without_source(text))


# ---- none --------------------------------------------------------------------


def computes(self: Any, x: Tensor) -> Tensor:
    x = x - MEAN
    x /= OPTIONS.get("width", 1)
    hidden = OPTIONS["activation"](self.layer(x)) * root(3)
    for _, _value in OPTIONS.items():
        hidden = hidden + random.random() * np.random.rand()  # noqa: NPY002
    kept = [hidden * SETTINGS.width * SETTINGS.rate * SETTINGS.scale]
    kept.append(scaled(hidden))
    hidden[:, 0] = CRITERION(hidden, x)
    kept[0][:, 1] = time.time()
    return torch.stack(kept).sum(0)


def changes_itself(self: Any, x: Tensor) -> Any:
    self.n_calls += 1
    self.own.append(len(x))
    self.layer.weight.data.mul_(0.5)
    return self.layer(Doubled.apply(x))  # type: ignore[no-untyped-call]


def tells_in_training(self: Any, x: Tensor) -> Any:
    if self.training:
        print("called")
        CALLS.append(x)
    if not len(x):
        raise ValueError(print(x))
    return self.layer(x) if type(self).__name__.lower() else None


def nests(self: Any, x: Tensor) -> Any:
    rows: list[Tensor] = []

    def add(row: Tensor, into: list[Tensor] = rows) -> None:
        nonlocal x
        into.append(row)
        x = x + 1

    for row in x:
        add(row)
    return self.layer(torch.stack(rows))


@pytest.mark.parametrize(
    "forward",
    [computes, changes_itself, tells_in_training, nests],
    ids=lambda each: each.__name__,
)
def test_code_without_effects_is_called(forward: Callable[..., Any]) -> None:
    CALLS.clear()
    model = made(forward)
    quiet = copied(model)
    with quiet.silence():
        answered = quiet((torch.ones(3, 4),), {})
    assert answered.shape == (3, 4)
    assert CALLS == []


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.TransformerEncoderLayer(8, 2, 16),
        lambda: nn.LSTM(4, 4),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)),
        lambda: torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 2), nn.ReLU())),
    ],
    ids=["transformer", "lstm", "weight norm", "traced"],
)
def test_modules_of_the_library_are_copied(make: Callable[[], nn.Module]) -> None:
    copied(make())


# ---- in a training -----------------------------------------------------------


def train(run: Path, model: nn.Module, *, n_steps: int = 4) -> dict[str, str]:
    """Train a model; return why no question was asked, by the question."""
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with td.watch(model, out=run, min_free_bytes=0):
        for _ in range(n_steps):
            optimizer.zero_grad()
            x = torch.randn(8, 4)
            F.mse_loss(model(x), x).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    observed = tdbg.create_trial(run).observations()
    (probed,) = (each for each in observed if each.fault is Fault.PROBED)
    return dict(probed.words)


def test_a_training_with_effects_has_no_more_of_them(run_dir: Path) -> None:
    CALLS.clear()
    words = train(run_dir, made(appends))
    assert len(CALLS) == 4
    why = {"appends uses `CALLS.append`, which lies outside of the model"}
    assert set(words.values()) == why


def test_a_tensor_outside_is_not_changed_by_another_name(run_dir: Path) -> None:
    def forward(self: Any, x: Tensor) -> Any:
        def shift(tensor: Tensor) -> Tensor:
            return tensor.add_(1)

        return self.layer(x) + 0 * shift(MEAN)

    MEAN.zero_()
    words = train(run_dir, made(forward))
    assert set(words.values()) == {
        "`add_` changes a tensor that lies outside of the model"
    }
    assert MEAN.tolist() == [4.0] * 4
    MEAN.zero_()


def test_slow_calls_end(run_dir: Path, monkeypatch: Any) -> None:
    def forward(self: Any, x: Tensor) -> Any:
        for _ in range(100):
            time.sleep(0 if self.training else 0.02)
            x = x + 0
        return self.layer(x)

    monkeypatch.setattr(quiet_copy, "MOST_SECONDS", 0.1)
    start = time.perf_counter()
    words = train(run_dir, made(forward))
    assert set(words.values()) == {"calls of a copy take longer than 0.1 s"}
    assert time.perf_counter() - start < 20


def test_warnings_of_a_probe_are_not_shown_and_shown_later(run_dir: Path) -> None:
    """A warning in evaluation stays the program's, which sees it once."""

    def forward(self: Any, x: Tensor) -> Any:
        return self.layer(x if self.training else x.t().T.mT.mT + torch.ones(2, 4, 4).T)

    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        before = list(warnings.filters)
        train(run_dir, made(forward))
        assert list(warnings.filters) == before
    assert [each for each in shown if "T` on tensors" in str(each.message)] == []
