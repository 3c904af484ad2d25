"""Where the tests of this folder run: ``make test-mxnet``, beside NumPy 1.23.

The names of Gluon count up in a process, so models and losses are given prefixes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

with warnings.catch_warnings():
    # MXNet uses names that NumPy was about to drop.
    warnings.simplefilter("ignore")
    import mxnet as mx

from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

import tdbg.mxnet as tm
from tdbg.trial import create_trial


def pytest_configure(config: pytest.Config) -> None:
    """Let MXNet use names that SciPy was about to drop."""
    config.addinivalue_line("filterwarnings", "ignore:Please import:DeprecationWarning")


ALL = tm.SaveConfig(save_interval=1)


class Training:
    """A small network on made-up data, always the same.

    Attributes:
        net: The network: a convolution, a normalization, dropout and dense layers.
        loss: Its loss.
        trainer: Its trainer.
        losses: Of all steps so far.
    """

    def __init__(
        self,
        optimizer: str = "adam",
        *,
        hybridize: dict[str, Any] | None = None,
        rate: float = 0.01,
        net: Any = None,
    ) -> None:
        mx.random.seed(3)
        self.net = network() if net is None else net
        self.net.initialize(mx.init.Xavier())
        self.loss = gluon.loss.SoftmaxCrossEntropyLoss(prefix="loss_")
        if hybridize is not None:
            self.net.hybridize(**hybridize)
        parameters = self.net.collect_params()
        self.trainer = gluon.Trainer(parameters, optimizer, {"learning_rate": rate})
        self.losses: list[Any] = []

    def batch(self, number: int, size: int = 8) -> tuple[Any, Any]:
        """Images and labels of a step."""
        generator = mx.nd.random
        mx.random.seed(100 + number)
        images = generator.normal(shape=(size, 2, 8, 8))
        labels = nd.floor(generator.uniform(0, 3, shape=(size,)))
        images.wait_to_read()
        return images, labels

    def step(self, number: int, size: int = 8) -> None:
        """Train on one batch."""
        images, labels = self.batch(number, size)
        with autograd.record():
            loss = self.loss(self.net(images), labels)
        loss.backward()
        self.trainer.step(size)
        self.losses.append(loss.asnumpy())

    def train(self, n_steps: int = 3) -> None:
        """Train on so many batches."""
        for number in range(n_steps):
            self.step(number)

    def evaluate(self, number: int = 50) -> Any:
        """The loss of one batch, without training on it."""
        images, labels = self.batch(number)
        return self.loss(self.net(images), labels).asnumpy()

    def parameters(self) -> dict[str, Any]:
        """The values of all parameters, by name."""
        found = self.net.collect_params().values()
        return {each.name: each.data().asnumpy() for each in found}

    def watched_by(self, hook: Any) -> Any:
        """Register all with a hook; return the hook."""
        hook.register_block(self.net)
        hook.register_loss(self.loss)
        return hook


def network() -> Any:
    """The network, of names that do not count up."""
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(
            nn.Conv2D(4, 3, activation="relu"),
            nn.BatchNorm(),
            nn.Flatten(),
            nn.Dense(6, activation="tanh"),
            nn.Dropout(0.5),
            nn.Dense(3),
        )
    return net


@pytest.fixture
def make_hook(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Make a hook, which is closed in any case."""
    made: list[Any] = []

    def make(**settings: Any) -> Any:
        settings = {"min_free_bytes": 0, "save_config": ALL, **settings}
        made.append(tm.Hook(tmp_path / f"run{len(made)}", **settings))
        return made[-1]

    yield make
    for hook in made:
        hook.close()
    tm.del_hook()


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Any]:
    """Read the run of a hook that is closed first."""

    def open_run(hook: Any, number: int = 0) -> Any:
        assert hook.close(timeout=60)
        assert hook.counters()["internal_errors"] == 0
        return create_trial(str(tmp_path / f"run{number}"))

    return open_run


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A path for a run that does not exist yet."""
    return tmp_path / "run"


@pytest.fixture
def make_training() -> Callable[..., Training]:
    """Make a training."""
    return Training
