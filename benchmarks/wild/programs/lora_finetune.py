"""LoRA by hand: train a network on the even digits, adapt it to the odd ones with low-rank updates."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class LoRALinear(nn.Module):
    def __init__(self, linear: nn.Linear, r: int = 4, alpha: float = 8.0):
        super().__init__()
        self.linear = linear
        self.linear.weight.requires_grad_(False)
        self.linear.bias.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.empty(r, linear.in_features))
        self.lora_B = nn.Parameter(torch.zeros(linear.out_features, r))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.scaling = alpha / r

    def forward(self, x):
        return self.linear(x) + (x @ self.lora_A.T @ self.lora_B.T) * self.scaling


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 96)
        self.fc2 = nn.Linear(96, 96)
        self.head = nn.Linear(96, 5)

    def forward(self, x):
        return self.head(F.relu(self.fc2(F.relu(self.fc1(x)))))


def fit(model, X, y, epochs, lr, tag):
    trainable = [p for p in model.parameters() if p.requires_grad]
    print(f"{tag}: {sum(p.numel() for p in trainable)} trainable parameters")
    optimizer = torch.optim.AdamW(trainable, lr=lr)
    for epoch in range(epochs):
        model.train()
        for i in torch.randperm(len(X)).split(32):
            loss = F.cross_entropy(model(X[i]), y[i])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"{tag} epoch {epoch + 1} loss {loss.item():.4f}")


@torch.no_grad()
def accuracy(model, X, y):
    model.eval()
    return (model(X).argmax(1) == y).float().mean().item()


def main():
    torch.manual_seed(0)
    X, y = load_digits(return_X_y=True)
    X, y = torch.tensor(X / 16.0, dtype=torch.float32), torch.tensor(y)
    even, odd = y % 2 == 0, y % 2 == 1
    Xe, ye, Xo, yo = X[even], y[even] // 2, X[odd], y[odd] // 2
    n = 700
    model = MLP()
    fit(model, Xe[:n], ye[:n], epochs=12, lr=1e-3, tag="pretrain")
    print(f"even digits: {accuracy(model, Xe[n:], ye[n:]):.4f}")

    model.fc1 = LoRALinear(model.fc1)
    model.fc2 = LoRALinear(model.fc2)
    print(f"odd digits before: {accuracy(model, Xo[n:], yo[n:]):.4f}")
    fit(model, Xo[:n], yo[:n], epochs=15, lr=3e-3, tag="lora")
    print(f"odd digits after: {accuracy(model, Xo[n:], yo[n:]):.4f}")


if __name__ == "__main__":
    main()
