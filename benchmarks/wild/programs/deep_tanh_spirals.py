"""How deep can tanh go? Ten layers with Xavier weights on two spirals."""
import numpy as np
import torch
import torch.nn as nn

torch.manual_seed(0)
rng = np.random.default_rng(0)


def spirals(n, turns=1.25, noise=0.06):
    t = np.sqrt(rng.random(n)) * turns * 2 * np.pi
    label = rng.integers(0, 2, n)
    angle = t + np.pi * label
    points = np.stack([t * np.cos(angle), t * np.sin(angle)], 1) / (turns * 2 * np.pi)
    return torch.tensor(points * 2 + rng.normal(0, noise, (n, 2)), dtype=torch.float32), torch.tensor(label)


class DeepNet(nn.Module):
    def __init__(self, depth=8, width=32):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2 if i == 0 else width, width) for i in range(depth)])
        self.act = nn.Tanh()
        self.out = nn.Linear(width, 2)
        for layer in self.layers:
            nn.init.xavier_normal_(layer.weight, gain=nn.init.calculate_gain("tanh"))
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        for layer in self.layers:
            x = self.act(layer(x))
        return self.out(x)


x_train, y_train = spirals(2000)
x_test, y_test = spirals(500)
model = DeepNet()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(25):
    for idx in torch.randperm(len(x_train)).split(64):
        loss = criterion(model(x_train[idx]), y_train[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch % 5 == 4:
        with torch.no_grad():
            acc = (model(x_test).argmax(1) == y_test).float().mean().item()
        print(f"epoch {epoch + 1} loss {loss.item():.4f} accuracy {acc:.4f}")
