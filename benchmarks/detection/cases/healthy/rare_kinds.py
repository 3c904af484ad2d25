"""Healthy trainings of kinds that are rarely tested."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import LBFGS, SGD, Adam, Rprop, SparseAdam

from benchmarks.detection.kit.case import eleventh
from benchmarks.detection.kit.data import breast_cancer, diabetes, digits, flowers, wine
from benchmarks.detection.kit.harm import held_out, in_evaluation
from benchmarks.detection.kit.models import mlp
from benchmarks.detection.kit.training import Training


@eleventh.healthy
def whole_table_with_rprop(t: Training) -> None:
    """All rows at every step, and Rprop, which looks at signs only."""
    split, model, criterion = wine(), mlp([13, 16, 3]), nn.CrossEntropyLoss()
    optimizer = Rprop(model.parameters(), lr=1e-2)
    t.watch(model, criterion)
    for _ in t.steps(100):
        optimizer.zero_grad()
        criterion(model(split.x), split.y).backward()
        optimizer.step()
    t.learned(held_out(model, split.x_val, split.y_val) > 0.9)


@eleventh.healthy
def ordinal_by_thresholds(t: Training) -> None:
    """Quarters of how a disease went on, as three yes-or-no questions of one score."""
    split = diabetes()
    bounds = split.y.quantile(torch.tensor([0.25, 0.5, 0.75]))
    above = (split.y > bounds).float()
    score = mlp([10, 32, 1])
    cuts = nn.Parameter(torch.tensor([-1.0, 0.0, 1.0]))
    optimizer = Adam([*score.parameters(), cuts], lr=5e-3)
    criterion = nn.BCEWithLogitsLoss()
    t.watch(score, criterion)
    for _, rows in t.batches(200, len(split.x), 32):
        optimizer.zero_grad()
        criterion(score(split.x[rows]) - cuts, above[rows]).backward()
        optimizer.step()
    said = in_evaluation(score, lambda: score(split.x_val) > cuts)
    right = float((said == (split.y_val > bounds)).float().mean())
    t.note(right=right)
    t.learned(right > 0.72)


@eleventh.healthy
def neighbourhood_components(t: Training) -> None:
    """A linear map to two dimensions in which neighbours are of one class."""
    split, model = flowers(), nn.Linear(4, 2, bias=False)
    optimizer = Adam(model.parameters(), lr=2e-2)
    t.watch(model)
    same = split.y[:, None] == split.y
    itself = torch.eye(len(split.y), dtype=torch.bool)
    shares: list[float] = []
    for _ in t.steps(100):
        z = model(split.x)
        near = (-torch.cdist(z, z).pow(2)).masked_fill(itself, -torch.inf).softmax(1)
        share = (near * same).sum(1).mean()
        shares.append(float(share.detach()))
        optimizer.zero_grad()
        (-share).backward()
        optimizer.step()
    t.note(first=shares[0], last=shares[-1])
    t.learned(shares[-1] > max(0.8, shares[0] + 0.05))


@eleventh.healthy
def factors_with_sparse_gradients(t: Training) -> None:
    """Pixels of digits as ratings: factors of images and pixels, and SparseAdam."""
    table = digits().x[:200] - digits().x.mean()
    images = nn.Embedding(200, 8, sparse=True)
    pixels = nn.Embedding(64, 8, sparse=True)
    for part in (images, pixels):
        nn.init.normal_(part.weight, std=0.3)
    both = nn.ModuleList([images, pixels])
    optimizer = SparseAdam(list(both.parameters()), lr=2e-2)
    t.watch(both)
    for _ in t.steps(300):
        i, j = t.draw(200, 2048), t.draw(64, 2048)
        said = (images(i) * pixels(j)).sum(1)
        optimizer.zero_grad()
        nn.functional.mse_loss(said, table[i, j]).backward()
        optimizer.step()
    with torch.no_grad():
        left = float((images.weight @ pixels.weight.T - table).pow(2).mean())
    t.note(left=left, before=float(table.var()))
    t.learned(left < 0.4 * float(table.var()))


@eleventh.healthy
def network_that_grows(t: Training) -> None:
    """A hidden layer is added after half of the steps; it begins as the identity."""
    split, criterion = digits(), nn.CrossEntropyLoss()
    added = nn.Linear(64, 64)
    nn.init.eye_(added.weight)
    nn.init.zeros_(added.bias)
    added.requires_grad_(requires_grad=False)
    model = nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), added, nn.ReLU(), nn.Linear(64, 10)
    )
    optimizer = Adam([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    t.watch(model, criterion)
    for step, rows in t.batches(240, len(split.x), 64):
        if step == 120:
            added.requires_grad_(requires_grad=True)
            optimizer.add_param_group({"params": list(added.parameters())})
        optimizer.zero_grad()
        criterion(model(split.x[rows]), split.y[rows]).backward()
        optimizer.step()
    t.learned(held_out(model, split.x_val, split.y_val) > 0.92)


@eleventh.healthy
def negative_slope_is_learned(t: Training) -> None:
    """PReLU in each layer, a rate of its own for slopes, and Nesterov's momentum."""
    split, criterion = digits(), nn.CrossEntropyLoss()
    model = mlp([64, 48, 48, 10], nn.PReLU)
    slopes = [p for m in model if isinstance(m, nn.PReLU) for p in m.parameters()]
    others = [p for m in model if isinstance(m, nn.Linear) for p in m.parameters()]
    optimizer = SGD(
        [{"params": others}, {"params": slopes, "lr": 0.01}],
        lr=0.05,
        momentum=0.9,
        nesterov=True,
    )
    t.watch(model, criterion)
    for _, rows in t.batches(200, len(split.x), 64):
        optimizer.zero_grad()
        criterion(model(split.x[rows]), split.y[rows]).backward()
        optimizer.step()
    t.learned(held_out(model, split.x_val, split.y_val) > 0.92)


@eleventh.healthy
def learns_from_positives_only(t: Training) -> None:
    """Deep SVDD: benign tumours are drawn to a point; the others lie farther away."""
    split = breast_cancer()
    benign = split.x[split.y == 1]
    model = nn.Sequential(
        nn.Linear(30, 16, bias=False), nn.Tanh(), nn.Linear(16, 4, bias=False)
    )
    with torch.no_grad():
        center = torch.full((4,), 0.5) + model(benign).mean(0)
    optimizer = Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
    t.watch(model)
    for _, rows in t.batches(150, len(benign), 32):
        optimizer.zero_grad()
        (model(benign[rows]) - center).pow(2).sum(1).mean().backward()
        optimizer.step()
    far = in_evaluation(model, lambda: (model(split.x_val) - center).pow(2).sum(1))
    bad, good = far[split.y_val == 0], far[split.y_val == 1]
    auc = float((bad[:, None] > good).float().mean())
    t.note(auc=auc)
    t.learned(auc > 0.8)


@eleventh.healthy
def line_search_on_all_rows(t: Training) -> None:
    """Logistic regression with a penalty, by LBFGS and its line search."""
    split, model = breast_cancer(), nn.Linear(30, 2)
    criterion = nn.CrossEntropyLoss()
    optimizer = LBFGS(model.parameters(), max_iter=1, line_search_fn="strong_wolfe")
    t.watch(model, criterion)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = criterion(model(split.x), split.y)
        loss = loss + 1e-3 * model.weight.pow(2).sum()
        loss.backward()
        return loss

    for _ in t.steps(40):
        optimizer.step(closure)
    t.learned(held_out(model, split.x_val, split.y_val) > 0.93)
