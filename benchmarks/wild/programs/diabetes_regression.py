import argparse
import math

import torch
from sklearn.datasets import load_diabetes
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=40)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--hidden", type=int, default=32)
    p.add_argument("--weight-decay", type=float, default=1e-2)
    p.add_argument("--seed", type=int, default=0)
    return p.parse_args()


def make_loaders():
    X, y = load_diabetes(return_X_y=True, scaled=True)
    X = torch.tensor(X, dtype=torch.float32)
    X = (X - X.mean(0)) / X.std(0)
    y = torch.tensor(y, dtype=torch.float32)
    y = (y - y.mean()) / y.std()
    dataset = TensorDataset(X, y)
    train, val = random_split(dataset, [342, 100], generator=torch.Generator().manual_seed(3))
    return DataLoader(train, batch_size=16, shuffle=True), DataLoader(val, batch_size=100)


class Regressor(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, hidden), nn.ReLU(), nn.Dropout(0.2), nn.Linear(hidden, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    se, st, n = 0.0, 0.0, 0
    for x, y in loader:
        se += ((model(x) - y) ** 2).sum().item()
        st += ((y - y.mean()) ** 2).sum().item()
        n += len(y)
    return math.sqrt(se / n), 1 - se / st


def main():
    args = get_args()
    torch.manual_seed(args.seed)
    train_loader, val_loader = make_loaders()
    model = Regressor(args.hidden)
    loss_fn = nn.MSELoss()
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    for epoch in range(args.epochs):
        model.train()
        total = 0.0
        for x, y in train_loader:
            opt.zero_grad()
            pred = model(x)
            loss = loss_fn(pred, y)
            loss.backward()
            opt.step()
            total += loss.item() * len(x)
        rmse, r2 = evaluate(model, val_loader)
        if epoch % 5 == 4:
            print(f"epoch {epoch + 1}: train mse {total / 342:.4f}, val rmse {rmse:.4f}, r2 {r2:.4f}")


if __name__ == "__main__":
    main()
