"""``tdbg run`` captures trainings in JAX in scripts that know no tdbg.

The scripts have the shapes of examples of Flax, Equinox and Keras: a ``TrainState``,
``nnx.jit`` with ``nnx.Optimizer``, updates by hand in a step that returns no loss,
``filter_jit``, a state of lists, gradients outside of any step.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tdbg
from tdbg.launch.family import DirectoryFamily
from tdbg.modes import TRAIN
from tdbg.trial import Trial

DATA = """
import jax, jax.numpy as jnp, numpy as np
from sklearn.datasets import load_digits

images, labels = load_digits(return_X_y=True)
images = (images / 16.0).astype("float32")

def batches(n):
    for i in range(n):
        yield images[32 * i : 32 * i + 32], labels[32 * i : 32 * i + 32]

def entropy(logits, y):
    return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(len(y)), y])
"""

TRAINED_BY_JIT = f"""{DATA}
import functools
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(16)(x))
        return nn.Dense(10)(x)

net = Net()
params = net.init(jax.random.key(0), images[:1])["params"]
state = TrainState.create(apply_fn=net.apply, params=params, tx=optax.adam(1e-2))

@jax.jit
def train_step(state, x, y):
    print("traced")
    def loss_of(params):
        logits = state.apply_fn({{"params": params}}, x)
        return entropy(logits, y), logits
    (loss, _), grads = jax.value_and_grad(loss_of, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads), {{"loss": loss}}

@jax.jit
def accuracy(state, x, y):
    return (state.apply_fn({{"params": state.params}}, x).argmax(-1) == y).mean()

for x, y in batches(6):
    state, logs = train_step(state, x, y)
print("%.5f" % logs["loss"], "%.3f" % accuracy(state, images[:200], labels[:200]))

# By hand, in a step that returns no loss, with lists as parameters.
@functools.partial(jax.jit, static_argnames="rate")
def by_hand(state, batch, rate):
    params, n = state
    x, y = batch
    def loss_of(params):
        w1, b1, w2 = params
        return entropy(jnp.tanh(x @ w1 + b1) @ w2, y)
    grads = jax.grad(loss_of)(params)
    return [p - rate * g for p, g in zip(params, grads)], n + 1

rng = np.random.default_rng(0)
shapes = ((64, 16), (16,), (16, 10))
state = [jnp.asarray(rng.normal(size=s) * 0.1, "float32") for s in shapes], 0
for batch in batches(5):
    state = by_hand(state, batch, rate=0.1)
print("%.5f" % jnp.abs(state[0][0]).sum(), int(state[1]))
"""

TRAINED_BY_LIBRARIES = f"""{DATA}
import equinox as eqx
import optax
from flax import nnx

model = nnx.Sequential(
    nnx.Linear(64, 16, rngs=nnx.Rngs(0)), nnx.relu, nnx.Linear(16, 10, rngs=nnx.Rngs(1))
)
optimizer = nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)

@nnx.jit
def train_step(model, optimizer, x, y):
    loss, grads = nnx.value_and_grad(lambda model: entropy(model(x), y))(model)
    optimizer.update(model, grads)
    return loss

for x, y in batches(5):
    loss = train_step(model, optimizer, x, y)
print("%.5f" % loss)

mlp = eqx.nn.MLP(64, 10, 16, 1, key=jax.random.key(0))
tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))
state = tx.init(eqx.filter(mlp, eqx.is_inexact_array))

@eqx.filter_value_and_grad
def loss_of(mlp, x, y):
    return entropy(jax.vmap(mlp)(x), y)

@eqx.filter_jit
def make_step(mlp, state, x, y):
    loss, grads = loss_of(mlp, x, y)
    updates, state = tx.update(grads, state, mlp)
    return eqx.apply_updates(mlp, updates), state, loss

for x, y in batches(4):
    mlp, state, loss = make_step(mlp, state, x, y)
print("%.5f" % loss)
"""


def run_script(
    text: str, folder: Path, *before: str
) -> subprocess.CompletedProcess[str]:
    path = folder / "train.py"
    path.write_text(text)
    return subprocess.run(
        [*before, sys.executable, str(path)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def launched(text: str, folder: Path) -> tuple[str, str, Path]:
    """What a script prints, what tdbg adds to that, and where the first run is."""
    out = folder / "run"
    command = [sys.executable, "-m", "tdbg", "run", "--out", str(out), "--"]
    result = run_script(text, folder, *command)
    assert result.returncode == 0, result.stderr
    return result.stdout, result.stderr, out


@pytest.fixture(scope="module")
def by_jit(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, Path]:
    """The script with ``jax.jit``."""
    return launched(TRAINED_BY_JIT, tmp_path_factory.mktemp("jit"))


@pytest.fixture(scope="module")
def by_libraries(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, Path]:
    """The script with NNX and Equinox."""
    return launched(TRAINED_BY_LIBRARIES, tmp_path_factory.mktemp("libraries"))


def trial(out: Path, number: int) -> Trial:
    return tdbg.create_trial(DirectoryFamily(out, {}).member(number))


def n_steps(run: Trial, name: str) -> int:
    return len(run.tensor(name).steps(mode=TRAIN))


def test_the_script_prints_what_it_prints_by_itself(
    by_jit: tuple[str, str, Path], tmp_path: Path
):
    plain = run_script(TRAINED_BY_JIT, tmp_path).stdout
    # The variant with taps is traced once beside the plain one.
    assert by_jit[0].count("traced") == 2
    assert plain.count("traced") == 1
    assert by_jit[0].replace("traced\n", "") == plain.replace("traced\n", "")


@pytest.mark.parametrize("first", ["optax", "equinox", "flax.nnx"])
def test_a_library_that_imports_jax_itself_may_be_imported_first(
    first: str, tmp_path: Path
):
    """It is not complete when JAX is, and the search begins."""
    text = f"import {first}\n{TRAINED_BY_JIT}"
    _, told, _ = launched(text, tmp_path)
    assert "tdbg: captured 2 trainings, each in its own run:" in told


def test_a_step_with_a_train_state_is_captured_from_its_first_call(
    by_jit: tuple[str, str, Path],
):
    _, told, out = by_jit
    assert "tdbg: captured 2 trainings, each in its own run:" in told
    assert f"{out} (6 steps)" in told
    run = trial(out, 1)
    for name in (
        "Dense_0/kernel",
        "gradient/Dense_1/bias",
        "update/Dense_0/kernel",
        "Dense_0_relu_output_0",
        "loss",
    ):
        assert run.tensor(name).steps(mode=TRAIN) == list(range(6)), name


def test_gradients_are_shown_once_where_optax_is_given_what_grad_returns(
    by_jit: tuple[str, str, Path],
):
    names = trial(by_jit[2], 1).tensor_names()
    assert not [name for name in names if "@" in name]


def test_parameters_are_what_is_differentiated_and_a_loss_not_returned_is_captured(
    by_jit: tuple[str, str, Path],
):
    run = trial(by_jit[2], 2)
    assert {"0", "1", "2", "gradient/0", "gradient/2", "loss"} <= set(
        run.tensor_names()
    )
    assert n_steps(run, "gradient/1") == 5
    first, last = (run.tensor("loss").reduction_value(i, "mean") for i in (0, 4))
    assert 0 < last < first < 2.5


def test_steps_of_nnx_and_of_equinox_are_captured(
    by_libraries: tuple[str, str, Path], tmp_path: Path
):
    printed, told, out = by_libraries
    assert printed == run_script(TRAINED_BY_LIBRARIES, tmp_path).stdout
    assert "tdbg: captured 2 trainings, each in its own run:" in told
    nnx = trial(out, 1)
    for name in ("layers/0/kernel", "gradient/layers/2/bias", "loss"):
        assert n_steps(nnx, name) == 5, name
    assert "layers/0_output_0" in nnx.tensor_names()
    equinox = trial(out, 2)
    # filter_jit cannot be traced ahead: its first call shows what it is.
    for name in ("layers/0/weight", "gradient/layers/1/bias", "loss"):
        assert n_steps(equinox, name) == 3, name


SHAPES_OF_STEPS = f"""{DATA}
import functools

def loss_of(params, x, y):
    return entropy(x @ params["w"], y)

def updated(params, gradients):
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)

def first():
    return {{"w": jnp.zeros((64, 10))}}

class Trainer:
    @functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
    def step(self, params, x, y):
        loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
        return updated(params, gradients), loss

trainer, params = Trainer(), first()
for x, y in batches(3):
    params, loss = trainer.step(params, x, y)
print("%.5f" % loss)

@jax.jit
def step(params, batch):
    loss, gradients = jax.value_and_grad(loss_of)(params, *batch)
    return updated(params, gradients), loss

@jax.jit
def epoch(params, xs, ys):
    return jax.lax.scan(step, params, (xs, ys))

params = first()
for _ in range(2):
    params, losses = epoch(params, *map(np.stack, zip(*batches(4))))
print("%.5f" % losses[-1])

def anew(params, x, y):
    return updated(params, jax.grad(loss_of)(params, x, y))

params = first()
for x, y in batches(5):
    params = jax.jit(anew)(params=params, x=x, y=y)
print("%.5f" % jnp.abs(params["w"]).sum())
try:
    step(first(), (images[:2, :3], labels[:2]))
except TypeError as error:
    print("wrong shapes")
"""


def test_steps_are_methods_loops_of_others_and_compiled_anew(tmp_path: Path):
    printed, told, out = launched(SHAPES_OF_STEPS, tmp_path)
    assert printed == run_script(SHAPES_OF_STEPS, tmp_path).stdout
    assert printed.endswith("wrong shapes\n")
    assert "tdbg: captured 3 trainings, each in its own run:" in told
    assert n_steps(trial(out, 1), "gradient/w") == 3
    loops = trial(out, 2)
    assert n_steps(loops, "gradient/w@4") == n_steps(loops, "loss@4") == 2
    assert n_steps(trial(out, 3), "gradient/w") == 5


TRAINED_AGAIN = f"""{DATA}
import optax
from flax import nnx

def first(seed):
    return {{"w": 0.1 * jax.random.normal(jax.random.key(seed), (64, 10))}}

def loss_of(params, x, y):
    return entropy(x @ params["w"], y)

def made(optimizer):
    @jax.jit
    def step(params, state, x, y):
        loss, grads = jax.value_and_grad(loss_of)(params, x, y)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss
    return step

optimizer = optax.adam(1e-2)
step = made(optimizer)

def train(step, params, n, optimizer=optimizer, between=lambda params: params):
    state = optimizer.init(params)
    for i, (x, y) in enumerate(batches(n)):
        params, state, _ = step(params, state, x, y)
        if i % 5 == 4:
            params = between(params)
    return params

# Folds; the same beginning again; a sweep that makes its step anew.
for seed in (0, 1, 1):
    train(step, first(seed), 12)
for rate in (0.1, 0.2):
    sgd = optax.sgd(rate)
    trained = train(made(sgd), first(2), 13, sgd)
# The latest one goes on: restarted optimizer, step made anew, clipped parameters.
trained = train(step, trained, 14)
sgd = optax.sgd(0.1)
trained = train(made(sgd), trained, 14, sgd)
clipped = lambda params: jax.tree.map(lambda w: jnp.clip(w, -0.2, 0.2), params)
train(step, trained, 14, between=clipped)
# Models that change themselves.
@nnx.jit
def change(model, optimizer, x, y):
    loss, grads = nnx.value_and_grad(lambda model: entropy(model(x), y))(model)
    optimizer.update(model, grads)
    return loss

for seed in (0, 1):
    model = nnx.Linear(64, 10, rngs=nnx.Rngs(seed))
    changed = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    for x, y in batches(15):
        change(model, changed, x, y)

# Steps from the same parameters, again and again.
@jax.jit
def inner(params, x, y):
    return jax.tree.map(lambda w, g: w - g, params, jax.grad(loss_of)(params, x, y))

for _ in range(4):
    params = first(0)
    for x, y in batches(4):
        params = inner(params, x, y)
"""


def test_each_training_of_a_function_has_a_run(tmp_path: Path):
    _, told, _out = launched(TRAINED_AGAIN, tmp_path)
    steps = [int(each) for each in re.findall(r"\((\d+) steps\)", told)]
    assert steps == [12, 12, 12, 13, 55, 15, 15, 16]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "w = jnp.ones((64, 10))\n"
            "for x, y in batches(3):\n"
            "    w = w - 0.1 * jax.grad(lambda w: entropy(x @ w, y))(w)\n",
            "the program computed gradients 3 times, but not in a function that "
            "jax.jit compiles and that gets the parameters; compile the whole step",
            id="gradients outside of a compiled step",
        ),
        pytest.param(
            "print(jax.jit(lambda x: x + 1)(images[0])[0])\n",
            "no function that jax.jit, nnx.jit or equinox.filter_jit has compiled "
            "computes gradients",
            id="no gradients",
        ),
        pytest.param(
            "force = jax.jit(lambda x: -jax.grad(lambda x: (x * x).sum())(x))\n"
            "for x, y in batches(3): force(x)\n",
            "the program computed gradients 1 time, but not in a function",
            id="gradients by what is no parameter",
        ),
    ],
)
def test_a_script_of_which_nothing_is_captured_is_told_why(
    text: str, expected: str, tmp_path: Path
):
    _, told, out = launched(DATA + text, tmp_path)
    assert f"tdbg: nothing was captured: {expected}" in told
    assert told.count("nothing was captured") == 1
    assert not out.exists()


def test_a_script_with_a_hook_of_its_own_goes_on_with_that(tmp_path: Path):
    own = tmp_path / "own"
    text = f"""{DATA}
import tdbg.jax as tj
hook = tj.Hook({str(own)!r}, include_collections=["weights", "gradients"])

@hook.jit
def step(params, x, y):
    loss, grads = jax.value_and_grad(lambda p: entropy(x @ p["w"], y))(params)
    return jax.tree.map(lambda p, g: p - g, params, grads), loss

other = jax.jit(jax.value_and_grad(lambda p, x, y: entropy(x @ p["w"], y)))
params = {{"w": jnp.zeros((64, 10))}}
for x, y in batches(3):
    params, loss = step(params, x, y)
    other(params, x, y)
"""
    _, told, out = launched(text, tmp_path)
    assert not out.exists()
    assert "the script has its own hook, which continues" in told
    assert len(tdbg.create_trial(own).steps(TRAIN, what="any")) == 3


def test_a_stop_ends_the_script_with_one_line(tmp_path: Path):
    text = f"""{DATA}
from pathlib import Path
from tdbg.run import request_stop
step = jax.jit(jax.value_and_grad(lambda p, x, y: entropy(x @ p["w"], y)))
params = {{"w": jnp.zeros((64, 10))}}
for i in range(100_000):
    step(params, *next(batches(1)))
    if i == 3:
        request_stop({str(tmp_path / "run")!r}, reason="seen enough")
print("never")
"""
    command = [sys.executable, "-m", "tdbg", "run", "--out", str(tmp_path / "run")]
    result = run_script(text, tmp_path, *command, "--")
    assert result.returncode == 1
    assert result.stdout == ""
    assert "tdbg: stopped at step" in result.stderr
    assert "seen enough" in result.stderr
    assert "Traceback" not in result.stderr


SCHEDULED = f"""{DATA}
import optax

def train(n_steps):
    schedule = optax.cosine_decay_schedule(1e-2, n_steps)
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))
    params = {{"w": jnp.zeros((64, 10)), "b": jnp.zeros(10)}}
    state = tx.init(params)

    @jax.jit
    def step(params, state, x, y):
        def loss_of(params):
            return entropy(x @ params["w"] + params["b"], y)
        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    for x, y in batches(24):
        params, state, loss = step(params, state, x, y)

train(3)
train(24)
"""


def test_a_schedule_of_optax_that_has_been_at_zero_for_long(tmp_path: Path) -> None:
    family = DirectoryFamily(launched(SCHEDULED, tmp_path)[2], {})
    sick, healthy = (
        tdbg.rules.check(family.member(i), ["ScheduleMisuse"], record=False).findings
        for i in (1, 2)
    )
    assert ["The learning rate is 0" in each.message for each in sick] == [True]
    assert not healthy


FROZEN = f"""{DATA}
import optax

def train(tx, updated=("body", "head")):
    rng = np.random.default_rng(0)
    body = dict(w=jnp.asarray(rng.normal(size=(64, 16)) * 0.1), b=jnp.zeros(16))
    head = dict(w=jnp.asarray(rng.normal(size=(16, 10)) * 0.1), b=jnp.zeros(10))
    params = dict(body=body, head=head)
    state = tx.init(params)

    @jax.jit
    def step(params, state, x, y):
        def loss_of(params):
            hidden = jnp.tanh(x @ params["body"]["w"] + params["body"]["b"])
            return entropy(hidden @ params["head"]["w"] + params["head"]["b"], y)
        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, state = tx.update(grads, state, params)
        new = optax.apply_updates(params, updates)
        return {{**params, **{{k: new[k] for k in updated}}}}, state, loss

    for x, y in batches(24):
        params, state, loss = step(params, state, x, y)

ways = {{"train": optax.adam(1e-2), "freeze": optax.set_to_zero()}}
train(optax.multi_transform(ways, {{"body": "freeze", "head": "train"}}))
zero = optax.masked(optax.set_to_zero(), {{"body": True, "head": False}})
train(optax.chain(optax.adam(1e-2), zero))
train(optax.adam(1e-2), updated=("head",))
"""


def test_what_optax_sets_to_zero_is_frozen_on_purpose(tmp_path: Path) -> None:
    """Only the last training forgets its body: it drops the updates."""
    family = DirectoryFamily(launched(FROZEN, tmp_path)[2], {})
    names = ["MissingGradient", "NotInOptimizer", "UnchangedTensor"]
    found = [
        tdbg.rules.check(family.member(i), names, record=False).findings
        for i in (1, 2, 3)
    ]
    assert [[(f.rule, f.tensor) for f in each] for each in found] == [
        [],
        [],
        [("UnchangedTensor", "body/w")],
    ]


NUMBERS = f"""{DATA}
import optax

tx = optax.sgd(0.1)
slope = jnp.asarray(-2.0)
state = tx.init(slope)

@jax.jit
def step(slope, state, x, y):
    loss, grad = jax.value_and_grad(lambda slope: jnp.mean((slope * x - y) ** 2))(slope)
    updates, state = tx.update(grad, state)
    return optax.apply_updates(slope, updates), state, loss

for x, _ in batches(24):
    slope, state, loss = step(slope, state, x[:, 20], 3.0 * x[:, 20])
print("%.5f" % loss)
"""


def test_a_number_that_is_trained_is_not_the_loss(tmp_path: Path) -> None:
    """It is the first that the step returns."""
    printed, _, out = launched(NUMBERS, tmp_path)
    loss = trial(out, 1).tensor("loss")
    assert loss.reduction_value(0, "mean") > 1.0
    assert f"{loss.reduction_value(23, 'mean'):.5f}" == printed.strip()
