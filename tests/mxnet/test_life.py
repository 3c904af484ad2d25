"""Gluon: models that are saved and copied, stops, failures, the end of a hook."""

from __future__ import annotations

import copy
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

import tdbg.mxnet as tm
from tdbg.capture.session import Session
from tdbg.errors import ConfigurationError
from tdbg.run.requests import request_stop
from tdbg.trial import create_trial


def own_names(training: Any) -> list[set[str]]:
    objects = (training.net, training.loss, training.trainer, training.net[0])
    return [set(vars(each)) for each in objects]


def test_closing_the_hook_leaves_model_loss_and_trainer_as_they_were(
    make_hook: Callable[..., Any], make_training: Callable[..., Any]
) -> None:
    training = make_training(hybridize={})
    training.step(0)
    before = own_names(training), training.net._cached_op
    hook = training.watched_by(make_hook(save_all=True))
    training.step(1)
    assert own_names(training) != before[0]
    hook.close()
    assert (own_names(training), training.net._cached_op) == before
    assert not training.net[0]._forward_hooks
    training.step(2)


@pytest.mark.parametrize("by", ["deepcopy", "pickle"])
def test_a_copy_of_a_watched_model_computes_the_same_and_is_not_captured(
    make_hook: Callable[..., Any],
    make_training: Callable[..., Any],
    read: Callable[..., Any],
    by: str,
) -> None:
    training = make_training()
    hook = training.watched_by(make_hook(include_collections=["outputs"]))
    training.step(0)
    images, _ = training.batch(9)
    if by == "deepcopy":
        copied = copy.deepcopy(training.net)
    else:
        copied = pickle.loads(pickle.dumps(training.net))  # noqa: S301
    result = copied(images).asnumpy()
    assert hook.n_forwards == 1
    copied[3].bias.set_data(copied[3].bias.data() + 100)
    assert not np.array_equal(copied(images).asnumpy(), result)  # It is its own.
    np.testing.assert_array_equal(training.net(images).asnumpy(), result)
    assert read(hook).steps(mode=tm.modes.EVAL) == [0]


def test_parameters_are_saved_and_loaded_with_a_hook_attached(
    make_hook: Callable[..., Any],
    make_training: Callable[..., Any],
    tmp_path: Path,
) -> None:
    training = make_training()
    training.watched_by(make_hook(save_all=True))
    training.step(0)
    training.net.save_parameters(str(tmp_path / "net.params"))
    training.trainer.save_states(str(tmp_path / "trainer.states"))
    saved = training.parameters()
    training.step(1)
    training.net.load_parameters(str(tmp_path / "net.params"))
    training.trainer.load_states(str(tmp_path / "trainer.states"))
    for name, value in training.parameters().items():
        np.testing.assert_array_equal(value, saved[name])


def test_a_stop_raises_at_the_next_forward(
    make_hook: Callable[..., Any],
    make_training: Callable[..., Any],
    tmp_path: Path,
) -> None:
    training = make_training()
    training.watched_by(make_hook())
    training.step(0)
    request_stop(tmp_path / "run0", reason="enough")

    def go_on() -> None:
        while True:  # The request is looked for ten times a second.
            training.step(1)

    with pytest.raises(tm.TrainingStopped, match="enough"):
        go_on()


def test_a_stop_sets_a_flag_where_the_training_asks_for_that(
    make_hook: Callable[..., Any],
    make_training: Callable[..., Any],
    tmp_path: Path,
) -> None:
    training = make_training()
    hook = training.watched_by(make_hook(on_stop="flag"))
    request_stop(tmp_path / "run0", reason="enough")
    while not hook.should_stop:
        training.step(0)
    assert hook.stop_reason == "enough"


def test_an_operation_that_fails_raises_into_the_program_as_without_a_hook(
    make_hook: Callable[..., Any], make_training: Callable[..., Any]
) -> None:
    training = make_training()
    hook = training.watched_by(make_hook(save_all=True))
    training.step(0)
    _, labels = training.batch(1)
    # MXNet raises where somebody waits for the result, and once.
    images = mx.nd.random.normal(0, -1, shape=(8, 2, 8, 8))
    with pytest.raises(mx.base.MXNetError), autograd.record():
        training.loss(training.net(images), labels).wait_to_read()
    training.step(2)
    assert hook.counters()["internal_errors"] == 0


def test_a_forward_that_raises_is_no_step(
    make_hook: Callable[..., Any],
    make_training: Callable[..., Any],
    read: Callable[..., Any],
) -> None:
    training = make_training(hybridize={})
    hook = training.watched_by(make_hook(include_collections=["outputs"]))
    training.step(0)
    with pytest.raises((mx.base.MXNetError, ValueError)), autograd.record():
        training.net(nd.ones((2, 3, 8, 8))).wait_to_read()
    training.step(1)
    assert type(training.net._cached_op) is mx.nd.CachedOp
    run = read(hook)
    assert run.tensor("loss_output_0").steps(mode=tm.modes.TRAIN)[0] == 0
    np.testing.assert_array_equal(
        run.tensor("loss_output_0").value(run.steps()[-1]), training.losses[1]
    )


def test_an_error_inside_the_hook_leaves_the_training_as_it_is(
    make_hook: Callable[..., Any],
    make_training: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, watched = make_training(hybridize={}), make_training(hybridize={})
    hook = watched.watched_by(make_hook(save_all=True))
    plain.train(4)
    watched.step(0)

    def fail(*_: Any, **__: Any) -> None:
        msg = "a fault of tdbg"
        raise RuntimeError(msg)

    monkeypatch.setattr(hook._session, "take", fail)
    for number in (1, 2):
        watched.step(number)
    monkeypatch.setattr(Session, "optimizer_begins", fail)
    watched.step(3)
    np.testing.assert_array_equal(plain.losses, watched.losses)
    assert hook.counters()["internal_errors"] > 0


def test_a_closed_hook_in_the_midst_of_a_step_lets_it_end(
    make_hook: Callable[..., Any], make_training: Callable[..., Any]
) -> None:
    plain, watched = make_training(), make_training()
    hook = watched.watched_by(make_hook(save_all=True))
    plain.train(2)
    watched.step(0)
    images, labels = watched.batch(1)
    with autograd.record():
        loss = watched.loss(watched.net(images), labels)
    loss.backward()
    hook.close()
    watched.trainer.step(8)
    np.testing.assert_array_equal(plain.losses[1], loss.asnumpy())
    others = watched.parameters()
    for name, value in plain.parameters().items():
        np.testing.assert_array_equal(value, others[name])


def test_a_child_process_captures_nothing_and_leaves_the_run_alone(
    make_hook: Callable[..., Any],
    make_training: Callable[..., Any],
    read: Callable[..., Any],
) -> None:
    training = make_training()
    hook = training.watched_by(make_hook(save_all=True))
    training.step(0)
    mx.nd.waitall()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            training.net.forward.observer.begins((None,))
            status = 0 if tm.get_hook() is None and not hook._session.is_live else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    training.step(1)
    assert read(hook).steps(mode=tm.modes.TRAIN) == [0, 1]


def test_the_hook_keeps_neither_model_nor_trainer_alive(
    make_hook: Callable[..., Any], make_training: Callable[..., Any]
) -> None:
    import gc
    import weakref

    training = make_training()
    training.watched_by(make_hook(save_all=True))
    training.train(2)
    kept = [weakref.ref(training.net), weakref.ref(training.trainer)]
    del training
    gc.collect()
    assert [each() for each in kept] == [None, None]


def test_what_is_no_block_is_refused(make_hook: Callable[..., Any]) -> None:
    hook = make_hook()
    for register in (hook.register_block, hook.register_loss):
        with pytest.raises(ConfigurationError, match=r"gluon\.Block, not Symbol"):
            register(mx.sym.var("x"))
    with pytest.raises(ConfigurationError, match=r"gluon\.Trainer, not str"):
        hook.register_trainer("adam")


def test_the_model_info_has_kinds_parameters_and_the_optimizer(
    make_hook: Callable[..., Any],
    make_training: Callable[..., Any],
    read: Callable[..., Any],
) -> None:
    training = make_training()
    training.net[0].collect_params().setattr("grad_req", "null")
    hook = training.watched_by(make_hook())
    training.train(2)
    (info,) = read(hook).model_info()
    assert info.complete
    assert info.models == ("HybridSequential",)
    assert info.losses == ("SoftmaxCrossEntropyLoss",)
    assert info.optimizers == ("Adam",)
    assert info.modules["net_conv0_relu"] == "Activation(relu)"
    expected = {
        "Activation(relu)": "relu",
        "Activation(tanh)": "tanh",
        "BatchNorm": "batch_norm",
        "Conv2D": "conv",
        "Dense": "linear",
        "Flatten": "flatten",
        "loss_": "cross_entropy",
    }
    kinds = dict(info.kinds)
    kinds["loss_"] = kinds.pop("loss")
    assert kinds == expected
    weight = info.parameters["net_conv0_weight"]
    assert weight.shape == (4, 2, 3, 3)
    assert not weight.requires_grad
    assert info.parameters["net_dense1_bias"].optimizer == 0


def test_a_training_whose_trainer_comes_later_is_captured_from_then_on(
    make_hook: Callable[..., Any], read: Callable[..., Any]
) -> None:
    net = nn.Dense(2, in_units=2, prefix="late_")
    net.initialize()
    hook = make_hook(include_collections=["weights", "gradients"])
    hook.register_block(net)
    with autograd.record():
        net(nd.ones((1, 2))).sum().backward()
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    for _ in range(2):
        with autograd.record():
            loss = net(nd.ones((1, 2))).sum()
        loss.backward()
        trainer.step(1)
    run = read(hook)
    # The first forward counts as one that the trainer's first step is made of.
    assert run.tensor("late_weight").steps() == [0, 1]
    assert run.tensor("gradient/late_weight").steps() == [0, 1]


def test_with_tdbg_disabled_nothing_is_attached(tmp_path: Path) -> None:
    program = """
import sys, warnings; warnings.simplefilter("ignore")
from mxnet.gluon import nn
import tdbg.mxnet as tm
net = nn.Dense(2, in_units=2)
hook = tm.Hook(sys.argv[1])
hook.register_block(net)
assert "forward" not in vars(net)
"""
    environment = {**os.environ, "TDBG_DISABLED": "1"}
    command = [sys.executable, "-c", program, str(tmp_path / "run")]
    subprocess.run(command, env=environment, check=True)
    assert not (tmp_path / "run").exists()


def test_the_example_of_the_guide_runs(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "mxnet.md"
    (script,) = re.findall(
        r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL
    )
    command = [sys.executable, "-W", "ignore", "-c", script]
    subprocess.run(command, cwd=tmp_path, check=True)
    names = create_trial(tmp_path / "runs" / "mxnet").tensor_names(collection="outputs")
    assert "net_dense0_relu_output_0" in names
