"""SimCLR on small digits: NT-Xent loss, then a linear probe."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

torch.manual_seed(0)


def augment(x):
    """Shift by up to one pixel, scale the ink, and add noise."""
    dx = torch.randint(-1, 2, (1,)).item()
    x = torch.roll(x, shifts=dx, dims=3)
    scale = 0.8 + 0.4 * torch.rand(x.size(0), 1, 1, 1)
    return x * scale + 0.1 * torch.randn_like(x)


class SimCLR(nn.Module):
    def __init__(self, out_dim=32):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(),
            nn.Linear(32 * 16, 64),
        )
        self.projector = nn.Sequential(nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, out_dim))

    def forward(self, x):
        return self.projector(self.encoder(x))


def info_nce_loss(features, batch_size, temperature=0.2):
    labels = torch.cat([torch.arange(batch_size) for _ in range(2)])
    labels = (labels.unsqueeze(0) == labels.unsqueeze(1)).float()
    features = F.normalize(features, dim=1)
    similarity = features @ features.T
    mask = torch.eye(labels.shape[0], dtype=torch.bool)
    labels = labels[~mask].view(labels.shape[0], -1)
    similarity = similarity[~mask].view(similarity.shape[0], -1)
    positives = similarity[labels.bool()].view(labels.shape[0], -1)
    negatives = similarity[~labels.bool()].view(similarity.shape[0], -1)
    logits = torch.cat([positives, negatives], dim=1) / temperature
    return logits, torch.zeros(logits.shape[0], dtype=torch.long)


digits = load_digits()
X = torch.tensor(digits.images / 16.0).float().unsqueeze(1)
y = digits.target
X_train, X_test, y_train, y_test = X[:1300], X[1300:], y[:1300], y[1300:]

model = SimCLR()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=1e-5)
criterion = nn.CrossEntropyLoss()

batch_size = 128
for epoch in range(15):
    model.train()
    hits, seen = 0.0, 0
    for i in torch.randperm(len(X_train)).split(batch_size):
        if len(i) < batch_size:
            continue
        images = torch.cat([augment(X_train[i]), augment(X_train[i])])
        logits, labels = info_nce_loss(model(images), batch_size)
        loss = criterion(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hits += (logits.argmax(1) == labels).sum().item()
        seen += len(labels)
    print(f"Epoch: {epoch}\tLoss: {loss.item():.4f}\tTop1: {hits / seen:.3f}")

model.eval()
with torch.no_grad():
    h_train, h_test = model.encoder(X_train).numpy(), model.encoder(X_test).numpy()
probe = LogisticRegression(max_iter=500).fit(h_train[:300], y_train[:300])
print(f"linear probe accuracy {probe.score(h_test, y_test):.4f}")
