"""Mistakes in how bytes, columns and words are made ready."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Adam

from benchmarks.detection.kit.case import eleventh
from benchmarks.detection.kit.causes import Cause
from benchmarks.detection.kit.data import digits, kinds_of_lines
from benchmarks.detection.kit.harm import conclude, held_out
from benchmarks.detection.kit.models import cnn, mlp
from benchmarks.detection.kit.training import Training


def as_codes(rows: list[list[str]], known: list[dict[str, int]]) -> Tensor:
    """The number of each word in the list of its column; 0 is unknown."""
    return torch.tensor(
        [[codes.get(w, 0) for w, codes in zip(r, known, strict=True)] for r in rows]
    )


def fit_encoder(rows: list[list[str]]) -> list[dict[str, int]]:
    """Number the words of each column in the order of the alphabet."""
    columns = zip(*rows, strict=True)
    return [{w: i + 1 for i, w in enumerate(sorted(set(c)))} for c in columns]


@eleventh.silent(
    Cause(
        r"encod\w* .*(twice|again|anew|test|validation|evaluation|differ)"
        r"|(codes?|numbers?|categor|ids?|vocabular)\w* .*(differ|another|other|shift)"
        r".*(evaluat|validat|test)|(evaluat|validat|test)\w* .*(codes?|categor|ids?"
        r"|encod|vocabular|embedding)",
        r"fit .*(train|once)|same (encod|mapping|vocabular|codes)|transform\(",
    ),
    "the encoder is fitted again on the test data",
)
def encoder_fitted_again(t: Training) -> None:
    """``fit_transform`` of the encoder on the test rows too: other codes for words.

    Source: github.com/ageron/handson-ml/issues/199,
    logicalclocks/hopsworks-tutorials/pull/81 ("dont fit the labelencoder twice").
    Visible: a word has another code in the test data, which are classified badly.
    """
    rows: list[list[str]] = []
    kinds: list[int] = []
    for kind, lines in enumerate(kinds_of_lines()):
        for line in lines[:500]:
            rows.append([*line.split(), "", "", ""][:3])
            kinds.append(kind)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(2))
    cut = len(rows) * 3 // 4
    train = [rows[i] for i in order[:cut].tolist()]
    test = [rows[i] for i in order[cut:].tolist()]
    y = torch.tensor(kinds)[order]
    encoder = fit_encoder(train)
    x_train = as_codes(train, encoder)
    test_encoder = fit_encoder(test) if t.sick else encoder
    x_test = as_codes(test, test_encoder)
    model = nn.Sequential(nn.Embedding(2500, 16), nn.Flatten(), mlp([48, 32, 4]))
    criterion = nn.CrossEntropyLoss()
    optimizer = Adam(model.parameters(), lr=5e-3)
    t.watch(model, criterion)
    for step, chosen in t.batches(250, len(x_train), 64):
        loss = criterion(model(x_train[chosen]), y[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 24:
            t.evaluate(model, criterion, x_test, y[cut:])
    accuracy = held_out(model, x_test, y[cut:])
    t.note(accuracy=accuracy)
    both = encoder[0].keys() & test_encoder[0].keys()
    moved = sum(encoder[0][w] != test_encoder[0][w] for w in both)
    conclude(t, fault=moved > len(both) // 2, reached=accuracy > 0.75)


@eleventh.silent(
    Cause(
        r"wrap|overflow|uint8|modulo|256|byte",
        r"float|clip|clamp|saturat|int16|cast",
    ),
    "brighter bytes wrap around to dark ones",
)
def brightness_wraps_around(t: Training) -> None:
    """A number is added to images of uint8, and what is above 255 begins again at 0.

    Source: numpy's documentation of integer overflow; asked often for images.
    Visible: pixels of brightened images are darker than before.
    """
    split = digits()
    images = (split.x * 255).to(torch.uint8)
    model, criterion = cnn(), nn.CrossEntropyLoss()
    optimizer = Adam(model.parameters(), lr=2e-3)
    t.watch(model, criterion)
    darker = 0
    for _, rows in t.batches(200, len(images), 32):
        batch = images[rows]
        shift = int(torch.randint(0, 80, ()))
        if t.sick:
            bright = batch + shift
        else:
            bright = (batch.int() + shift).clamp(max=255).to(torch.uint8)
        darker += int((bright < batch).sum())
        loss = criterion(model(bright.float() / 255), split.y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(accuracy=accuracy, darker=darker)
    conclude(t, fault=darker > 1000, reached=accuracy > 0.85, harms=False)


@eleventh.silent(
    Cause(
        r"unknown|out.of.vocabular|UNK|\bcase\b|lower|upper|capital",
        r"lower|case|same (form|token)|vocabular|normali",
    ),
    "words are looked up in capitals, in a vocabulary of small letters",
)
def looked_up_in_capitals(t: Training) -> None:
    """The vocabulary is of lower-cased words; when encoding, ``lower()`` is missing.

    Source: a usual one of hand-made vocabularies with uncased embeddings.
    Visible: words that the vocabulary has are unknown, for their capitals.
    """
    texts = [(s, k) for k, of in enumerate(kinds_of_lines()) for s in of[:500]]
    vocab: dict[str, int] = {}
    for text, _ in texts:
        for word in text.lower().split():
            vocab.setdefault(word, len(vocab) + 2)

    def encode(text: str) -> list[int]:
        words = text.split() if t.sick else text.lower().split()
        ids = [vocab.get(word, 1) for word in words][:12]
        return ids + [0] * (12 - len(ids))

    x = torch.tensor([encode(text) for text, _ in texts])
    y = torch.tensor([kind for _, kind in texts])
    model = nn.Sequential(nn.EmbeddingBag(len(vocab) + 2, 24, padding_idx=0))
    model.append(nn.Linear(24, 4))
    criterion = nn.CrossEntropyLoss()
    optimizer = Adam(model.parameters(), lr=1e-2)
    t.watch(model, criterion)
    for _, rows in t.batches(200, len(x), 64):
        loss = criterion(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    unknown = float((x == 1).sum() / (x != 0).sum())
    accuracy = held_out(model, x, y)
    t.note(unknown=unknown, accuracy=accuracy)
    conclude(t, fault=unknown > 0.1, reached=accuracy > 0.9, harms=False)
