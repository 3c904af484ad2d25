"""Hybridized blocks: what happens inside is captured where a step asks for it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

import tdbg.mxnet as tm

NAMES = [
    "net_batchnorm0_output_0",
    "net_conv0_output_0",
    "net_conv0_relu_output_0",
    "net_dense0_output_0",
    "net_dense0_tanh_output_0",
    "net_dense1_output_0",
    "net_dropout0_output_0",
    "net_flatten0_output_0",
    "net_output_0",
]


def outputs(run: Any, step: int) -> dict[str, Any]:
    names = run.tensor_names(collection="outputs")
    return {name: run.tensor(name).value(step) for name in names}


@pytest.mark.parametrize("static", [False, True])
def test_blocks_inside_have_the_outputs_that_they_have_when_called_one_by_one(
    make_hook: Callable[..., Any],
    make_training: Callable[..., Any],
    read: Callable[..., Any],
    static: bool,
) -> None:
    captured = []
    for number, hybridize in enumerate((None, {"static_alloc": static})):
        training = make_training()
        training.evaluate()  # The parameters get their values, always the same.
        if hybridize is not None:
            training.net.hybridize(**hybridize)
        hook = training.watched_by(make_hook(include_collections=["outputs"]))
        training.evaluate()
        captured.append(outputs(read(hook, number), 0))
    one_by_one, hybridized = captured
    assert sorted(one_by_one) == sorted(hybridized) == NAMES
    for name, value in one_by_one.items():
        np.testing.assert_allclose(hybridized[name], value, rtol=1e-5, atol=1e-6)


def test_only_captured_steps_run_the_graph_with_further_outputs(
    make_hook: Callable[..., Any], make_training: Callable[..., Any]
) -> None:
    training = make_training(hybridize={})
    every = tm.SaveConfig(save_interval=2)
    training.watched_by(make_hook(include_collections=["outputs"], save_config=every))
    training.step(0)
    own = training.net._cached_op
    assert type(own) is mx.nd.CachedOp
    calls = []
    before = mx.nd.CachedOp.__call__

    class Counting:
        def __call__(self, *arrays: Any) -> Any:
            calls.append(training.trainer._optimizer.num_update)
            return before(own, *arrays)

    vars(training.net)["_cached_op"] = Counting()
    for number in (1, 2, 3):
        training.step(number)
    assert calls == [1, 3]  # Step 2 was captured, by the other graph.


def test_a_model_that_is_registered_before_it_is_hybridized_brings_no_warning(
    make_hook: Callable[..., Any],
    make_training: Callable[..., Any],
    read: Callable[..., Any],
) -> None:
    training = make_training()
    hook = training.watched_by(make_hook(include_collections=["outputs"]))
    training.step(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        training.net.hybridize()
        training.loss.hybridize()
    training.step(1)
    run = read(hook)
    assert run.tensor_names(collection="outputs") == NAMES
    assert run.tensor("net_dense0_output_0").steps() == [0, 1]
    assert run.tensor("loss_output_0").steps() == [0, 1]


def test_of_a_model_that_is_no_graph_the_blocks_that_are_one_are_captured_inside(
    make_hook: Callable[..., Any], read: Callable[..., Any]
) -> None:
    net = nn.Sequential(prefix="s_")
    with net.name_scope():
        inner = nn.HybridSequential(prefix="h_")
        with inner.name_scope():
            inner.add(nn.Dense(4, activation="relu"), nn.Dense(3))
        net.add(inner, nn.Dense(2))
    net.initialize()
    inner.hybridize()
    hook = make_hook(include_collections=["inputs", "outputs"])
    hook.register_block(net)
    x = nd.ones((2, 5))
    net(x)
    run = read(hook)
    names = ["s_dense0_output_0", "s_h_dense0_output_0", "s_h_dense0_relu_output_0"]
    names += ["s_h_dense1_output_0", "s_h_output_0", "s_output_0"]
    assert run.tensor_names(collection="outputs") == names
    given = run.tensor("s_h_dense1_input_0").value(0)
    np.testing.assert_array_equal(
        given, run.tensor("s_h_dense0_relu_output_0").value(0)
    )


class Twice(gluon.HybridBlock):
    """Calls one block twice, and returns two tensors."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        with self.name_scope():
            self.dense = nn.Dense(3, in_units=3)

    def hybrid_forward(self, F: Any, x: Any) -> Any:  # noqa: N803
        y = self.dense(x)
        return self.dense(F.relu(y)), y


def test_the_second_call_of_a_block_has_a_name_of_its_own(
    make_hook: Callable[..., Any], read: Callable[..., Any]
) -> None:
    captured = []
    for number, hybridizes in enumerate((False, True)):
        mx.random.seed(1)
        net = Twice(prefix="t_")
        net.initialize()
        if hybridizes:
            net.hybridize()
        hook = make_hook(include_collections=["outputs"])
        hook.register_block(net)
        net(nd.ones((2, 3)))
        captured.append(outputs(read(hook, number), 0))
    names = ["t_dense0_output_0", "t_dense0_output_0@2", "t_output_0", "t_output_1"]
    for each in captured:
        assert sorted(each) == names
        np.testing.assert_array_equal(each["t_dense0_output_0@2"], each["t_output_0"])
        np.testing.assert_array_equal(each["t_dense0_output_0"], each["t_output_1"])


class Moody(gluon.HybridBlock):
    """Makes another graph each time that it is traced."""

    n_traces = 0

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        with self.name_scope():
            self.dense = nn.Dense(3, in_units=3)
            self.other = nn.Dense(3, in_units=3)

    def hybrid_forward(self, F: Any, x: Any) -> Any:  # noqa: ARG002, N803
        self.n_traces += 1
        return self.dense(x) if self.n_traces == 1 else self.other(x)


def test_a_graph_that_cannot_be_made_again_is_told_once_and_runs_as_it_is(
    make_hook: Callable[..., Any],
    read: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    net = Moody(prefix="m_")
    net.initialize()
    net.hybridize()
    x = nd.ones((2, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MXNet: a parameter is not used.
        expected = net(x).asnumpy()
        hook = make_hook(include_collections=["outputs"])
        hook.register_block(net)
        with caplog.at_level(logging.WARNING):
            results = [net(x).asnumpy() for _ in range(2)]
    for each in results:
        np.testing.assert_array_equal(each, expected)
    assert len(caplog.records) == 1
    assert "its code makes another graph each time" in caplog.text
    run = read(hook)
    assert run.tensor_names(collection="outputs") == ["m_output_0"]


def test_a_model_can_be_exported_and_hybridized_anew_between_captured_steps(
    make_hook: Callable[..., Any],
    make_training: Callable[..., Any],
    read: Callable[..., Any],
    tmp_path: Any,
) -> None:
    training = make_training(hybridize={})
    hook = training.watched_by(make_hook(include_collections=["outputs"]))
    training.step(0)
    training.net.export(str(tmp_path / "model"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MXNet: types are not known yet.
        loaded = gluon.SymbolBlock.imports(
            str(tmp_path / "model-symbol.json"),
            ["data"],
            str(tmp_path / "model-0000.params"),
        )
    images, _ = training.batch(7)
    result = training.net(images).asnumpy()
    np.testing.assert_array_equal(loaded(images).asnumpy(), result)
    training.net.hybridize(static_alloc=True)
    training.step(1)
    run = read(hook)
    assert run.tensor("net_dense0_output_0").steps(mode=tm.modes.TRAIN) == [0, 1]


def test_arrays_of_numpy_semantics_are_captured(
    make_hook: Callable[..., Any], read: Callable[..., Any]
) -> None:
    mx.npx.set_np()
    try:
        net = nn.HybridSequential(prefix="np_")
        with net.name_scope():
            net.add(nn.Dense(3, activation="relu"), nn.Dense(2))
        net.initialize()
        net.hybridize()
        hook = make_hook(include_collections=["outputs", "gradients"])
        hook.register_block(net)
        trainer = gluon.Trainer(net.collect_params(), "sgd")
        with autograd.record():
            loss = net(mx.np.ones((2, 4))).sum()
        loss.backward()
        trainer.step(2)
    finally:
        mx.npx.reset_np()
    run = read(hook)
    assert "np_dense0_relu_output_0" in run.tensor_names(collection="outputs")
    assert run.tensor("gradient/np_dense1_bias").value(0).tolist() == [2.0, 2.0]
