"""Character-level LSTM on some Python source, in the spirit of the well-known blog post."""
import inspect
import textwrap

import torch
import torch.nn as nn

torch.manual_seed(1337)

text = inspect.getsource(textwrap)[:12000]
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
itos = {i: c for c, i in stoi.items()}
data = torch.tensor([stoi[c] for c in text])
vocab_size = len(chars)
print(f"{len(data)} characters, {vocab_size} unique")

seq_len, batch_size, hidden_size = 40, 20, 96


class CharRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, 32)
        self.lstm = nn.LSTM(32, hidden_size, batch_first=True)
        self.fc = nn.Linear(hidden_size, vocab_size)

    def forward(self, x, hidden=None):
        x = self.embed(x)
        out, hidden = self.lstm(x, hidden)
        return self.fc(out), hidden


def get_batch():
    ix = torch.randint(len(data) - seq_len - 1, (batch_size,))
    x = torch.stack([data[i : i + seq_len] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + seq_len] for i in ix])
    return x, y


def sample(model, start="def ", n=120):
    model.eval()
    x = torch.tensor([[stoi[c] for c in start]])
    out, hidden = list(start), None
    with torch.no_grad():
        for _ in range(n):
            logits, hidden = model(x, hidden)
            probs = torch.softmax(logits[0, -1] / 0.8, dim=0)
            nxt = torch.multinomial(probs, 1).item()
            out.append(itos[nxt])
            x = torch.tensor([[nxt]])
    model.train()
    return "".join(out)


model = CharRNN()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

smooth = None
for it in range(400):
    x, y = get_batch()
    logits, _ = model(x)
    loss = criterion(logits.view(-1, vocab_size), y.view(-1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    smooth = loss.item() if smooth is None else 0.95 * smooth + 0.05 * loss.item()
    if it % 100 == 99:
        print(f"iter {it + 1}, loss: {smooth:.4f}")
print(sample(model))
