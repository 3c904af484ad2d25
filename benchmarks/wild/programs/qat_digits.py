"""Quantization-aware training by hand: 4-bit weights with a straight-through estimator."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class FakeQuantize(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bits):
        scale = x.abs().max() / (2 ** (bits - 1) - 1)
        return torch.round(x / scale) * scale

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, None


class QLinear(nn.Linear):
    bits = 4

    def forward(self, x):
        return F.linear(x, FakeQuantize.apply(self.weight, self.bits), self.bias)


class Net(nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.fc1 = linear(64, 64)
        self.fc2 = linear(64, 64)
        self.fc3 = linear(64, 10)

    def forward(self, x):
        x = F.relu6(self.fc1(x))
        x = F.relu6(self.fc2(x))
        return self.fc3(x)


def main():
    torch.manual_seed(0)
    X, y = load_digits(return_X_y=True)
    X = torch.tensor(X / 16.0, dtype=torch.float32)
    y = torch.tensor(y)
    perm = torch.randperm(len(X), generator=torch.Generator().manual_seed(0))
    X, y = X[perm], y[perm]
    model = Net(QLinear)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(20):
        model.train()
        losses = []
        for i in torch.randperm(1440).split(48):
            optimizer.zero_grad()
            logits = model(X[i])
            loss = F.cross_entropy(logits, y[i])
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        model.eval()
        with torch.no_grad():
            acc = (model(X[1440:]).argmax(1) == y[1440:]).float().mean()
        if epoch % 5 == 4:
            print(f"epoch {epoch + 1} loss {torch.stack(losses).mean():.4f} int4 accuracy {acc:.4f}")


if __name__ == "__main__":
    main()
