"""A small vision transformer with nn.TransformerEncoder, trained with AdamW and a OneCycle schedule."""
import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


class ViT(nn.Module):
    def __init__(self, image_size=8, patch=2, dim=48, depth=2, heads=4, classes=10):
        super().__init__()
        self.patch_embed = nn.Conv2d(1, dim, kernel_size=patch, stride=patch)
        n = (image_size // patch) ** 2
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.randn(1, n + 1, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, heads, 2 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.pos_embed
        return self.head(self.norm(self.encoder(x))[:, 0])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    d = load_digits()
    x = (torch.tensor(d.images, dtype=torch.float32).unsqueeze(1) - 4.9) / 6.0
    y = torch.tensor(d.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, val = order[:1400], order[1400:]
    model = ViT()
    steps_per_epoch = -(-len(train) // args.batch_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=args.lr, total_steps=args.epochs * steps_per_epoch, pct_start=0.2)
    for epoch in range(args.epochs):
        model.train()
        for idx in train[torch.randperm(len(train))].split(args.batch_size):
            loss = F.cross_entropy(model(x[idx]), y[idx], label_smoothing=0.05)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
        model.eval()
        with torch.no_grad():
            acc = (model(x[val]).argmax(1) == y[val]).float().mean().item()
        print(f"epoch {epoch} lr {scheduler.get_last_lr()[0]:.5f} loss {loss.item():.4f} acc {acc:.4f}")


if __name__ == "__main__":
    main()
