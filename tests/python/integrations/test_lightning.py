"""The Lightning callback, in real trainings on digits."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import Accuracy, MaxMetric

from tdbg.errors import ConfigurationError
from tdbg.modes import EVAL, PREDICT, TRAIN
from tdbg.pytorch import SaveConfig, create_trial
from tdbg.rules import check
from tdbg.run.observations import Fault
from tdbg.run.requests import request_stop
from torch_helpers import Recorded

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import lightning.pytorch as L  # noqa: N812 - as its users write it
    from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

    from tdbg.integrations.lightning import TdbgCallback

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
EVERYTHING = SaveConfig(save_interval=1, statistics_interval=1)


class Digits(L.LightningModule):  # type: ignore[misc]
    """Calls a part of itself, as most do, and never itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))
        self.criterion = nn.CrossEntropyLoss()

    def training_step(self, batch: Any, _: int) -> Any:
        loss = self.criterion(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        self.log("val_loss", self.criterion(self.net(batch[0]), batch[1]))

    test_step = validation_step

    def predict_step(self, batch: Any, _: int) -> Any:
        return self.net(batch[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def loader(n_batches: int, batch_size: int = 8) -> Any:
    data = load_digits()
    count = n_batches * batch_size
    inputs = torch.tensor(data.data[:count] / 16.0, dtype=torch.float32)
    return DataLoader(
        TensorDataset(inputs, torch.tensor(data.target[:count])), batch_size
    )


def trainer(tmp_path: Path, callback: Any, **options: Any) -> Any:
    settings: dict[str, Any] = {
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": tmp_path,
        "max_epochs": 1,
        "callbacks": [callback],
    }
    return L.Trainer(**{**settings, **options})


def callback(run_dir: Path, **options: Any) -> Any:
    settings = {"save_all": True, "save_config": EVERYTHING, "min_free_bytes": 0}
    return TdbgCallback(run_dir, **{**settings, **options})


def test_all_that_a_trainer_does_is_captured_in_its_mode(
    run_dir: Path, tmp_path: Path
) -> None:
    tdbg = callback(run_dir)
    assert not run_dir.exists()
    model = Digits()
    work = trainer(tmp_path, tdbg)
    work.fit(model, loader(4), loader(3))
    assert tdbg.hook is None
    work.test(model, loader(1))
    work.predict(model, loader(2))
    trial = create_trial(run_dir)
    assert trial.steps(mode=TRAIN) == [0, 1, 2, 3]
    assert trial.steps(mode=EVAL) == [0, 1, 2, 3, 4, 5]  # 2 of the sanity check.
    assert trial.steps(mode=PREDICT) == [0, 1]
    for name in ("net.0_output_0", "net.2.weight", "gradient/net.0.weight"):
        assert trial.tensor(name).steps(mode=TRAIN) == [0, 1, 2, 3], name
    assert trial.tensor("net.2_output_0").steps(mode=EVAL) == [0, 1, 2, 3, 4, 5]
    assert trial.tensor("loss_output_0").steps(mode=TRAIN) == [0, 1, 2, 3]
    assert trial.tensor("scalar/train_loss").steps(mode=TRAIN) == [0, 1, 2, 3]
    told = [trial.tensor("scalar/train_loss").value(i, mode=TRAIN) for i in range(4)]
    seen = [trial.tensor("loss_output_0").value(i, mode=TRAIN) for i in range(4)]
    assert [float(value) for value in told] == pytest.approx(
        [float(value) for value in seen]
    )
    # Once at the end of the evaluation, not again with each batch after it.
    assert len(trial.tensor("scalar/val_loss").steps(mode=EVAL)) == 3
    assert not any("@" in name for name in trial.tensor_names())


@pytest.mark.parametrize(
    ("monitor", "kept"),
    [("val_loss", ["ModelCheckpoint"]), ("train_loss", []), (None, [])],
)
def test_a_checkpoint_that_monitors_validation_keeps_the_best_model(
    run_dir: Path, tmp_path: Path, monitor: str | None, kept: list[str]
) -> None:
    saves = ModelCheckpoint(tmp_path / "best", monitor=monitor)
    both = [callback(run_dir), saves]
    work = trainer(tmp_path, None, enable_checkpointing=True, callbacks=both)
    work.fit(Digits(), loader(4), loader(3))
    seen = create_trial(run_dir).observations()
    found = [each for each in seen if each.fault is Fault.BEST_KEPT]
    assert [name for each in found for name in each.names] == kept
    assert [each.words["monitor"] for each in found] == ["val_loss"] * len(kept)


def test_gradients_are_clipped_and_accumulated_ones(
    run_dir: Path, tmp_path: Path
) -> None:
    tdbg = callback(run_dir)
    work = trainer(tmp_path, tdbg, accumulate_grad_batches=2, gradient_clip_val=1e-3)
    work.fit(Digits(), loader(4))
    trial = create_trial(run_dir)
    assert trial.steps(mode=TRAIN) == [0, 1]
    for step in (0, 1):
        norms = [
            trial.tensor(f"gradient/net.{name}").reduction_value(step, "l2", mode=TRAIN)
            for name in ("0.weight", "0.bias", "2.weight", "2.bias")
        ]
        assert sum(norm**2 for norm in norms) ** 0.5 == pytest.approx(1e-3, rel=1e-3)
    assert [int(n) for n in Recorded(run_dir).step_table["micro_batches"]] == [2, 2]


class Scores(Digits):
    """Logs for the epoch, and predicts one number."""

    def training_step(self, batch: Any, _: int) -> Any:
        loss = self.criterion(self.net(batch[0]), batch[1])
        self.log("epoch_loss", loss, on_step=False, on_epoch=True)
        return loss

    def predict_step(self, batch: Any, _: int) -> Any:
        return self.net(batch[0]).sum()


def test_a_loss_is_recorded_once_and_a_prediction_is_none(
    run_dir: Path, tmp_path: Path
) -> None:
    model = Scores()
    work = trainer(tmp_path, callback(run_dir), accumulate_grad_batches=2)
    work.fit(model, loader(4), loader(1))
    work.predict(model, loader(2))
    trial = create_trial(run_dir)
    loss = trial.tensor("loss_output_0")
    assert loss.steps(mode=PREDICT) == []
    assert trial.steps(mode=PREDICT) == [0, 1]
    assert loss.steps(mode=TRAIN) == [0, 1]
    # Of two micro-batches one row each.
    assert [loss.stats(step, mode=TRAIN).count for step in (0, 1)] == [2, 2]
    # The evaluation at the end of an epoch is over when what it logged comes.
    assert trial.tensor("scalar/epoch_loss").steps(mode=TRAIN) == [1]


def test_a_metric_that_is_logged_again_is_recorded_once(run_dir: Path) -> None:
    tdbg = callback(run_dir)
    owner = tdbg._owner
    model = Digits()
    hook = owner.open(model)
    kept, value = torch.tensor(0.5), torch.tensor(0.25)
    for step in range(3):
        with hook.forward_pass():
            model.net(torch.ones(2, 64)).sum().backward()
        owner.record_metrics({"kept": kept, "text": "no number"}, are_new=False)
        owner.record_metrics({"always": value}, are_new=True)
        assert hook.counters()["internal_errors"] == 0, step
    other = pickle.loads(pickle.dumps(owner))  # noqa: S301
    assert (other.hook, other._recorded) == (None, {})
    owner.close()
    trial = create_trial(run_dir)
    assert len(trial.tensor("scalar/kept").steps()) == 1
    assert len(trial.tensor("scalar/always").steps()) == 3
    assert not trial.has_tensor("scalar/text")


class Adversaries(Digits):
    """Two optimizers by hand, taking turns."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, _: int) -> None:
        for optimizer in self.optimizers():
            loss = self.criterion(self.net(batch[0]), batch[1])
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [
            torch.optim.SGD(self.net[0].parameters(), lr=0.1),
            torch.optim.SGD(self.net[2].parameters(), lr=0.1),
        ]


def test_manual_optimization_is_captured(run_dir: Path, tmp_path: Path) -> None:
    tdbg = callback(run_dir)
    trainer(tmp_path, tdbg).fit(Adversaries(), loader(3))
    trial = create_trial(run_dir)
    assert len(trial.tensor("gradient/net.0.weight").steps(mode=TRAIN)) == 3
    assert len(trial.tensor("gradient/net.2.weight").steps(mode=TRAIN)) >= 3
    assert len(trial.tensor("loss_output_0").steps(mode=TRAIN)) >= 3


def test_a_stop_ends_the_training_by_its_own_flag(
    run_dir: Path, tmp_path: Path
) -> None:
    class Asks(L.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, *_: Any) -> None:
            if work.global_step == 3:
                request_stop(run_dir, reason="enough of it")

    tdbg = callback(run_dir)
    work = trainer(tmp_path, tdbg, max_epochs=1000)
    work.callbacks.insert(0, Asks())
    work.fit(Digits(), loader(200, batch_size=2))
    assert work.should_stop
    assert 3 < work.global_step < 1000
    assert Recorded(run_dir).events(5)[-1] == {
        "training": "stopped",
        "reason": "enough of it",
    }


def test_an_exception_closes_the_run(run_dir: Path, tmp_path: Path) -> None:
    class Fails(Digits):
        def training_step(self, batch: Any, index: int) -> Any:
            if index == 2:
                raise ZeroDivisionError
            return super().training_step(batch, index)

    tdbg = callback(run_dir)
    work = trainer(tmp_path, tdbg)
    with pytest.raises(ZeroDivisionError):
        work.fit(Fails(), loader(4))
    assert tdbg.hook is None
    assert "training_step" not in vars(work.strategy)
    recorded = Recorded(run_dir)
    assert recorded.events(5)[-1]["reason"] == "ZeroDivisionError"
    assert [step[2] for step in recorded.steps][:2] == [0, 1]


def test_a_training_resumed_from_a_checkpoint_goes_on_with_its_steps(
    run_dir: Path, tmp_path: Path
) -> None:
    first = trainer(tmp_path, callback(run_dir))
    first.fit(Digits(), loader(3), loader(1))
    first.save_checkpoint(tmp_path / "at-3.ckpt")
    second = trainer(tmp_path, callback(run_dir), max_epochs=2)
    second.fit(Digits(), loader(3), loader(1), ckpt_path=tmp_path / "at-3.ckpt")
    trial = create_trial(run_dir)
    assert trial.steps(mode=TRAIN) == [0, 1, 2, 3, 4, 5]
    assert len(trial.attempts()) == 2


def test_what_is_wrong_with_the_options_is_said_at_once(run_dir: Path) -> None:
    with pytest.raises(ConfigurationError, match="weights"):
        callback(run_dir, include_collections=["wieghts"])
    with pytest.raises(ConfigurationError, match="its own flag"):
        callback(run_dir, on_stop="raise")
    assert not run_dir.exists()


class Normalized(Digits):
    """Is evaluated as a hook or a step of its own puts it."""

    def __init__(self, evaluated: str = "") -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(64, 24), nn.BatchNorm1d(24), nn.Dropout(0.1), nn.Linear(24, 10)
        )
        self.evaluated = evaluated

    def on_validation_epoch_start(self) -> None:
        if self.evaluated == "part":
            self.net.train()
        if self.evaluated == "dropout":
            self.net[2].train()

    def validation_step(self, batch: Any, number: int) -> None:
        if self.evaluated == "whole":
            self.train()
        super().validation_step(batch, number)


@pytest.mark.parametrize("evaluated", ["", "part", "whole", "dropout"])
def test_layers_that_a_program_puts_into_training_mode_in_evaluation_are_named(
    run_dir: Path, tmp_path: Path, evaluated: str
) -> None:
    work = trainer(tmp_path, callback(run_dir), max_epochs=2)
    work.fit(Normalized(evaluated), loader(4), loader(3))
    seen = create_trial(run_dir).observations()
    found = [each for each in seen if each.fault is Fault.EVALUATED_IN_TRAINING]
    # Dropout alone draws several answers on purpose.
    assert len(found) == (evaluated in {"part", "whole"})
    assert {each.words["layers"] for each in found} <= {"dropout and normalization"}


class Words(L.LightningModule):  # type: ignore[misc]
    """A model of texts, whose labels may be two tokens later."""

    def __init__(self, shift: int, calls: str) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Embedding(17, 16), nn.Linear(16, 17))
        self.shift = shift
        self.calls = calls

    def forward(self, tokens: Any) -> Any:
        return self.net(tokens)

    def training_step(self, batch: Any, _: int) -> Any:
        called = self if self.calls == "itself" else self.net
        outputs = called(batch)[:, : -self.shift]
        labels = batch[:, self.shift :]
        return functional.cross_entropy(outputs.flatten(0, 1), labels.flatten())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize("calls", ["itself", "a part"])
@pytest.mark.parametrize("shift", [1, 2])
def test_labels_are_compared_with_what_the_only_part_gets(
    run_dir: Path, tmp_path: Path, shift: int, calls: str
) -> None:
    generator = torch.Generator().manual_seed(1)
    texts: Any = torch.randint(0, 17, (80, 12), generator=generator)
    trainer(tmp_path, callback(run_dir)).fit(Words(shift, calls), DataLoader(texts, 8))
    seen = create_trial(run_dir).observations()
    found = [each for each in seen if each.fault is Fault.LABELS_SKIP_ONE]
    assert [each.names for each in found] == [("Sequential",)] * (shift == 2)
    (probe,) = [each for each in seen if each.fault is Fault.PROBED]
    assert "_trainer" not in " ".join(probe.words.values())


class Watched(Digits):
    """Learns in big steps, and logs an accuracy and, perhaps, misnamed losses."""

    def __init__(self, misnamed: str = "") -> None:
        super().__init__()
        self.misnamed = misnamed

    def training_step(self, batch: Any, number: int) -> Any:
        loss = super().training_step(batch, number)
        if self.misnamed:
            is_loss = self.misnamed.endswith("loss")
            value = loss if is_loss else 1 - loss.detach()
            self.log(self.misnamed, value, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, number: int) -> None:
        if self.misnamed != "val_loss":
            super().validation_step(batch, number)
        hits = self.net(batch[0]).argmax(1) == batch[1]
        self.log_dict({"val_acc": hits.float().mean(), "score": -hits.sum().float()})


def watched(
    run_dir: Path, tmp_path: Path, *callbacks: Any, misnamed: str = ""
) -> list[Any]:
    both = [callback(run_dir), *callbacks]
    work = trainer(tmp_path, None, max_epochs=4, enable_checkpointing=True)
    work.callbacks[:] = both
    work.fit(Watched(misnamed), loader(8), loader(8))
    return create_trial(run_dir).observations()


@pytest.mark.parametrize(
    ("kind", "monitor", "mode", "is_told"),
    [
        ("stop", "val_acc", "min", True),
        ("stop", "val_acc", "max", False),
        ("keep", "val_acc", "min", True),
        ("keep", "val_loss", "max", True),
        ("keep", "val_loss", "min", False),
        ("keep", "score", "max", False),
        ("keep all", "val_acc", "min", False),
        ("keep both", "val_acc", "min", False),
    ],
)
def test_callbacks_that_wait_for_an_accuracy_to_fall_are_named(
    run_dir: Path, tmp_path: Path, kind: str, monitor: str, mode: str, is_told: bool
) -> None:
    settings = {"monitor": monitor, "mode": mode}
    stop: Any = EarlyStopping(patience=9, **settings)
    saves: Any = ModelCheckpoint(
        tmp_path / "best", save_top_k=-1 if kind == "keep all" else 1, **settings
    )
    callbacks = [stop] if kind == "stop" else [saves]
    if kind == "keep both":
        callbacks.append(EarlyStopping(monitor, patience=9, mode="max"))
    seen = watched(run_dir, tmp_path, *callbacks)
    found = [each for each in seen if each.fault is Fault.WATCHES_WRONG_WAY]
    assert len(found) == is_told
    for each in found:
        assert each.words["monitor"] == monitor
        assert 'mode="' in each.words["setting"]


@pytest.mark.parametrize(
    ("misnamed", "is_watched", "is_sure"),
    [
        ("val_loss", True, True),
        ("val_loss", False, True),
        ("valid/score", True, True),
        ("valid/score", False, False),
        ("value_loss", True, None),
    ],
)
def test_training_that_logs_under_a_name_of_validation_is_named(
    run_dir: Path,
    tmp_path: Path,
    misnamed: str,
    is_watched: bool,
    is_sure: bool | None,
) -> None:
    stops = [EarlyStopping(misnamed, patience=9)] if is_watched else []
    seen = watched(run_dir, tmp_path, *stops, misnamed=misnamed)
    found = [each for each in seen if each.fault is Fault.LOGGED_AS_VALIDATION]
    assert [each.names for each in found] == [(misnamed,)] * (is_sure is not None)
    for each in found:
        assert any(each.numbers.values()) is is_sure


class Part(Digits):
    """Has a part that comes in evaluation mode."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        rate = 0.0 if kind == "no dropout" else 0.2
        body = nn.Sequential(nn.Linear(64, 24), nn.BatchNorm1d(24), nn.Dropout(rate))
        self.net = nn.Sequential(body, nn.Linear(24, 10))
        if kind != "training":
            body.eval()
        if kind == "normalization":
            body.train()
            body[1].eval()
        if kind == "frozen":
            body.requires_grad_(False)
        self.kind = kind

    def on_train_epoch_start(self) -> None:
        if self.kind == "late":
            self.net.train()


@pytest.mark.parametrize(
    "kind", ["asleep", "training", "normalization", "frozen", "no dropout", "late"]
)
def test_a_part_that_learns_in_evaluation_mode_is_named(
    run_dir: Path, tmp_path: Path, kind: str
) -> None:
    work = trainer(tmp_path, callback(run_dir), max_epochs=2)
    work.fit(Part(kind), loader(8), loader(3))
    seen = create_trial(run_dir).observations()
    found = [each for each in seen if each.fault is Fault.TRAINED_IN_EVALUATION]
    assert [each.names for each in found] == [("net.0",)] * (kind == "asleep")


class Worse(Digits):
    """Logs a metric that is best in the first epoch."""

    def validation_step(self, batch: Any, number: int) -> None:
        super().validation_step(batch, number)
        self.log("rank", float(self.current_epoch))


@pytest.mark.parametrize(
    ("mode", "how", "is_told"),
    [
        ("min", "last", True),
        ("max", "last", False),
        ("min", "best", False),
        ("min", "loaded", False),
    ],
)
def test_last_weights_that_are_tested_where_better_ones_are_kept(
    run_dir: Path, tmp_path: Path, mode: str, how: str, is_told: bool
) -> None:
    saves: Any = ModelCheckpoint(tmp_path / "best", monitor="rank", mode=mode)
    both = [callback(run_dir), saves]
    work = trainer(
        tmp_path, None, enable_checkpointing=True, callbacks=both, max_epochs=3
    )
    model = Worse()
    work.fit(model, loader(4), loader(3))
    if how == "loaded":
        kept = torch.load(saves.best_model_path, weights_only=False)
        model.load_state_dict(kept["state_dict"])
    path = "best" if how == "best" else None
    work.test(model, loader(3), ckpt_path=path, verbose=False)
    found = check(run_dir, ["MetricMisuse"], record=False).findings
    assert ["weights of the last step" in each.message for each in found] == (
        [True] * is_told
    )


class Measured(Digits):
    """Measures by metrics of torchmetrics, in one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.train_acc, self.val_acc = (
            Accuracy(task="multiclass", num_classes=10) for _ in range(2)
        )
        self.best = MaxMetric()

    def training_step(self, batch: Any, number: int) -> Any:
        loss = super().training_step(batch, number)
        self.train_acc(self.net(batch[0]), batch[1])
        if self.way != "batch values":
            self.log("train_acc", self.train_acc, on_epoch=True, on_step=False)
        return loss

    def on_validation_epoch_start(self) -> None:
        if self.way == "reset before":
            self.val_acc.reset()

    def validation_step(self, batch: Any, _: int) -> None:
        used = self.train_acc if self.way in {"mixed", "batch values"} else self.val_acc
        value = used(self.net(batch[0]), batch[1])
        if self.way == "batch values":
            self.log("val_acc", value)
        elif self.way in {"logged", "mixed"}:
            self.log("val_acc", used)

    def on_validation_epoch_end(self) -> None:
        if self.way in {"kept", "reset", "reset before"}:
            self.best.update(self.val_acc.compute())
            self.log("best", self.best.compute())
        if self.way == "reset":
            self.val_acc.reset()


@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")
@pytest.mark.parametrize(
    ("way", "told"),
    [
        ("kept", ["The metric val_acc (MulticlassAccuracy) is never reset"]),
        ("mixed", ["The metric train_acc (MulticlassAccuracy) counts training and"]),
        ("logged", []),
        ("reset", []),
        ("reset before", []),
        ("batch values", []),
    ],
)
def test_metrics_that_hold_batches_from_before_a_validation(
    run_dir: Path, tmp_path: Path, way: str, told: list[str]
) -> None:
    work = trainer(tmp_path, callback(run_dir), max_epochs=4)
    work.fit(Measured(way), loader(4), loader(3))
    found = check(run_dir, ["MetricMisuse"], record=False).findings
    assert [each.message[: len(t)] for each, t in zip(found, told, strict=True)] == told
