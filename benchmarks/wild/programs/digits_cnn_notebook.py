# %% [markdown]
# # Digits with a CNN

# %%
import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(42)

# %%
digits = load_digits()
X = digits.images.astype(np.float32) / 16.0
y = digits.target
X = torch.from_numpy(X).unsqueeze(1)
y = torch.from_numpy(y)

g = torch.Generator().manual_seed(7)
perm = torch.randperm(len(X), generator=g)
n_test = 360
X_test, y_test = X[perm[:n_test]], y[perm[:n_test]]
X_train, y_train = X[perm[n_test:]], y[perm[n_test:]]
print(X_train.shape, X_test.shape)


# %%
class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = nn.Linear(32 * 2 * 2, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = x.flatten(1)
        x = F.relu(self.fc1(x))
        return self.fc2(x)


model = CNN()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
print(sum(p.numel() for p in model.parameters()), "parameters")

# %%
batch_size = 64
history = []
for epoch in range(15):
    order = torch.randperm(len(X_train))
    model.train()
    for i in range(0, len(order), batch_size):
        idx = order[i : i + batch_size]
        logits = model(X_train[idx])
        loss = F.cross_entropy(logits, y_train[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    model.eval()
    with torch.no_grad():
        acc = (model(X_test).argmax(1) == y_test).float().mean().item()
    print(f"epoch {epoch:2d}  loss {np.mean(history[-20:]):.4f}  test acc {acc:.4f}")

# %%
with torch.no_grad():
    pred = model(X_test).argmax(1)
conf = torch.zeros(10, 10, dtype=torch.int64)
for t, p in zip(y_test, pred):
    conf[t, p] += 1
print(conf)
