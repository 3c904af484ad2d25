"""What is done to inputs on the way: scales, flips, placeholders, words, classes."""

from __future__ import annotations

import unicodedata

import torch
from torch import Tensor, nn
from torch.optim import Adam

from benchmarks.detection.kit.case import tenth
from benchmarks.detection.kit.causes import Cause
from benchmarks.detection.kit.data import (
    TOLD_APART,
    Split,
    breast_cancer,
    digits,
    encode,
    padded,
    parted,
    patches,
    source,
    vocabulary,
    words_of,
)
from benchmarks.detection.kit.harm import conclude, held_out, in_evaluation
from benchmarks.detection.kit.models import Convolved, cnn, mlp
from benchmarks.detection.kit.training import Training


def photo_net() -> nn.Sequential:
    """A small network for pieces of photographs."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 2),
    )


def to_tensor(image: Tensor) -> Tensor:
    """Bytes to numbers from 0 to 1."""
    return image / 255.0


@tenth.silent(
    Cause(
        r"(divid|scal|normali[sz]|rescal)\w* (by 255 )?(twice|two times|again|doubl)"
        r"|twice|doubl\w* (scal|normali)|255|(inputs?|images?|pixels?|values) .*(tiny"
        r"|too small|very small|nearly (zero|constant)|almost (zero|constant)|close to"
        r" (0|zero))|(small|tiny) (inputs?|scale)|scale of (the )?inputs?",
        r"255|once|twice|scale|normali[sz]|standardi[sz]",
    ),
    "bytes are divided by 255 twice",
)
def bytes_divided_twice(t: Training) -> None:
    """The dataset divides by 255, and so does the transform.

    Source: github.com/4uiiurz1/pytorch-nested-unet/issues/62 ("divided by 255 twice
    before input into the network"), facebookresearch/InterHand2.6M/issues/110.
    Visible: the largest input is below 1/100, and the photographs are hardly told
    apart after 120 steps.
    """
    split = patches()
    images, val_images = split.x / 255.0, to_tensor(split.x_val)
    if t.sick:
        images, val_images = to_tensor(images), to_tensor(val_images)
    model = photo_net()
    optimizer = Adam(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)
    for step, idx in t.batches(120, len(images), 32):
        loss = criterion(model(images[idx]), split.y[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 40 == 0:
            t.evaluate(model, criterion, val_images, split.y_val)
    accuracy = held_out(model, val_images, split.y_val)
    t.note(accuracy=accuracy, largest=float(images.max()))
    conclude(t, fault=images.max() < 0.01, reached=accuracy > 0.7)


@tenth.silent(
    Cause(
        r"flip|mirror|upside|rotat|augment\w* .*(chang|alter|destroy|break|not preserv"
        r"|label|mean)|label\w* .*(not (invariant|preserved)|lost) .*augment",
        r"flip|mirror|augment|rotat",
    ),
    "digits are flipped both ways",
)
def digits_are_flipped(t: Training) -> None:
    """Random flips, copied from a recipe for photographs, on handwritten digits.

    Source: github.com/chrischute/real-nvp/issues/5 (flips on MNIST),
    AlexeyAB/darknet/issues/2630 (a mirrored 2 looks like a 6).
    Visible: most flipped images are nearer to the mean of another digit, and after
    200 steps fewer than 88 % are recognized.
    """
    split = digits()
    means = torch.stack([split.x[split.y == c].mean(0) for c in range(10)])
    flipped: list[Tensor] = []

    def augment(x: Tensor) -> Tensor:
        images = x.view(-1, 8, 8)
        images = images + 0.05 * torch.randn_like(images)
        if t.sick:
            for dim in (1, 2):
                coin = torch.rand(len(images), 1, 1) < 0.5
                images = torch.where(coin, images.flip(dim), images)
        return images.flatten(1)

    model = cnn()
    optimizer = Adam(model.parameters(), lr=2e-3)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)
    for step, idx in t.batches(200, len(split.x), 32):
        x, y = augment(split.x[idx]), split.y[idx]
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        flipped.append(torch.cdist(x, means).argmin(1) != y)
        if (step + 1) % 50 == 0:
            t.evaluate(model, criterion, split.x_val, split.y_val)
    strange = float(torch.cat(flipped).float().mean())
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(accuracy=accuracy, strange=strange)
    conclude(t, fault=strange > 0.3, reached=accuracy > 0.88)


class Segmenter(nn.Module):
    """Marks the ink of a noisy digit."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 1, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


@tenth.silent(
    Cause(
        r"mask\w* .*(flip|augment|transform|align|misalign|correspond|match)|(flip"
        r"|augment|transform)\w* .*(mask|target|label|apart|separate|independent"
        r"|only the (image|input))|(misalign|not align)\w*|targets? (do|does) not "
        r"(follow|match|belong)",
        r"same (flip|transform|random|augment|seed)|both|together|mask|joint",
    ),
    "image and mask are flipped apart",
)
def mask_flipped_apart(t: Training) -> None:
    """The random flip is called once for the image and once more for the mask.

    Source: discuss.pytorch.org (transforms for image and mask alike),
    github.com/mdbloice/Augmentor/issues/173 (mask not consistent with the image).
    Visible: half of the masks are mirrored against their images.
    """
    split = digits()
    images, val_images = split.x.view(-1, 1, 8, 8), split.x_val.view(-1, 1, 8, 8)
    apart = 0

    def random_flip(x: Tensor, coin: Tensor) -> Tensor:
        return torch.where(coin[:, None, None, None], x.flip(3), x)

    model = Segmenter()
    optimizer = Adam(model.parameters(), lr=3e-3)
    criterion = nn.BCEWithLogitsLoss()
    t.watch(model, criterion)
    noise = 0.15
    for _, idx in t.batches(150, len(images), 32):
        clean = images[idx]
        mask = (clean > 0.5).float()
        coin = torch.rand(len(idx)) < 0.5
        other = torch.rand(len(idx)) < 0.5 if t.sick else coin
        x = random_flip(clean + noise * torch.randn_like(clean), coin)
        target = random_flip(mask, other)
        apart += int((target != random_flip(mask, coin)).any(3).any(2).sum())
        optimizer.zero_grad()
        loss = criterion(model(x), target)
        loss.backward()
        optimizer.step()
    found = in_evaluation(model, lambda: model(val_images) > 0)
    truth = val_images > 0.5
    iou = float((found & truth).sum() / (found | truth).sum())
    t.note(iou=iou, apart=apart)
    conclude(t, fault=apart > 500, reached=iou > 0.7, harms=False)


@tenth.silent(
    Cause(
        r"-?999|placeholder|sentinel|missing|imput|fill(ed|er)? value|magic (value"
        r"|number)|(same|one) (extreme|lowest|outlying) value|outlier",
        r"imput|missing|mean|median|NaN|mask|indicator|replace|drop",
    ),
    "-999 for a missing value is scaled like a number",
)
def placeholder_is_scaled(t: Training) -> None:
    """A tenth of the cells are missing, written as -999, and standardized as they are.

    Source: datascience.stackexchange.com/questions/36047 ("zeros will affect the
    mean/std"), and a question on scaling where NaN is -1 or -99.
    Visible: in each column a tenth of the cells have the lowest value, which all other
    cells are far above; fewer than 93 % are recognized.
    """
    split = breast_cancer(raw=True)
    luck = torch.Generator().manual_seed(3)
    missing = torch.rand(split.x.shape, generator=luck) < 0.12
    missing_val = torch.rand(split.x_val.shape, generator=luck) < 0.12
    x = split.x.masked_fill(missing, -999.0)
    x_val = split.x_val.masked_fill(missing_val, -999.0)
    if not t.sick:
        known = (x * ~missing).sum(0) / (~missing).sum(0)
        x = torch.where(missing, known, x)
        x_val = torch.where(missing_val, known, x_val)
    mean, std = x.mean(0), x.std(0)
    x, x_val = (x - mean) / std, (x_val - mean) / std

    model = mlp([30, 16, 2])
    optimizer = Adam(model.parameters(), lr=3e-3)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)
    for step, rows in t.batches(150, len(x), 32):
        optimizer.zero_grad()
        criterion(model(x[rows]), split.y[rows]).backward()
        optimizer.step()
        if (step + 1) % 50 == 0:
            t.evaluate(model, criterion, x_val, split.y_val)
    lowest = float((x == x.amin(0)).float().mean())
    accuracy = held_out(model, x_val, split.y_val)
    t.note(accuracy=accuracy, lowest=lowest)
    conclude(t, fault=lowest > 0.08, reached=accuracy > 0.93)


@tenth.silent(
    Cause(
        r"overflow|wrap|uint8|modulo|underflow|(bytes?|8.bit|integer) .*(add|arithm"
        r"|limit|range|255)|clip\w* .*255|saturat\w* .*(pixel|byte)",
        r"clamp|clip|float|int16|cast|dtype|saturat",
    ),
    "brighter bytes wrap around at 256",
)
def brighter_bytes_wrap(t: Training) -> None:
    """Brightness is raised by an addition of bytes, which begins again at 0.

    Source: github.com/vxy10/p5_VehicleDetection_Unet/issues/2 ("scaledValue%256"),
    LCAV/LenslessPiCam/pull/173 ("silent uint8 overflow"), tensorpack/issues/614.
    Visible: many pixels of the brightened images are darker than before.
    """
    split = patches()
    images = split.x.to(torch.uint8)
    darker = []

    def brighten(batch: Tensor) -> Tensor:
        by = torch.randint(40, 121, (len(batch), 1, 1, 1))
        if t.sick:
            return batch + by.to(torch.uint8)
        return (batch.int() + by).clamp(0, 255).to(torch.uint8)

    model = photo_net()
    optimizer = Adam(model.parameters(), lr=2e-3)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)
    for step, idx in t.batches(200, len(images), 32):
        bright = brighten(images[idx])
        darker.append((bright < images[idx]).float().mean())
        optimizer.zero_grad()
        loss = criterion(model(to_tensor(bright)), split.y[idx])
        loss.backward()
        optimizer.step()
        if (step + 1) % 50 == 0:
            t.evaluate(model, criterion, to_tensor(split.x_val), split.y_val)
    share = float(torch.stack(darker).mean())
    accuracy = held_out(model, to_tensor(split.x_val), split.y_val)
    t.note(accuracy=accuracy, darker=share)
    conclude(t, fault=share > 0.1, reached=accuracy > 0.7, harms=False)


def letters() -> tuple[list[str], Tensor]:
    """Names of letters without the script, and the number of the script."""
    scripts = ("LATIN", "GREEK", "CYRILLIC", "ARABIC")
    names = [unicodedata.name(chr(i), "") for i in range(0x20, 0x3000)]
    kept = [w for w in map(str.split, names) if len(w) > 1 and w[0] in scripts]
    labels = torch.tensor([scripts.index(words[0]) for words in kept])
    return [" ".join(words[1:]) for words in kept], labels


@tenth.silent(
    Cause(
        r"unknown|\bUNK\b|out.of.vocab|\bOOV\b|lower.?cas|upper.?cas|\bcas(e|ing)\b"
        r"|(same|one) (token|number|index|word) .*(most|nearly all|almost all|%|share)"
        r"|(most|nearly all|almost all|\d ?%) (of )?(the )?(tokens|words|numbers"
        r"|indices|ids)|few (distinct|different) (tokens|words|ind)|never (looked up"
        r"|used)|rows? of (the )?(table|embedding) .*never",
        r"lower|case|vocab|token|unknown|UNK",
    ),
    "words in capitals are not in the vocabulary",
)
def capitals_are_unknown(t: Training) -> None:
    """The vocabulary was built of small letters, and words are looked up as they are.

    Source: github.com/informagi/REL/issues/73 ("all words with at least a single
    upper case letter default to the None or unknown embedding"),
    esantus/Outlier_Detection/issues/1.
    Visible: nearly all tokens are the one for unknown words; fewer than 75 % of the
    names are told apart.
    """
    names, labels = letters()
    table = vocabulary(words_of(" ".join(names)), at_least=2)
    rows = []
    for name in names:
        words = name.split() if t.sick else name.lower().split()
        rows.append(torch.tensor([table.get(word, 1) for word in words]))
    split = parted(padded(rows, 8), labels)
    unknown = float((split.x == 1).sum() / (split.x != 0).sum())

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(len(table) + 2, 32, padding_idx=0)
            self.out = nn.Linear(32, 4)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.out(self.embedding(tokens).sum(1))

    model = Classifier()
    optimizer = Adam(model.parameters(), lr=1e-2)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)
    for step, idx in t.batches(200, len(split.x), 64):
        optimizer.zero_grad()
        criterion(model(split.x[idx]), split.y[idx]).backward()
        optimizer.step()
        if (step + 1) % 50 == 0:
            t.evaluate(model, criterion, split.x_val, split.y_val)
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(accuracy=accuracy, unknown=unknown)
    conclude(t, fault=unknown > 0.8, reached=accuracy > 0.75)


@tenth.silent(
    Cause(
        r"truncat|max_?len|cut (off|short)|(too )?short\w* (rows?|sequences?|length)"
        r"|(rows?|sequences?|texts?|lines?|samples?) .*(cut|fill|reach)\w*.*(length"
        r"|limit|end)|(no|never any|without) padding|length .*(limit|too short)",
        r"max_?len|longer|truncat|length",
    ),
    "lines are cut after six characters",
)
def lines_cut_short(t: Training) -> None:
    """``max_length=6``, left from a test, cuts nearly all lines.

    Source: github.com/huggingface/trl/pull/6025 (nothing is left to train on after
    ``max_length``), unslothai/unsloth/issues/2904 and pull/11333.
    Visible: more than nine of ten lines are longer than what the model is given;
    fewer lines are told apart.
    """
    texts = [
        (line.strip(), label)
        for label, module in enumerate(TOLD_APART)
        for line in source(module).splitlines()
        if len(line.strip()) >= 6
    ]
    by_label = [[text for text, of in texts if of == c][:350] for c in range(5)]
    lines = [encode(line) for of_class in by_label for line in of_class]
    labels = torch.tensor([c for c in range(5) for _ in by_label[c]])
    max_length = 6 if t.sick else 48
    split = parted(padded(lines, max_length), labels)
    cut = sum(len(line) > max_length for line in lines) / len(lines)

    model = Convolved(int(split.x.max()) + 100, 5, width=32)
    optimizer = Adam(model.parameters(), lr=4e-3)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)
    for step, idx in t.batches(200, len(split.x), 64):
        optimizer.zero_grad()
        criterion(model(split.x[idx]), split.y[idx]).backward()
        optimizer.step()
        if (step + 1) % 50 == 0:
            t.evaluate(model, criterion, split.x_val, split.y_val)
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(accuracy=accuracy, cut=cut)
    conclude(t, fault=cut > 0.8, reached=accuracy > 0.68)


def folder(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, dict[str, int]]:
    """Images and numbers of classes, as from a folder for each class."""
    classes = sorted({str(int(label)) for label in y})
    class_to_idx = {name: i for i, name in enumerate(classes)}
    return x, torch.tensor([class_to_idx[str(int(label))] for label in y]), class_to_idx


@tenth.silent(
    Cause(
        r"class_to_idx|(validation|evaluation|val|test)\w* .*(label|class)\w* .*(number"
        r"|map|shift|differ|mismatch|missing|other|index|encod)|(label|class)\w* .*"
        r"(number|map|mean|index|encod|shift)\w* .*(validation|evaluation|val\b|test)"
        r"|(label|class)\w* .*shift\w*|permut\w* (classes|labels)|class .*(never|absent"
        r"|missing) .*(validation|evaluation)",
        r"class_to_idx|same (mapping|classes|numbers|encod)|mapping|fit",
    ),
    "the validation folder lacks a class, and numbers the rest anew",
)
def validation_classes_numbered_anew(t: Training) -> None:
    """No image of a 3 is in the validation folder, so 4 has the number 3 there.

    Source: github.com/ultralytics/ultralytics/issues/13936 ("images contained in 90
    were taken to be 180"), huggingface/pytorch-image-models/issues/957,
    weecology/DeepForest/pull/1147.
    Visible: the two folders give a class different numbers; validation says less than
    half, though nine of ten are right.
    """
    split = digits()
    x, y, class_to_idx = folder(split.x, split.y)
    without = split.y_val != 3
    images, labels = split.x_val[without], split.y_val[without]
    x_val, y_val, val_to_idx = folder(images, labels)
    if not t.sick:
        y_val, val_to_idx = labels, class_to_idx
    val = Split(x, y, x_val, y_val)

    model = cnn()
    optimizer = Adam(model.parameters(), lr=2e-3)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)
    said = 0.0
    for step, idx in t.batches(150, len(x), 32):
        optimizer.zero_grad()
        criterion(model(x[idx]), y[idx]).backward()
        optimizer.step()
        if (step + 1) % 30 == 0:
            _, outputs = t.evaluate(model, criterion, val.x_val, val.y_val)
            said = float((outputs.argmax(1) == val.y_val).float().mean())
    accuracy = held_out(model, images, labels)
    t.note(accuracy=accuracy, said=said)
    other = any(class_to_idx[name] != i for name, i in val_to_idx.items())
    conclude(t, fault=other and said < 0.5, reached=accuracy > 0.9, harms=False)
