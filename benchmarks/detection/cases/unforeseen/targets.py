"""Targets that are not what was meant, and losses that weigh what they should not."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam

from benchmarks.detection.kit.case import tenth
from benchmarks.detection.kit.causes import Cause
from benchmarks.detection.kit.data import breast_cancer, diabetes, digits
from benchmarks.detection.kit.harm import conclude, in_evaluation
from benchmarks.detection.kit.models import mlp
from benchmarks.detection.kit.training import Training


class Patients(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Measurements, and a score from 0 to 1."""

    def __init__(self, x: Tensor, y: Tensor, dtype: torch.dtype) -> None:
        self.x = x
        self.y = y.to(dtype)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.x[i], self.y[i]


@tenth.silent(
    Cause(
        r"\blong\b|int(eger)?64|integers?|whole numbers?|truncat|round(ed|s)?\b|\bcast"
        r"|dtype|(targets?|labels?) .*(nearly all|almost all|most|constant|all|%) .*"
        r"(0|zero|same|equal|one value)|(targets?|labels?) .*(constant|all zero"
        r"|(few|one|two) (distinct|different|values?))",
        r"float|dtype|long|cast|integer",
    ),
    "targets from 0 to 1 are cast to integers",
)
def targets_cast_to_long(t: Training) -> None:
    """The dataset keeps its targets as ``torch.long``, though they are fractions.

    Source: github.com/deepset-ai/FARM/issues/395 ("Silent error, all my regression
    labels are being converted to longs"), srinidhiPY/SSL_CR_Histo/issues/5.
    Visible: nearly all targets are 0; the model explains nothing of the true ones.
    """
    split = diabetes(raw_targets=True)
    low, high = split.y.min(), split.y.max()
    y, y_val = (split.y - low) / (high - low), (split.y_val - low) / (high - low)
    data = Patients(split.x, y, torch.long if t.sick else torch.float32)

    model = mlp([10, 32, 1])
    optimizer = Adam(model.parameters(), lr=3e-3)
    criterion = nn.MSELoss()
    t.watch(model, criterion)
    for _, rows in t.batches(200, len(data), 32):
        x, target = torch.utils.data.default_collate([data[int(i)] for i in rows])
        loss = criterion(model(x), target.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = in_evaluation(model, lambda: model(split.x_val))
    explained = 1 - float((found - y_val).pow(2).mean() / y_val.var())
    t.note(explained=explained)
    cut = (data.y.float() - y).abs().mean() > 0.1
    conclude(t, fault=cut, reached=explained > 0.25)


@tenth.silent(
    Cause(
        r"CosineEmbedding|-1\b|minus one|(negative|dissimilar|different) (pairs?"
        r"|labels?|targets?)|pairs? .*(never|no|not|ignored|zero) .*(count|loss"
        r"|gradient|contribut)|(target|label)s? .*(0|zero|neither|1 (or|and) -1|\{-1)"
        r"|collaps|embeddings? .*(same|identical|alike|one (point|direction))",
        r"-1|minus|2 \* |negative|margin|target",
    ),
    "pairs that differ are marked 0, where the loss expects -1",
)
def different_pairs_marked_zero(t: Training) -> None:
    """``CosineEmbeddingLoss`` with targets 1 and 0: pairs with 0 never count.

    Source: github.com/pytorch/pytorch/issues/23782 ("should expect a target tensor
    with discrete values [-1, 1], but works with any values"), pytorch/issues/49917.
    Visible: no gradient comes from pairs that differ, and after 150 steps they are
    nearly as similar as pairs that do not.
    """
    split = digits()
    model = mlp([64, 64, 16])
    optimizer = Adam(model.parameters(), lr=2e-3)
    criterion = nn.CosineEmbeddingLoss(margin=0.2)
    t.watch(model, criterion)
    seen: set[float] = set()
    for _, idx in t.batches(150, len(split.x), 64):
        partner = t.draw(len(split.x), len(idx))
        again = torch.rand(len(idx)) < 0.3
        for i in torch.nonzero(again).flatten().tolist():
            alike = torch.nonzero(split.y == split.y[idx[i]]).flatten()
            partner[i] = alike[int(torch.randint(len(alike), (1,)))]
        same = (split.y[idx] == split.y[partner]).float()
        target = same if t.sick else 2 * same - 1
        seen.update(target.tolist())
        loss = criterion(model(split.x[idx]), model(split.x[partner]), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    z = in_evaluation(model, lambda: functional.normalize(model(split.x_val), dim=1))
    similar, alike = z @ z.T, split.y_val[:, None] == split.y_val
    gap = float(similar[alike].mean() - similar[~alike].mean())
    t.note(gap=gap)
    conclude(t, fault=-1.0 not in seen and 0.0 in seen, reached=gap > 0.5)


class VAE(nn.Module):
    """Digits through eight numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
        self.mu = nn.Linear(64, 8)
        self.log_var = nn.Linear(64, 8)
        self.decoder = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.encoder(x)
        mu, log_var = self.mu(h), self.log_var(h)
        z = mu + torch.randn_like(mu) * (0.5 * log_var).exp()
        return self.decoder(z), mu, log_var


@tenth.silent(
    Cause(
        r"\bKL|kullback|posterior|collaps|latent|(decoder|output)\w* .*(ignore|same"
        r"|not depend)|reduction|(sum|mean)\w* .*(mean|sum)|(term|part|loss)\w* .*"
        r"(outweigh|dominat|larger|times|balance|scale)|prior",
        r"sum|mean|reduction|weight|beta|scale|balance",
    ),
    "a mean of squares beside a sum of divergences",
)
def sum_of_kl_beside_a_mean(t: Training) -> None:
    """The error of a picture is a mean over all pixels, the divergence a sum.

    Source: github.com/zdebruine/MMVAE/pull/19 ("incorrect scaling between MSE and
    KL"), keras-team/keras/pull/3383, pytorch/examples/pull/226 and 296.
    Visible: the latent means are the same for all digits, and so are the outputs.
    """
    split = digits()
    model = VAE()
    optimizer = Adam(model.parameters(), lr=3e-3)
    t.watch(model)

    def vae_loss(out: Tensor, x: Tensor, mu: Tensor, log_var: Tensor) -> Tensor:
        mse = functional.mse_loss(out, x, reduction="mean" if t.sick else "sum")
        kld = -0.5 * torch.sum(1 + log_var - mu.pow(2) - log_var.exp())
        return mse + 0.1 * kld

    for _, idx in t.batches(300, len(split.x), 64):
        x = split.x[idx]
        out, mu, log_var = model(x)
        loss = vae_loss(out, x, mu, log_var)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x_val = split.x_val
    mu = in_evaluation(model, lambda: model.mu(model.encoder(x_val)))
    out = in_evaluation(model, lambda: model.decoder(mu))
    left = float((out - x_val).pow(2).mean() / x_val.var(0).mean())
    t.note(left=left, spread=float(mu.std(0).max()))
    conclude(t, fault=mu.std(0).max() < 0.1, reached=left < 0.7)


@tenth.silent(
    Cause(
        r"255|(targets?|masks?|labels?) .*(outside|beyond|above|range|not (in|between)"
        r"|exceed|greater|larger)|negative loss|loss .*(negative|below (0|zero))"
        r"|(not|no) probabilit|between 0 and 1|\[0, ?1\]",
        r"255|divid|0 (and|to) 1|\[0, ?1\]|binar|threshold|> ?0",
    ),
    "masks of 0 and 255 as targets of a binary loss",
)
def masks_of_255(t: Training) -> None:
    """Masks are read from pictures, with 255 for what is marked, and not divided.

    Source: github.com/milesial/Pytorch-UNet/issues/78 ("please ensure mask is 0-1,
    not 0-255"), issues 65 and 84, qubvel/segmentation_models/issues/95.
    Visible: targets are beyond 1 and the loss is negative; far too much is marked.
    """
    split = digits()
    images, val = split.x.view(-1, 1, 8, 8), split.x_val.view(-1, 1, 8, 8)
    masks = (images > 0.5).to(torch.uint8) * 255
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 1, 1),
    )
    optimizer = Adam(model.parameters(), lr=3e-3)
    criterion = nn.BCEWithLogitsLoss()
    t.watch(model, criterion)
    highest = 0.0
    for _, idx in t.batches(150, len(images), 32):
        x = images[idx] + 0.15 * torch.randn(len(idx), 1, 8, 8)
        target = masks[idx].float()
        if not t.sick:
            target = target / 255
        loss = criterion(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        highest = max(highest, float(target.max()))
    found, truth = in_evaluation(model, lambda: model(val) > 0), val > 0.5
    iou = float((found & truth).sum() / (found | truth).sum())
    t.note(iou=iou, highest=highest)
    conclude(t, fault=highest > 1, reached=iou > 0.75)


@tenth.silent(
    Cause(
        r"temperature|logits? .*(narrow|small|flat|range|spread|close|alike|scale)"
        r"|(softmax|probabilit)\w* .*(flat|uniform|nearly (equal|the same))|similarit"
        r"\w* .*(scale|multipl|divid|range|narrow|small)|scale of (the )?logits",
        r"temperature|divid|scale|/",
    ),
    "similarities are multiplied by the temperature",
)
def multiplied_by_the_temperature(t: Training) -> None:
    """Similarities of two views are multiplied by the temperature of 0.1.

    Source: github.com/bowang-lab/BLEEP/issues/5 (divided in one place and multiplied
    in another), young-geng/CQL/issues/3.
    Visible: logits differ by at most 0.2, so that the loss is nearly that of chance;
    fewer second views are found again.
    """
    split = digits()
    model = mlp([64, 128, 32])
    optimizer = Adam(model.parameters(), lr=2e-3)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)
    temperature = 0.1

    def view(x: Tensor) -> Tensor:
        keep = (torch.rand_like(x) < 0.8).float()
        return x * keep + 0.1 * torch.randn_like(x)

    spread = 0.0
    for _, idx in t.batches(200, len(split.x), 64):
        x = split.x[idx]
        z1 = functional.normalize(model(view(x)), dim=1)
        z2 = functional.normalize(model(view(x)), dim=1)
        sim = z1 @ z2.T
        logits = sim * temperature if t.sick else sim / temperature
        loss = criterion(logits, torch.arange(len(idx)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        spread = float((logits.max() - logits.min()).detach())
    x = split.x_val
    z1 = in_evaluation(model, lambda: functional.normalize(model(view(x)), dim=1))
    z2 = in_evaluation(model, lambda: functional.normalize(model(view(x)), dim=1))
    found = float(((z1 @ z2.T).argmax(1) == torch.arange(len(x))).float().mean())
    t.note(found=found, spread=spread)
    conclude(t, fault=spread < 0.3, reached=found > 0.15, harms=False)


@tenth.silent(
    Cause(
        r"clamp|clip\w* .*(output|prediction)|(output|prediction)s? .*(clamp|clip"
        r"|saturat|outside|exactly (0|1)|bound)|(zero|no) gradient\w* .*(output|pixel"
        r"|element|prediction)|gradients? .*(zero|vanish|none|block) .*(output|element"
        r"|clamp)",
        r"clamp|sigmoid|evaluation|inference|clip",
    ),
    "outputs are clamped before the loss",
)
def outputs_clamped_in_training(t: Training) -> None:
    """``torch.clamp(out, 0, 1)`` in the forward pass: beyond, nothing is learned.

    Source: github.com/MCG-NJU/EMA-VFI/issues/27 ("torch.clamp() function blocking
    gradient propagation"), PeterL1n/BackgroundMattingV2/issues/128.
    Visible: pixels that are wrong have no gradient, since they are clamped.
    """
    split = digits()

    class Autoencoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(
                nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16)
            )
            self.decoder = nn.Sequential(
                nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64)
            )

        def forward(self, x: Tensor) -> Tensor:
            out = self.decoder(self.encoder(x))
            return torch.clamp(out, 0, 1) if t.sick else torch.sigmoid(out)

    model = Autoencoder()
    optimizer = Adam(model.parameters(), lr=3e-3)
    criterion = nn.MSELoss()
    t.watch(model, criterion)
    for step, idx in t.batches(200, len(split.x), 64):
        x = split.x[idx]
        loss = criterion(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 50 == 0:
            t.evaluate(model, criterion, split.x_val, split.x_val)
    out = in_evaluation(model, lambda: model(split.x_val))
    stuck = ((out == 0) | (out == 1)) & ((out - split.x_val).abs() > 0.1)
    dead = float(stuck.float().mean())
    left = float((out - split.x_val).pow(2).mean() / split.x_val.var(0).mean())
    t.note(left=left, dead=dead)
    conclude(t, fault=dead > 0.02, reached=left < 0.6, harms=False)


@tenth.silent(
    Cause(
        r"(task|loss|term|head|part)\w* .*(dominat|outweigh|larger|times|scale|balance"
        r"|drown|swamp|magnitude)|scale of (the )?(targets?|loss)|(targets?|labels?) .*"
        r"(not (standard|normal|scal)|large|raw|unscaled|hundreds)|raw units|one (task"
        r"|loss|term)",
        r"weight|scale|standardi[sz]|normali[sz]|balance|divid",
    ),
    "a task in raw units outweighs the other",
)
def area_outweighs_the_class(t: Training) -> None:
    """Two tasks share a trunk; the area is given in pixels, and losses are added.

    Source: arxiv.org/abs/1705.07115 (weighing losses of tasks in different units);
    book-ai.org, predictive maintenance 4.3 ("the regression dominates").
    Visible: the gradient of the area in the shared layer is more than 100 times that
    of the class.
    """
    split = breast_cancer()
    raw = breast_cancer(raw=True).x[:, 23:24]
    columns = [i for i in range(30) if i not in (3, 13, 23)]
    x, x_val = split.x[:, columns], split.x_val[:, columns]
    area = raw if t.sick else (raw - raw.mean()) / raw.std()

    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(27, 8), nn.ReLU())
            self.kind = nn.Linear(8, 2)
            self.area = nn.Linear(8, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = self.trunk(x)
            return self.kind(h), self.area(h)

    model = TwoHeads()
    fresh = copy.deepcopy(model)
    optimizer = Adam(model.parameters(), lr=3e-3)
    cross_entropy, mse = nn.CrossEntropyLoss(), nn.MSELoss()
    t.watch(model, cross_entropy, mse)
    for _, rows in t.batches(150, len(x), 32):
        kind, found = model(x[rows])
        loss_kind = cross_entropy(kind, split.y[rows])
        loss_area = mse(found, area[rows])
        loss = loss_kind + loss_area
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    kinds = in_evaluation(model, lambda: model(x_val)[0].argmax(1))
    accuracy = float((kinds == split.y_val).float().mean())
    shared, (kind, found) = fresh.trunk[0].weight, fresh(x)
    of_area = torch.autograd.grad(mse(found, area), shared, retain_graph=True)[0]
    of_kind = torch.autograd.grad(cross_entropy(kind, split.y), shared)[0]
    ratio = float(of_area.norm() / of_kind.norm())
    t.note(accuracy=accuracy, ratio=ratio)
    conclude(t, fault=ratio > 100, reached=accuracy > 0.9, harms=False)
