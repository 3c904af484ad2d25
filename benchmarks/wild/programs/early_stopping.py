"""A regularized network for few samples of breast cancer, with early stopping by validation."""
import copy

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from torch import nn

torch.manual_seed(0)

X, y = load_breast_cancer(return_X_y=True)
X_train, X_val, y_train, y_val = train_test_split(X, y, train_size=0.5, random_state=0, stratify=y)
mean, std = X_train.mean(0), X_train.std(0)
X_train = torch.tensor((X_train - mean) / std, dtype=torch.float32)
X_val = torch.tensor((X_val - mean) / std, dtype=torch.float32)
y_train = torch.tensor(y_train, dtype=torch.float32).reshape(-1, 1)
y_val = torch.tensor(y_val, dtype=torch.float32).reshape(-1, 1)

model = nn.Sequential(
    nn.Linear(30, 32), nn.ReLU(), nn.Dropout(0.3),
    nn.Linear(32, 16), nn.ReLU(), nn.Dropout(0.3),
    nn.Linear(16, 1), nn.Sigmoid(),
)
loss_fn = nn.BCELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, weight_decay=1e-3)
batch_size, best, best_state, patience = 16, float("inf"), None, 0

for epoch in range(60):
    model.train()
    for i in torch.randperm(len(X_train)).split(batch_size):
        y_pred = model(X_train[i])
        loss = loss_fn(y_pred, y_train[i])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        val_loss = loss_fn(model(X_val), y_val).item()
        acc = (model(X_val).round() == y_val).float().mean().item()
    if val_loss < best:
        best, best_state, patience = val_loss, copy.deepcopy(model.state_dict()), 0
    else:
        patience += 1
        if patience == 6:
            break
    if epoch % 5 == 0:
        print(f"epoch {epoch}: val loss {val_loss:.4f} acc {acc:.4f}")

model.load_state_dict(best_state)
model.eval()
with torch.no_grad():
    acc = (model(X_val).round() == y_val).float().mean().item()
print(f"stopped after {epoch + 1} epochs, val loss {best:.4f}, final accuracy {acc:.4f}")
