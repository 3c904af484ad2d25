"""Loops with tapes: each situation is a run of its own."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from common import EVERY, OUT, X, Y, finish, outcome, report, simple

import tdbg.tensorflow as tt
from tdbg.hooks.tensorflow.compiled import FunctionStep
from tdbg.hooks.tensorflow.forwards import Forwards
from tdbg.hooks.tensorflow.optimizers import OptimizerSteps
from tdbg.hooks.tensorflow.reports import Reports
from tdbg.hooks.tensorflow.steps import LoopSteps
from tdbg.run.requests import request_stop

Step = Callable[..., Any]
NUMBERS = slice(0, 16)


def entropy() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def watch(name: str, model: Any, optimizer: Any, **arguments: Any) -> tt.Hook:
    settings: dict[str, Any] = {"save_all": True, "save_config": EVERY}
    return tt.watch(model, optimizer, out=OUT / name, **{**settings, **arguments})


def batches(n: int) -> Any:
    for i in range(n):
        rows = slice(i % 4 * 16, i % 4 * 16 + 16)
        yield tf.constant(X[rows]), tf.constant(Y[rows])


def weights(model: Any) -> list[Any]:
    return [each.tolist() for each in model.get_weights()]


def close(name: str, made: tt.Hook, **more: Any) -> None:
    report[name] = {"counters": made.counters(), "steps": made.n_steps, **more}
    made.close()


# ---- the same training in every way ------------------------------------------------

WAYS = ("plain", "eager", "graph", "function", "XLA")


def compile_step(way: str, made: Any, step: Step, **options: Any) -> Step:
    """Run a step as it is, or compiled by TensorFlow or by the hook."""
    if way in {"plain", "eager"}:
        return step
    if way == "graph":
        return tf.function(step)
    compiled: Step = made.function(step, jit_compile=way == "XLA", **options)
    return compiled


def train(name: str) -> None:
    model, optimizer, loss_of = simple(), keras.optimizers.Adam(0.01), entropy()
    made = None if name == "plain" else watch(name, model, optimizer, loss=loss_of)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        variables = model.trainable_variables
        grads = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(grads, variables, strict=True))
        return loss

    def evaluate(x: Any, y: Any) -> Any:
        return loss_of(y, model(x, training=False))

    compiled = compile_step(name, made, step)
    evaluation = compile_step(name, made, evaluate, mode=tt.ModeKeys.EVAL)
    losses, evaluated = [], []
    for i, batch in enumerate(batches(8)):
        losses.append(float(compiled(*batch)))
        if i % 4 == 3:
            evaluated += [float(evaluation(*batch)) for batch in batches(2)]
    more = {"losses": losses, "evaluated": evaluated, "weights": weights(model)}
    if made is None:
        report[name] = more
        return
    close(name, made, **more)
    owned = [model, optimizer, *model.layers]
    report[name]["left"] = [key for each in owned for key in ("call", "apply")
                            if key in vars(each)]  # fmt: skip
    report[name]["loss is"] = (
        type(loss_of) is keras.losses.SparseCategoricalCrossentropy
    )


for each in WAYS:
    train(each)


def changes_before(name: str) -> None:
    """A loop whose collections change between `watch` and its first step."""
    model, optimizer, loss_of = simple(), keras.optimizers.SGD(0.1), entropy()
    every = tt.SaveConfig(save_interval=3, statistics_interval=3)
    made = watch(name, model, optimizer, loss=loss_of, save_config=every)
    made.get_collection("losses").save_config = EVERY

    @tf.function
    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        variables = model.trainable_variables
        grads = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(grads, variables, strict=True))

    for batch in batches(5):
        step(*batch)
    close(name, made)


changes_before("changes")


def changes_within(name: str) -> None:
    """A loop that captures something else once its step was compiled with taps."""
    model, optimizer = simple(), keras.optimizers.SGD(0.1)
    only = {"save_all": False, "include_collections": ["gradients"]}
    made = watch(name, model, optimizer, **only)
    loss_of = made.wrap_loss(keras.losses.sparse_categorical_crossentropy)

    @made.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(loss_of(y, model(x, training=True)))
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    for i, batch in enumerate(batches(4)):
        if i == 2:
            late = tt.Collection("late")
            late.include("output")
            made.add_collection(late)
        step(*batch)
    close(name, made, n_traces=step.n_traces)


changes_within("changes within")


def rarely(name: str) -> None:
    """A loop of which most steps have nothing but their loss, with an error in one."""
    model, optimizer, loss_of = simple(), keras.optimizers.SGD(0.1), entropy()
    every = tt.SaveConfig(save_interval=16, statistics_interval=16)
    made = watch(name, model, optimizer, save_config=every)
    made.get_collection("losses").save_config = EVERY
    told, begin = [], LoopSteps.begin_forward

    @made.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        variables = model.trainable_variables
        grads = tape.gradient(loss, variables)
        with tf.control_dependencies([tf.debugging.assert_less(loss, 1e6)]):
            optimizer.apply([tf.identity(each) for each in grads], variables)
        return loss

    def counted(steps: LoopSteps, mode: tt.ModeKeys) -> Any:
        told.append(mode.name)
        return begin(steps, mode)

    losses, errors = [], []
    LoopSteps.begin_forward = counted
    try:
        for i, (x, y) in enumerate(batches(24)):
            try:
                losses.append(float(step(x * (1e30 if i == 20 else 1), y)))
            except tf.errors.InvalidArgumentError:
                errors.append(i)
            if i == 10:
                model(x, training=False)
    finally:
        LoopSteps.begin_forward = begin
    close(name, made, losses=losses, errors=errors, told=told)


rarely("rarely")


# ---- tapes of every sort -----------------------------------------------------------


def players(name: str, compiled: Callable[[Step], Step]) -> None:
    """Two models and two optimizers: the critic with a penalty, by nested tapes."""
    keras.utils.set_random_seed(0)
    generator = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, name="g1")])
    critic = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1, name="c1")])
    of_generator, of_critic = keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.1)
    loss_of = keras.losses.BinaryCrossentropy(from_logits=True)
    made = watch(name, critic, of_critic, loss=loss_of)
    made.register(generator)
    made.register_optimizer(of_generator, model=generator, defines_step=True)
    given: list[Any] = []

    def step(x: Any) -> Any:
        noise = tf.zeros_like(x) + 0.5
        with tf.GradientTape(persistent=True) as tape:
            false, true = critic(generator(noise, training=True), training=True), None
            with tf.GradientTape() as inner:
                inner.watch(x)
                true = critic(x, training=True)
            slope = inner.gradient(true, x)
            of_c = loss_of(tf.ones_like(true), true)
            of_c += loss_of(tf.zeros_like(false), false)
            of_c += tf.reduce_mean(slope**2)
            of_g = loss_of(tf.ones_like(false), false)
        for loss, model, optimizer in (
            (of_c, critic, of_critic),
            (of_g, generator, of_generator),
        ):
            grads = tape.gradient(loss, model.trainable_variables)
            optimizer.apply(grads, model.trainable_variables)
            given.extend(grads if tf.executing_eagerly() else ())
        return of_c

    made_step = compiled(step)
    for x, _ in batches(4):
        made_step(x)
    close(name, made, given=[each.numpy().tolist() for each in given])


def structures(name: str, compiled: Callable[[Step], Step]) -> None:
    """Gradients of a dict, of which one has none; a variable of no model."""
    model, optimizer, loss_of = simple(), keras.optimizers.SGD(0.1), entropy()
    other = keras.Variable(np.zeros(3, "float32"), name="other")
    made = watch(name, model, optimizer)

    def compute_loss(labels: Any, logits: Any) -> Any:
        return loss_of(labels, logits)

    compute = made.wrap_loss(compute_loss)

    def step(x: Any, y: Any) -> Any:
        named = {each.path: each for each in model.trainable_variables}
        named["other"] = other
        with tf.GradientTape() as tape:
            loss = compute(y, model(x, training=True) + other)
        grads = tape.gradient(loss, {k: v.value for k, v in named.items()})
        optimizer.apply([grads[k] for k in named], list(named.values()))
        return loss

    made_step = compiled(step)
    for batch in batches(4):
        made_step(*batch)
    close(name, made)


def sparse(name: str, compiled: Callable[[Step], Step]) -> None:
    """The gradient of an embedding is given as slices."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((5,), dtype="int32"),
            keras.layers.Embedding(50, 4, name="table"),
            keras.layers.Flatten(name="flat"),
            keras.layers.Dense(3, name="out"),
        ]
    )
    optimizer, loss_of = keras.optimizers.SGD(0.1), entropy()
    made = watch(name, model, optimizer, loss=loss_of, rules=["DeadEmbedding"])

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(grads, model.trainable_variables)
        return isinstance(grads[0], tf.IndexedSlices)

    made_step = compiled(step)
    numbers = np.arange(16 * 5).reshape(16, 5) % 13
    is_sparse = [bool(made_step(tf.constant(numbers), tf.constant(Y[NUMBERS])))
                 for _ in range(2)]  # fmt: skip
    close(name, made, sparse=is_sparse)


def parts(name: str, compiled: Callable[[Step], Step]) -> None:
    """Layers that are called without the model; micro-batches added up by hand."""
    model, optimizer, loss_of = simple(), keras.optimizers.SGD(0.1), entropy()
    made = watch(name, model, optimizer, loss=loss_of)
    first, second = model.layers

    def gradients(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, second(first(x)))
        return tape.gradient(loss, model.trainable_variables)

    made_gradients = compiled(gradients)
    for _ in range(2):
        of_all = [made_gradients(*batch) for batch in batches(3)]
        total = [tf.add_n(each) for each in zip(*of_all, strict=True)]
        optimizer.apply(total, model.trainable_variables)
    close(name, made)


def measured(name: str, compiled: Callable[[Step], Step]) -> None:
    """The model is called as in training once more, for a number after the update."""
    model, optimizer, loss_of = simple(), keras.optimizers.SGD(0.1), entropy()
    made = watch(name, model, optimizer, loss=loss_of)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            given = model(x, training=True)
            loss = loss_of(y, given)
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        return given, loss, loss_of(y, model(x, training=True))

    made_step = compiled(step)
    returned = [[np.asarray(each).tolist() for each in made_step(*batch)]
                for batch in batches(4)]  # fmt: skip
    close(name, made, returned=returned)


for name, compiled in (("eager", lambda step: step), ("graph", tf.function)):
    measured(f"measured {name}", compiled)
    players(f"players {name}", compiled)
    structures(f"structures {name}", compiled)
    sparse(f"sparse {name}", compiled)
    parts(f"parts {name}", compiled)


# ---- life --------------------------------------------------------------------------


def life() -> None:
    """Models are saved, exported, copied and pickled while they are watched."""
    model, optimizer, loss_of = simple(), keras.optimizers.SGD(0.1), entropy()
    made = watch("life", model, optimizer, loss=loss_of)
    expected = model(X[:2]).numpy()
    model.save(OUT / "life.keras")
    model.export(str(OUT / "exported"), verbose=False)
    exported = tf.saved_model.load(str(OUT / "exported"))
    operations = {
        each.type
        for function in exported.signatures.values()
        for each in function.graph.get_operations()
    }
    copies = {
        "loaded": keras.models.load_model(OUT / "life.keras"),
        "cloned": keras.models.clone_model(model),
        "copied": copy.deepcopy(model),
        "pickled": pickle.loads(pickle.dumps(model)),  # noqa: S301
    }
    model.compile(optimizer, loss_of)
    model.save(OUT / "compiled.keras")
    compiled = keras.models.load_model(OUT / "compiled.keras")
    copies["cloned"].set_weights(model.get_weights())
    report["life"] = {
        "same": {k: bool(np.allclose(v(X[:2]), expected)) for k, v in copies.items()},
        "calls Python": "PyFunc" in operations,
        "loss": type(copy.deepcopy(loss_of)) is type(entropy()),
        "compiled loss": type(compiled.loss) is type(entropy()),
    }
    made.close()


def refusals() -> None:
    model, optimizer = simple(), keras.optimizers.SGD(0.1)
    with tt.Hook(OUT / "refused") as made:
        report["refused"] = {
            "no model": outcome(lambda: made.register(object(), optimizer)),
            "no optimizer": outcome(lambda: made.register(model, object())),
            "loss first": outcome(lambda: made.register_loss(entropy())),
            "function": outcome(
                lambda: made.register(model, loss=keras.losses.mean_squared_error)
            ),
            "other model": outcome(
                lambda: made.register_optimizer(optimizer, model=simple())
            ),
            "no step": outcome(lambda: made.function(3)),
            "no loss": outcome(lambda: made.wrap_loss(3)),
        }


def stopped() -> None:
    """A stop that is asked for ends a loop within some steps, in every way."""
    for name, compiled in (("eager", lambda step: step), ("graph", tf.function)):
        model, optimizer, loss_of = simple(), keras.optimizers.SGD(0.1), entropy()
        made = watch(f"stopped {name}", model, optimizer, loss=loss_of)

        def step(x: Any, y: Any, model: Any = model, loss_of: Any = loss_of,
                 optimizer: Any = optimizer) -> Any:  # fmt: skip
            with tf.GradientTape() as tape:
                loss = loss_of(y, model(x, training=True))
            variables = model.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
            return loss

        def loop(compiled: Any = compiled, step: Any = step, name: str = name) -> None:
            made_step = compiled(step)
            for i, batch in enumerate(batches(100_000)):
                made_step(*batch)
                if i == 3:
                    request_stop(OUT / f"stopped {name}", reason="enough")

        try:
            loop()
        except tt.TrainingStopped as error:
            said = str(error)
        except tf.errors.OpError as error:
            said = str(error)
        report[f"stopped {name}"] = said
        made.close()


PLACES: dict[str, type] = {
    "_begin": Forwards,
    "_take": Forwards,
    "_computed": Forwards,
    "_hold_loss": Forwards,
    "enter_layers": Forwards,
    "report_forward": Reports,
    "report_gradients": Reports,
    "report_updates": Reports,
    "_forward_ran": Reports,
    "_hold_gradients": OptimizerSteps,
    "_begin_eagerly": OptimizerSteps,
    "_gradients_came": OptimizerSteps,
    "_capture": OptimizerSteps,
    "_end": OptimizerSteps,
    "begin_forward": LoopSteps,
    "take": LoopSteps,
    "_captured": FunctionStep,
}


def fails(*_: object, **__: object) -> None:
    msg = "a fault of tdbg's"
    raise RuntimeError(msg)


def faults(place: str, owner: type, way: str) -> list[Any]:
    """Train while something of tdbg fails, after the models are registered."""
    model, optimizer, loss_of = simple(), keras.optimizers.SGD(0.1), entropy()
    made = watch(f"fault {place} {way}", model, optimizer, loss=loss_of)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    original = getattr(owner, place)
    setattr(owner, place, fails)
    try:
        compiled = compile_step(way, made, step)
        losses = [float(compiled(*batch)) for batch in batches(3)]
    finally:
        setattr(owner, place, original)
    n_errors = made.counters()["internal_errors"]
    made.close()
    return [losses, n_errors]


report["faults"] = {
    f"{place} {way}": faults(place, owner, way)
    for place, owner in PLACES.items()
    for way in ("eager", "graph", "function")
}
life()
refusals()
stopped()
finish()
