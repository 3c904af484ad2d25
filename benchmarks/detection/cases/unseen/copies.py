"""Averages, checkpoints, members and clients: copies that are not what is meant."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

from benchmarks.detection.kit.case import ninth
from benchmarks.detection.kit.data import Split, breast_cancer, digits
from benchmarks.detection.kit.harm import conclude, held_out, in_evaluation
from benchmarks.detection.kit.loops import pretrain
from benchmarks.detection.kit.models import Recurrent, cnn, mlp
from benchmarks.detection.kit.training import Training


class EMAModel:
    """Shadow parameters that can be lent to the model, as in diffusers."""

    def __init__(self, parameters: Iterable[nn.Parameter], decay: float) -> None:
        self.shadow = [p.detach().clone() for p in parameters]
        self.stored: list[Tensor] = []
        self.decay = decay

    @torch.no_grad()
    def step(self, parameters: Iterable[nn.Parameter]) -> None:
        """Follow the model."""
        for shadow, parameter in zip(self.shadow, parameters, strict=True):
            shadow.lerp_(parameter, 1 - self.decay)

    def store(self, parameters: Iterable[nn.Parameter]) -> None:
        """Remember what is trained."""
        self.stored = [p.detach().clone() for p in parameters]

    @torch.no_grad()
    def copy_to(self, parameters: Iterable[nn.Parameter]) -> None:
        """Lend the average."""
        for shadow, parameter in zip(self.shadow, parameters, strict=True):
            parameter.copy_(shadow)

    @torch.no_grad()
    def restore(self, parameters: Iterable[nn.Parameter]) -> None:
        """Take it back."""
        for stored, parameter in zip(self.stored, parameters, strict=True):
            parameter.copy_(stored)


@ninth.silent(
    "average lent for good", "after validation the average stays in the model"
)
def average_stays_in_the_model(t: Training) -> None:
    """``store()``, ``copy_to()``, validate, and no ``restore()``.

    Source: github.com/PKU-YuanGroup/Open-Sora-Plan/issues/186 ("Missed to restore
    model weights in training after validation with EMA on"),
    harubaru/waifu-diffusion/pull/31.
    Visible: after validation the model has the average's weights, and after 200 steps
    it recognizes fewer than 88 %.
    """
    split = digits()
    model = mlp([64, 64, 10])
    optimizer = SGD(model.parameters(), lr=0.02, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    ema = EMAModel(model.parameters(), decay=0.96)
    t.watch(model, criterion)
    lent = False

    def validate() -> None:
        nonlocal lent
        ema.store(model.parameters())
        ema.copy_to(model.parameters())
        t.evaluate(model, criterion, split.x_val, split.y_val)
        if not t.sick:
            ema.restore(model.parameters())
        lent = torch.equal(model[0].weight, ema.shadow[0])

    for step, rows in t.batches(200, len(split.x), 32):
        optimizer.zero_grad()
        criterion(model(split.x[rows]), split.y[rows]).backward()
        optimizer.step()
        ema.step(model.parameters())
        if (step + 1) % 20 == 0:
            validate()
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(accuracy=accuracy)
    conclude(t, fault=lent, reached=accuracy > 0.88)


class LitReader(nn.Module):
    """What somebody has trained, wrapped as Lightning wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Recurrent(width=40)

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


@ninth.silent(
    "weights made anew", "no name of the checkpoint fits, and strict is False"
)
def checkpoint_under_other_names(t: Training) -> None:
    """Keys begin with ``model.``; ``load_state_dict(..., strict=False)`` takes none.

    Source: github.com/pytorch/examples/issues/1029 (the Lightning module's prefix),
    pytorch/pytorch/issues/141256 ("silent failures and hours of debugging").
    Visible: no weight is the checkpoint's, and after tuning on 160 images fewer than
    80 % of new ones are recognized.
    """
    split = digits()
    known = LitReader()
    pretrain(known, split.take(torch.arange(900)), 250)
    checkpoint = {"state_dict": known.state_dict(), "epoch": 12}

    model = Recurrent(width=40)
    state = checkpoint["state_dict"]
    if not t.sick:
        state = {name.removeprefix("model."): w for name, w in state.items()}
    model.load_state_dict(state, strict=False)
    begin = model.head.weight.detach().clone()

    few = split.take(torch.arange(900, 1060))
    optimizer = Adam(model.parameters(), lr=2e-3)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)
    for _, rows in t.batches(100, len(few.x), 20):
        loss = criterion(model(few.x[rows]), few.y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(accuracy=accuracy)
    other = not torch.equal(begin, known.model.head.weight)
    conclude(t, fault=other, reached=accuracy > 0.8)


class Averaged(nn.Module):
    """A network and its moving average in one module."""

    def __init__(self, net: nn.Module, decay: float) -> None:
        super().__init__()
        self.net = net
        self.ema = copy.deepcopy(net).requires_grad_(False)
        self.decay = decay

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    @torch.no_grad()
    def follow(self) -> None:
        """Move the average a little."""
        for old, new in zip(
            self.ema.state_dict().values(), self.net.state_dict().values(), strict=True
        ):
            old.copy_(self.decay * old + (1 - self.decay) * new)


@ninth.silent(
    "average of other weights", "the average was copied before the checkpoint was read"
)
def average_older_than_the_checkpoint(t: Training) -> None:
    """``ema = deepcopy(net)`` stands above ``net.load_state_dict(checkpoint)``.

    Source: github.com/Vchitect/Latte/issues/55 ("the EMA is again initialized with
    random model state_dict" on resuming), pytorch/torchtitan/pull/3985 (the average
    left "at its pre-load (fresh-init) values"), PixArt-alpha/PixArt-sigma/issues/156.
    Visible: the average is nearer to the random weights of the start than to the
    network, and recognizes fewer than 80 %.
    """
    config = {"rate": 5e-4, "decay": 0.995, "steps": 100, "batch": 32}
    split = digits()
    saved = cnn()
    pretrain(saved, split.take(torch.arange(500)), 60)

    net = cnn()
    first = net[-1].weight.detach().clone()
    if t.sick:
        both = Averaged(net, config["decay"])
        net.load_state_dict(saved.state_dict())
    else:
        net.load_state_dict(saved.state_dict())
        both = Averaged(net, config["decay"])
    criterion = nn.CrossEntropyLoss()
    optimizer = Adam(both.net.parameters(), lr=config["rate"])
    t.watch(both, criterion)
    for _, rows in t.batches(int(config["steps"]), len(split.x), int(config["batch"])):
        optimizer.zero_grad()
        criterion(both(split.x[rows]), split.y[rows]).backward()
        optimizer.step()
        both.follow()
    to_first = float((both.ema[-1].weight - first).norm())
    to_net = float((both.ema[-1].weight - net[-1].weight.detach()).norm())
    accuracy = held_out(both.ema, split.x_val, split.y_val)
    t.note(accuracy=accuracy, to_first=to_first, to_net=to_net)
    conclude(t, fault=to_net > to_first, reached=accuracy > 0.8)


@ninth.silent(
    "average in half precision", "in bfloat16 the steps of the average round to 0"
)
def average_in_half_precision(t: Training) -> None:
    """The teacher is kept in bfloat16, with a decay of 0.999.

    Source: github.com/d8ahazard/sd_dreambooth_extension/pull/1417 ("the EMA weights
    never change"), AndreasBergmeister/ram/issues/6.
    Visible: two thirds of the average's weights are still those of the beginning.
    """
    split = digits()
    student = mlp([64, 96, 10])
    teacher = copy.deepcopy(student).requires_grad_(False)
    if t.sick:
        teacher = teacher.to(torch.bfloat16)
    begin = teacher[0].weight.clone()
    both = nn.ModuleDict({"student": student, "teacher": teacher})
    optimizer = SGD(student.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    t.watch(both, criterion)
    for _, rows in t.batches(1500, len(split.x), 32):
        loss = criterion(student(split.x[rows]), split.y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for old, new in zip(
                teacher.parameters(), student.parameters(), strict=True
            ):
                old.mul_(0.999).add_(new.to(old.dtype), alpha=0.001)
    same = float((teacher[0].weight == begin).float().mean())
    kind = begin.dtype
    accuracy = held_out(teacher, split.x_val.to(kind), split.y_val)
    off = float((teacher[0].weight.float() - student[0].weight.detach()).norm())
    t.note(same=same, accuracy=accuracy, off=off)
    conclude(t, fault=same > 0.6, reached=accuracy > 0.9, harms=False)


class ModelCheckpoint:
    """Keeps the best state, with Lightning's defaults."""

    def __init__(self, monitor: str, mode: str = "min") -> None:
        self.monitor, self.sign = monitor, 1 if mode == "min" else -1
        self.best = float("inf")
        self.state: dict[str, Tensor] = {}

    def on_validation_end(self, model: nn.Module, metrics: dict[str, float]) -> None:
        """Compare, and copy the weights."""
        now = self.sign * metrics[self.monitor]
        if now < self.best:
            self.best, self.state = now, copy.deepcopy(model.state_dict())


@ninth.silent("worst for best", "the checkpoint with the lowest accuracy is kept")
def lowest_accuracy_is_kept(t: Training) -> None:
    """``ModelCheckpoint(monitor="val_acc")``: its mode is "min" by default.

    Source: github.com/keras-team/keras/issues/1144,
    mila-iqia/cookiecutter-pyml/issues/119 (the same the other way round),
    Lightning's documentation of ModelCheckpoint(mode="min").
    Visible: what is restored recognizes 10 points less than the last weights did.
    """
    split = digits()
    model = mlp([64, 48, 10])
    criterion, optimizer = nn.CrossEntropyLoss(), Adam(model.parameters(), lr=2e-3)
    keeper = (
        ModelCheckpoint("val_acc") if t.sick else ModelCheckpoint("val_acc", mode="max")
    )
    half = len(split.x_val) // 2
    x_test, y_test = split.x_val[half:], split.y_val[half:]
    t.watch(model, criterion)
    for step, rows in t.batches(210, len(split.x), 64):
        optimizer.zero_grad()
        criterion(model(split.x[rows]), split.y[rows]).backward()
        optimizer.step()
        if step % 21 == 20:
            x, y = split.x_val[:half], split.y_val[:half]
            loss, outputs = t.evaluate(model, criterion, x, y)
            right = float((outputs.argmax(1) == y).float().mean())
            keeper.on_validation_end(model, {"val_loss": loss, "val_acc": right})
    last = held_out(model, x_test, y_test)
    model.load_state_dict(keeper.state)
    _, outputs = t.evaluate(model, criterion, x_test, y_test)
    restored = float((outputs.argmax(1) == y_test).float().mean())
    t.note(last=last, restored=restored)
    conclude(t, fault=restored < last - 0.1, reached=restored > 0.85)


class Member(nn.Module):
    """One network of an ensemble, made reproducibly."""

    def __init__(self, seed: int | None) -> None:
        super().__init__()
        if seed is not None:
            torch.manual_seed(seed)
        self.body = mlp([30, 24, 24, 2])

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class Ensemble(nn.Module):
    """The mean of what its members say."""

    def __init__(self, n: int, seed: int | None) -> None:
        super().__init__()
        self.members = nn.ModuleList(Member(seed) for _ in range(n))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([member(x) for member in self.members])


class EachAlone(nn.Module):
    """Each member learns for itself."""

    def forward(self, told: Tensor, labels: Tensor) -> Tensor:
        losses = [nn.functional.cross_entropy(one, labels) for one in told]
        return torch.stack(losses).sum()


@ninth.silent("members alike", "the constructor seeds: all members are the same one")
def ensemble_of_one(t: Training) -> None:
    """``torch.manual_seed(42)`` in the constructor of a member.

    Source: github.com/chemprop/chemprop/issues/644 (how members get weights of their
    own); Lakshminarayanan et al., 2017: members differ by their random initialization.
    Visible: all members say the same of every image, to the last bit.
    """
    split = breast_cancer()
    ensemble = Ensemble(5, 42 + t.seed if t.sick else None)
    optimizer = SGD(ensemble.parameters(), lr=0.02, momentum=0.9)
    criterion = EachAlone()
    t.watch(ensemble, criterion)
    for _, rows in t.batches(80, len(split.x), 32):
        loss = criterion(ensemble(split.x[rows]), split.y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    told = in_evaluation(ensemble, lambda: ensemble(split.x_val).softmax(-1))
    spread = float(told.std(0).mean())
    accuracy = float((told.mean(0).argmax(-1) == split.y_val).float().mean())
    t.note(spread=spread, accuracy=accuracy)
    conclude(t, fault=spread == 0, reached=accuracy > 0.93, harms=False)


class Server:
    """Averages what clients have made of the global weights; all share one network."""

    def __init__(self, model: nn.Module, shares: list[Split], *, copies: bool) -> None:
        self.model, self.shares, self.copies = model, shares, copies
        self.criterion = nn.CrossEntropyLoss()
        self.apart: list[float] = []

    def message(self) -> dict[str, Tensor]:
        """The global weights, as they are sent to every client."""
        state = self.model.state_dict()
        return copy.deepcopy(state) if self.copies else state

    def aggregate(self, answers: list[dict[str, Tensor]]) -> None:
        """The mean of all answers is the new global model."""
        mean = {
            name: torch.stack([answer[name] for answer in answers]).mean(0)
            for name in answers[0]
        }
        self.model.load_state_dict(mean)


@ninth.silent(
    "weights kept by reference", "clients are sent a state that the last one changed"
)
def clients_continue_one_another(t: Training) -> None:
    """``broadcast(model.state_dict())``, and all clients train in that same model.

    Source: github.com/alibaba/FederatedScope/issues/664 ("a de facto centralized
    training"), litian96/FedProx/issues/36, AshwinRJ/Federated-Learning-PyTorch/
    issues/41 (why deepcopy).
    Visible: clients of one round begin with different weights.
    """
    split = digits()
    parts = torch.randperm(len(split.x), generator=t.order).chunk(4)
    server = Server(
        mlp([64, 48, 10]), [split.take(part) for part in parts], copies=not t.sick
    )
    model = server.model
    t.watch(model, server.criterion)
    steps = t.steps(12 * 4 * 8)
    apart = 0.0
    for _ in range(12):
        message, answers, begins = server.message(), [], []
        for share in server.shares:
            model.load_state_dict(message)
            begins.append(model[0].weight.detach().clone())
            local = SGD(model.parameters(), lr=0.2)
            drawn = t.epochs(len(share.x), 32)
            for _ in range(8):
                next(steps)
                rows = next(drawn)
                local.zero_grad()
                server.criterion(model(share.x[rows]), share.y[rows]).backward()
                local.step()
            answers.append(copy.deepcopy(model.state_dict()))
        apart = max(float((b - begins[0]).abs().max()) for b in begins)
        server.aggregate(answers)
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(accuracy=accuracy, apart=apart)
    conclude(t, fault=apart > 0, reached=accuracy > 0.85, harms=False)
