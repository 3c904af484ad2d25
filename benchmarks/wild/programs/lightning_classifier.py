import logging
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class DigitsDataModule(L.LightningDataModule):
    def __init__(self, batch_size: int = 64):
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage=None):
        X, y = load_digits(return_X_y=True)
        full = TensorDataset(torch.tensor(X / 16.0, dtype=torch.float32), torch.tensor(y))
        self.train_set, self.val_set = random_split(full, [1437, 360], generator=torch.Generator().manual_seed(42))

    def train_dataloader(self):
        return DataLoader(self.train_set, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, batch_size=self.batch_size)


class LitClassifier(L.LightningModule):
    def __init__(self, hidden_dim: int = 96, learning_rate: float = 2e-3):
        super().__init__()
        self.save_hyperparameters()
        self.l1 = nn.Linear(64, hidden_dim)
        self.l2 = nn.Linear(hidden_dim, 10)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return self.l2(self.dropout(torch.relu(self.l1(x))))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.log("val_loss", F.cross_entropy(logits, y))
        self.log("val_acc", (logits.argmax(1) == y).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.learning_rate)


def cli_main():
    L.seed_everything(1234)
    trainer = L.Trainer(
        max_epochs=15, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False)
    model = LitClassifier()
    trainer.fit(model, datamodule=DigitsDataModule())
    print({k: round(v.item(), 4) for k, v in trainer.callback_metrics.items()})


if __name__ == "__main__":
    cli_main()
