"""Matrix factorization with embeddings for ratings that have a hidden structure."""
import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def ratings(n_users=200, n_items=120, n_factors=3, n=12000):
    rng = np.random.default_rng(4)
    U, V = rng.normal(size=(n_users, n_factors)), rng.normal(size=(n_items, n_factors))
    bu, bi = rng.normal(size=n_users) * 0.3, rng.normal(size=n_items) * 0.5
    u, i = rng.integers(0, n_users, n), rng.integers(0, n_items, n)
    r = 3.5 + bu[u] + bi[i] + 0.5 * (U[u] * V[i]).sum(1) + rng.normal(size=n) * 0.2
    return torch.tensor(u), torch.tensor(i), torch.tensor(np.clip(np.round(r * 2) / 2, 0.5, 5), dtype=torch.float32)


class MF(nn.Module):
    def __init__(self, num_users, num_items, emb_size, mean):
        super().__init__()
        self.user_emb = nn.Embedding(num_users, emb_size)
        self.item_emb = nn.Embedding(num_items, emb_size)
        self.user_bias = nn.Embedding(num_users, 1)
        self.item_bias = nn.Embedding(num_items, 1)
        self.user_emb.weight.data.normal_(0, 0.1)
        self.item_emb.weight.data.normal_(0, 0.1)
        self.user_bias.weight.data.zero_()
        self.item_bias.weight.data.zero_()
        self.mean = mean

    def forward(self, u, v):
        dot = (self.user_emb(u) * self.item_emb(v)).sum(1)
        return dot + self.user_bias(u).squeeze(1) + self.item_bias(v).squeeze(1) + self.mean


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--wd", type=float, default=1e-5)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    u, i, r = ratings()
    n = 10000
    loader = DataLoader(TensorDataset(u[:n], i[:n], r[:n]), batch_size=128, shuffle=True)
    model = MF(200, 120, 8, r[:n].mean().item())
    opt = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=args.wd)
    for epoch in range(args.epochs):
        model.train()
        for users, items, target in loader:
            loss = nn.functional.mse_loss(model(users, items), target)
            opt.zero_grad()
            loss.backward()
            opt.step()
        model.eval()
        with torch.no_grad():
            rmse = nn.functional.mse_loss(model(u[n:], i[n:]), r[n:]).sqrt().item()
        print(f"epoch {epoch} train loss {loss.item():.3f} test rmse {rmse:.4f}")


if __name__ == "__main__":
    main()
