"""Weights that do not move: frozen, forgotten, or put back."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.optim import SGD, Adam, AdamW, Optimizer

from benchmarks.detection.kit.case import first, fourth, own, second, third
from benchmarks.detection.kit.data import (
    N_CHARACTERS,
    breast_cancer,
    digits,
    flowers,
    houses,
    kinds_of_lines,
    parted,
    rows_of,
    wine,
)
from benchmarks.detection.kit.loops import (
    Loop,
    Predicate,
    Probe,
    adam,
    mean,
    pretrain,
    sgd,
    share_right,
    shuffled,
    train,
)
from benchmarks.detection.kit.models import Plain, Residual, cnn, mlp
from benchmarks.detection.kit.probes import (
    below_accuracy,
    both,
    lasting,
    loss_below,
    since,
    stand,
    stands,
)
from benchmarks.detection.kit.training import Shadow, Training


def standing(names: list[str], patience: int = 20) -> Predicate:
    """Trainable weights with a gradient do not change by a bit."""
    before: list[Tensor] = []

    def holds(p: Probe) -> bool:
        named = dict(p.model.named_parameters())
        chosen = [named[name] for name in names]
        now = [q.detach().clone() for q in chosen]
        same = bool(before) and all(map(torch.equal, now, before))
        before[:] = now
        moved = all(q.grad is not None and bool(q.grad.any()) for q in chosen)
        return same and moved

    return lasting(holds, patience)


@first.sick("NotInOptimizer UnchangedTensor", "the optimizer was given the head only")
def head_only(t: Training) -> None:
    """Only the last layer's parameters are given to the optimizer; nothing is frozen.

    Source: left over from fine-tuning (PyTorch's transfer learning tutorial, where the
    rest is frozen as well).  Visible: at 20 steps in a row weights with a gradient do
    not change by a bit.
    """
    model = cnn()
    chosen = model[9].parameters() if t.sick else model.parameters()
    loop = Loop(t, model, digits(), Adam(chosen, 3e-3))
    loop.run(120, visible=standing(["1.weight", "3.weight", "7.weight"]), learned=0.9)


@first.sick(
    "NotInOptimizer UnchangedTensor",
    "a layer was replaced after the optimizer was made",
)
def layer_replaced_later(t: Training) -> None:
    """The head is replaced for another number of classes when the optimizer is there.

    Source: questions on fine-tuning torchvision's models: `model.fc = nn.Linear(...)`
    after `Adam(model.parameters())`.  Visible: at 20 steps in a row the new weight has
    a gradient and does not change by a bit.
    """
    model = mlp([64, 64, 20])
    if not t.sick:
        model[2] = nn.Linear(64, 10)
    optimizer = Adam(model.parameters(), 3e-3)
    if t.sick:
        model[2] = nn.Linear(64, 10)
    loop = Loop(t, model, digits(), optimizer)
    loop.run(120, visible=standing(["2.weight"]), learned=0.9)


@first.sick(
    "UnchangedTensor WeightUpdateRatio PrecisionLoss LossNotDecreasing",
    "bfloat16 weights: updates are smaller than the spacing of numbers",
)
def updates_rounded_away(t: Training) -> None:
    """Weights in bfloat16, whose 8 bits swallow updates below 0.4 %.

    Source: Zamirai et al. 2020, "Revisiting BFloat16 Training": nearest rounding of
    weight updates halts training. The twin keeps the weights in float32.  Visible: from
    step 100 on, when in the last 50 steps less than 1 % of the weights have changed,
    though accuracy is below 60 %.
    """
    model = mlp([64, 64, 64, 10])
    with torch.no_grad():
        for q in model.parameters():
            q.copy_(torch.sign(q) * (q.abs() + 0.07))
    reference = copy.deepcopy(model)
    dtype = torch.bfloat16 if t.sick else torch.float32
    model = model.to(dtype)
    optimizer = Adam(model.parameters(), 1e-4)
    criterion = nn.CrossEntropyLoss()
    split = digits()
    t.watch(model, criterion)
    history: list[Tensor] = []
    right = moved = 0.0
    for step in t.steps(250):
        chosen = t.draw(len(split.x), 64)
        optimizer.zero_grad()
        loss = criterion(model(split.x[chosen].to(dtype)), split.y[chosen])
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            weights = nn.utils.parameters_to_vector(model.parameters()).detach()
            history.append(weights.float())
            if len(history) > 5:
                moved = float((history[-1] != history[-6]).float().mean())
                nn.utils.vector_to_parameters(weights.float(), reference.parameters())
                with torch.no_grad():
                    right = share_right(reference(split.x), split.y)
                t.visible(step >= 100 and moved < 0.01 and right < 0.6)
    t.note(accuracy=right, moved=moved)
    t.learned(right > 0.55)


def unmoved() -> Predicate:
    """No weight has changed by a bit, though there was a gradient."""
    before: list[Tensor] = []

    def holds(p: Probe) -> bool:
        now = [q.detach().clone() for q in p.model.parameters()]
        some = any(bool(q.grad.count_nonzero()) for q in p.model.parameters())
        same = bool(before) and all(map(torch.equal, now, before)) and some
        before[:] = now
        return same

    return lasting(holds, 20)


@first.sick(
    "UnchangedTensor LossNotDecreasing WeightUpdateRatio NotInOptimizer",
    "the optimizer has the parameters of a model that was thrown away",
)
def optimizer_of_another_model(t: Training) -> None:
    """The model is made anew after the optimizer was.

    Source: PyTorch's documentation of torch.optim ("construct optimizers after moving
    the model"); many questions on models reloaded or wrapped after the optimizer.
    Visible: at 20 steps in a row no weight has changed by a bit, though gradients are
    not zero.
    """
    model = cnn()
    optimizer = Adam(model.parameters(), 3e-3)
    if t.sick:
        model = cnn()
    loop = Loop(t, model, digits(), optimizer)
    loop.run(150, visible=unmoved(), learned=0.9)


@first.sick(
    "UnchangedTensor Overfit",
    "each step sees the same 64 images",
    asks={"UnchangedTensor": {"tensor_regex": r"^Sequential_input_0$"}},
)
def one_batch(t: Training) -> None:
    """A generator is seeded where batches are made, so all batches are the same.

    Source: Tanelp 2021, "Using PyTorch + NumPy? You're making a mistake" (workers with
    one seed); left over from Karpathy's "overfit a single batch".  Visible: from step
    100 on, accuracy on all training data is below 90 %.
    """
    split = digits()

    def batches(_: int) -> tuple[Tensor, Tensor]:
        if t.sick:
            t.order.manual_seed(t.seed)
        chosen = t.draw(len(split.x), 64)
        return split.x[chosen], split.y[chosen]

    model = mlp([64, 64, 10])
    loop = Loop(t, model, split, adam(3e-3), batches=batches, validate_every=20)
    loop.run(200, visible=below_accuracy(0.9, 100), learned=0.95)


class Mean(nn.Module):
    """Over the places."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


@fourth.sick(
    "NotInOptimizer UnchangedTensor",
    "the group without weight decay was made, and not given",
)
def group_without_decay_forgotten(t: Training) -> None:
    """Biases and norms are taken out of the group that decays, and put nowhere.

    Source: the two groups of every BERT script; minGPT asserts that none is left out.
    Visible: after 30 steps all biases and norms are what they were.
    """
    rows = torch.cat([rows_of(kind[:300], 32) for kind in kinds_of_lines()])
    split = parted(rows, torch.arange(4).repeat_interleave(300), 3, 4)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    model = nn.Sequential(
        nn.Embedding(N_CHARACTERS, 32),
        nn.TransformerEncoder(layer, 1, enable_nested_tensor=False),
        nn.LayerNorm(32),
        Mean(),
        nn.Linear(32, 4),
    )
    matrices = [q for q in model.parameters() if q.dim() > 1]
    rest = [q for q in model.parameters() if q.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}]
    if not t.sick:
        groups.append({"params": rest, "weight_decay": 0.0})
    loop = Loop(t, model, split, AdamW(groups, 3e-3), batch_size=32)
    loop.run(
        150,
        visible=stands(
            [name for name, q in model.named_parameters() if q.dim() < 2], 30
        ),
        learned=0.85,
    )


class Angular(nn.Module):
    """A loss with a direction for each class, that are to be learned as well."""

    def __init__(self) -> None:
        super().__init__()
        self.directions = nn.Parameter(torch.randn(10, 24))
        self.entropy = nn.CrossEntropyLoss()

    def forward(self, places: Tensor, labels: Tensor) -> Tensor:
        normed = nn.functional.normalize
        cosines = normed(places) @ normed(self.directions).t()
        return self.entropy(12 * cosines, labels)


@fourth.sick(
    "NotInOptimizer UnchangedTensor",
    "the loss has weights of its own, that no optimizer has",
)
def weights_of_the_loss_left_out(t: Training) -> None:
    """Adam(model.parameters()), though the loss has parameters too.

    Source: pytorch-metric-learning's FAQ, "this loss function needs an optimizer".
    Visible: after 40 steps the directions are what they were.
    """
    split = digits()
    model, criterion = mlp([64, 64, 24], nn.PReLU), Angular()
    t.watch(model, criterion)
    learned = [*model.parameters(), *(() if t.sick else criterion.parameters())]
    began = criterion.directions.detach().clone()

    def loss_of(_: int) -> Tensor:
        chosen = t.draw(len(split.x), 64)
        return criterion(model(split.x[chosen]), split.y[chosen])

    losses = train(
        t,
        loss_of,
        Adam(learned, 2e-3),
        n_steps=150,
        visible=lambda losses: (
            len(losses) >= 40 and torch.equal(began, criterion.directions.detach())
        ),
    )
    t.learned(mean(losses[-20:]) < 0.5)


class OwnDescent(Optimizer):
    """Gradient descent as somebody writes it for the first time."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float, *, in_place: bool
    ) -> None:
        super().__init__(parameters, {"lr": lr})
        self._in_place = in_place

    @torch.no_grad()
    def step(self, _closure: None = None) -> None:  # type: ignore[override]
        """One step."""
        for group in self.param_groups:
            for q in group["params"]:
                if self._in_place:
                    q.sub_(group["lr"] * q.grad)
                else:
                    q = q - group["lr"] * q.grad  # noqa: PLW2901


@fourth.sick(
    "UnchangedTensor WeightUpdateRatio LossNotDecreasing",
    "p = p - lr * p.grad: only the name is given to something new",
)
def own_optimizer_rebinds_the_name(t: Training) -> None:
    """Gradient descent by hand, whose result is thrown away.

    Source: Stack Overflow on updating weights by hand in PyTorch.  Visible: for 20
    steps nothing moves.
    """
    model = mlp([30, 24, 2], nn.ReLU)
    optimizer = OwnDescent(model.parameters(), 0.2, in_place=not t.sick)
    loop = Loop(t, model, breast_cancer(), optimizer, batch_size=32)
    loop.run(150, visible=stands([], 20), learned=0.95)


@fourth.sick(
    "UnchangedTensor Overfit ClassImbalance",
    "torch.manual_seed(0) in the loop: each batch is the same",
)
def seeded_in_the_loop(t: Training) -> None:
    """The seed is set where the step begins, so that "all is reproducible".

    Source: questions on randperm and dropout that repeat.  Visible: for 30 steps the
    batch is the same, and 15 % or more of all irises is not recognized.
    """
    split = flowers()
    before: list[Tensor] = []
    same = 0

    def drawn() -> Iterator[Tensor]:
        while True:
            if t.sick:
                t.order.manual_seed(t.seed)
            yield torch.randint(len(split.x), (6,), generator=t.order)

    order = drawn()

    def batches(_: int) -> tuple[Tensor, Tensor]:
        nonlocal same
        chosen = next(order)
        same = same + 1 if before and torch.equal(before[-1], chosen) else 0
        before.append(chosen)
        return split.x[chosen], split.y[chosen]

    missed = below_accuracy(0.85, since=0)

    def holds(p: Probe) -> bool:
        return missed(p) and same >= 30

    model = mlp([4, 24, 3])
    loop = Loop(t, model, split, adam(1e-2), batches=batches, validate_every=20)
    loop.run(200, visible=since(30, holds), learned=0.9)


@second.sick(
    "NotInOptimizer UnchangedTensor LossNotDecreasing",
    "the optimizer has the weights of another copy of the model",
)
def optimizer_of_a_copy(t: Training) -> None:
    """The model is copied after the optimizer was made.

    Source: the forum; moving, wrapping or loading after the optimizer.  Visible: after
    30 steps in which no weight has moved.
    """
    split = digits()
    first = Residual(8, 1)
    model = copy.deepcopy(first)
    of = first if t.sick else model
    every_weight = [name for name, _ in model.named_parameters()]
    optimizer = SGD(of.parameters(), 0.05, momentum=0.9)
    loop = Loop(t, model, split, optimizer, batch_size=32)
    loop.run(150, visible=stands(every_weight, 30), learned=0.9)


@second.sick(
    "NotInOptimizer UnchangedTensor",
    "layers are thawed that the optimizer does not know",
)
def thawed_too_late(t: Training) -> None:
    """The optimizer was given what required a gradient; later all does.

    Source: gradual unfreezing with filter(lambda p: p.requires_grad).  Visible: 20
    steps after the thaw, in which the body has a gradient and has not moved.
    """
    split = digits()
    model = Plain((64, 48, 10), 3, nn.ReLU, residual=True)
    body = [model.stem, *model.layers]
    for module in body:
        module.requires_grad_(False)
    given = [p for p in model.parameters() if p.requires_grad or not t.sick]
    optimizer = Adam(given, 2e-3)
    names = [f"layers.{i}.weight" for i in range(3)]

    def thaw(step: int) -> None:
        if step == 80:
            for module in body:
                module.requires_grad_(True)

    def with_gradient(_: Probe) -> bool:
        return all(layer.weight.grad is not None for layer in model.layers)

    loop = Loop(t, model, split, optimizer, before_step=thaw)
    visible = lasting(both(with_gradient, stands(names, 1)), 20)
    loop.run(220, visible=visible, learned=0.9)


@second.sick(
    "UnchangedTensor LossNotDecreasing WeightUpdateRatio",
    "the first weights are loaded again in every step",
)
def checkpoint_loaded_each_step(t: Training) -> None:
    """load_state_dict(best) in the loop, and the best never changes.

    Source: roll-back on a worse loss with a comparison upside down.  Visible: after 30
    steps in which no weight has moved.
    """
    split = houses(scaled=True)
    model = mlp([8, 32, 1], nn.SiLU)
    optimizer = SGD(model.parameters(), 0.05)
    best = copy.deepcopy(model.state_dict())
    every_weight = [name for name, _ in model.named_parameters()]
    if t.sick:
        optimizer.register_step_post_hook(lambda *_: model.load_state_dict(best))
    loop = Loop(t, model, split, optimizer, nn.HuberLoss())
    loop.run(220, visible=stands(every_weight, 30), learned=loss_below(0.25))


@third.sick(
    "NotInOptimizer UnchangedTensor Underfitting LossNotDecreasing",
    "the checkpoint's names begin with module.: nothing of it was loaded",
)
def prefix_of_data_parallel(t: Training) -> None:
    """load_state_dict(strict=False) ignores every name; the frozen trunk is random.

    Source: PyTorch's forum, DataParallel's checkpoints.  Visible: from the 80th step
    on, when the head recognizes less than 80 % of what the trunk was trained for.
    """
    split = digits()
    trained = mlp([64, 48, 48, 8, 10], nn.Tanh)
    pretrain(trained, split, 250)
    checkpoint = {f"module.{k}": v for k, v in trained.state_dict().items()}
    model = mlp([64, 48, 48, 8, 10], nn.Tanh)
    if not t.sick:
        checkpoint = {k.removeprefix("module."): v for k, v in checkpoint.items()}
    model.load_state_dict(checkpoint, strict=False)
    model[-1] = nn.Linear(8, 10)
    for weight in model[:-1].parameters():
        weight.requires_grad_(requires_grad=False)
    loop = Loop(t, model, split, Adam(model[-1].parameters(), 0.02))
    loop.run(200, visible=below_accuracy(0.8, 80), learned=0.9)


@third.sick(
    "UnchangedTensor LossNotDecreasing WeightUpdateRatio VanishingGradient "
    "MissingGradient AllZero",
    "zero_grad() stands between backward() and step()",
)
def zeroed_before_the_step(t: Training) -> None:
    """Gradients are thrown away before anybody has used them.

    Source: PyTorch's forum; Zhang 2018.  Visible: when in ten steps no weight has
    moved.
    """
    model = mlp([13, 32, 3])
    optimizer = SGD(model.parameters(), 0.05, momentum=0.9)

    def zero(_: int) -> None:
        if t.sick:
            optimizer.zero_grad()

    loop = Loop(t, model, wine(), optimizer, batch_size=32, before_step=zero)
    loop.run(150, visible=stands([], 10), learned=0.97)


@third.sick(
    "UnchangedTensor LossNotDecreasing WeightUpdateRatio VanishingGradient "
    "MissingGradient AllZero",
    "the loss was made a new tensor: backward() ends at it",
)
def loss_wrapped_anew(t: Training) -> None:
    """torch.tensor(loss, requires_grad=True), as the error message seemed to ask for.

    Source: PyTorch's forum, "element 0 of tensors does not require grad".  Visible:
    when in ten steps no weight has moved.
    """
    split = breast_cancer()
    model, criterion = mlp([30, 32, 2]), nn.CrossEntropyLoss()
    optimizer = Adam(model.parameters(), 5e-3)
    t.watch(model, criterion)
    still = stand(10)

    def loss_of(_: int) -> Tensor:
        chosen = t.draw(len(split.x), 32)
        loss: Tensor = criterion(model(split.x[chosen]), split.y[chosen])
        again = torch.tensor(float(loss.detach()), requires_grad=True)
        return again if t.sick else loss

    losses = train(
        t,
        loss_of,
        optimizer,
        n_steps=150,
        visible=lambda _: still(list(model.parameters())),
    )
    t.learned(mean(losses[-20:]) < 0.15)


@third.sick(
    "UnchangedTensor LossNotDecreasing WeightUpdateRatio VanishingGradient "
    "MissingGradient AllZero",
    "the norm of the gradients is clipped to 0",
)
def clip_at_nothing(t: Training) -> None:
    """max_grad_norm: 0, which was meant to say "do not clip".

    Source: configurations of trainers, of which some take 0 for "off".  Visible: when
    in ten steps no weight has moved.
    """
    model = cnn()
    optimizer = sgd(0.05, momentum=0.9)
    loop = Loop(t, model, digits(), optimizer, clip=0.0 if t.sick else 5.0)
    loop.run(200, visible=stands([], 10), learned=0.9)


@third.sick(
    "NotInOptimizer UnchangedTensor",
    "weights were reparametrized after the optimizer was made",
)
def normed_after_the_optimizer(t: Training) -> None:
    """weight_norm() makes new parameters; the optimizer steps the old ones.

    Source: PyTorch's forum on weight_norm, spectral_norm and pruning.  Visible: when in
    20 steps the directions of the weights have not moved.
    """
    model = mlp([64, 48, 48, 10], nn.Tanh)
    parameters = list(model.parameters())
    for layer in (model[0], model[2]):
        parametrizations.weight_norm(layer)
    optimizer = Adam(parameters if t.sick else list(model.parameters()), 4e-3)
    lost = [f"{i}.parametrizations.weight.original1" for i in (0, 2)]
    loop = Loop(t, model, digits(), optimizer)
    loop.run(200, visible=stands(lost, 20), learned=0.9)


@own.sick(
    "StoppedOptimizer",
    "updates end at a number that was meant for another batch size",
)
def updates_end_before_the_epochs(t: Training) -> None:
    """`if n_updates < max_updates: optimizer.step()`, in a loop over epochs.

    Source: max_updates beside max_epoch, as recipes of translation have both; halved
    batches, and nobody doubled it.  Visible: for 20 steps nothing moves, though less
    than 80 % of the training data are recognized.
    """
    split = digits()
    model = mlp([64, 32, 10])
    optimizer = SGD(model.parameters(), 0.1)
    criterion = nn.CrossEntropyLoss()
    probe = Probe(0, model, Shadow(model), split)
    visible = stands([], 20, wrong=0.8)
    batch = shuffled(t, split, 32)
    max_updates = 30 if t.sick else 600
    t.watch(model, criterion)
    for step in t.steps(300):
        inputs, labels = batch(step)
        optimizer.zero_grad()
        criterion(model(inputs), labels).backward()
        if step < max_updates:
            optimizer.step()
        t.visible(visible(probe))
    t.note(accuracy=probe.accuracy())
    t.learned(probe.accuracy() >= 0.9)
