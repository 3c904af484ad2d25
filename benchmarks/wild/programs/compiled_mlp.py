"""A compiled model and a compiled training step; the Friedman function as data."""
import argparse

import torch
import torch.nn as nn
from sklearn.datasets import make_friedman1

parser = argparse.ArgumentParser()
parser.add_argument("--backend", default="aot_eager")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--steps", type=int, default=600)
parser.add_argument("--lr", type=float, default=3e-3)
args = parser.parse_args()
torch.manual_seed(args.seed)

X, y = make_friedman1(n_samples=3000, noise=0.5, random_state=0)
X = torch.tensor(X * 2 - 1, dtype=torch.float32)
y = torch.tensor(y, dtype=torch.float32).unsqueeze(1)
y = (y - y.mean()) / y.std()
X_train, y_train, X_val, y_val = X[:2400], y[:2400], X[2400:], y[2400:]


class MLP(nn.Module):
    def __init__(self, d_in, width, depth):
        super().__init__()
        self.inp = nn.Linear(d_in, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(depth))
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        x = self.inp(x)
        for block in self.blocks:
            x = x + block(x)
        return self.out(x)


model = MLP(10, 48, 2)
compiled = torch.compile(model, backend=args.backend)
loss_fn = nn.MSELoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=args.lr, total_steps=args.steps)

for step in range(args.steps):
    idx = torch.randint(len(X_train), (64,))
    optimizer.zero_grad(set_to_none=True)
    loss = loss_fn(compiled(X_train[idx]), y_train[idx])
    loss.backward()
    optimizer.step()
    scheduler.step()
    if step % 100 == 99:
        model.eval()
        with torch.no_grad():
            val = loss_fn(model(X_val), y_val).item()
        model.train()
        print(f"step {step + 1}: loss {loss.item():.4f} val {val:.4f}")
