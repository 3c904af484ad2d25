"""What evaluation tells of a model, and does not: modes, folds, shapes, thresholds."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

from benchmarks.detection.kit.case import ninth
from benchmarks.detection.kit.data import Split, breast_cancer, diabetes, digits
from benchmarks.detection.kit.harm import conclude, held_out, in_evaluation
from benchmarks.detection.kit.loops import pretrain
from benchmarks.detection.kit.models import mlp
from benchmarks.detection.kit.training import Training


class Detector(nn.Module):
    """A stem that is frozen, statistics included, and a head with dropout."""

    def __init__(self, *, forgets: bool) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU())
        self.neck = nn.Sequential(
            nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.5)
        )
        self.head = nn.Linear(64, 10)
        self.forgets, self.frozen = forgets, False

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.neck(self.stem(x)))

    def freeze(self) -> None:
        """Leave the stem as it is."""
        self.frozen = True
        self.stem.requires_grad_(requires_grad=False)
        self.train()

    def train(self, mode: bool = True) -> Detector:
        if self.forgets and self.frozen:
            super().train()
        else:
            super().train(mode)
        if self.frozen:
            self.stem.eval()
        return self


@ninth.silent(
    "training mode in evaluation", "train() is overridden and does not pass the mode"
)
def eval_leads_to_training_mode(t: Training) -> None:
    """``def train(self, mode=True): super().train(); self.stem.eval()``.

    ``eval()`` calls ``train(False)``, which goes to training mode all the same.
    Source: github.com/roytseng-tw/Detectron.pytorch/issues/104 (training is at
    times True after model.eval(), by an override of train).
    Visible: after ``eval()`` it drops units, and averages statistics of what it is
    evaluated with.
    """
    split = digits()
    model = Detector(forgets=t.sick)
    pretrain(model, split.take(torch.arange(500)), 60)
    model.freeze()
    model.head = nn.Linear(64, 10)
    optimizer = Adam((p for p in model.parameters() if p.requires_grad), lr=3e-3)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)
    said = 0.0
    for step, rows in t.batches(168, len(split.x), 32):
        optimizer.zero_grad()
        criterion(model(split.x[rows]), split.y[rows]).backward()
        optimizer.step()
        if step % 42 == 41:
            _, told = t.evaluate(model, criterion, split.x_val, split.y_val)
            said = float((told.argmax(1) == split.y_val).float().mean())
    twice = [in_evaluation(model, lambda: model(split.x_val)) for _ in range(2)]
    differs = float((twice[0] - twice[1]).abs().mean())
    t.note(said=said, differs=differs)
    conclude(t, fault=differs > 0.01, reached=said > 0.9, harms=False)


def stratified(n: int, folds: int) -> list[Tensor]:
    """The rows to validate with, of each fold."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(6))
    return list(order.chunk(folds))


def fresh(model: nn.Module) -> None:
    """All weights anew, as a new model of this kind would have them."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.reset_parameters()


@ninth.silent(
    "evaluated on what was trained on", "folds share one model: it has seen the others"
)
def folds_without_a_new_model(t: Training) -> None:
    """The model is made above the loop over folds, and not anew in it.

    Source: py4u.org/questions/75264251 (".90, .95, .98 and 1.0" from fold to fold).
    Visible: rows that the last fold validates with were trained on in the folds before.
    """
    split = digits().take(torch.arange(300))
    y = split.y
    model = mlp([64, 96, 10])
    optimizer, criterion = Adam(model.parameters(), lr=2e-3), nn.CrossEntropyLoss()
    t.watch(model, criterion)
    steps = t.steps(5 * 80)
    learned_from: set[int] = set()
    seen, scores = 0.0, []
    for fold, told in enumerate(stratified(300, 5)):
        if fold and not t.sick:
            fresh(model)
            optimizer = Adam(model.parameters(), lr=2e-3)
            learned_from.clear()
        known = torch.tensor(sorted(set(range(300)) - set(told.tolist())))
        drawn = t.epochs(len(known), 24)
        for _ in range(80):
            next(steps)
            rows = known[next(drawn)]
            optimizer.zero_grad()
            criterion(model(split.x[rows]), y[rows]).backward()
            optimizer.step()
            learned_from.update(rows.tolist())
        _, outputs = t.evaluate(model, criterion, split.x[told], y[told])
        scores.append(float((outputs.argmax(1) == y[told]).float().mean()))
        seen = len(learned_from & set(told.tolist())) / len(told)
    true = held_out(model, split.x_val, split.y_val)
    t.note(first=scores[0], last=scores[-1], true=true, seen=seen)
    conclude(t, fault=seen > 0.5, reached=true > 0.8, harms=False)


class RMSE(nn.Module):
    """The root of the mean square error, written by hand."""

    def forward(self, told: Tensor, truth: Tensor) -> Tensor:
        return ((told - truth) ** 2).mean().sqrt()


@ninth.silent(
    "shapes of evaluation", "in validation (n, 1) minus (n,) is a table of all pairs"
)
def validation_of_all_pairs(t: Training) -> None:
    """The targets of validation come as (n,), those of training as (n, 1).

    Source: github.com/fastai/fastai/issues/1486 ("because of the broadcasting the
    result of the metric computation is incorrect"), NVIDIA/cuml/issues/4281,
    nengo/nengo/issues/1383.
    Visible: what is said differs by a tenth from the error of each row's own target.
    """
    split = diabetes()
    y_val = split.y_val[:, 0] if t.sick else split.y_val
    model = mlp([10, 16, 1], nn.Tanh)
    optimizer = SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-2)
    criterion = RMSE()
    t.watch(model, criterion)
    said = 0.0
    for step, rows in t.batches(150, len(split.x), 32):
        loss = criterion(model(split.x[rows]), split.y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            said, _ = t.evaluate(model, criterion, split.x_val, y_val)
    true = float(
        in_evaluation(model, lambda: criterion(model(split.x_val), split.y_val))
    )
    t.note(said=said, true=true)
    conclude(t, fault=abs(said - true) > 0.1 * true, reached=true < 0.8, harms=False)


def f1(told: Tensor, truth: Tensor) -> float:
    """The harmonic mean of precision and recall."""
    both = float((told & truth).sum())
    return 2 * both / max(1.0, float(told.sum() + truth.sum()))


@ninth.silent("threshold of logits", "logits are compared with 0.5, a probability")
def logits_above_one_half(t: Training) -> None:
    """``predicted = model(x) > 0.5`` with BCEWithLogitsLoss.

    Source: discuss.pytorch.org/t/130075/3 (K. Frank: "one would typically threshold
    the logit against 0.0").
    Visible: rows with probabilities between 0.5 and 0.62, 2 % of all or more, are said
    to be negative.
    """
    x, y = split_of_tumours()
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = Adam(model.parameters(), lr=5e-3, weight_decay=1e-3)
    criterion = nn.BCEWithLogitsLoss()
    t.watch(model, criterion)
    limit = 0.5 if t.sick else 0.0
    said = 0.0
    for step, rows in t.batches(200, 350, 32):
        optimizer.zero_grad()
        criterion(model(x[rows]), y[rows]).backward()
        optimizer.step()
        if step % 20 == 19:
            _, outputs = t.evaluate(model, criterion, x[350:], y[350:])
            said = f1(outputs > limit, y[350:] > 0.5)
    outputs = in_evaluation(model, lambda: model(x[350:]))
    true = f1(outputs.sigmoid() > 0.5, y[350:] > 0.5)
    missed = float(((outputs.sigmoid() > 0.5) != (outputs > limit)).float().mean())
    t.note(said=said, true=true, missed=missed)
    conclude(t, fault=missed > 0.02, reached=true > 0.5, harms=False)


def split_of_tumours() -> tuple[Tensor, Tensor]:
    """Few and coarse measurements: whether a tumour is malignant is not sure."""
    split = breast_cancer()
    x = torch.cat((split.x, split.x_val))[:, [1, 4, 8, 11]]
    y = 1 - torch.cat((split.y, split.y_val)).float()[:, None]
    return x, y


def encoded(
    places: Tensor, y: Tensor, n: int, *, folds: int
) -> tuple[Tensor, Tensor, float]:
    """The mean target of each place: for its own rows, and for new ones.

    With one fold, of all rows; otherwise of the rows of other folds.
    """
    mean = float(y.mean())

    def means(rows: Tensor) -> Tensor:
        count = torch.bincount(places[rows], minlength=n).float()
        total = torch.zeros(n).index_add_(0, places[rows], y[rows])
        return (total + mean) / (count + 1)

    everything = torch.arange(len(y))
    part = everything % folds
    own = torch.empty(len(y))
    for fold in range(folds):
        others = everything if folds == 1 else everything[part != fold]
        own[part == fold] = means(others)[places[part == fold]]
    return own, means(everything), mean


@ninth.silent(
    "label among the features", "a row's own target is in the mean of its category"
)
def category_knows_its_target(t: Training) -> None:
    """Target encoding of a column with many values, fitted on the rows it encodes.

    Source: scikit-learn.org, "Target Encoder's Internal Cross fitting" (without it
    "catastrophic overfitting" by a column that tells nothing), and
    stats.stackexchange.com/posts/567095.
    Visible: the encoding goes with the target in training (0.5) and not in
    validation; the error of validation is a tenth above that of the twin.
    """
    split = diabetes()
    luck = torch.Generator().manual_seed(12)
    n = 150
    places = torch.randint(n, (len(split.x),), generator=luck)
    places_val = torch.randint(n, (len(split.x_val),), generator=luck)
    y = split.y[:, 0]
    own, table, _ = encoded(places, y, n, folds=1 if t.sick else 5)
    x = torch.cat((split.x, own[:, None] / own.std()), 1)
    x_val = torch.cat((split.x_val, table[places_val][:, None] / own.std()), 1)
    given = Split(x, split.y, x_val, split.y_val)
    model = mlp([11, 24, 1])
    optimizer = Adam(model.parameters(), lr=3e-3, weight_decay=1e-2)
    criterion = nn.MSELoss()
    t.watch(model, criterion)
    for step, rows in t.batches(120, len(given.x), 32):
        loss = criterion(model(given.x[rows]), given.y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 19:
            t.evaluate(model, criterion, given.x_val, given.y_val)
    told = in_evaluation(model, lambda: model(given.x_val))
    error = float(criterion(told, given.y_val))
    goes_with = float(torch.corrcoef(torch.stack((own, y)))[0, 1])
    t.note(error=error, goes_with=goes_with)
    conclude(t, fault=goes_with > 0.3, reached=error < 0.58)
