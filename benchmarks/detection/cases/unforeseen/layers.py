"""Networks that are not what was meant: layers, places, masks, first weights."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.optim import Adam

from benchmarks.detection.kit.case import tenth
from benchmarks.detection.kit.causes import Cause
from benchmarks.detection.kit.data import (
    N_CHARACTERS,
    diabetes,
    digits,
    houses,
    lines,
    text,
    windows,
)
from benchmarks.detection.kit.harm import conclude, held_out, in_evaluation
from benchmarks.detection.kit.models import CharacterModel, mlp
from benchmarks.detection.kit.training import Training


def fit(
    t: Training, model: nn.Module, x: Tensor, y: Tensor, *, n_steps: int, lr: float
) -> None:
    """Train a classifier as everybody does."""
    optimizer = Adam(model.parameters(), lr=lr)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)
    for _, idx in t.batches(n_steps, len(x), 32):
        optimizer.zero_grad()
        loss = criterion(model(x[idx]), y[idx])
        loss.backward()
        optimizer.step()


@tenth.silent(
    Cause(
        r"ReLU|activation .*(last|final|output|end)|(last|final|output) (layer'?s? )?"
        r"activation|outputs? .*(never|cannot|can't|not) .*(negative|below|reach)|"
        r"(targets?|labels?) .*(negative|below (0|zero)|outside|beyond|out of (the )?"
        r"range|cannot|unreachable)|non.?negative|range of (the )?outputs?",
        r"ReLU|activation|last layer|remove|linear",
    ),
    "a ReLU after the last layer, and negative targets",
)
def relu_after_the_last_layer(t: Training) -> None:
    """Layers are made in a loop, each with a ReLU, the last one too.

    Source: discuss.pytorch.org/t/enforcing-positive-output-values/106851 ("gets stuck
    at 0, due to zero gradients"), community.deeplearning.ai/t/549422.
    Visible: no output is negative, though half of the targets are.
    """
    split = diabetes()
    sizes = [10, 64, 32, 1]
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise(sizes):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    if not t.sick:
        layers = layers[:-1]
    model = nn.Sequential(*layers)
    optimizer = Adam(model.parameters(), lr=2e-3)
    criterion = nn.MSELoss()
    t.watch(model, criterion)
    for step, idx in t.batches(150, len(split.x), 32):
        optimizer.zero_grad()
        loss = criterion(model(split.x[idx]), split.y[idx])
        loss.backward()
        optimizer.step()
        if (step + 1) % 50 == 0:
            t.evaluate(model, criterion, split.x_val, split.y_val)
    out = in_evaluation(model, lambda: model(split.x_val))
    explained = 1 - float((out - split.y_val).pow(2).mean() / split.y_val.var())
    t.note(explained=explained, lowest=float(out.min()))
    fault = out.min() >= 0 and (split.y < 0).float().mean() > 0.3
    conclude(t, fault=fault, reached=explained > 0.3)


class LineTransformer(nn.Module):
    """Attention over the lines of an image."""

    def __init__(self, *, places: bool) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 32)
        self.pos = nn.Parameter(torch.randn(8, 32) * 0.5)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)
        self.places = places

    def forward(self, images: Tensor) -> Tensor:
        x = self.embed(images.view(-1, 8, 8))
        x = self.encoder(x + self.pos if self.places else x)
        return self.head(x.mean(1))


@tenth.silent(
    Cause(
        r"position|\border\b|permut|equivarian|invarian|bag of|shuffl\w* .*(token|place"
        r"|step|line|input)|(unused|never used|not used) .*pos|pos\b.*(unused|never"
        r"|no gradient|not used)",
        r"position|\bpos\b|add",
    ),
    "places are not added to the tokens",
)
def places_are_not_added(t: Training) -> None:
    """The embedding of places is made, but never added to the tokens.

    Source: github.com/Lightning-AI/pytorch-lightning/pull/20099 ("positional encoding
    not used in Demo Transformer"), iacobo/continual/issues/16.
    Visible: lines of an image in another order give the same output; fewer are
    recognized.
    """
    split = digits()
    model = LineTransformer(places=not t.sick)
    fit(t, model, split.x, split.y, n_steps=200, lr=3e-3)
    mixed = split.x_val.view(-1, 8, 8)[:, torch.tensor([3, 0, 6, 1, 7, 2, 5, 4])]
    straight = in_evaluation(model, lambda: model(split.x_val))
    other = in_evaluation(model, lambda: model(mixed.flatten(1)))
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(accuracy=accuracy)
    fault = torch.allclose(straight, other, atol=1e-3)
    conclude(t, fault=fault, reached=accuracy > 0.85, harms=False)


@tenth.silent(
    Cause(
        r"dropout|drop(s|ped)? .*(most|90|0\.9|nine|units|%)|\bp ?= ?0\.9|keep.?prob"
        r"|(most|90 ?%|nine) .*(zero|dropped)",
        r"dropout|0\.1|probab|\bp\b|keep",
    ),
    "the share to keep is given as the share to drop",
)
def share_to_keep_is_dropped(t: Training) -> None:
    """``nn.Dropout(keep_prob)``, as the code that was ported has it.

    Source: github.com/hassony2/kinetics_i3d_pytorch/issues/6 ("Dropout: opposite
    meaning?"), piergiaj/pytorch-i3d/issues/58, tensorpack/issues/786.
    Visible: nine of ten units are dropped, and after 150 steps fewer than 85 % are
    recognized.
    """
    split = digits()
    keep_prob = 0.9
    drop = nn.Dropout(keep_prob if t.sick else 1 - keep_prob)
    model = nn.Sequential(
        nn.Linear(64, 64),
        nn.ReLU(),
        drop,
        nn.Linear(64, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )
    fit(t, model, split.x, split.y, n_steps=150, lr=2e-3)
    accuracy = held_out(model, split.x_val, split.y_val)
    ones = nn.Dropout(drop.p)(torch.ones(1000))
    dropped = float((ones == 0).float().mean())
    t.note(accuracy=accuracy, dropped=dropped)
    conclude(t, fault=dropped > 0.8, reached=accuracy > 0.85)


@tenth.silent(
    Cause(
        r"forward.*(creat|mak|construct|new|built|build|instantiat)|(creat|mak|construct"
        r"|built|build|instantiat)\w* .*forward|(layer|module|weights?) .*(anew|each"
        r" (call|step|pass|time|forward)|every (call|step|pass|time|forward)"
        r"|not registered|unregistered|fresh|new)|same input .*(twice|differ)|random"
        r" (layer|weights|projection)|not (in|among) .*parameters",
        r"__init__|self\.|register|construct|once",
    ),
    "a layer is made anew in each forward pass",
)
def layer_made_in_forward(t: Training) -> None:
    """The size of the features is not known, so the layer is made in ``forward``.

    Source: github.com/wangyida/softpool/issues/11 ("you shouldn't create nn layers in
    forward function"), huggingface/transformers/issues/13191.
    Visible: the same images give other outputs each time, also in evaluation.
    """
    split = digits()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 8, 3, padding=1)
            self.middle: nn.Linear | None = None
            self.head = nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu(self.conv(x.view(-1, 1, 8, 8))).flatten(1)
            middle = nn.Linear(h.shape[1], 64) if self.middle is None else self.middle
            return self.head(torch.relu(middle(h)))

    model = Net()
    if not t.sick:
        model.middle = nn.Linear(512, 64)
    fit(t, model, split.x, split.y, n_steps=150, lr=2e-3)
    once = in_evaluation(model, lambda: model(split.x_val))
    again = in_evaluation(model, lambda: model(split.x_val))
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(accuracy=accuracy)
    conclude(t, fault=not torch.allclose(once, again), reached=accuracy > 0.85)


@tenth.silent(
    Cause(
        r"ModuleList|(plain|Python) list|list of (layers|modules)|(not|un)registered"
        r"|(not|missing|absent) (in|from|among) .*(parameters|optimizer)|(weights"
        r"|parameters|layers) .*(optimizer (never|does not)|never (train|updat|chang)"
        r"|not (train|updat|registered|given|held|in))|NotInOptimizer",
        r"ModuleList|register|Sequential|optimizer",
    ),
    "hidden layers are kept in a plain list",
)
def hidden_layers_in_a_list(t: Training) -> None:
    """Hidden layers are in a list of Python's, so that no optimizer is given them.

    Source: runebook.dev (torch.nn.ModuleList, "the most frequent mistake of
    beginners"), engineermaxxing.com, PyTorch internals.
    Visible: the weights of hidden layers are those of the beginning.
    """
    split = digits()

    class MLP(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(64, 32)
            hidden = [nn.Linear(32, 32) for _ in range(4)]
            self.hidden = hidden if t.sick else nn.ModuleList(hidden)
            self.last = nn.Linear(32, 10)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.first(x))
            for layer in self.hidden:
                x = torch.relu(layer(x))
            return self.last(x)

    model = MLP()
    before = [layer.weight.detach().clone() for layer in model.hidden]
    fit(t, model, split.x, split.y, n_steps=200, lr=3e-3)
    after = [layer.weight for layer in model.hidden]
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(accuracy=accuracy)
    fault = all(map(torch.equal, before, after))
    conclude(t, fault=fault, reached=accuracy > 0.7, harms=False)


@tenth.silent(
    Cause(
        r"padding_idx|(row|index|token|class|number|entity) 0\b.*(never|zero"
        r"|no gradient|not|padding)|(embedding|row)\w* .*(of|for) (a |the )?"
        r"(real|frequent|used)\w*.*(zero|never)"
        r"|(embedding|row)\w* .*(stays?|always|remains?) .*zero|padding "
        r".*(real|occurs|used|is a (token|word))",
        r"padding_idx|shift|own (number|index|token)|offset|\+ ?1",
    ),
    "the number of a real character is padding_idx",
)
def padding_idx_of_the_line_end(t: Training) -> None:
    """``padding_idx=0``, copied, where 0 is the end of a line and nothing is padded.

    Source: github.com/ibalazevic/TuckER/issues/17 ("the gradient of the first entity
    and relation becoming zero"), FGA-DIKU/BONSAI/issues/168.
    Visible: the embedding of a character that occurs in each text is zero in the end.
    """
    stream = (text() - 2).clamp(min=0)
    n_tokens = N_CHARACTERS - 2
    model = CharacterModel(n_tokens, width=48, cell=nn.GRU)
    model.embedding = nn.Embedding(n_tokens, 32, padding_idx=0 if t.sick else None)
    optimizer = Adam(model.parameters(), lr=5e-3)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)
    losses = []
    for _ in t.steps(110):
        x, y = windows(stream, t.draw(len(stream) - 40, 16), 32)
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    end = sum(losses[-10:]) / 10
    share = float((stream == 0).float().mean())
    t.note(loss=end, share=share)
    fault = share > 0.01 and not model.embedding.weight[0].any()
    conclude(t, fault=fault, reached=end < 2.8, harms=False)


class MaskedEncoder(nn.Module):
    """Tells of which module a line is, by attention with a mask."""

    def __init__(self, *, real: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(N_CHARACTERS, 32)
        self.pos = nn.Parameter(torch.randn(40, 32) * 0.1)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 5)
        self.real = real

    def attend(self, tokens: Tensor) -> Tensor:
        """What each place has seen."""
        x = self.embedding(tokens) + self.pos[: tokens.shape[1]]
        mask = tokens != 0 if self.real else tokens == 0
        seen = self.attention(x, x, x, key_padding_mask=mask, need_weights=False)[0]
        return self.norm(x + seen)

    def forward(self, tokens: Tensor) -> Tensor:
        keep = (tokens != 0).float()[..., None]
        x = self.attend(tokens)
        return self.head((x * keep).sum(1) / keep.sum(1))


@tenth.silent(
    Cause(
        r"mask\w* .*(invert|upside|revers|opposite|wrong|real|negat|true|token)|(invert"
        r"|revers|opposite)\w* .*mask|only .*(to )?(the )?padding|(real|other) tokens? "
        r".*(ignored|masked|no (effect|influence)|hidden|not (seen|attended))|padding "
        r".*(attended|read|seen|changes|leaks)|attend\w* (only )?(to )?(the )?pad",
        r"invert|==|~|mask|True|ignore",
    ),
    "the padding mask is upside down",
)
def padding_mask_upside_down(t: Training) -> None:
    """True stands for a real token, but ``key_padding_mask`` hides what is True.

    Source: github.com/InseeFrLab/torchTextClassifiers/pull/92 ("the attention mask was
    inverted"), mlwithme/TransformerTranslation/issues/6.
    Visible: no real token sees another one, but all see padding.
    """
    split = lines(36)
    x, x_val = split.x.clone(), split.x_val.clone()
    x[:, -1], x_val[:, -1] = 0, 0
    model = MaskedEncoder(real=t.sick)
    fit(t, model, x, split.y, n_steps=200, lr=4e-3)
    changed = x_val.clone()
    changed[:, 1] = torch.where(x_val[:, 1] == 50, 51, 50)
    one = in_evaluation(model, lambda: model.attend(x_val)[:, 0])
    other = in_evaluation(model, lambda: model.attend(changed)[:, 0])
    accuracy = held_out(model, x_val, split.y_val)
    t.note(accuracy=accuracy)
    fault = torch.allclose(one, other, atol=1e-5)
    conclude(t, fault=fault, reached=accuracy > 0.48, harms=False)


class Attention(nn.Module):
    """Attention with one head, written by hand, over the lines of an image."""

    def __init__(self, dim: int, *, scaled: bool) -> None:
        super().__init__()
        self.embed = nn.Linear(8, dim)
        self.pos = nn.Parameter(torch.randn(8, dim) * 0.5)
        self.norm = nn.LayerNorm(dim)
        self.query, self.key = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.head = nn.Linear(dim, 10)
        self.scaled = scaled

    def scores(self, x: Tensor) -> Tensor:
        """How much each line attends to each."""
        scores = self.query(x) @ self.key(x).transpose(-2, -1)
        return scores / math.sqrt(x.shape[-1]) if self.scaled else scores

    def tokens(self, images: Tensor) -> Tensor:
        """Lines with their places."""
        return self.norm(self.embed(images.view(-1, 8, 8)) + self.pos)

    def forward(self, images: Tensor) -> Tensor:
        x = self.tokens(images)
        x = x + self.scores(x).softmax(-1) @ self.value(x)
        return self.head(x.mean(1))


@tenth.silent(
    Cause(
        r"(not |un|missing )scal\w*|sqrt|square root|\bscale\b|attention .*(sharp|peak"
        r"|saturat|entropy|one.hot|collaps|nearly all|concentrat)|(scores|logits) .*"
        r"(large|grow|wide|saturat)|softmax .*(saturat|one.hot|sharp|peak)",
        r"sqrt|square root|scale|divid|dim",
    ),
    "scores of attention are not divided by the root of the width",
)
def attention_is_not_scaled(t: Training) -> None:
    """Products of queries and keys go into the softmax as they are.

    Source: github.com/PAIR-code/tiny-transformers/issues/71 ("we are not dividing the
    raw attention by the square root of dimension"), delzac/cntkx/issues/10,
    Project-MONAI/GenerativeModels/issues/146, mlc-ai/mlc-llm/pull/3426.
    Visible: scores are the products themselves, so that most places attend to one.
    """
    split = digits()
    model = Attention(64, scaled=not t.sick)
    fit(t, model, split.x, split.y, n_steps=200, lr=2e-3)
    x = in_evaluation(model, lambda: model.tokens(split.x_val))
    scores = in_evaluation(model, lambda: model.scores(x))
    plain = in_evaluation(model, lambda: model.query(x) @ model.key(x).transpose(1, 2))
    accuracy = held_out(model, split.x_val, split.y_val)
    most = float(scores.softmax(-1).amax(-1).mean())
    t.note(accuracy=accuracy, most=most)
    fault = torch.allclose(scores, plain, rtol=1e-3, atol=1e-4)
    conclude(t, fault=fault, reached=accuracy > 0.7, harms=False)


@tenth.silent(
    Cause(
        r"(no|without|missing|lacks?|forgot\w*) (an? |any )?(activation|non.?linear)|"
        r"non.?linearit|(two|several|consecutive|stacked|successive) linear|linear .*"
        r"(follow|one after|directly|collaps|equivalent|as one|in a row)|(model|network"
        r"|function|whole) .*(is|are) (only |just )?(linear|affine)|affine",
        r"activation|ReLU|non.?linear",
    ),
    "there is nothing between the linear layers",
)
def nothing_between_linear_layers(t: Training) -> None:
    """Four linear layers, one after the other, without an activation.

    Source: github.com/Nota-NetsPresso/netspresso-trainer/issues/320 ("There is no
    activation layer in FC!"), nutonomy/nuscenes-devkit/issues/728,
    aymericdamien/TensorFlow-Examples/issues/270.
    Visible: the output for a mean of two houses is the mean of their outputs; less of
    the price is explained.
    """
    split = houses(scaled=True)
    sizes = [8, 64, 64, 32, 1]
    if t.sick:
        pairs = pairwise(sizes)
        model = nn.Sequential(*(nn.Linear(a, b) for a, b in pairs))
    else:
        model = mlp(sizes)
    optimizer = Adam(model.parameters(), lr=2e-3)
    criterion = nn.MSELoss()
    t.watch(model, criterion)
    for step, idx in t.batches(250, len(split.x), 64):
        optimizer.zero_grad()
        loss = criterion(model(split.x[idx]), split.y[idx])
        loss.backward()
        optimizer.step()
        if (step + 1) % 50 == 0:
            t.evaluate(model, criterion, split.x_val, split.y_val)
    a, b = split.x_val[:150], split.x_val[150:300]
    of_mean = in_evaluation(model, lambda: model((a + b) / 2))
    mean_of = in_evaluation(model, lambda: (model(a) + model(b)) / 2)
    out = in_evaluation(model, lambda: model(split.x_val))
    left = float((out - split.y_val).pow(2).mean() / split.y_val.var())
    t.note(left=left)
    fault = torch.allclose(of_mean, mean_of, atol=1e-3)
    conclude(t, fault=fault, reached=left < 0.5, harms=False)


@tenth.silent(
    Cause(
        r"symmetr|constant|(units?|neurons?|rows|columns|weights?) .*(identical|alike"
        r"|(all |are |is )(the )?(same|equal)|copies|duplicat)|(identical|same|equal"
        r"|duplicate\w*) (units?|neurons?|rows|weights|features)|rank (1|one)|one unit"
        r"|initiali[sz]\w*",
        r"initiali[sz]|random|xavier|kaiming|symmetr",
    ),
    "all weights begin with the same number",
)
def weights_begin_alike(t: Training) -> None:
    """``nn.init.constant_`` for all weights: the units of a layer stay one unit.

    Source: d2l.ai, numerical stability and initialization ("The hidden layer would
    behave as if it had only a single unit"), HomericIntelligence/Mnemosyne/pull/1987.
    Visible: the rows of each hidden layer are equal in the end, and few digits are
    recognized.
    """
    split = digits()
    model = mlp([64, 32, 32, 10])

    def init_weights(m: nn.Module) -> None:
        if isinstance(m, nn.Linear):
            if t.sick:
                nn.init.constant_(m.weight, 0.05)
            else:
                nn.init.xavier_uniform_(m.weight)
            nn.init.zeros_(m.bias)

    model.apply(init_weights)
    fit(t, model, split.x, split.y, n_steps=200, lr=3e-3)
    hidden = model[0].weight.detach()
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(accuracy=accuracy)
    conclude(t, fault=hidden.std(0).max() < 1e-4, reached=accuracy > 0.88)
