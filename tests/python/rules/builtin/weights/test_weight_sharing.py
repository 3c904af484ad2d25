"""WeightSharing, on real models: ties, repeated layers, ensembles."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tdbg
import tdbg.pytorch as td
from tdbg.rules import WeightSharing
from tdbg.run.findings import Finding, Severity

TOKENS = torch.randint(20, (16,), generator=torch.Generator().manual_seed(0))
X = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
LABELS = TOKENS % 4


class Language(nn.Module):
    """Predicts a token from the one before it."""

    def __init__(self, *, tied: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 20, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        answer: Tensor = self.head(self.body(self.embedding(tokens)).relu())
        return answer


class Declaring(Language):
    """Says that it ties its embeddings, as models of transformers do."""

    _tied_weights_keys = ("head.weight",)

    def __init__(self, *, tied: bool, table: bool = True) -> None:
        super().__init__(tied=tied)
        self.config = SimpleNamespace(tie_word_embeddings=True)
        self.config.get_text_config = lambda **_: self.config
        if table:
            self.all_tied_weights_keys = {"head.weight": "embedding.weight"}

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def get_output_embeddings(self) -> nn.Module:
        return self.head


class Ensemble(nn.Module):
    """Members that all get the same input."""

    def __init__(self, members: list[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([each(x) for each in self.members]).mean(0)


class Critics(nn.Module):
    """Two judges, under names of their own."""

    def __init__(self, *, same: bool) -> None:
        super().__init__()
        self.q1 = member()
        self.q2 = self.q1 if same else member()

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = torch.minimum(self.q1(x), self.q2(x))
        return answer


class Decoder(nn.Module):
    """One layer that is repeated in depth, and reads the same memory each time."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.layers = nn.ModuleList([layer] * 3)
        self.last = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        memory = x[:, None].expand(-1, 3, -1)
        state = memory
        for layer in self.layers:
            state = layer(state, memory)
        answer: Tensor = self.last(state.mean(1))
        return answer


def member() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(),
                         nn.Linear(16, 4))  # fmt: skip


def of_tokens(model: nn.Module) -> Tensor:
    return functional.cross_entropy(model(TOKENS), TOKENS)


def of_classes(model: nn.Module) -> Tensor:
    return functional.cross_entropy(model(X), LABELS)


def twice(model: nn.Module) -> Tensor:
    """Called twice with the same inputs, as consistency losses do."""
    return of_classes(model) + of_classes(model)


def judged(
    run_dir: Path,
    model: nn.Module,
    loss: Callable[[nn.Module], Tensor] = of_tokens,
    then: Callable[[nn.Module], object] = lambda _: None,
    optimizer: type[torch.optim.Optimizer] = torch.optim.Adam,
) -> list[Finding]:
    rules = [WeightSharing()]
    with td.Hook(run_dir, rules=rules, min_free_bytes=0) as hook:
        hook.register_module(model)
        then(model)
        steps = optimizer(model.parameters(), lr=1e-3)  # type: ignore[call-arg]
        for _ in range(6):
            steps.zero_grad()
            found = loss(model)
            found.backward()  # type: ignore[no-untyped-call]
            steps.step()
            hook.save_scalar("loss", float(found.detach()))
        assert hook.counters()["internal_errors"] == 0
    return list(tdbg.rules.check(run_dir, rules=rules).findings)


def loads_in_place(model: nn.Module) -> None:
    state = {name: each.clone() for name, each in model.state_dict().items()}
    model.load_state_dict(state, assign=True)


def loads_own(model: nn.Module) -> None:
    model.load_state_dict(model.state_dict(), assign=True)


def clones(model: nn.Module) -> None:
    assert isinstance(model, Language)
    model.head.weight = nn.Parameter(model.embedding.weight.detach().clone())


def made_of_data(model: nn.Module) -> None:
    assert isinstance(model, Language)
    model.head.weight.data = model.embedding.weight.data


def through_meta(model: nn.Module) -> None:
    model.to("meta").to_empty(device="cpu")
    for each in model.parameters():
        nn.init.normal_(each)


def gets_another_head(model: nn.Module) -> None:
    assert isinstance(model, Language)
    model.head = nn.Linear(8, 30)


@pytest.mark.parametrize("then", [loads_in_place, clones, through_meta])
def test_a_tie_that_is_broken_after_registration(
    run_dir: Path, then: Callable[[nn.Module], object]
) -> None:
    (finding,) = judged(run_dir, Language(), then=then)
    assert finding.severity is Severity.WARNING
    assert "tie of embedding.weight and head.weight is broken" in finding.message


@pytest.mark.parametrize("setting", ["tie_weights", ""])
def test_a_head_that_begins_as_a_copy(run_dir: Path, setting: str) -> None:
    model = Language()
    clones(model)
    if setting:
        vars(model)["config"] = SimpleNamespace(**{setting: True})
    (finding,) = judged(run_dir, model)
    assert finding.severity is (Severity.WARNING if setting else Severity.INFO)
    assert "embedding.weight and head.weight began as copies" in finding.message
    assert ("although the model has tie_weights=True" in finding.message) == bool(
        setting
    )


@pytest.mark.parametrize("table", [True, False])
def test_a_tie_that_is_declared_and_not_made(run_dir: Path, *, table: bool) -> None:
    (finding,) = judged(run_dir, Declaring(tied=False, table=table))
    assert finding.severity is Severity.WARNING
    assert "Declaring declares tied weights" in finding.message
    assert "model.tie_weights()" in finding.advice


@pytest.mark.parametrize(
    ("model", "then"),
    [(Language(tied=False), made_of_data), (Language(), loads_own)],
)
def test_two_parameters_in_one_memory(
    run_dir: Path, model: nn.Module, then: Callable[[nn.Module], object]
) -> None:
    (finding,) = judged(run_dir, model, then=then)
    assert finding.severity is Severity.WARNING
    assert "different parameters in the same memory. Adam" in finding.message


def test_steps_that_add_up_are_a_note(run_dir: Path) -> None:
    model, sgd = Language(tied=False), torch.optim.SGD
    (finding,) = judged(run_dir, model, then=made_of_data, optimizer=sgd)
    assert finding.severity is Severity.INFO


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (Ensemble([member()] * 2), "members.0 and members.1"),
        (Critics(same=True), "q1 and q2"),
    ],
)
def test_networks_that_are_one(run_dir: Path, model: nn.Module, names: str) -> None:
    (finding,) = judged(run_dir, model, of_classes)
    assert finding.severity is Severity.WARNING
    assert f"{names} are one network under several names" in finding.message
    assert "copy.deepcopy()" in finding.advice


@pytest.mark.parametrize(
    "then", [lambda _: None, nn.Module.double, gets_another_head, nn.Module.eval]
)
def test_a_tie_that_holds_or_is_given_up(
    run_dir: Path, then: Callable[[nn.Module], object]
) -> None:
    assert judged(run_dir, Language(), then=then) == []


def test_a_head_of_its_own_is_no_tie(run_dir: Path) -> None:
    assert judged(run_dir, Language(tied=False)) == []


def test_what_is_declared_otherwise_is_no_tie(run_dir: Path) -> None:
    model = Declaring(tied=False)
    model.config.tie_word_embeddings = False
    assert judged(run_dir, model) == []


def test_what_is_declared_and_made(run_dir: Path) -> None:
    assert judged(run_dir, Declaring(tied=True)) == []


@pytest.mark.parametrize(
    "model",
    [
        Ensemble([member() for _ in range(3)]),
        Critics(same=False),
        nn.Sequential(*[nn.Linear(8, 8)] * 3, nn.Linear(8, 4)),
        Ensemble([nn.Sequential(nn.Dropout(0.1), member())] * 2),
    ],
    ids=["ensemble", "critics", "repeated in depth", "dropout"],
)
@pytest.mark.parametrize("loss", [of_classes, twice])
def test_layers_that_are_repeated_on_purpose(
    run_dir: Path, model: nn.Module, loss: Callable[[nn.Module], Tensor]
) -> None:
    assert judged(run_dir, model, loss) == []


class Deep(nn.Module):
    """Has a list of layers with a way around each."""

    def __init__(self, layers: list[nn.Module], **settings: object) -> None:
        super().__init__()
        self.config = SimpleNamespace(**settings)
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x).relu()
        answer: Tensor = self.head(x)
        return answer


class UniversalEncoder(Deep):
    """Repeats its layer on purpose."""


def block() -> nn.Module:
    return nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.Dropout(0.1))


@pytest.mark.parametrize(
    "model",
    [
        Deep([nn.Linear(8, 8)] * 3),
        Deep([block()] * 3),
        nn.Sequential(nn.Sequential(*[nn.Linear(8, 8)] * 3), nn.Linear(8, 4)),
        Decoder(),
    ],
    ids=["list", "list of blocks", "sequential", "decoder"],
)
@pytest.mark.parametrize("loss", [of_classes, twice])
def test_a_list_that_repeats_one_layer_in_depth(
    run_dir: Path, model: nn.Module, loss: Callable[[nn.Module], Tensor]
) -> None:
    (finding,) = judged(run_dir, model, loss)
    assert finding.severity is Severity.INFO
    assert "are one layer: a list has the same layer in its 3 places" in finding.message
    assert "[layer] * n repeats one layer" in finding.advice


@pytest.mark.parametrize(
    "model",
    [
        UniversalEncoder([nn.Linear(8, 8)] * 4),
        Deep([nn.Linear(8, 8)] * 4, share_layers=True),
        Deep([nn.Linear(8, 8) for _ in range(4)]),
        Deep([nn.Linear(8, 8)]),
        Deep([nn.PReLU()] * 4),
    ],
    ids=["by class", "by setting", "apart", "one", "slopes"],
)
def test_layers_that_a_model_says_it_shares(run_dir: Path, model: nn.Module) -> None:
    assert judged(run_dir, model, of_classes) == []


# ---- networks that stay equal ------------------------------------------------------


def equal_members() -> nn.Module:
    first = member()
    return Ensemble([copy.deepcopy(first) for _ in range(3)])


def test_networks_that_begin_as_copies_and_never_differ(run_dir: Path) -> None:
    (finding,) = judged(run_dir, equal_members(), of_classes)
    assert finding.severity is Severity.WARNING
    assert "began as copies of each other and never differ" in finding.message
    assert "Initialize each of them anew" in finding.advice


class Towers(nn.Module):
    """Two encoders that begin with the same weights, each for its own inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.tower_1 = member()
        self.tower_2 = copy.deepcopy(self.tower_1)

    def forward(self, x: Tensor) -> Tensor:
        both: Tensor = self.tower_1(x) + self.tower_2(x + 1)
        return both


@pytest.mark.parametrize(
    "make",
    [
        Towers,
        lambda: nn.Sequential(
            *[copy.deepcopy(nn.Linear(8, 8)) for _ in range(2)], nn.Linear(8, 4)
        ),
        lambda: Ensemble([nn.Sequential(nn.Dropout(0.1), each) for each in copies()]),
    ],
    ids=["towers", "depth", "dropout"],
)
def test_copies_that_become_different(
    run_dir: Path, make: Callable[[], nn.Module]
) -> None:
    assert judged(run_dir, make(), of_classes) == []


def copies() -> list[nn.Module]:
    first = member()
    return [copy.deepcopy(first) for _ in range(2)]
