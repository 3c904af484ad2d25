"""Two runs compared: the module at which they part, and pairs that do not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

import tdbg
import tdbg.pytorch as td
from tdbg.cli import _tdbg
from tdbg.compare import RunDiff
from tdbg.errors import ConfigurationError, QueryError

WIDTH, TOKENS, STEPS = 32, 50, 3


class Block(nn.Module):
    def __init__(self, eps: float, drop: float, is_causal: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, eps=eps)
        self.attn = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.ff = nn.Sequential(
            nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH), nn.Dropout(drop)
        )
        self.is_causal = is_causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        n = x.shape[1]
        mask = torch.ones(n, n, dtype=torch.bool).triu(1) if self.is_causal else None
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.ff(x)


class Net(nn.Module):
    def __init__(
        self, eps: float = 1e-5, drop: float = 0.0, is_causal: bool = True
    ) -> None:
        super().__init__()
        self.emb = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.Sequential(
            Block(1e-5, 0.0, is_causal), Block(eps, drop, is_causal)
        )
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.blocks(self.emb(x)))
        return out


def net(seed: int = 0, **settings: float) -> Net:
    torch.manual_seed(seed)
    return Net(**settings)  # type: ignore[arg-type]


def train(
    folder: Path,
    model: nn.Module,
    lr: float = 1e-3,
    values: bool = True,
    interval: int = 1,
    first_batch: int = 1,
    start: int = 0,
) -> Path:
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    loss_function = nn.CrossEntropyLoss()
    hook = td.Hook(
        folder,
        include_collections=["all"],
        save_config=td.SaveConfig(
            save_interval=interval, statistics_interval=interval, start_step=start
        ),
        reduction_config=td.ReductionConfig(save_raw_tensor=values),
    )
    hook.register_module(model)
    hook.register_loss(loss_function)
    generator = torch.Generator().manual_seed(first_batch)
    for _ in range(STEPS):
        x = torch.randint(0, TOKENS, (4, 12), generator=generator)
        y = torch.randint(0, TOKENS, (4, 12), generator=generator)
        optimizer.zero_grad()
        out = model(x).float()
        loss_function(out.flatten(0, 1), y.flatten()).backward()
        optimizer.step()
    hook.close()
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("diff") / "base", net())


def transposed() -> Net:
    model = net()
    weight = model.blocks[1].attn.out_proj.weight  # type: ignore[union-attr]
    with torch.no_grad():
        weight.copy_(weight.T.clone())
    return model


def scaled() -> Net:
    model = net()
    with torch.no_grad():
        model.blocks[1].ff[0].weight.mul_(1.001)  # type: ignore[union-attr]
    return model


FAULTS: dict[str, tuple[Callable[[], Net], str]] = {
    "another epsilon": (lambda: net(eps=1e-3), "blocks.1.norm"),
    "a dropout that stayed on": (lambda: net(drop=0.1), "blocks.1.ff.3"),
    "a mask that is missing": (lambda: net(is_causal=False), "blocks.0.attn"),
    "a transposed weight": (transposed, "blocks.1.attn.out_proj"),
    "a layer initialized otherwise": (scaled, "blocks.1.ff.0"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_at_its_module_in_the_first_step(
    base: Path, tmp_path: Path, fault: str
) -> None:
    make, module = FAULTS[fault]
    found = tdbg.diff(base, train(tmp_path / "other", make()))
    assert not found.is_same
    assert found.first is not None
    assert (found.first.module, found.first.step) == (module, 0)
    assert found.first.by == "values"
    assert found.first.excess > 10
    assert ("transposed" in found.first.note) == (fault == "a transposed weight")
    later = [each.step for each in found.differences]
    assert later == sorted(later)


@pytest.mark.parametrize("fault", [f for f in FAULTS if "transposed" not in f])
def test_statistics_alone_name_the_module_too(
    base: Path, tmp_path: Path, fault: str
) -> None:
    make, module = FAULTS[fault]
    found = tdbg.diff(base, train(tmp_path / "other", make(), values=False))
    assert found.first is not None
    assert (found.first.module, found.first.by) == (module, "statistics")


def test_another_learning_rate_is_the_first_difference_and_a_setting(
    base: Path, tmp_path: Path
) -> None:
    found = tdbg.diff(base, train(tmp_path / "other", net(), lr=2e-3))
    assert found.first is not None
    assert found.first.name.endswith("/lr")
    assert [e.first for e in found.first.evidence] == [1e-3]
    assert any(name.endswith("/lr") for name, _ in found.settings)


def healthy(found: RunDiff) -> None:
    assert found.is_same, found.first
    assert found.first is None
    assert found.n_steps == STEPS


def test_the_same_training_twice_differs_in_nothing(base: Path, tmp_path: Path) -> None:
    healthy(tdbg.diff(base, train(tmp_path / "again", net())))


class Autocast(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x)


def test_bfloat16_beside_float32_is_no_difference(base: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    narrow = train(tmp_path / "narrow", Autocast())
    found = tdbg.diff(base, narrow, name_map=["^Net_ -> Autocast_"])
    healthy(found)
    assert ("float32", "bfloat16") in [each[:2] for each in found.dtypes]
    assert found.roundoff == 2.0**-8


def test_what_rounding_cannot_judge_is_said(base: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    narrow = train(tmp_path / "narrow", Autocast())
    by_rounding = tdbg.diff(base, narrow, name_map=["^Net_ -> Autocast_"])
    assert by_rounding.n_judged == 1
    assert by_rounding.steps[0].not_judged == (1, STEPS - 1)
    assert by_rounding.to_json()["steps"][0]["not_judged"] == [1, STEPS - 1]
    assert "2 of 3 TRAIN steps (1 to 2)" in by_rounding.caveat
    assert "--noise" in by_rounding.caveat
    shown = diff_verb(base, narrow, "--map", "^Net_ -> Autocast_")
    assert shown.exit_code == 0, shown.output
    assert "not judged: 2 of 3 TRAIN steps" in " ".join(shown.output.split())


def test_runs_without_a_step_that_can_be_judged_are_refused(
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    wide = train(tmp_path / "wide", net(), start=1)
    torch.manual_seed(0)
    narrow = train(tmp_path / "narrow", Autocast(), start=1)
    with pytest.raises(QueryError, match=r"not judged: 2 of 3 TRAIN steps \(1 to 2\)"):
        tdbg.diff(wide, narrow, regex="^gradient/")


def test_an_engine_is_compared_with_a_trainer_by_modes(
    base: Path, tmp_path: Path
) -> None:
    engine = tmp_path / "engine"
    model = net().eval()
    hook = td.Hook(
        engine,
        include_collections=["all"],
        save_config=td.SaveConfig(save_interval=1, statistics_interval=1),
    )
    hook.register_module(model)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        model(torch.randint(0, TOKENS, (4, 12), generator=generator))
    hook.close()
    with pytest.raises(QueryError, match="mode='TRAIN:EVAL' matches 1 step"):
        tdbg.diff(base, engine)
    found = tdbg.diff(base, engine, mode="TRAIN:EVAL")
    assert found.is_same
    assert found.n_judged == 1


class Renamed(nn.Module):
    """The same model, after somebody has tidied up."""

    def __init__(self) -> None:
        super().__init__()
        inner = net()
        self.embedding, self.layers, self.output = inner.emb, inner.blocks, inner.head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.output(self.layers(self.embedding(x)))
        return out


RENAMES = (
    r"\bemb\b -> embedding",
    r"\bblocks\b -> layers",
    r"\bhead\b -> output",
    "^Net_ -> Renamed_",
)


def test_a_map_of_names_compares_what_was_renamed(base: Path, tmp_path: Path) -> None:
    other = train(tmp_path / "renamed", Renamed())
    healthy(tdbg.diff(base, other, name_map=RENAMES))
    without = tdbg.diff(base, other)
    assert not without.is_same
    assert "head.weight" in [each.name for each in without.missing]
    rules = tmp_path / "rules"
    rules.write_text("\n".join(RENAMES))
    healthy(tdbg.diff(base, other, name_map=rules))


def test_a_measured_noise_replaces_the_tolerance(base: Path, tmp_path: Path) -> None:
    noisy = train(tmp_path / "noisy", scaled())
    healthy(tdbg.diff(base, noisy, noise=(base, noisy)))
    assert tdbg.diff(base, noisy, noise=(base, noisy)).tolerance == "noise"
    assert not tdbg.diff(base, noisy, noise=base).is_same
    healthy(tdbg.diff(base, noisy, tolerance=10.0))


def test_only_steps_that_both_recorded_are_compared(base: Path, tmp_path: Path) -> None:
    found = tdbg.diff(base, train(tmp_path / "sparse", net(), interval=2))
    assert found.is_same
    assert found.steps[0].recorded == (STEPS, STEPS)


def test_what_can_never_work_is_refused(base: Path) -> None:
    with pytest.raises(ConfigurationError, match="0 or more"):
        tdbg.diff(base, base, tolerance=-1)
    with pytest.raises(ConfigurationError, match="tolerance= or noise="):
        tdbg.diff(base, base, tolerance=1, noise=base)
    with pytest.raises(QueryError):
        tdbg.diff(base, base, regex="no tensor has this name")


def diff_verb(*arguments: object) -> Result:
    return CliRunner().invoke(_tdbg, ["diff", *map(str, arguments)])


def test_the_verb_says_where_the_runs_part_and_exits_with_1(
    base: Path, tmp_path: Path
) -> None:
    other = train(tmp_path / "other", net(eps=1e-3))
    result = diff_verb(base, other)
    assert result.exit_code == 1, result.output
    headline = result.output.splitlines()[0]
    assert headline.startswith("base and other part at blocks.1.norm (LayerNorm)")
    document = json.loads(diff_verb(base, other, "--json").output)
    assert document["first"]["module"] == "blocks.1.norm"
    assert not document["same"]
    same = diff_verb(base, base)
    assert same.exit_code == 0
    assert "no difference" in same.output


def test_the_verb_refuses_what_is_no_run(base: Path, tmp_path: Path) -> None:
    result = diff_verb(base, tmp_path / "none")
    assert result.exit_code not in (0, 1)
