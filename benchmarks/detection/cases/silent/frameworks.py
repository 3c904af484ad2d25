"""The same in Keras, JAX, XGBoost and LightGBM."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.detection.kit.case import sixth
from benchmarks.detection.kit.data import breast_cancer, digits
from benchmarks.detection.kit.harm import conclude
from benchmarks.detection.kit.training import Training

Array = NDArray[Any]


def arrays(*, tumours: bool = False) -> tuple[Array, Array, Array, Array]:
    """Digits or tumours: to train on, and new ones."""
    split = breast_cancer() if tumours else digits()
    parts = (split.x, split.y, split.x_val, split.y_val)
    return tuple(part.numpy() for part in parts)  # type: ignore[return-value]


def keras_of(t: Training) -> Any:
    """Keras on JAX, seeded."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import keras

    keras.utils.set_random_seed(t.seed)
    return keras


@sixth.silent(
    "probabilities or logits", "from_logits is not set for an output of logits"
)
def keras_logits_as_probabilities(t: Training) -> None:
    """``SparseCategoricalCrossentropy()`` for a Dense layer without softmax.

    Source: github.com/keras-team/keras and stackoverflow threads on from_logits (values
    are clipped to probabilities, and the loss falls all the same).
    Visible: new images are recognized in fewer than 80 % of cases; sums of outputs are
    not 1.
    """
    keras = keras_of(t)
    x, y, x_val, y_val = arrays()
    layers = [keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((64,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=not t.sick)
    model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"])
    t.counted(4 * (len(x) // 32 + 1))
    model.fit(x, y, 32, 4, verbose=0, callbacks=t.callbacks("keras"))
    accuracy = float((model.predict(x_val, verbose=0).argmax(1) == y_val).mean())
    t.note(accuracy=accuracy)
    conclude(t, fault=accuracy < 0.8, reached=accuracy > 0.85)


@sixth.silent(
    "rows out of order", "validation_split takes the last rows of sorted data"
)
def keras_split_of_sorted_rows(t: Training) -> None:
    """``fit(x, y, validation_split=0.2)`` with rows in the order of their classes.

    Source: github.com/keras-team/keras/issues/8346, /6422, /597, /4298 (a validation
    accuracy of 0).
    Visible: two classes are not in the training at all, and of new images fewer than
    85 % are recognized.
    """
    keras = keras_of(t)
    x, y, x_val, y_val = arrays()
    luck = np.random.default_rng(t.seed)
    order = y.argsort(kind="stable") if t.sick else luck.permutation(len(y))
    x, y = x[order], y[order]
    layers = [keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((64,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"])
    t.counted(5 * 34)
    model.fit(
        x, y, 32, 5, verbose=0, validation_split=0.2, callbacks=t.callbacks("keras")
    )
    missing = 10 - len(np.unique(y[: int(len(y) * 0.8)]))
    accuracy = float((model.predict(x_val, verbose=0).argmax(1) == y_val).mean())
    t.note(accuracy=accuracy, missing=missing)
    conclude(t, fault=missing > 0, reached=accuracy > 0.85)


@sixth.silent("random in evaluation", "Dropout is called with training=True")
def keras_dropout_is_always_on(t: Training) -> None:
    """``Dropout(0.6)(x, training=True)`` was copied from a Monte Carlo example.

    Source: keras.io on the training argument; github.com/keras-team/keras threads on
    dropout at inference.
    Visible: the same images get other answers the second time.
    """
    keras = keras_of(t)
    x, y, x_val, y_val = arrays()

    class Dropped(keras.Model):  # type: ignore[misc, name-defined]
        """One hidden layer with dropout."""

        def __init__(self) -> None:
            super().__init__()
            self.hidden = keras.layers.Dense(64, "relu")
            self.drop = keras.layers.Dropout(0.6)
            self.head = keras.layers.Dense(10)

        def call(self, given: Any, training: bool = False) -> Any:
            on = True if t.sick else training
            return self.head(self.drop(self.hidden(given), training=on))

    model = Dropped()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"])
    t.counted(4 * (len(x) // 32 + 1))
    model.fit(
        x,
        y,
        32,
        4,
        verbose=0,
        validation_data=(x_val, y_val),
        callbacks=t.callbacks("keras"),
    )
    twice = [model.predict(x_val, verbose=0) for _ in range(2)]
    differs = float((twice[0].argmax(1) != twice[1].argmax(1)).mean())
    accuracy = float((twice[0].argmax(1) == y_val).mean())
    t.note(differs=differs, accuracy=accuracy)
    conclude(t, fault=differs > 0.03, reached=accuracy > 0.85)


def jax_network(seed: int) -> Any:
    """Weights of a network with one hidden layer."""
    import jax

    first, second = jax.random.split(jax.random.key(seed))
    return {
        "w1": jax.random.normal(first, (64, 64)) / 8,
        "b1": jax.numpy.zeros(64),
        "w2": jax.random.normal(second, (64, 10)) / 8,
        "b2": jax.numpy.zeros(10),
    }


@sixth.silent("same random numbers", "the same PRNG key is used in every step")
def jax_key_is_reused(t: Training) -> None:
    """Dropout gets ``key`` in each step; nobody splits it.

    Source: docs.jax.dev, "Sharp bits: JAX PRNG" and github.com/google/flax and jax
    discussions on dropout keys that do not change.
    Visible: the mask of step 1 is that of step 0: half of the units never learn.
    """
    import jax
    import optax
    from jax import numpy as jnp

    x, y, x_val, y_val = arrays()
    params = jax_network(t.seed)
    tx = optax.adam(3e-3)
    state = tx.init(params)
    key = jax.random.key(t.seed + 7)

    def loss_of(params: Any, x: Any, y: Any, key: Any) -> Any:
        hidden = jax.nn.relu(x @ params["w1"] + params["b1"])
        mask = jax.random.bernoulli(key, 0.5, (64,)) * 2.0
        logits = hidden * mask @ params["w2"] + params["b2"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step(params: Any, state: Any, x: Any, y: Any, key: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(params, x, y, key)
        updates, state = tx.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    compiled = t.jit(step)
    begin = np.asarray(params["w1"])
    keys = set()
    for _, rows in t.batches(150, len(x), 32, drop_last=True):
        used = key
        if not t.sick:
            key, used = jax.random.split(key)
        keys.add(tuple(np.asarray(jax.random.key_data(used)).tolist()))
        params, state, _ = compiled(
            params, state, x[rows.numpy()], y[rows.numpy()], used
        )
    still = float((np.asarray(params["w1"]) == begin).all(0).mean())
    hidden = jnp.maximum(x_val @ params["w1"] + params["b1"], 0)
    told = np.asarray(hidden @ params["w2"] + params["b2"]).argmax(1)
    accuracy = float((told == y_val).mean())
    t.note(keys=len(keys), still=still, accuracy=accuracy)
    conclude(t, fault=len(keys) == 1, reached=accuracy > 0.85, harms=False)


@sixth.silent(
    "gradient through the target", "stop_gradient is missing: the target learns"
)
def jax_target_has_a_gradient(t: Training) -> None:
    """A value's target is ``r + gamma * v(s')`` without ``stop_gradient``.

    Source: deepmind/rlax and JAX threads on semi-gradients; docs.jax.dev, "Advanced
    automatic differentiation: stopping gradients" (TD(0)).
    Visible: values are off by 0.1 where rewards are noisy.
    """
    import jax
    import optax
    from jax import numpy as jnp

    n, discount = 8, 0.95
    luck = np.random.default_rng(t.seed)
    params = {"v": jnp.zeros(n)}
    tx = optax.sgd(0.5)
    state = tx.init(params)

    def loss_of(params: Any, at: Any, after: Any, reward: Any, goes_on: Any) -> Any:
        ahead = params["v"][after] * goes_on
        target = reward + discount * (ahead if t.sick else jax.lax.stop_gradient(ahead))
        return ((params["v"][at] - target) ** 2).mean()

    def step(params: Any, state: Any, *batch: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(params, *batch)
        updates, state = tx.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    compiled = t.jit(step)
    for _ in t.steps(400):
        at = luck.integers(n, size=64)
        # Back to the beginning by chance: where it leads is not certain.
        after = np.where(luck.random(64) < 0.3, 0, at + 1)
        goes_on = (after < n).astype(np.float32)
        reward = (after == n).astype(np.float32)
        batch = (at, np.minimum(after, n - 1), reward, goes_on)
        params, state, _ = compiled(params, state, *batch)
    true = np.zeros(n)
    for _ in range(500):
        ahead = np.append(true[1:], 0.0)
        ends = np.append(np.zeros(n - 1), 1.0)
        true = 0.7 * (ends + discount * ahead) + 0.3 * discount * true[0]
    off = float(np.abs(np.asarray(params["v"]) - true).mean())
    t.note(off=off)
    conclude(t, fault=off > 0.08, reached=off < 0.05)


@sixth.silent("stale statistics", "the updated batch_stats are dropped")
def flax_statistics_are_dropped(t: Training) -> None:
    """``apply(..., mutable=["batch_stats"])`` returns what nobody keeps.

    Source: flax's guide on batch normalization and github.com/google/flax/pull/2536;
    github.com/takerum/vat_tf/issues/6 (mean and variance stay 0 and 1).
    Visible: running means are zero, and fewer than 85 % of new images are recognized.
    """
    import flax.linen as nn
    import jax
    import optax

    class Net(nn.Module):
        """One hidden layer with batch normalization."""

        @nn.compact
        def __call__(self, x: Any, train: bool) -> Any:
            x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(
                nn.Dense(64)(x)
            )
            return nn.Dense(10)(nn.relu(x))

    x, y, x_val, y_val = arrays()
    x, x_val = 6 * x + 3, 6 * x_val + 3
    net = Net()
    made = net.init(jax.random.key(t.seed), x[:2], False)
    params, statistics = made["params"], made["batch_stats"]
    tx = optax.adam(3e-3)
    state = tx.init(params)

    def loss_of(params: Any, statistics: Any, x: Any, y: Any) -> Any:
        given = {"params": params, "batch_stats": statistics}
        logits, new = net.apply(given, x, True, mutable=["batch_stats"])
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
        return loss, new["batch_stats"]

    def step(params: Any, state: Any, statistics: Any, x: Any, y: Any) -> Any:
        slope = jax.value_and_grad(loss_of, has_aux=True)
        (loss, new), gradients = slope(params, statistics, x, y)
        updates, state = tx.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss, new

    compiled = t.jit(step)
    for _, rows in t.batches(120, len(x), 32, drop_last=True):
        batch = (x[rows.numpy()], y[rows.numpy()])
        params, state, _, new = compiled(params, state, statistics, *batch)
        statistics = statistics if t.sick else new
    given = {"params": params, "batch_stats": statistics}
    told = np.asarray(net.apply(given, x_val, False)).argmax(1)
    accuracy = float((told == y_val).mean())
    still = not np.asarray(statistics["BatchNorm_0"]["mean"]).any()
    t.note(accuracy=accuracy)
    conclude(t, fault=still, reached=accuracy > 0.85)


def xgboost_trained(
    t: Training,
    train: tuple[Array, Array],
    valid: tuple[Array, Array],
    **more: Any,
) -> Any:
    """Boosted trees, watched."""
    import xgboost

    rounds = more.pop("rounds", 40)
    stop = more.pop("stop", None)
    given = {
        "objective": "binary:logistic",
        "max_depth": 3,
        "seed": t.seed,
        "nthread": 1,
    }
    data = xgboost.DMatrix(*train)
    t.counted(rounds)
    return xgboost.train(
        {**given, **more},
        data,
        rounds,
        evals=[(data, "train"), (xgboost.DMatrix(*valid), "valid")],
        early_stopping_rounds=stop,
        verbose_eval=False,
        callbacks=t.callbacks("xgboost"),
    )


def xgboost_right(booster: Any, x: Array, y: Array) -> float:
    """The accuracy on these rows."""
    import xgboost

    return float(((booster.predict(xgboost.DMatrix(x)) > 0.5) == y).mean())


@sixth.silent("label among the features", "the label is a column of the features")
def xgboost_reads_the_label(t: Training) -> None:
    """``x = table.values`` where ``table.drop(columns="target")`` was meant.

    Source: Kaggle, "Data leakage"; Kaufman et al., "Leakage in data mining" (2011);
    stackoverflow threads on an accuracy of 1.0 with XGBoost.
    Visible: one tree of one split says all: a single feature has all of the gain.
    When the model is used, nobody knows that column.
    """
    x, y, x_val, y_val = arrays(tumours=True)
    last = (y, y_val) if t.sick else (x[:, 0], x_val[:, 0])
    table, table_val = (
        np.column_stack((a, b)) for a, b in zip((x, x_val), last, strict=True)
    )
    booster = xgboost_trained(t, (table, y), (table_val, y_val))
    unknown = np.full(len(x_val), np.nan) if t.sick else x_val[:, 0]
    accuracy = xgboost_right(booster, np.column_stack((x_val, unknown)), y_val)
    gains = booster.get_score(importance_type="total_gain")
    alone = max(gains.values()) / sum(gains.values())
    t.note(accuracy=accuracy, alone=alone)
    conclude(t, fault=alone > 0.999, reached=accuracy > 0.9)


@sixth.silent(
    "stopped by what was trained on", "early stopping watches the training rows"
)
def xgboost_stops_by_training_rows(t: Training) -> None:
    """``evals=[..., (dtrain, "valid")]``: the last of them decides when to stop.

    Source: github.com/dmlc/xgboost issues on early_stopping_rounds and the order of
    evals; stackoverflow on early stopping that never stops.
    Visible: all 400 rounds are trained, though new rows got worse long before.
    """
    x, y, x_val, y_val = arrays(tumours=True)
    luck = np.random.default_rng(0)
    noisy = np.where(luck.random(len(y)) < 0.2, 1 - y, y)
    half = len(x) * 3 // 4
    known = (x[:half], noisy[:half])
    told = known if t.sick else (x[half:], noisy[half:])
    booster = xgboost_trained(t, known, told, rounds=400, stop=15, eta=0.3, max_depth=6)
    rounds = booster.num_boosted_rounds()
    accuracy = xgboost_right(booster, x_val, y_val)
    t.note(rounds=rounds, accuracy=accuracy)
    conclude(t, fault=rounds > 100, reached=rounds < 100 and accuracy > 0.88)


@sixth.silent("weights of rows", "scale_pos_weight is upside down")
def xgboost_weight_upside_down(t: Training) -> None:
    """``scale_pos_weight = positives / negatives``; it is negatives by positives.

    Source: xgboost.readthedocs.io, "Notes on parameter tuning: handle imbalanced
    dataset", and github.com/dmlc/xgboost issues on it.
    Visible: fewer than 35 % of the rare rows among new ones are found.
    """
    x, y, x_val, y_val = arrays(tumours=True)
    rare = np.flatnonzero(y == 0)[:14]
    rows = np.concatenate((rare, np.flatnonzero(y == 1)))
    x, y = x[rows], (y[rows] == 0).astype(np.float32)
    ratio = (y == 0).sum() / (y == 1).sum()
    luck = np.random.default_rng(1)
    x = x + 0.8 * luck.normal(size=x.shape)
    new = (y_val == 0).astype(np.float32)
    x_val = x_val + 0.8 * luck.normal(size=x_val.shape)
    weight = float(1 / ratio if t.sick else ratio)
    booster = xgboost_trained(
        t, (x, y), (x_val, new), scale_pos_weight=weight, max_depth=2
    )
    import xgboost

    told = booster.predict(xgboost.DMatrix(x_val)) > 0.5
    found = float(told[new == 1].mean())
    t.note(found=found, weight=weight)
    conclude(t, fault=weight < 1, reached=found > 0.35)


@sixth.silent(
    "evaluated on what was trained on", "rows of one patient are in both parts"
)
def lightgbm_patients_in_both_parts(t: Training) -> None:
    """Several rows of each patient are split at random, not by patient.

    Source: Roberts et al. (2021) on leakage in medical imaging; scikit-learn's
    GroupShuffleSplit; Kapoor and Narayanan (2023), L3.2.
    Visible: nearly every validation row has a row of its own patient in the training,
    and what is said is 10 points better than for new patients.
    """
    import lightgbm

    x, y, x_new, y_new = arrays(tumours=True)
    luck = np.random.default_rng(0)
    y = np.where(luck.random(len(y)) < 0.3, 1 - y, y)
    y_new = np.where(luck.random(len(y_new)) < 0.3, 1 - y_new, y_new)
    patients = np.repeat(np.arange(len(x)), 4)
    x = x[patients] + 0.02 * luck.normal(size=(len(patients), x.shape[1]))
    y = y[patients]
    told = luck.random(len(x)) < 0.25 if t.sick else patients % 4 == 0
    train = lightgbm.Dataset(x[~told], y[~told])
    valid = train.create_valid(x[told], y[told])
    given = {"objective": "binary", "verbosity": -1, "num_threads": 1, "seed": t.seed}
    t.counted(60)
    booster = lightgbm.train(
        {**given, "num_leaves": 63, "min_data_in_leaf": 3},
        train,
        60,
        valid_sets=[valid],
        valid_names=["valid"],
        callbacks=t.callbacks("lightgbm"),
    )
    said = float(((booster.predict(x[told]) > 0.5) == y[told]).mean())
    true = float(((booster.predict(x_new) > 0.5) == y_new).mean())
    shared = float(np.isin(patients[told], patients[~told]).mean())
    t.note(said=said, true=true, shared=shared)
    conclude(t, fault=shared > 0.5, reached=said < true + 0.08)
