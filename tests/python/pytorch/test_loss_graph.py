"""What the graph of a loss says is wrong with it, however the loss was written."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from tdbg.hooks.pytorch.checks.graphs.graph_nodes import Graph
from tdbg.hooks.pytorch.checks.losses.loss_graph import read_loss_graph
from tdbg.run.loss_facts import LossFault

N = 16
Loss = Callable[["Batch"], Tensor]


class Batch:
    """What a classifier, and a regression of one number, make of a batch."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        self.line = nn.Linear(4, 1)
        self.inputs = inputs = torch.randn(N, 4)
        self.scores: Tensor = self.layers(inputs)
        self.numbers: Tensor = self.line(inputs)
        self.classes = torch.randint(0, 3, (N,))
        self.targets = torch.randn(N)
        self.bits = (self.targets > 0).float()

    @property
    def probabilities(self) -> Tensor:
        return F.softmax(self.scores, 1)

    @property
    def logarithms(self) -> Tensor:
        return F.log_softmax(self.scores, 1)

    @property
    def likely(self) -> Tensor:
        """What a teacher says, without a gradient."""
        return F.softmax(2 * self.scores.detach() + 1, 1)

    @property
    def chosen(self) -> Tensor:
        """The logarithm of the probability of an action, one for each sample."""
        return torch.distributions.Categorical(logits=self.scores).log_prob(
            self.classes
        )


_TEXTS = torch.tensor([[1, 2], [2, 1]])


def ctc(given: Tensor, texts: Tensor = _TEXTS, length: int = 2) -> Tensor:
    """The loss of two sequences of half the samples, with a class for the blank."""
    return F.ctc_loss(
        given.reshape(N // 2, 2, 3),
        texts,
        torch.tensor([N // 2, N // 2]),
        torch.tensor([2, length]),
    )


def divided(given: Tensor, targets: Tensor, *, log_target: bool = False) -> Tensor:
    """Return the divergence by the number of elements, of which PyTorch warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return F.kl_div(given, targets, reduction="mean", log_target=log_target)


def squared(errors: Tensor) -> Tensor:
    return errors * errors


WRONG: dict[str, tuple[LossFault, Loss]] = {
    "softmax before cross entropy": (
        LossFault.SOFTMAX_TWICE,
        lambda b: F.cross_entropy(b.probabilities, b.classes),
    ),
    "softmax in another shape and type": (
        LossFault.SOFTMAX_TWICE,
        lambda b: F.cross_entropy(
            b.probabilities.double().reshape(4, 4, 3).transpose(1, 2),
            b.classes.reshape(4, 4),
        ),
    ),
    "a policy's probabilities as logits": (
        LossFault.SOFTMAX_TWICE,
        lambda b: (
            -(
                torch.distributions.Categorical(logits=b.probabilities).log_prob(
                    b.classes
                )
                * b.targets
            ).mean()
        ),
    ),
    "dropout of predicted numbers": (
        LossFault.SCORES_DROPPED,
        lambda b: F.smooth_l1_loss(F.dropout(b.layers(b.inputs), 0.5), b.likely),
    ),
    "sigmoid before BCE with logits": (
        LossFault.SIGMOID_TWICE,
        lambda b: nn.BCEWithLogitsLoss()(torch.sigmoid(b.numbers).squeeze(), b.bits),
    ),
    "nll of scores": (
        LossFault.LIKELIHOOD_OF_SCORES,
        lambda b: F.nll_loss(b.scores, b.classes),
    ),
    "nll of probabilities": (
        LossFault.LIKELIHOOD_OF_PROBABILITIES,
        lambda b: nn.NLLLoss()(b.probabilities, b.classes),
    ),
    "nll of scores of some of the samples": (
        LossFault.LIKELIHOOD_OF_SCORES,
        lambda b: F.nll_loss(b.scores[b.targets > 0], b.classes[b.targets > 0]),
    ),
    "nll of scores with a bias of their own": (
        LossFault.LIKELIHOOD_OF_SCORES,
        lambda b: F.nll_loss(b.scores * 2.0 + 1.0, b.classes),
    ),
    "nll of probabilities of a pixel": (
        LossFault.LIKELIHOOD_OF_PROBABILITIES,
        lambda b: F.nll_loss(
            (b.probabilities * 1.0).reshape(N, 3, 1, 1), b.classes.reshape(N, 1, 1)
        ),
    ),
    "CTC of scores": (LossFault.LIKELIHOOD_OF_SCORES, lambda b: ctc(b.scores)),
    "CTC of probabilities": (
        LossFault.LIKELIHOOD_OF_PROBABILITIES,
        lambda b: ctc(b.probabilities),
    ),
    "softmax of some of the samples": (
        LossFault.SOFTMAX_TWICE,
        lambda b: F.cross_entropy(
            b.probabilities[b.targets > 0], b.classes[b.targets > 0]
        ),
    ),
    "log_softmax over the batch": (
        LossFault.SOFTMAX_OVER_SAMPLES,
        lambda b: F.nll_loss(F.log_softmax(b.scores, 0), b.classes),
    ),
    "softmax of one output": (
        LossFault.SOFTMAX_OF_ONE,
        lambda b: F.binary_cross_entropy(F.softmax(b.numbers, 1)[:, 0], b.bits),
    ),
    "cross entropy of one class": (
        LossFault.SOFTMAX_OF_ONE,
        lambda b: F.cross_entropy(b.numbers, torch.zeros(N).long()),
    ),
    "squares by hand, column minus row": (
        LossFault.BROADCAST,
        lambda b: ((b.numbers - b.targets) ** 2).mean(),
    ),
    "squares by hand, row minus column": (
        LossFault.BROADCAST,
        lambda b: (b.targets[:, None] - b.numbers[:, 0]).abs().mean(),
    ),
    "mse_loss": (
        LossFault.BROADCAST,
        lambda b: F.mse_loss(b.numbers, b.targets),
    ),
    "mse_loss of products": (
        LossFault.BROADCAST,
        lambda b: F.mse_loss((b.scores * b.scores).sum(1), b.targets[:, None]),
    ),
    "squares of products": (
        LossFault.BROADCAST,
        lambda b: (
            ((b.scores * b.scores).sum(1) + 1.0 - b.targets[:, None]).square().mean()
        ),
    ),
    "products of an error by hand": (
        LossFault.BROADCAST,
        lambda b: squared((b.scores @ torch.ones(3)) - b.targets[:, None]).mean() / 2,
    ),
    "a policy gradient with a column of returns": (
        LossFault.BROADCAST,
        lambda b: -(b.chosen * b.targets[:, None]).mean(),
    ),
    "a minus": (
        LossFault.NEGATED,
        lambda b: -F.cross_entropy(b.scores, b.classes),
    ),
    "a negative factor": (
        LossFault.NEGATED,
        lambda b: -0.5 * F.mse_loss(b.numbers[:, 0], b.targets) / 4,
    ),
    "a sum": (
        LossFault.SUMMED,
        lambda b: F.cross_entropy(b.scores, b.classes, reduction="sum"),
    ),
    "a sum by hand": (
        LossFault.SUMMED,
        lambda b: ((b.numbers[:, 0] - b.targets) ** 2).sum(),
    ),
    "a sum times the scale of a scaler": (
        LossFault.SUMMED,
        lambda b: F.nll_loss(b.probabilities.log(), b.classes, reduction="sum") * 65536,
    ),
    "a divergence of probabilities": (
        LossFault.LIKELIHOOD_OF_PROBABILITIES,
        lambda b: F.kl_div(b.probabilities, b.likely, reduction="batchmean"),
    ),
    "a divergence of probabilities from logarithms": (
        LossFault.LIKELIHOOD_OF_PROBABILITIES,
        lambda b: F.kl_div(
            b.probabilities, b.likely.log(), reduction="sum", log_target=True
        ),
    ),
    "a divergence by the number of all elements": (
        LossFault.MEAN_OVER_CLASSES,
        lambda b: divided(b.logarithms, b.likely) * 4.0,
    ),
    "the same beside another loss": (
        LossFault.MEAN_OVER_CLASSES,
        lambda b: (
            F.cross_entropy(b.scores, b.classes)
            + 0.5 * divided(b.logarithms, b.likely.log(), log_target=True)
        ),
    ),
    "a divergence by hand": (
        LossFault.MEAN_OVER_CLASSES,
        lambda b: (b.likely * (b.likely.log() - b.logarithms)).mean(),
    ),
    "numbers of all signs after a sigmoid": (
        LossFault.TARGETS_OUT_OF_REACH,
        lambda b: F.mse_loss(torch.sigmoid(b.numbers), b.targets[:, None]),
    ),
    "bytes after tanh": (
        LossFault.TARGETS_OUT_OF_REACH,
        lambda b: F.smooth_l1_loss(b.numbers.tanh(), 255 * b.bits[:, None]),
    ),
    "negative targets after relu": (
        LossFault.TARGETS_OUT_OF_REACH,
        lambda b: (F.relu(b.numbers)[:, 0] - b.targets).abs().mean(),
    ),
    "an error with its sides swapped": (
        LossFault.TARGETS_OUT_OF_REACH,
        lambda b: ((1 + b.bits - torch.sigmoid(b.numbers[:, 0])) ** 2).mean(),
    ),
    "classes one and two": (
        LossFault.TARGETS_OUT_OF_REACH,
        lambda b: F.binary_cross_entropy_with_logits(b.numbers[:, 0], b.bits + 1),
    ),
    **{
        f"cross entropy of a {each.__name__}": (
            LossFault.SCORES_BOUNDED,
            lambda b, each=each: F.cross_entropy(each(b.scores), b.classes),
        )
        for each in (torch.relu, torch.sigmoid, torch.tanh)
    },
    **{
        f"logits of a {each.__name__}": (
            LossFault.SCORES_BOUNDED,
            lambda b, each=each: F.binary_cross_entropy_with_logits(
                each(b.numbers)[:, 0], b.bits
            ),
        )
        for each in (torch.relu, torch.tanh)
    },
    "dropout of scores": (
        LossFault.SCORES_DROPPED,
        lambda b: F.cross_entropy(F.dropout(b.scores), b.classes),
    ),
    **{
        f"a rate of a {each.__name__}": (
            LossFault.EXPONENTIAL_TWICE,
            lambda b, each=each: F.poisson_nll_loss(each(b.numbers[:, 0]), 3 * b.bits),
        )
        for each in (torch.exp, F.softplus)
    },
    "a hinge of bits": (
        LossFault.LABELS_NOT_SIGNS,
        lambda b: F.relu(1 - b.numbers[:, 0] * b.bits).mean(),
    ),
    "a hinge of bits, clamped": (
        LossFault.LABELS_NOT_SIGNS,
        lambda b: torch.clamp(1 - b.bits * b.numbers[:, 0], min=0).mean(),
    ),
    "a ranking of bits": (
        LossFault.LABELS_NOT_SIGNS,
        lambda b: F.margin_ranking_loss(
            b.numbers[:, 0], b.scores[:, 0].detach(), b.bits, margin=0.5
        ),
    ),
    "a soft margin of bits": (
        LossFault.LABELS_NOT_SIGNS,
        lambda b: F.soft_margin_loss(b.numbers[:, 0], b.bits),
    ),
    "a cosine of bits": (
        LossFault.LABELS_NOT_SIGNS,
        lambda b: F.cosine_embedding_loss(b.scores, b.scores.detach() ** 2, b.bits),
    ),
    "the square of a mean error": (
        LossFault.ERRORS_CANCEL,
        lambda b: (b.numbers[:, 0] - b.targets).mean() ** 2,
    ),
    "the magnitude of a mean error, weighed": (
        LossFault.ERRORS_CANCEL,
        lambda b: 10 * (b.targets - b.numbers[:, 0]).mean().abs(),
    ),
    "symbols from zero": (
        LossFault.SYMBOL_IS_BLANK,
        lambda b: ctc(b.logarithms, torch.tensor([[0, 1], [2, 1]])),
    ),
    "symbols from zero, in a row": (
        LossFault.SYMBOL_IS_BLANK,
        lambda b: ctc(b.logarithms, torch.tensor([0, 1, 2, 1])),
    ),
    "a copy of the number": (
        LossFault.NO_GRAPH,
        lambda b: torch.tensor(b.scores.sum().item(), requires_grad=True),
    ),
}

WRONG |= {
    "labels as outputs of two classes": (
        LossFault.ARGUMENTS_SWAPPED,
        lambda b: nn.BCEWithLogitsLoss()(b.bits, b.numbers.squeeze(1)),
    ),
    "labels as probabilities": (
        LossFault.ARGUMENTS_SWAPPED,
        lambda b: F.binary_cross_entropy(b.bits, b.numbers.sigmoid()[:, 0]),
    ),
    "labels as outputs of several classes": (
        LossFault.ARGUMENTS_SWAPPED,
        lambda b: F.cross_entropy(F.one_hot(b.classes, 3).float(), b.probabilities),
    ),
}

RIGHT: dict[str, Loss] = {
    "a policy's probabilities as such": lambda b: (
        -(
            torch.distributions.Categorical(b.probabilities).log_prob(b.classes)
            * b.targets
        ).mean()
    ),
    "a policy's logarithms as logits": lambda b: (
        -(
            torch.distributions.Categorical(logits=b.logarithms).log_prob(b.classes)
            * b.targets
        ).mean()
    ),
    "dropout before a layer with one output": lambda b: F.mse_loss(
        b.line(F.dropout(b.inputs, 0.5))[:, 0], b.targets
    ),
    "dropout of features that two networks compare": lambda b: F.mse_loss(
        F.dropout(b.layers(b.inputs), 0.5), b.scores
    ),
    "labels of two classes": lambda b: F.binary_cross_entropy(
        b.numbers.sigmoid()[:, 0], b.bits
    ),
    "labels of one class each": lambda b: F.cross_entropy(
        b.scores, F.one_hot(b.classes, 3).float()
    ),
    "a teacher's scores, and shares that learn": lambda b: F.cross_entropy(
        b.scores.detach(), b.probabilities
    ),
    "an adversary's target that learns": lambda b: F.binary_cross_entropy_with_logits(
        b.numbers.detach(), b.numbers.sigmoid()
    ),
    "scores that labels choose": lambda b: (
        -(F.one_hot(b.classes, 3) * b.logarithms).sum(1).mean()
    ),
    "cross entropy": lambda b: F.cross_entropy(
        b.scores, b.classes, label_smoothing=0.1
    ),
    "nll": lambda b: F.nll_loss(F.log_softmax(b.scores, -1), b.classes) / 4,
    "nll of logarithms by hand": lambda b: F.nll_loss(b.probabilities.log(), b.classes),
    "nll of some": lambda b: F.nll_loss(
        F.log_softmax(b.scores, 1)[b.targets > 0], b.classes[b.targets > 0]
    ),
    "ctc": lambda b: ctc(F.log_softmax(b.scores, 1)),
    "ctc of texts with padding": lambda b: ctc(
        b.logarithms, torch.tensor([[1, 2], [2, 0]]), length=1
    ),
    "scores within a wide range": lambda b: F.cross_entropy(
        5 * torch.tanh(b.scores / 5), b.classes
    ),
    "a similarity that is not negative": lambda b: F.cross_entropy(
        F.relu(b.scores @ b.scores.t() * 1.0), torch.arange(N)
    ),
    "scores that are masked": lambda b: F.cross_entropy(
        b.scores * (torch.arange(3) < 2).float().expand(N, 3), b.classes
    ),
    "dropout before the last layer": lambda b: F.cross_entropy(
        b.layers[2](F.dropout(F.relu(b.layers[0](torch.randn(N, 4))))), b.classes
    ),
    "a mean that is to be another one": lambda b: (
        (b.numbers.mean() - b.targets.mean()) ** 2
    ),
    "the root of a mean square": lambda b: (
        ((b.numbers[:, 0] - b.targets) ** 2).mean().sqrt()
    ),
    "a logarithm of a rate": lambda b: F.poisson_nll_loss(b.numbers[:, 0], 3 * b.bits),
    "a rate": lambda b: F.poisson_nll_loss(
        F.softplus(b.numbers[:, 0]), 3 * b.bits, log_input=False
    ),
    "a hinge of signs": lambda b: F.relu(1 - b.numbers[:, 0] * (2 * b.bits - 1)).mean(),
    "a hinge with a mask": lambda b: (F.relu(1 - b.numbers[:, 0]) * b.bits).mean(),
    "a cosine of signs": lambda b: F.cosine_embedding_loss(
        b.scores, b.scores.detach() ** 2, 2 * b.bits - 1
    ),
    "a cosine of pairs that are all alike": lambda b: F.cosine_embedding_loss(
        b.scores, b.scores.detach() ** 2, torch.ones(N)
    ),
    "a kernel of outputs and others": lambda b: torch.exp(
        -(((b.scores * 1.0).sum(1) - b.targets[:, None]) ** 2)
    ).mean(),
    "bce": lambda b: F.binary_cross_entropy(torch.sigmoid(b.numbers)[:, 0], b.bits),
    "mse": lambda b: F.mse_loss(b.numbers, b.targets[:, None]),
    "squares": lambda b: ((b.numbers.squeeze() - b.targets) ** 2).sum() / N,
    "a policy gradient": lambda b: -(b.chosen * b.targets).mean(),
    "an entropy": lambda b: (
        -(b.probabilities * F.log_softmax(b.scores, 1)).sum(1).mean()
    ),
    "distillation": lambda b: F.kl_div(
        F.log_softmax(b.scores / 4, 1), b.probabilities.detach(), reduction="batchmean"
    ),
    "a divergence that is added up before the mean": lambda b: (
        F.kl_div(b.logarithms, b.likely, reduction="none").sum(1).mean()
    ),
    "a divergence by the number of all elements, times the classes": lambda b: (
        divided(b.logarithms, b.likely) * 3
    ),
    "an expected reward": lambda b: (1 - b.targets[:, None] * b.probabilities).mean(),
    "soft labels": lambda b: F.cross_entropy(b.scores, b.likely),
    "a divergence from the standard normal": lambda b: (
        -0.5 * (1 + b.scores - b.scores.pow(2) - b.scores.exp()).sum(1).mean()
    ),
    "bits after a sigmoid": lambda b: F.mse_loss(
        torch.sigmoid(b.numbers), b.bits[:, None]
    ),
    "signs after tanh": lambda b: F.mse_loss(b.numbers[:, 0].tanh(), 2 * b.bits - 1),
    "noise about targets at a bound": lambda b: F.mse_loss(
        torch.sigmoid(b.numbers[:, 0]), b.bits + 0.1 * b.targets
    ),
    "labels that are made noisy": lambda b: F.binary_cross_entropy_with_logits(
        b.numbers[:, 0], torch.linspace(0.7, 1.2, N)
    ),
    "labels that are missing": lambda b: (
        F.binary_cross_entropy_with_logits(
            b.numbers[:, 0], 2 * b.bits - 1, reduction="none"
        )
        * b.bits
    ).sum(),
    "a sigmoid that is scaled": lambda b: F.mse_loss(
        9 * torch.sigmoid(b.numbers[:, 0]) - 4, b.targets
    ),
    "an activation inside": lambda b: F.mse_loss(
        b.layers[2](F.relu(b.layers[0](torch.randn(N, 4)))), torch.randn(N, 3)
    ),
    "the outputs of two heads": lambda b: F.mse_loss(
        torch.cat((torch.sigmoid(b.numbers), b.numbers), 1), torch.randn(N, 2)
    ),
    "an expectile": lambda b: (
        ((b.targets > 0).float() * (b.numbers[:, 0] - b.targets) ** 2).sum() / N
    ),
    "pairs of one batch": lambda b: F.relu(1 - (b.numbers - b.numbers.t())).mean(),
    "all pairs, said by an axis": lambda b: (
        (b.numbers[:, 0][:, None] - b.targets[None]) ** 2
    ).mean(),
    "pairs that are classified": lambda b: F.cross_entropy(
        b.scores @ b.scores.t(), torch.arange(N)
    ),
    "distances to all": lambda b: (
        (b.scores**2).sum(1, keepdim=True).expand(N, N) - torch.rand(N, N)
    ).mean(),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_loss_that_is_misused_is_seen_in_its_graph(name: str) -> None:
    fault, loss = WRONG[name]
    with pytest.warns() if name.startswith("mse_loss") else contextlib.nullcontext():
        graph = read_loss_graph(Graph(loss(Batch())))
    assert [fact.fault for fact in graph.facts] == [fault]


@pytest.mark.parametrize("name", RIGHT)
def test_a_loss_as_it_is_meant_has_no_fault(name: str) -> None:
    batch = Batch()
    graph = Graph(RIGHT[name](batch))
    assert read_loss_graph(graph).facts == ()
    used = {id(leaf) for leaf, _ in graph.leaves}
    owners = [batch.layers, batch.line]
    assert used in [{id(each) for each in owner.parameters()} for owner in owners]


def test_a_graph_that_is_read_is_as_it_was() -> None:
    gradients = []
    for reads in (False, True):
        batch = Batch()
        loss = F.cross_entropy(batch.scores, batch.classes)
        if reads:
            read_loss_graph(Graph(loss))
        loss.backward()  # type: ignore[no-untyped-call]
        gradients.append([each.grad for each in batch.layers.parameters()])
    for plain, read in zip(*gradients, strict=True):
        assert plain is not None
        assert read is not None
        assert torch.equal(plain, read)


def test_what_only_operations_without_a_slope_reach_is_cut() -> None:
    one, other, third = (torch.ones(3, requires_grad=True) for _ in range(3))
    straight = third + (torch.floor(third) - third).detach()
    loss = (torch.round(one * 2) * other + torch.sign(other) + straight).sum()
    cut = {id(leaf): cut for leaf, cut in Graph(loss).leaves}
    assert cut == {id(one): "round", id(other): "", id(third): ""}


def test_what_logits_are_multiplied_by_is_read() -> None:
    cosines = F.normalize(Batch().scores)
    labels = torch.zeros(N, dtype=torch.long)
    margin = F.one_hot(labels, 3) * 0.5
    learned = torch.ones((), requires_grad=True)
    for logits, scale in (
        (cosines * 64.0, 64.0),
        (30 * (cosines - margin), 30.0),
        ((cosines / 0.5 * 4).view(-1, 3), 8.0),
        (cosines / 10, 1.0),
        (cosines * torch.ones(3) * 2, 2.0),
        (cosines * learned, 1.0),
        (cosines * float("inf"), 1.0),
        (F.linear(cosines * 5, torch.ones(3, 3)), 1.0),
    ):
        graph = read_loss_graph(Graph(F.cross_entropy(logits, labels)))
        assert graph.logit_scale == pytest.approx(scale)


@pytest.mark.parametrize(
    ("loss", "is_distance"),
    [
        (lambda batch: F.smooth_l1_loss(batch.numbers[:, 0], batch.targets), True),
        (lambda batch: (batch.numbers[:, 0] - batch.targets).pow(2).mean(), True),
        (lambda batch: F.cross_entropy(batch.scores, batch.classes), False),
    ],
)
def test_a_distance_of_numbers_is_told(loss: Loss, is_distance: bool) -> None:
    assert read_loss_graph(Graph(loss(Batch()))).is_distance is is_distance
