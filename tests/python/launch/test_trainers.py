"""``tdbg run`` looks at the settings of a trainer, without a callback of tdbg."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tdbg.pytorch import create_trial

if TYPE_CHECKING:
    from tdbg.launch.discovery import Discovery

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
FAULTS = {
    "BEST_KEPT",
    "LOGGED_AS_VALIDATION",
    "METRIC_STATE_KEPT",
    "TRAINED_IN_EVALUATION",
    "WATCHES_WRONG_WAY",
}

LIGHTNING = """
import logging, sys, warnings
warnings.simplefilter("ignore")
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import Accuracy
import lightning.pytorch as L
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
sick, folder = sys.argv[1] == "sick", sys.argv[2]
torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
train = DataLoader(TensorDataset(x[:512], y[:512]), 32, shuffle=True)
valid = DataLoader(TensorDataset(x[512:768], y[512:768]), 32)

class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        part = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1))
        self.net = nn.Sequential(part, nn.Linear(32, 10))
        self.loss = nn.CrossEntropyLoss()
        self.accuracy = Accuracy(task="multiclass", num_classes=10)
        if sick:
            part.eval()

    def training_step(self, batch, _):
        loss = self.loss(self.net(batch[0]), batch[1])
        self.log("val_train" if sick else "train", loss)
        return loss

    def validation_step(self, batch, _):
        logits = self.net(batch[0])
        self.log("val_loss", self.loss(logits, batch[1]))
        self.accuracy.update(logits, batch[1])

    def on_validation_epoch_end(self):
        self.log("val_acc", self.accuracy.compute())
        if not sick:
            self.accuracy.reset()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

way = "min" if sick else "max"
trainer = L.Trainer(
    max_epochs=4, accelerator="cpu", logger=False, enable_progress_bar=False,
    enable_model_summary=False, log_every_n_steps=1,
    callbacks=[EarlyStopping("val_acc", mode=way, patience=9),
               ModelCheckpoint(folder, "best", monitor="val_acc", mode=way)],
)
trainer.fit(Model(), train, valid)
kept = torch.load(f"{folder}/best.ckpt", weights_only=False)
print(sorted(kept["callbacks"]))
"""

TRANSFORMERS = """
import sys, warnings
warnings.simplefilter("ignore")
import torch
from sklearn.datasets import load_digits
from torch import nn
from transformers import Trainer, TrainingArguments

sick, folder = sys.argv[1] == "sick", sys.argv[2]
images, labels = load_digits(return_X_y=True)
rows = [{"x": torch.tensor(image / 16, dtype=torch.float32), "labels": int(label)}
        for image, label in zip(images[:256], labels[:256])]

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x, labels):
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

def measures(found):
    wrong = (found.predictions.argmax(-1) != found.label_ids).mean()
    return {"error_rate": float(wrong)}

args = TrainingArguments(
    folder, num_train_epochs=4, per_device_train_batch_size=16, learning_rate=1e-2,
    eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True,
    metric_for_best_model="error_rate", greater_is_better=None if sick else False,
    report_to=[], use_cpu=True, disable_tqdm=True,
)
trainer = Trainer(
    Model(), args, train_dataset=rows[:192], eval_dataset=rows[192:],
    compute_metrics=measures,
)
trainer.train()
"""


def told(
    text: str, kind: str, folder: Path, discovery: Discovery, run_dir: Path
) -> set[str]:
    """Return the names of the faults that are seen in a program."""
    script = folder / "train.py"
    script.write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(script), kind, str(folder / "kept")])
        runpy.run_path(str(script), run_name="__main__")
    (hook,) = discovery.hooks
    assert hook.counters()["internal_errors"] == 0
    assert hook.close()
    seen = create_trial(run_dir).observations()
    return {each.fault.name for each in seen} & FAULTS


@pytest.mark.parametrize("kind", ["sick", "healthy"])
def test_a_trainer_of_lightning_is_looked_at(
    run_dir: Path,
    tmp_path: Path,
    discovery: Discovery,
    capsys: pytest.CaptureFixture[str],
    kind: str,
) -> None:
    found = told(LIGHTNING, kind, tmp_path, discovery, run_dir)
    named = {
        "WATCHES_WRONG_WAY",
        "METRIC_STATE_KEPT",
        "LOGGED_AS_VALIDATION",
        "TRAINED_IN_EVALUATION",
    }
    assert found == {"BEST_KEPT"} | (named if kind == "sick" else set())
    # Checkpoints hold what they hold without tdbg.
    assert "Checks" not in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["sick", "healthy"])
def test_a_trainer_of_transformers_is_looked_at(
    run_dir: Path, tmp_path: Path, discovery: Discovery, kind: str
) -> None:
    found = told(TRANSFORMERS, kind, tmp_path, discovery, run_dir)
    named = {"WATCHES_WRONG_WAY"} if kind == "sick" else set()
    assert found == {"BEST_KEPT"} | named
