"""Train a small network on handwritten digits: an ordinary script, with mistakes.

As it is, two digits are rare in the training data, images are mirrored at random,
and the learning rate is far from a good one.  Options mend that:

    python examples/case_study/train.py --out runs/digits
    python examples/case_study/train.py --out runs/mended --balanced --no-mirroring

tdbg is in it by the hook of ``make_hook`` alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import tdbg
import tdbg.pytorch as td

__all__ = ["RULES", "Digits", "Options", "Outcome", "load", "main", "train"]

RULES = ("LossNotDecreasing", "ClassImbalance", "Confusion")
BATCH_SIZE = 64
# Held back, of 1,797 images.
N_TEST = 600
# Passes over the test images are as many steps of training apart.
EVALUATE_EVERY = 50
# Every tenth step of training, so that there are images to labels that the rules read;
# every evaluation, for there are few.
KEPT = tdbg.SaveConfig(
    {
        tdbg.ModeKeys.TRAIN: tdbg.SaveConfigMode(save_interval=10),
        tdbg.ModeKeys.EVAL: tdbg.SaveConfigMode(save_interval=1),
    }
)
# The planted imbalance: of these digits only so many images are left to train with.
RARE = (2, 9)
N_RARE = 4


@dataclass(frozen=True, kw_only=True)
class Options:
    """What can be told the script; the defaults are the mistakes."""

    learning_rate: float = 1e-5
    mirroring: bool = True
    balanced: bool = False
    n_steps: int = 1000
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Digits:
    """Images as float32 (n, 1, 8, 8) of mean 0 and deviation 1; labels as int64."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a training went.

    Attributes:
        n_steps: Steps that were made.
        stopped: Why it was stopped early, or None.
        recall: Of each digit, the share of test images that are recognized.
    """

    n_steps: int
    stopped: str | None
    recall: list[float]


def load() -> Digits:
    """The digits of scikit-learn, with some of them made rare in the training part."""
    raw = load_digits()
    images = torch.tensor(raw.images, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(raw.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, train = order[:N_TEST], order[N_TEST:]
    for digit in RARE:
        is_rare = labels[train] == digit
        train = torch.cat((train[~is_rare], train[is_rare][:N_RARE]))
    mean, deviation = images[train].mean(), images[train].std()
    images = (images - mean) / deviation
    return Digits(images[train], labels[train], images[test], labels[test])


def build() -> nn.Module:
    """Two convolutions and a linear layer."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(1, 8, 3, padding=1),
        act1=nn.ReLU(),
        pool=nn.MaxPool2d(2),
        conv2=nn.Conv2d(8, 16, 3, padding=1),
        act2=nn.ReLU(),
        flatten=nn.Flatten(),
        classify=nn.Linear(256, 10),
    )
    return nn.Sequential(layers)


def mirrored(images: Tensor, generator: torch.Generator) -> Tensor:
    """Flip each left to right, and each upside down, with a chance of one half."""
    for axis in (3, 2):
        flip = torch.rand(len(images), 1, 1, 1, generator=generator) < 0.5
        images = torch.where(flip, images.flip(axis), images)
    return images


def batches(digits: Digits, options: Options) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield what is trained with, for ever."""
    generator = torch.Generator().manual_seed(options.seed)
    labels = digits.train_labels
    weights = torch.ones(len(labels))
    if options.balanced:
        weights = 1.0 / torch.bincount(labels)[labels]
    while True:
        chosen = torch.multinomial(
            weights, BATCH_SIZE, replacement=True, generator=generator
        )
        images = digits.train_images[chosen]
        if options.mirroring:
            images = mirrored(images, generator)
        yield images, labels[chosen]


def make_hook(out: Path) -> td.Hook:
    """Capture what the rules need, and the images to the labels that they read."""
    names = ("model_inputs", "labels", "predictions")
    kept = [tdbg.Collection(name, save_config=KEPT) for name in names]
    return td.Hook(out, rules=RULES, collections=kept)


def train(out: Path, options: Options) -> Outcome:
    """Train, and say how it went; ends early when somebody stops the run."""
    # The network is too small for more.
    torch.set_num_threads(1)
    hook = make_hook(out)
    torch.manual_seed(options.seed)
    digits = load()
    model, criterion = build(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=options.learning_rate, momentum=0.9
    )
    hook.register_module(model)
    hook.register_loss(criterion)

    def evaluate() -> Tensor:
        model.eval()
        with torch.no_grad():
            scores = model(digits.test_images)
            criterion(scores, digits.test_labels)
        model.train()
        return scores.argmax(dim=1)

    step, stopped = 0, None
    try:
        for images, labels in batches(digits, options):
            optimizer.zero_grad()
            criterion(model(images), labels).backward()
            optimizer.step()
            step += 1
            if step % EVALUATE_EVERY == 0:
                evaluate()
            if step == options.n_steps:
                break
    except tdbg.TrainingStopped as stop:
        stopped = stop.reason
    hook.close()
    answers = evaluate()
    recall = [
        float((answers[digits.test_labels == digit] == digit).double().mean())
        for digit in range(10)
    ]
    return Outcome(n_steps=step, stopped=stopped, recall=recall)


def main(arguments: list[str] | None = None) -> None:
    """Train as the command line says; prints the outcome as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the run directory")
    parser.add_argument("--learning-rate", type=float, default=Options.learning_rate)
    parser.add_argument("--no-mirroring", dest="mirroring", action="store_false")
    parser.add_argument("--balanced", action="store_true", help="draw all digits alike")
    parser.add_argument("--steps", dest="n_steps", type=int, default=Options.n_steps)
    parser.add_argument("--seed", type=int, default=Options.seed)
    given = vars(parser.parse_args(arguments))
    outcome = train(given.pop("out"), Options(**given))
    json.dump(asdict(outcome), sys.stdout)


if __name__ == "__main__":
    main()
