"""Metric learning with triplets and semi-hard mining."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

torch.manual_seed(0)


class EmbeddingNet(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(64, 96), nn.PReLU(), nn.Linear(96, 64), nn.PReLU(), nn.Linear(64, dim))

    def forward(self, x):
        return F.normalize(self.fc(x), p=2, dim=1)


class BatchTriplets:
    """For each anchor and positive of a batch the hardest negative that is farther than the positive."""

    def __init__(self, margin):
        self.margin = margin

    def __call__(self, embeddings, labels):
        with torch.no_grad():
            d = torch.cdist(embeddings, embeddings)
            same = labels[:, None] == labels[None, :]
            anchors, positives = torch.nonzero(same.triu(1), as_tuple=True)
            between = d[anchors] - d[anchors, positives].unsqueeze(1)
            allowed = ~same[anchors] & (between > 0) & (between < self.margin)
            negatives = torch.where(allowed, between, torch.full_like(between, 9.0)).argmin(1)
            has = allowed.any(1)
        return anchors[has], positives[has], negatives[has]


X, y = load_digits(return_X_y=True)
X = torch.tensor(X / 16.0, dtype=torch.float32)
y = torch.tensor(y)
X_train, y_train, X_test, y_test = X[:1300], y[:1300], X[1300:], y[1300:]
model = EmbeddingNet()
miner = BatchTriplets(margin=0.3)
criterion = nn.TripletMarginLoss(margin=0.3)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

for epoch in range(14):
    model.train()
    losses, mined = [], 0
    for idx in torch.randperm(len(X_train)).split(100):
        emb = model(X_train[idx])
        a, p, n = miner(emb, y_train[idx])
        if len(a) == 0:
            continue
        loss = criterion(emb[a], emb[p], emb[n])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        mined += len(a)
    print(f"epoch {epoch + 1} loss {sum(losses) / max(len(losses), 1):.4f} triplets {mined}")

model.eval()
with torch.no_grad():
    train_emb, test_emb = model(X_train).numpy(), model(X_test).numpy()
knn = KNeighborsClassifier(1).fit(train_emb[:100], y_train[:100])
print(f"1-NN accuracy from 100 examples: {knn.score(test_emb, y_test):.4f}")
