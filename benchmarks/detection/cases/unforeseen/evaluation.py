"""Figures by which people judge and choose models, and that are not what is meant."""

from __future__ import annotations

import copy

import numpy as np
import torch
from sklearn.metrics import f1_score, precision_score, recall_score, roc_auc_score
from sklearn.model_selection import KFold
from torch import Tensor, nn
from torch.optim import SGD, Adam
from torchmetrics.classification import MulticlassAccuracy

from benchmarks.detection.kit.case import tenth
from benchmarks.detection.kit.causes import Cause
from benchmarks.detection.kit.data import breast_cancer, digits, thin_out
from benchmarks.detection.kit.harm import conclude, held_out, in_evaluation
from benchmarks.detection.kit.models import mlp
from benchmarks.detection.kit.training import Training


@tenth.silent(
    Cause(
        r"(mean|averag)\w* .*(per|each|by|of the|over( the)?|across) batch|batch\w* "
        r".*(averag|mean)|(per|each|by|every).batch .*(F1|metric|score|precision"
        r"|recall)"
        r"|(F1|metric|score)\w* .*(batch|not (additive|linear))",
        r"all (predictions|batches)|collect|concatenat|whole|accumulat|counts|once",
    ),
    "F1 is computed for each batch, and the mean of that reported",
)
def f1_of_each_batch(t: Training) -> None:
    """One class of ten against the rest; many batches of 16 have no positive at all.

    Source: github.com/Lightning-AI/torchmetrics/issues/845,
    github.com/emadeldeen24/AttnSleep/issues/13, thunlp/Few-NERD/issues/2.
    Visible: the F1 by which a model is chosen is not the F1 of the validation data.
    """
    split = digits()
    labels, targets = (split.y == 8).float(), (split.y_val == 8).float()
    model = mlp([64, 32, 1])
    optimizer = Adam(model.parameters(), lr=1e-2)
    criterion = nn.BCEWithLogitsLoss()
    t.watch(model, criterion, optimizer=optimizer)
    best_f1, best = -1.0, copy.deepcopy(model.state_dict())
    val_f1 = 0.0
    for step, rows in t.batches(240, len(split.x), 32):
        optimizer.zero_grad()
        criterion(model(split.x[rows])[:, 0], labels[rows]).backward()
        optimizer.step()
        if (step + 1) % 40:
            continue
        outputs: list[Tensor] = []
        for x, y in zip(split.x_val.split(16), targets.split(16), strict=True):
            outputs.append(t.evaluate(model, criterion, x, y[:, None])[1][:, 0])
        pairs = list(zip(outputs, targets.split(16), strict=True))
        if t.sick:
            scores = [f1_score(y, out > 0, zero_division=0.0) for out, y in pairs]
            val_f1 = float(np.mean(scores))
        else:
            val_f1 = float(f1_score(targets, torch.cat(outputs) > 0))
        if val_f1 > best_f1:
            best_f1, best = val_f1, copy.deepcopy(model.state_dict())
    true_f1 = float(f1_score(targets, torch.cat(outputs) > 0))
    model.load_state_dict(best)
    t.note(reported=val_f1, true=true_f1)
    wrong = abs(val_f1 - true_f1) > 0.05
    conclude(t, fault=wrong, reached=true_f1 > 0.75, harms=False)


@tenth.silent(
    Cause(
        r"(AUC|ROC|rank)\w* .*(label|class|hard|threshold|argmax|round|0 (and|or) 1"
        r"|binary"
        r"|only two|two (distinct )?values)|(hard|rounded|thresholded|binary) (label"
        r"|prediction|output|class|score)\w*",
        r"probabilit|score|logit|predict_proba|before (the )?threshold",
    ),
    "the area under the curve is computed from classes, not from scores",
)
def auc_of_classes(t: Training) -> None:
    """``roc_auc_score(y, logits > 0)``; the best epoch is chosen by it.

    Source: bkanupam.medium.com/using-binary-predictions-vs-probability-scores-in-
    roc-auc-score-bd00ff368550, Kaggle submissions of predicted classes.
    Visible: the area by which a model is chosen is not that of its scores.
    """
    split = thin_out(breast_cancer(), 0, 40)
    model = mlp([30, 16, 1], dropout=0.2)
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.BCEWithLogitsLoss()
    t.watch(model, criterion, optimizer=optimizer)
    best_auc, best, history = 0.0, copy.deepcopy(model.state_dict()), []
    targets = split.y_val.float()[:, None]
    for step, rows in t.batches(180, len(split.x), 32):
        optimizer.zero_grad()
        criterion(model(split.x[rows]), split.y[rows].float()[:, None]).backward()
        optimizer.step()
        if (step + 1) % 15 == 0:
            _, logits = t.evaluate(model, criterion, split.x_val, targets)
            preds = (torch.sigmoid(logits) > 0.5).float() if t.sick else logits
            auc = float(roc_auc_score(targets, preds))
            history.append((auc, float(roc_auc_score(targets, logits))))
            if auc > best_auc:
                best_auc, best = auc, copy.deepcopy(model.state_dict())
    model.load_state_dict(best)
    reported, true = history[-1]
    t.note(reported=reported, true=true)
    conclude(t, fault=true - reported > 0.01, reached=true > 0.95, harms=False)


@tenth.silent(
    Cause(
        r"\breset\b|(metric|accura|score|confusion|count)\w* .*(accumulat|earlier epoch"
        r"|all epochs|previous|running|since the (beginning|start)|older|carr)"
        r"|(accumulat|carr)\w* .*(over|across|between|from) .*(epoch|evaluation)s?",
        r"reset|clear|new metric",
    ),
    "the metric is never reset, so it counts all epochs so far",
)
def metric_never_reset(t: Training) -> None:
    """``metric.compute()`` after each epoch, and no ``metric.reset()``.

    Source: github.com/Lightning-AI/torchmetrics/issues/269 and /1791,
    github.com/JetBrains-Research/code2seq/pull/112.
    Visible: what is reported after an epoch is not the accuracy of that epoch.
    """
    split = digits()
    model = mlp([64, 48, 10])
    optimizer = Adam(model.parameters(), lr=3e-3)
    criterion = nn.CrossEntropyLoss()
    accuracy = MulticlassAccuracy(num_classes=10, average="micro")
    t.watch(model, criterion, optimizer=optimizer)
    reported = now = 0.0
    for step, rows in t.batches(210, len(split.x), 64):
        optimizer.zero_grad()
        criterion(model(split.x[rows]), split.y[rows]).backward()
        optimizer.step()
        if (step + 1) % 21 == 0:
            right = 0
            val = zip(split.x_val.split(64), split.y_val.split(64), strict=True)
            for x, y in val:
                _, outputs = t.evaluate(model, criterion, x, y)
                accuracy.update(outputs, y)
                right += int((outputs.argmax(1) == y).sum())
            reported, now = float(accuracy.compute()), right / len(split.y_val)
            if not t.sick:
                accuracy.reset()
    t.note(reported=reported, now=now)
    wrong = abs(reported - now) > 0.02
    conclude(t, fault=wrong, reached=now > 0.9, harms=False)


@tenth.silent(
    Cause(
        r"(accura|metric|score)\w* .*(cell|element|each (output|class)|binary|one.?hot"
        r"|per (class|output|label)|zeros|all (negative|zero))|element.?wise"
        r"|(accura|stopp)\w* .*(too (high|early)|inflat|argmax|overstat)"
        r"|(cells?|elements?|entries) .*(count|right|agree|accura)",
        r"argmax|categorical|row|subset|largest",
    ),
    "accuracy counts the cells of one-hot labels, most of which are 0",
)
def accuracy_of_cells(t: Training) -> None:
    """Each of the ten outputs is compared with its cell; training stops at 95 %.

    Source: stackoverflow.com/questions/41327601 ("Why is binary_crossentropy more
    accurate than categorical_crossentropy for multiclass classification?"),
    stackoverflow.com/questions/42081257.
    Visible: it stops when fewer than three of four images are recognized.
    """
    split = digits()
    onehot = nn.functional.one_hot(split.y, 10).float()
    onehot_val = nn.functional.one_hot(split.y_val, 10).float()
    model = mlp([64, 48, 10])
    optimizer = Adam(model.parameters(), lr=3e-3)
    criterion = nn.BCEWithLogitsLoss()
    t.watch(model, criterion, optimizer=optimizer)
    acc = 0.0
    for step, rows in t.batches(400, len(split.x), 32):
        optimizer.zero_grad()
        criterion(model(split.x[rows]), onehot[rows]).backward()
        optimizer.step()
        if (step + 1) % 10 == 0:
            _, outputs = t.evaluate(model, criterion, split.x_val, onehot_val)
            if t.sick:
                preds = (torch.sigmoid(outputs) > 0.5).float()
                acc = float((preds == onehot_val).float().mean())
            else:
                acc = float((outputs.argmax(1) == split.y_val).float().mean())
            if acc >= 0.95:
                break
    true = held_out(model, split.x_val, split.y_val)
    t.note(reported=acc, true=true)
    conclude(t, fault=acc - true > 0.05, reached=true > 0.9)


@tenth.silent(
    Cause(
        r"\bfolds?\b|cross.?validat|(already|before) (trained|seen)|evaluat\w* "
        r".*(trained "
        r"on|seen|overlap|leak)|(validation|held.out)\w* .*(were|was|had been|in) .*"
        r"(train|seen)|leak",
        r"reset|new model|re.?initiali|each fold|anew",
    ),
    "all folds train the same model",
)
def folds_share_the_model(t: Training) -> None:
    """Five folds, and the weights are not drawn anew: it has seen what it is shown.

    Source: stackoverflow.com/questions/75264251 ("validation accuracy increases too
    much between folds"), discuss.pytorch.org threads on k-fold.
    Visible: before the first step of the last fold it knows the data held out.
    """
    split = digits().take(torch.arange(500))
    model = mlp([64, 96, 10])
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)
    kfold = KFold(n_splits=5, shuffle=True, random_state=0)
    steps = iter(t.steps(5 * 50))
    scores, naive = [], []
    for fit, held in kfold.split(np.arange(500)):
        fitted, rest = torch.from_numpy(fit), torch.from_numpy(held)
        if not t.sick:
            for layer in model:
                if isinstance(layer, nn.Linear):
                    layer.reset_parameters()
        naive.append(held_out(model, split.x[rest], split.y[rest]))
        optimizer = Adam(model.parameters(), lr=2e-3)
        drawn = t.epochs(len(fitted), 32)
        for _ in range(50):
            next(steps)
            rows = fitted[next(drawn)]
            optimizer.zero_grad()
            criterion(model(split.x[rows]), split.y[rows]).backward()
            optimizer.step()
        _, outputs = t.evaluate(model, criterion, split.x[rest], split.y[rest])
        scores.append(float((outputs.argmax(1) == split.y[rest]).float().mean()))
    t.note(first=scores[0], last=scores[-1], naive=naive[-1])
    conclude(t, fault=naive[-1] > 0.5, reached=np.mean(scores) > 0.8, harms=False)


@tenth.silent(
    Cause(
        r"precision .*recall|recall .*precision|swap|exchang"
        r"|(order|position)\w* of (the )?argument|arguments? .*(order|swap|revers)"
        r"|y_true|(prediction|label)s? .*(exchanged|in place of|instead of) (the )?"
        r"(label|prediction)",
        r"order|y_true|first|swap|argument",
    ),
    "labels and predictions are exchanged: precision is recall",
)
def precision_is_recall(t: Training) -> None:
    """``precision_score(preds, labels)``; the threshold is chosen by it.

    Source: github.com/emadeldeen24/AttnSleep/issues/13 ("f1_score(pred, target) should
    be changed to f1_score(target, pred)"), Stack Overflow on argument order.
    Visible: the precision reported is the recall.
    """
    split = thin_out(breast_cancer(), 1, 40)
    model = mlp([30, 16, 1])
    optimizer = Adam(model.parameters(), lr=3e-3)
    criterion = nn.BCEWithLogitsLoss()
    t.watch(model, criterion, optimizer=optimizer)
    targets = split.y_val.float()[:, None]
    for _, rows in t.batches(150, len(split.x), 32):
        optimizer.zero_grad()
        criterion(model(split.x[rows]), split.y[rows].float()[:, None]).backward()
        optimizer.step()
    _, logits = t.evaluate(model, criterion, split.x_val, targets)
    probs = torch.sigmoid(logits)
    chosen, reported = 0.5, 0.0
    for threshold in (0.1, 0.3, 0.5, 0.7, 0.9):
        preds = (probs > threshold).float()
        args = (preds, targets) if t.sick else (targets, preds)
        score = float(precision_score(*args, zero_division=0.0))
        if score > reported:
            chosen, reported = threshold, score
    preds = (probs > chosen).float()
    true = float(precision_score(targets, preds))
    recall = float(recall_score(targets, preds))
    t.note(reported=reported, precision=true, recall=recall)
    right = float(((probs > 0.5) == (targets > 0.5)).float().mean())
    wrong = abs(reported - true) > 0.01
    conclude(t, fault=wrong, reached=right > 0.85, harms=False)


class Scaled(nn.Module):
    """A classifier whose logits are divided by a temperature."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.temperature = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x) / self.temperature


@tenth.silent(
    Cause(
        r"temperature|calibrat\w* .*(train|seen|same (data|rows|samples))",
        r"validation|held.out|calibration (set|data)|other data",
    ),
    "the temperature is fitted on the data that the model was trained on",
)
def calibrated_on_training_data(t: Training) -> None:
    """A network that knows its training data by heart is calibrated on just these.

    One label in five is wrong, as people make mistakes.
    Source: github.com/gpleiss/temperature_scaling ("use the validation set, not the
    training set"), arxiv.org/abs/1706.04599.
    Visible: the temperature makes it surer of itself, though it is too sure already.
    """
    noise = torch.Generator().manual_seed(5)
    split = digits().take(torch.arange(400))
    said = torch.cat((split.y, split.y_val))
    wrong = torch.rand(len(said), generator=noise) < 0.2
    said = torch.where(wrong, torch.randint(10, wrong.shape, generator=noise), said)
    labels, labels_val = said[:400], said[400:]
    model = Scaled(mlp([64, 192, 10]))
    optimizer = Adam(model.model.parameters(), lr=4e-3)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)
    steps = iter(t.steps(320))
    drawn = t.epochs(400, 40)
    for _ in range(260):
        next(steps)
        rows = next(drawn)
        optimizer.zero_grad()
        criterion(model(split.x[rows]), labels[rows]).backward()
        optimizer.step()
    before = held_out(model, split.x_val, split.y_val)
    x, y = (split.x, labels) if t.sick else (split.x_val[:225], labels_val[:225])
    scaling = Adam([model.temperature], lr=0.05)
    for _ in range(60):
        next(steps)
        scaling.zero_grad()
        criterion(model(x), y).backward()
        scaling.step()
    logits = in_evaluation(model, lambda: model(split.x_val[225:]))
    surety = float(logits.softmax(1).max(1).values.mean())
    right = float((logits.argmax(1) == labels_val[225:]).float().mean())
    t.note(temperature=float(model.temperature.detach()), sure=surety, right=right)
    too_sure = bool(model.temperature < 1.0) and surety - right > 0.03
    conclude(t, fault=too_sure, reached=before > 0.75, harms=False)
