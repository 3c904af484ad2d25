"""Sentence classification with a sparse embedding: SparseAdam for it, Adam for the rest."""
import keyword
import random

import torch
import torch.nn as nn

random.seed(5)
torch.manual_seed(5)

WORDS = keyword.kwlist + ["x", "y", "z", "foo", "bar", "self", "data", "result"]
vocab = {w: i + 1 for i, w in enumerate(WORDS)}
LOOP, CLASSY, ERRORS = ["for", "while", "in", "break", "continue"], ["class", "def", "self", "return"], ["try", "except", "raise", "finally"]


def make_sample():
    label = random.randrange(3)
    words = [random.choice(WORDS) for _ in range(8)] + [random.choice((LOOP, CLASSY, ERRORS)[label]) for _ in range(4)]
    random.shuffle(words)
    return [vocab[w] for w in words], label


data = [make_sample() for _ in range(2400)]
X = torch.tensor([d[0] for d in data])
Y = torch.tensor([d[1] for d in data])
X_train, Y_train, X_test, Y_test = X[:2000], Y[:2000], X[2000:], Y[2000:]


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(len(vocab) + 1, 16, sparse=True)
        self.conv = nn.Conv1d(16, 32, kernel_size=1)
        self.out = nn.Linear(32, 3)

    def forward(self, x):
        h = self.embedding(x).transpose(1, 2)
        h = torch.relu(self.conv(h)).mean(dim=2)
        return self.out(h)


model = Classifier()
dense = [p for n, p in model.named_parameters() if not n.startswith("embedding")]
optimizers = [
    torch.optim.SparseAdam(list(model.embedding.parameters()), lr=0.01),
    torch.optim.Adam(dense, lr=0.005),
]
criterion = nn.CrossEntropyLoss()

for epoch in range(8):
    perm = torch.randperm(len(X_train))
    for i in range(0, len(perm), 40):
        batch = perm[i : i + 40]
        for opt in optimizers:
            opt.zero_grad()
        loss = criterion(model(X_train[batch]), Y_train[batch])
        loss.backward()
        for opt in optimizers:
            opt.step()
    with torch.no_grad():
        acc = (model(X_test).argmax(1) == Y_test).float().mean().item()
    print(f"epoch={epoch} loss={loss.item():.4f} acc={acc:.4f}")
