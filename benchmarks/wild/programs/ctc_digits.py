"""CTC: read a row of digits from an image, without knowing where each one stands."""
import random

import numpy as np
import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset

random.seed(0)
torch.manual_seed(0)
digits = load_digits()
BLANK = 10


class Rows(Dataset):
    def __init__(self, indices, n, seed):
        self.indices, self.n, self.seed = indices, n, seed

    def __len__(self):
        return self.n

    def __getitem__(self, k):
        rng = np.random.default_rng((self.seed, k))
        chosen = rng.choice(self.indices, 3)
        canvas = np.zeros((8, 40), dtype=np.float32)
        at = rng.integers(0, 5)
        for i in chosen:
            canvas[:, at : at + 8] = digits.images[i] / 16.0
            at += 8 + rng.integers(1, 5)
        return torch.from_numpy(canvas).unsqueeze(0), torch.tensor(digits.target[chosen])


class CRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d((2, 2)),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d((2, 1)))
        self.rnn = nn.GRU(64, 32, bidirectional=True)
        self.fc = nn.Linear(64, 11)

    def forward(self, x):
        f = self.cnn(x)
        f = f.permute(3, 0, 1, 2).flatten(2)
        out, _ = self.rnn(f)
        return self.fc(out).log_softmax(2)


def decode(log_probs):
    words = []
    for path in log_probs.argmax(2).T.tolist():
        word = [p for i, p in enumerate(path) if p != BLANK and (i == 0 or p != path[i - 1])]
        words.append(word)
    return words


train_loader = DataLoader(Rows(np.arange(1300), 2400, 0), batch_size=40, shuffle=True)
test_loader = DataLoader(Rows(np.arange(1300, 1797), 200, 1), batch_size=200)
model = CRNN()
criterion = nn.CTCLoss(blank=BLANK, zero_infinity=True)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

for epoch in range(6):
    model.train()
    for images, targets in train_loader:
        log_probs = model(images)
        T, N = log_probs.shape[:2]
        loss = criterion(log_probs, targets, torch.full((N,), T), torch.full((N,), 3))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        images, targets = next(iter(test_loader))
        words = decode(model(images))
        right = sum(w == t for w, t in zip(words, targets.tolist())) / len(words)
    print(f"epoch {epoch + 1} ctc loss {loss.item():.4f} rows right {right:.3f}")
