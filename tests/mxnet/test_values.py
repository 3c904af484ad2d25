"""Gluon: what is captured is what the training computed, and changes nothing of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

import tdbg.mxnet as tm

TRAIN, EVAL = tm.modes.TRAIN, tm.modes.EVAL
GRAPHS: dict[str, dict[str, Any] | None] = {
    "not hybridized": None,
    "hybridized": {},
    "static": {"static_alloc": True, "static_shape": True},
}


@pytest.mark.parametrize("hybridize", GRAPHS.values(), ids=GRAPHS)
def test_a_training_is_the_same_to_the_bit_when_everything_is_captured(
    make_hook: Callable[..., Any],
    make_training: Callable[..., Any],
    hybridize: dict[str, Any] | None,
) -> None:
    plain = make_training(hybridize=hybridize)
    watched = make_training(hybridize=hybridize)
    watched.watched_by(make_hook(save_all=True))
    for training in (plain, watched):
        training.train(4)
    np.testing.assert_array_equal(plain.losses, watched.losses)
    np.testing.assert_array_equal(plain.evaluate(), watched.evaluate())
    others = watched.parameters()
    for name, value in plain.parameters().items():
        np.testing.assert_array_equal(value, others[name])


def test_parameters_are_those_before_the_update_and_updates_what_it_adds(
    make_hook: Callable[..., Any],
    make_training: Callable[..., Any],
    read: Callable[..., Any],
) -> None:
    training = make_training()
    hook = training.watched_by(make_hook(save_all=True))
    values = []
    for number in range(3):
        training.step(number)
        values.append(training.parameters())
    run = read(hook)
    for name in ("net_dense0_weight", "net_conv0_bias", "net_batchnorm0_gamma"):
        for step in (1, 2):
            before, after = values[step - 1][name], values[step][name]
            np.testing.assert_array_equal(run.tensor(name).value(step), before)
            update = run.tensor(f"update/{name}").value(step)
            np.testing.assert_array_equal(update, after - before)


def test_gradients_are_scaled_in_statistics_as_the_trainer_scales_them(
    make_hook: Callable[..., Any],
    make_training: Callable[..., Any],
    read: Callable[..., Any],
) -> None:
    training = make_training("sgd")
    hook = training.watched_by(make_hook(include_collections=["gradients"]))
    training.train(2)
    gradient = training.net[3].weight.grad().asnumpy()
    tensor = read(hook).tensor("gradient/net_dense0_weight")
    np.testing.assert_array_equal(tensor.value(1), gradient)
    assert tensor.reduction_value(1, "mean") == pytest.approx(gradient.mean() / 8)


def test_the_state_of_the_optimizer_is_captured_as_the_step_has_left_it(
    make_hook: Callable[..., Any],
    make_training: Callable[..., Any],
    read: Callable[..., Any],
) -> None:
    training = make_training()
    hook = training.watched_by(make_hook(include_collections=["optimizer_variables"]))
    training.train(2)
    names = [each.name for each in training.trainer._params]
    number = names.index("net_dense1_bias")
    mean, variance = training.trainer._updaters[0].states[number]
    run = read(hook)
    for name, state in (("mean", mean), ("variance", variance)):
        captured = run.tensor(f"optimizer/{name}/net_dense1_bias").value(1)
        np.testing.assert_array_equal(captured, state.asnumpy())


def test_the_learning_rate_is_the_one_that_the_update_has_used(
    make_hook: Callable[..., Any],
    make_training: Callable[..., Any],
    read: Callable[..., Any],
) -> None:
    training = make_training("sgd")
    schedule = mx.lr_scheduler.FactorScheduler(step=2, factor=0.5, base_lr=0.4)
    training.trainer._optimizer.lr_scheduler = schedule
    hook = training.watched_by(make_hook(include_collections=["scalars"]))
    training.train(4)
    rate = read(hook).tensor("scalar/optimizer/group_0/lr")
    found = [float(rate.value(step)) for step in rate.steps()]
    assert found == [0.4, 0.4, 0.2, 0.2]


def test_losses_predictions_and_labels_are_those_of_the_loss(
    make_hook: Callable[..., Any],
    make_training: Callable[..., Any],
    read: Callable[..., Any],
) -> None:
    training = make_training()
    collections = ["predictions", "labels"]
    hook = training.watched_by(make_hook(include_collections=collections))
    training.train(2)
    run = read(hook)
    assert run.tensor_names(collection="predictions") == ["loss_input_0"]
    assert run.tensor_names(collection="losses") == ["loss_output_0"]
    loss = run.tensor("loss_output_0")
    np.testing.assert_array_equal(loss.value(1), training.losses[1])
    labels = run.tensor("loss_input_1").value(1)
    assert labels.dtype == np.int64  # Of floats, as MXNet has numbers of classes.
    np.testing.assert_array_equal(labels, training.batch(1)[1].asnumpy())


def test_forwards_inside_of_record_train_and_others_evaluate(
    make_hook: Callable[..., Any],
    make_training: Callable[..., Any],
    read: Callable[..., Any],
) -> None:
    training = make_training()
    hook = training.watched_by(make_hook(save_all=True))
    for number in range(2):
        training.step(number)
        training.evaluate()
    run = read(hook)
    assert run.steps(mode=TRAIN) == [0, 1]
    assert run.steps(mode=EVAL) == [0, 1]
    assert run.tensor("net_conv0_weight").steps(mode=EVAL) == [0, 1]
    assert run.tensor("net_output_0").steps(mode=EVAL) == [0, 1]
    assert run.tensor("loss_output_0").steps(mode=EVAL) == [0, 1]
    means = run.tensor("buffer/net_batchnorm0_running_mean")
    assert means.steps(mode=TRAIN) == [0, 1]


def test_only_the_steps_that_are_due_are_captured(
    make_hook: Callable[..., Any],
    make_training: Callable[..., Any],
    read: Callable[..., Any],
) -> None:
    training = make_training()
    every = tm.SaveConfig(save_interval=3)
    hook = make_hook(include_collections=["weights", "outputs"], save_config=every)
    training.watched_by(hook)
    training.train(7)
    run = read(hook)
    assert run.tensor("net_conv0_weight").steps() == [0, 3, 6]
    assert run.tensor("net_dense0_output_0").steps() == [0, 3, 6]
    assert run.tensor("loss_output_0").steps() == list(range(7))


def test_a_smaller_last_batch_is_captured_with_its_shape(
    make_hook: Callable[..., Any],
    make_training: Callable[..., Any],
    read: Callable[..., Any],
) -> None:
    training = make_training(hybridize={})
    hook = training.watched_by(make_hook(include_collections=["outputs"]))
    training.step(0)
    training.step(1, size=5)
    output = read(hook).tensor("net_dense0_output_0")
    assert [output.value(step).shape for step in (0, 1)] == [(8, 6), (5, 6)]


def test_the_gradient_of_an_embedding_that_is_sparse_has_the_row_of_the_dense_one(
    make_hook: Callable[..., Any], read: Callable[..., Any]
) -> None:
    words = nd.array([[1, 2, 2], [1, 5, 0]])
    runs = []
    for number, sparse in enumerate((False, True)):
        mx.random.seed(3)
        net = nn.Sequential(prefix="words_")
        with net.name_scope():
            net.add(nn.Embedding(7, 4, sparse_grad=sparse), nn.Dense(1))
        net.initialize()
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        statistics = tm.ReductionConfig(reductions=["mean", "std", "min"])
        hook = make_hook(include_collections=["gradients"], reduction_config=statistics)
        hook.register_block(net)
        with autograd.record():
            loss = (net(words) ** 2).sum()
        loss.backward()
        trainer.step(2)
        runs.append(read(hook, number).tensor("gradient/words_embedding0_weight"))
    for name in ("mean", "std", "min"):
        dense, sparse_ = (run.reduction_value(0, name) for run in runs)
        assert sparse_ == pytest.approx(dense)


@pytest.mark.parametrize("on_store", [True, False])
def test_of_several_devices_the_gradient_is_the_sum_that_the_trainer_uses(
    make_hook: Callable[..., Any], read: Callable[..., Any], on_store: bool
) -> None:
    devices = [mx.cpu(0), mx.cpu(1)]
    mx.random.seed(3)
    net = nn.Dense(2, in_units=3, prefix="d_")
    net.initialize(ctx=devices)
    trainer = gluon.Trainer(
        net.collect_params(),
        "sgd",
        {"learning_rate": 0.5, "momentum": 0.9},
        update_on_kvstore=on_store,
    )
    hook = make_hook(save_all=True)
    hook.register_block(net)
    before = net.weight.data(devices[0]).asnumpy()
    images = nd.array(np.arange(12.0).reshape(4, 3))
    with autograd.record():
        parts = gluon.utils.split_and_load(images, devices)
        losses = [(net(part) ** 2).sum() for part in parts]
    autograd.backward(losses)
    trainer.step(4)
    after = net.weight.data(devices[0]).asnumpy()
    run = read(hook)
    gradient = run.tensor("gradient/d_weight").value(0)
    np.testing.assert_allclose(after, before - 0.5 * gradient / 4, rtol=1e-5)
    np.testing.assert_array_equal(run.tensor("d_weight").value(0), before)
    update = run.tensor("update/d_weight").value(0)
    np.testing.assert_array_equal(update, after - before)
    momentum = run.tensor("optimizer/momentum/d_weight").value(0)
    np.testing.assert_allclose(momentum, after - before, rtol=1e-5)
    assert run.steps(mode=TRAIN) == [0]


def test_gradients_that_add_up_over_forwards_are_one_step(
    make_hook: Callable[..., Any],
    make_training: Callable[..., Any],
    read: Callable[..., Any],
) -> None:
    training = make_training("sgd")
    training.net.collect_params().setattr("grad_req", "add")
    hook = training.watched_by(make_hook(include_collections=["gradients", "outputs"]))
    for number in range(2):
        training.net.collect_params().zero_grad()
        for part in range(2):
            images, labels = training.batch(2 * number + part)
            with autograd.record():
                loss = training.loss(training.net(images), labels)
            loss.backward()
        training.trainer.step(16)
    gradient = training.net[3].weight.grad().asnumpy()
    run = read(hook)
    assert run.steps(mode=TRAIN) == [0, 1]
    captured = run.tensor("gradient/net_dense0_weight").value(1)
    np.testing.assert_array_equal(captured, gradient)


def test_frozen_parameters_have_values_and_no_gradients(
    make_hook: Callable[..., Any],
    make_training: Callable[..., Any],
    read: Callable[..., Any],
) -> None:
    training = make_training()
    training.net[0].collect_params().setattr("grad_req", "null")
    hook = training.watched_by(make_hook(include_collections=["weights", "gradients"]))
    training.train(2)
    run = read(hook)
    assert run.tensor("net_conv0_weight").steps() == [0, 1]
    assert "gradient/net_conv0_weight" not in run.tensor_names()
    assert "gradient/net_dense0_weight" in run.tensor_names()


def test_a_step_that_a_loss_scaler_leaves_out_is_flagged_and_has_no_updates(
    make_hook: Callable[..., Any],
    make_training: Callable[..., Any],
    read: Callable[..., Any],
) -> None:
    from mxnet.contrib.amp.loss_scaler import LossScaler

    training = make_training("sgd")
    hook = training.watched_by(make_hook(include_collections=["updates"]))
    training.step(0)
    training.trainer._amp_loss_scaler = LossScaler()
    images, labels = training.batch(1)
    with autograd.record():
        loss = training.loss(training.net(images), labels) * float("inf")
    loss.backward()
    training.trainer.step(8)
    training.step(2)
    run = read(hook)
    assert run.tensor("update/net_dense0_weight").steps() == [0, 2]
    assert run.step_table()["skipped"].tolist() == [False, True, False]


def test_two_models_with_a_trainer_each_share_a_step(
    make_hook: Callable[..., Any], read: Callable[..., Any]
) -> None:
    nets = [nn.Dense(2, in_units=2, prefix=f"{name}_") for name in ("g", "d")]
    hook = make_hook(include_collections=["weights", "gradients"])
    trainers = []
    for net in nets:
        net.initialize()
        trainers.append(gluon.Trainer(net.collect_params(), "sgd"))
        hook.register_block(net)
    for _ in range(2):
        with autograd.record():
            loss = nets[1](nets[0](nd.ones((3, 2)))).sum()
        loss.backward()
        for trainer in trainers:
            trainer.step(3)
    run = read(hook)
    assert run.steps(mode=TRAIN) == [0, 1]
    for name in ("g_weight", "d_weight", "gradient/g_weight", "gradient/d_weight"):
        assert run.tensor(name).steps() == [0, 1]
