"""What is torch.nn really: a module, and an update loop written out by hand."""
import math

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(3)

x, y = load_digits(return_X_y=True)
x = torch.tensor(x / 16, dtype=torch.float32)
y = torch.tensor(y)
x_train, y_train, x_valid, y_valid = x[:1400], y[:1400], x[1400:], y[1400:]
n, c = x_train.shape
bs = 64


class Mnist_MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(64, 50) / math.sqrt(64))
        self.b1 = nn.Parameter(torch.zeros(50))
        self.lin = nn.Linear(50, 10)

    def forward(self, xb):
        return self.lin(F.relu(xb @ self.w1 + self.b1))


def accuracy(out, yb):
    preds = torch.argmax(out, dim=1)
    return (preds == yb).float().mean()


loss_func = F.cross_entropy
model = Mnist_MLP()
lr = 0.3
epochs = 25


def fit():
    for epoch in range(epochs):
        perm = torch.randperm(n)
        for i in range((n - 1) // bs + 1):
            idx = perm[i * bs : i * bs + bs]
            xb = x_train[idx]
            yb = y_train[idx]
            pred = model(xb)
            loss = loss_func(pred, yb)

            loss.backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= p.grad * lr
                model.zero_grad()
        with torch.no_grad():
            out = model(x_valid)
            print(epoch, loss_func(out, y_valid).item(), f"accuracy {accuracy(out, y_valid).item():.4f}")


fit()
