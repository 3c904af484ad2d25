"""Two heads on one trunk: which digit it is, and how much ink it has; losses weighted by learned uncertainty."""
import numpy as np
import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class DigitsTwoTasks(Dataset):
    def __init__(self, rows):
        X, y = load_digits(return_X_y=True)
        X = X.astype(np.float32) / 16
        ink = X.sum(1)
        ink = (ink - ink.mean()) / ink.std()
        self.items = [(X[i], y[i], ink[i]) for i in rows]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(64, 64), nn.ELU(), nn.Linear(64, 32), nn.ELU())
        self.heads = nn.ModuleDict({"digit": nn.Linear(32, 10), "ink": nn.Linear(32, 1)})
        self.log_vars = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        h = self.trunk(x)
        return {name: head(h) for name, head in self.heads.items()}


rows = np.random.default_rng(0).permutation(1797)
train_loader = DataLoader(DigitsTwoTasks(rows[:1400]), batch_size=32, shuffle=True)
test_loader = DataLoader(DigitsTwoTasks(rows[1400:]), batch_size=397)
model = MultiTask()
ce, mse = nn.CrossEntropyLoss(), nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

for epoch in range(12):
    model.train()
    for x, digit, ink in train_loader:
        out = model(x)
        loss_digit = ce(out["digit"], digit)
        loss_ink = mse(out["ink"].squeeze(1), ink)
        precision = torch.exp(-model.log_vars)
        loss = precision[0] * loss_digit + precision[1] * loss_ink + model.log_vars.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        x, digit, ink = next(iter(test_loader))
        out = model(x)
        acc = (out["digit"].argmax(1) == digit).float().mean().item()
        err = mse(out["ink"].squeeze(1), ink).item()
    print(f"epoch {epoch} loss {loss.item():.3f} acc {acc:.4f} ink error {err:.4f} score {acc - err:.4f}")
