"""Curriculum learning: a GRU adds numbers, and the sequences get longer as it gets better."""
import torch
import torch.nn as nn

torch.manual_seed(0)


def make_batch(n, length):
    """The adding problem: two positions are marked, the answer is the sum of their numbers."""
    values = torch.rand(n, length)
    marks = torch.zeros(n, length)
    first = torch.randint(0, length // 2, (n,))
    second = torch.randint(length // 2, length, (n,))
    rows = torch.arange(n)
    marks[rows, first] = 1
    marks[rows, second] = 1
    y = values[rows, first] + values[rows, second]
    return torch.stack([values, marks], dim=2), y - 1.0


class Adder(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.rnn = nn.GRU(2, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x):
        _, h = self.rnn(x)
        return self.head(h[-1]).squeeze(1)


model = Adder()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
loss_fn = nn.MSELoss()
length, target_length = 4, 20
for step in range(800):
    x, y = make_batch(64, length)
    loss = loss_fn(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 50 == 49:
        model.eval()
        with torch.no_grad():
            x, y = make_batch(500, length)
            mse = loss_fn(model(x), y).item()
        model.train()
        if mse < 0.01 and length < target_length:
            length += 4
        if step % 200 == 199:
            print(f"step {step + 1} length {length} mse {mse:.4f}")

with torch.no_grad():
    x, y = make_batch(1000, target_length)
    print(f"final mse at length {target_length}: {loss_fn(model(x), y).item():.4f} (variance of the answer {y.var():.4f})")
