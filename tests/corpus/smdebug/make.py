"""Writes a case of this corpus by smdebug 1.0.34, and what smdebug reads from it.

    python make.py CASE FOLDER        in an environment that has smdebug

The environment is that of benchmarks/environments/smdebug.txt for the cases of PyTorch,
smdebug_trees.txt for xgboost; for keras and tape tensorflow-cpu 2.12, for mxnet
mxnet 1.9.1, each with protobuf 3.20.3, NumPy 1.23.5 and pandas 2.0.

FOLDER/CASE then has the output directory (``out``) and ``expected.json`` with
``expected.npz``: every value and stored reduction as ``smdebug.trials`` returns it, by
tensor, mode, step and worker, or the name of the error that it raises.
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np


def pytorch(out: str) -> None:
    """Every kind of tensor, training and evaluation, two epochs."""
    import torch
    from smdebug.pytorch import Hook, SaveConfig, modes

    torch.manual_seed(0)
    model, loss = _net(), torch.nn.CrossEntropyLoss()
    hook = Hook(
        out,
        save_config=SaveConfig(save_interval=2),
        include_collections=["weights", "biases", "gradients", "losses"],
        include_regex=["relu", "Loss_input"],
    )
    hook.register_module(model)
    hook.register_loss(loss)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        hook.set_mode(modes.TRAIN)
        for _ in range(4):
            _train(model, loss, optimizer)
            hook.save_scalar("lr", 0.1)
        hook.set_mode(modes.EVAL)
        with torch.no_grad():
            for _ in range(2):
                loss(model(torch.randn(5, 1, 8, 8)), torch.randint(0, 3, (5,)))
    hook.close()


def reductions(out: str) -> None:
    """Reductions and shapes without values, in the mode GLOBAL."""
    import torch
    from smdebug.pytorch import Hook, ReductionConfig, SaveConfig

    torch.manual_seed(1)
    model, loss = _net(), torch.nn.CrossEntropyLoss()
    hook = Hook(
        out,
        save_config=SaveConfig(save_interval=1),
        include_collections=["weights", "gradients", "losses"],
        reduction_config=ReductionConfig(
            reductions=["min", "max", "mean", "std", "sum"],
            abs_reductions=["mean", "max"],
            norms=["l1", "l2"],
            save_shape=True,
        ),
    )
    hook.register_module(model)
    hook.register_loss(loss)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        _train(model, loss, optimizer)
    hook.close()


def workers(out: str) -> None:
    """Two processes of one training."""
    multiprocessing.set_start_method("spawn")
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            multiprocessing.Process(target=_worker, args=(rank, folder, out))
            for rank in range(2)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()


def _worker(rank: int, folder: str, out: str) -> None:
    import torch
    from smdebug.pytorch import Hook, SaveConfig, modes

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    torch.manual_seed(2)
    model, loss = torch.nn.Sequential(torch.nn.Linear(3, 2)), torch.nn.MSELoss()
    hook = Hook(
        out,
        save_config=SaveConfig(save_interval=1),
        include_collections=["weights", "gradients", "losses"],
        include_regex="Loss_input",
        include_workers="all",
    )
    hook.register_module(model)
    hook.register_loss(loss)
    hook.set_mode(modes.TRAIN)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(10 + rank)
    for _ in range(3):
        optimizer.zero_grad()
        loss(model(torch.randn(4, 3)), torch.randn(4, 2)).backward()
        optimizer.step()
        torch.distributed.barrier()
    hook.close()


def _net():
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = torch.nn.Conv2d(1, 4, 3)
            self.relu = torch.nn.ReLU()
            self.fc = torch.nn.Linear(4 * 36, 3)

        def forward(self, x):
            return self.fc(self.relu(self.conv1(x)).flatten(1))

    return Net()


def _train(model, loss, optimizer) -> None:
    import torch

    optimizer.zero_grad()
    loss(model(torch.randn(5, 1, 8, 8)), torch.randint(0, 3, (5,))).backward()
    optimizer.step()


def keras(out: str) -> None:
    """Model.fit with evaluation, everything saved."""
    import tensorflow as tf
    from smdebug.tensorflow import KerasHook, SaveConfig

    tf.random.set_seed(0)
    rng = np.random.default_rng(0)
    model = _keras_model(tf)
    hook = KerasHook(out, save_config=SaveConfig(save_interval=2), save_all=True)
    model.compile(
        optimizer=hook.wrap_optimizer(tf.keras.optimizers.legacy.Adam(0.01)),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        run_eagerly=True,
    )
    hook.register_model(model)
    x = rng.normal(size=(16, 3)).astype(np.float32)
    y = rng.integers(0, 2, 16)
    model.fit(
        x,
        y,
        epochs=2,
        batch_size=4,
        callbacks=[hook],
        validation_data=(x[:8], y[:8]),
        verbose=0,
    )
    hook.close()


def tape(out: str) -> None:
    """A loop with a GradientTape."""
    import tensorflow as tf
    from smdebug.tensorflow import KerasHook, SaveConfig, modes

    tf.random.set_seed(0)
    rng = np.random.default_rng(0)
    model = _keras_model(tf)
    hook = KerasHook(out, save_config=SaveConfig(save_interval=1), save_all=True)
    optimizer = hook.wrap_optimizer(tf.keras.optimizers.legacy.SGD(0.1))
    hook.register_model(model)
    hook.set_mode(modes.TRAIN)
    for _ in range(3):
        x = rng.normal(size=(4, 3)).astype(np.float32)
        with hook.wrap_tape(tf.GradientTape()) as recorded:
            probabilities = model(x, training=True)
            loss = tf.reduce_mean(
                tf.keras.losses.sparse_categorical_crossentropy(
                    np.array([0, 1, 0, 1]), probabilities
                )
            )
        gradients = recorded.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(
            zip(gradients, model.trainable_variables, strict=True)
        )
        hook.record_tensor_value("tape_loss", loss)
    hook.close()


def _keras_model(tf):
    return tf.keras.Sequential(
        [
            tf.keras.layers.Dense(4, activation="relu", input_shape=(3,), name="d1"),
            tf.keras.layers.Dense(2, activation="softmax", name="d2"),
        ]
    )


def mxnet(out: str) -> None:
    """Gluon, everything saved."""
    import mxnet as mx
    from mxnet import autograd, gluon
    from smdebug.mxnet import Hook, SaveConfig, modes

    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(4, activation="relu"), gluon.nn.Dense(2))
    net.initialize(mx.init.Xavier())
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    hook = Hook(out, save_config=SaveConfig(save_interval=2), save_all=True)
    hook.register_block(net)
    hook.register_block(loss)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    labels = mx.nd.array([0, 1, 0, 1, 1])
    hook.set_mode(modes.TRAIN)
    for _ in range(5):
        with autograd.record():
            value = loss(net(mx.nd.random.normal(shape=(5, 3))), labels)
        value.backward()
        trainer.step(5)
    hook.set_mode(modes.EVAL)
    for _ in range(2):
        loss(net(mx.nd.random.normal(shape=(5, 3))), labels).wait_to_read()
    hook.close()


def xgboost(out: str) -> None:
    """Everything that the hook for boosted trees can save."""
    import xgboost as xgb
    from smdebug.xgboost import Hook, SaveConfig

    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    y = (x[:, 0] + x[:, 1] > 0).astype(int)
    train, valid = xgb.DMatrix(x, y), xgb.DMatrix(x[:20], y[:20])
    settings = {
        "objective": "binary:logistic",
        "eval_metric": ["logloss", "auc"],
        "eta": 0.3,
        "max_depth": 2,
    }
    hook = Hook(
        out,
        save_config=SaveConfig(save_interval=2),
        save_all=True,
        hyperparameters=settings,
        train_data=train,
        validation_data=valid,
    )
    xgb.train(
        settings,
        train,
        num_boost_round=6,
        evals=[(train, "train"), (valid, "validation")],
        callbacks=[hook],
        verbose_eval=False,
    )
    hook.close()


CASES = (pytorch, reductions, workers, keras, tape, mxnet, xgboost)


def expect(out: str, folder: Path) -> None:
    """Write what smdebug's trial returns."""
    from smdebug.core.modes import ModeKeys
    from smdebug.trials import create_trial

    trial = create_trial(out)
    arrays: list[np.ndarray] = []
    values, reduced = [], []
    for name in trial.tensor_names():
        tensor = trial.tensor(name)
        for mode in ModeKeys:
            # GLOBAL would repeat what the other modes have.
            if mode is ModeKeys.GLOBAL and trial.modes():
                continue
            for step in tensor._all_steps(mode):
                for worker in tensor.workers(step, mode):
                    place = {
                        "tensor": name,
                        "mode": mode.name,
                        "step": int(step),
                        "worker": worker,
                    }
                    try:
                        value = tensor.value(step, mode, worker)
                        arrays.append(value)
                        values.append({**place, "array": len(arrays) - 1})
                    except Exception as error:
                        values.append({**place, "error": type(error).__name__})
                    stored = tensor.reduction_values(step, mode, worker)
                    for (reduction, absolute), number in stored.items():
                        about = {"reduction": reduction, "abs": absolute}
                        value = float(np.asarray(number).item())
                        reduced.append({**place, **about, "value": value})
    document = {
        "tensor_names": trial.tensor_names(),
        "global_steps": [int(step) for step in trial.steps()],
        "steps": {
            mode.name: [int(step) for step in trial.steps(mode)]
            for mode in trial.modes()
        },
        "workers": trial.workers(),
        "values": values,
        "reductions": reduced,
    }
    (folder / "expected.json").write_text(json.dumps(document, indent=0) + "\n")
    np.savez_compressed(
        folder / "expected.npz", **{str(i): array for i, array in enumerate(arrays)}
    )


def main() -> None:
    cases = {case.__name__: case for case in CASES}
    case, folder = cases[sys.argv[1]], Path(sys.argv[2]) / sys.argv[1]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    case(str(folder / "out"))
    shutil.rmtree(folder / "out" / "tensorboard", ignore_errors=True)
    expect(str(folder / "out"), folder)


if __name__ == "__main__":
    main()
