"""Mistakes in labels, losses and scores."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.metrics import f1_score
from torch import Tensor, nn
from torch.optim import Adam

from benchmarks.detection.kit.case import eleventh
from benchmarks.detection.kit.causes import Cause
from benchmarks.detection.kit.data import breast_cancer, digits, houses
from benchmarks.detection.kit.harm import conclude, held_out, in_evaluation
from benchmarks.detection.kit.models import mlp
from benchmarks.detection.kit.training import Training


@eleventh.silent(
    Cause(
        r"label.?smoothing|smooth\w* .*(label|target|0\.9|much|strong|large)",
        r"smoothing|0\.1|1 ?-",
    ),
    "label smoothing of 0.9 instead of 0.1",
)
def confidence_as_smoothing(t: Training) -> None:
    """The confidence 0.9 is given where the smoothing 0.1 is expected.

    Source: in some frameworks the argument is the confidence; pytorch's documentation
    of ``CrossEntropyLoss(label_smoothing)``.
    Visible: the best class of a sure model gets less than 0.4.
    """
    split, model = digits(), mlp([64, 64, 10])
    criterion = nn.CrossEntropyLoss(label_smoothing=0.9 if t.sick else 0.1)
    optimizer = Adam(model.parameters(), lr=3e-3)
    t.watch(model, criterion)
    for _, rows in t.batches(250, len(split.x), 64):
        optimizer.zero_grad()
        criterion(model(split.x[rows]), split.y[rows]).backward()
        optimizer.step()
    probabilities = in_evaluation(model, lambda: model(split.x_val).softmax(1))
    sure = float(probabilities.max(1).values.median())
    t.note(sure=sure)
    conclude(t, fault=criterion.label_smoothing > 0.5, reached=sure > 0.7)


class VAE(nn.Module):
    """The usual one, with 8 latents."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
        self.mu, self.logvar = nn.Linear(64, 8), nn.Linear(64, 8)
        self.decoder = mlp([8, 64, 64])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.encoder(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return torch.sigmoid(self.decoder(z)), mu, logvar


@eleventh.silent(
    Cause(
        r"posterior|collaps|KL\b|latent\w* .*(no|unused|ignored|prior|same)"
        r"|(encoder|latent|code)\w* .*(ignor|no (effect|information)|constant)",
        r"sum|KL|beta|weight|anneal|reduction",
    ),
    "mean over pixels against a sum over latents",
)
def reconstruction_as_a_mean(t: Training) -> None:
    """``F.mse_loss`` with its default mean, and the KL term summed over latents.

    Source: github.com/zdebruine/MMVAE/pull/19, keras-team/keras/pull/3383,
    AppliedDataSciencePartners/WorldModels/issues/12.
    Visible: the latents tell nothing; every reconstruction is the mean digit.
    """
    split, model = digits(), VAE()
    optimizer = Adam(model.parameters(), lr=3e-3)
    t.watch(model)
    for _, rows in t.batches(300, len(split.x), 64):
        x = split.x[rows]
        recon, mu, logvar = model(x)
        if t.sick:
            mse = nn.functional.mse_loss(recon, x)
        else:
            mse = nn.functional.mse_loss(recon, x, reduction="sum") / len(x) * 10
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
        optimizer.zero_grad()
        (mse + kl).backward()
        optimizer.step()
    recon = in_evaluation(model, lambda: model(split.x_val)[0])
    spread = in_evaluation(model, lambda: model(split.x_val)[1].std(0).max())
    left = (recon - split.x_val).pow(2).mean() / split.x_val.var(0).mean()
    t.note(left=float(left), spread=float(spread))
    conclude(t, fault=spread < 0.1, reached=left < 0.7)


@eleventh.silent(
    Cause(
        r"(prediction|label|score|evaluat|report)\w* .*(order|shuffl|align|other rows"
        r"|pair)|(order|shuffl)\w* .*(prediction|label|evaluat|test)",
        r"shuffle=False|order|same (loader|batch|pass)|collect",
    ),
    "predictions of a shuffled loader are compared with labels in file order",
)
def predictions_of_a_shuffled_loader(t: Training) -> None:
    """Predictions are collected from shuffled batches; labels are those of the file.

    Source: datascience.stackexchange.com/questions/13894 (shuffle must be False),
    developerload.com/why-is-the-accuracy-of-my-model-different-on-my-confusion-matrix.
    Visible: the report says 10 % for a model that is right in 9 of 10 cases.
    """
    split = digits()
    model, criterion = mlp([64, 64, 10]), nn.CrossEntropyLoss()
    optimizer = Adam(model.parameters(), lr=3e-3)
    test = torch.utils.data.TensorDataset(split.x_val, split.y_val)
    loader = torch.utils.data.DataLoader(test, batch_size=50, shuffle=t.sick)
    t.watch(model, criterion)
    reported = 0.0
    for step, rows in t.batches(200, len(split.x), 64):
        optimizer.zero_grad()
        criterion(model(split.x[rows]), split.y[rows]).backward()
        optimizer.step()
        if step % 50 == 49:
            model.eval()
            with torch.no_grad():
                predicted = torch.cat([model(x).argmax(1) for x, _ in loader])
            model.train()
            reported = float((predicted == split.y_val).float().mean())
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(accuracy=accuracy, reported=reported)
    conclude(t, fault=reported < accuracy - 0.5, reached=accuracy > 0.9, harms=False)


@eleventh.silent(
    Cause(
        r"\blog|expm?1?\b|(unit|scale|range)s? .*(target|prediction|price|differ)"
        r"|(prediction|output)s? .*(other|another|different) (unit|scale|range)",
        r"exp|log|inverse|scale|unit",
    ),
    "logarithms are compared with prices",
)
def logarithms_against_prices(t: Training) -> None:
    """Trained on ``log1p`` of the price; validated without ``expm1``.

    Source: a usual slip in Kaggle's house prices, whose targets are logarithms.
    Visible: predictions are a ten-thousandth of the prices they are compared with.
    """
    scaled, raw = houses(scaled=True), houses(scaled=False)
    log_price = torch.log1p(raw.y.clamp(min=1e4))
    model = mlp([8, 64, 1])
    with torch.no_grad():
        model[2].bias.fill_(12.0)
    criterion = nn.L1Loss()
    optimizer = Adam(model.parameters(), lr=3e-3)
    t.watch(model, criterion)
    for step, rows in t.batches(300, len(raw.x), 64):
        optimizer.zero_grad()
        criterion(model(scaled.x[rows]), log_price[rows]).backward()
        optimizer.step()
        if step % 50 == 49 and t.sick:
            t.evaluate(model, criterion, scaled.x_val, raw.y_val)
        elif step % 50 == 49:
            known = torch.log1p(raw.y_val.clamp(min=1e4))
            t.evaluate(model, criterion, scaled.x_val, known)
    out = in_evaluation(model, lambda: model(scaled.x_val))
    predicted = out if t.sick else torch.expm1(out)
    error = float(((predicted - raw.y_val).abs() / raw.y_val.abs()).median())
    t.note(error=error)
    conclude(
        t, fault=predicted.median() < raw.y_val.median() / 1e3, reached=error < 0.2
    )


@eleventh.silent(
    Cause(
        r"(f1|auc|metric|score|precision|recall)\w* .*(batch|averag|mean)"
        r"|(averag|mean)\w* .*(batch|f1|auc|metric)",
        r"all (predictions|batches)|whole|once|concat|accumulat|torchmetrics",
    ),
    "F1 is averaged over batches",
)
def f1_averaged_over_batches(t: Training) -> None:
    """F1 of every small batch, then their mean, instead of F1 of all predictions.

    Source: keras-team/keras removed its batch-wise F1 in version 2.0 for this.
    Visible: the mean differs from F1 of the whole set by more than 0.05.
    """
    split = breast_cancer()
    rare = torch.cat(((split.y == 1).nonzero()[:, 0], (split.y == 0).nonzero()[:30, 0]))
    x, y = split.x[rare], 1 - split.y[rare]
    keep = torch.cat(
        ((split.y_val == 1).nonzero()[:, 0], (split.y_val == 0).nonzero()[:15, 0])
    ).sort()[0]
    x_val, y_val = split.x_val[keep], 1 - split.y_val[keep]
    model, criterion = mlp([30, 16, 2]), nn.CrossEntropyLoss()
    optimizer = Adam(model.parameters(), lr=3e-3)
    t.watch(model, criterion)
    reported = 0.0
    for step, rows in t.batches(200, len(x), 32):
        optimizer.zero_grad()
        criterion(model(x[rows]), y[rows]).backward()
        optimizer.step()
        if step % 50 == 49:
            size = 8 if t.sick else len(x_val)
            scores = []
            for inputs, labels in zip(
                x_val.split(size), y_val.split(size), strict=True
            ):
                _, out = t.evaluate(model, criterion, inputs, labels)
                scores.append(f1_score(labels, out.argmax(1), zero_division=0.0))
            reported = float(np.mean(scores))
    found = in_evaluation(model, lambda: model(x_val).argmax(1))
    true = float(f1_score(y_val, found))
    t.note(reported=reported, true=true)
    conclude(t, fault=abs(reported - true) > 0.05, reached=true > 0.75, harms=False)
