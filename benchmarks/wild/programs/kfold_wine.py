import numpy as np
import torch
import torch.nn as nn
from sklearn.datasets import load_wine
from sklearn.model_selection import StratifiedKFold
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(42)

k_folds = 4
num_epochs = 25
data = load_wine()
X, y = data.data, data.target


def reset_weights(m):
    for layer in m.children():
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()


results = {}
kfold = StratifiedKFold(n_splits=k_folds, shuffle=True, random_state=0)
for fold, (train_ids, test_ids) in enumerate(kfold.split(X, y)):
    print(f"FOLD {fold}")
    mean, std = X[train_ids].mean(0), X[train_ids].std(0)
    Xs = torch.tensor((X - mean) / std, dtype=torch.float32)
    ys = torch.tensor(y)
    trainloader = DataLoader(TensorDataset(Xs[train_ids], ys[train_ids]), batch_size=16, shuffle=True)
    testloader = DataLoader(TensorDataset(Xs[test_ids], ys[test_ids]), batch_size=64)

    network = nn.Sequential(nn.Linear(13, 24), nn.ReLU(), nn.Linear(24, 3))
    network.apply(reset_weights)
    loss_function = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-3)
    for epoch in range(num_epochs):
        current_loss = 0.0
        for i, (inputs, targets) in enumerate(trainloader):
            optimizer.zero_grad()
            outputs = network(inputs)
            loss = loss_function(outputs, targets)
            loss.backward()
            optimizer.step()
            current_loss += loss.item()
    print(f"last loss {current_loss / (i + 1):.4f}")

    correct, total = 0, 0
    with torch.no_grad():
        for inputs, targets in testloader:
            predicted = network(inputs).argmax(1)
            total += targets.size(0)
            correct += (predicted == targets).sum().item()
    results[fold] = 100.0 * correct / total
    print(f"Accuracy for fold {fold}: {results[fold]:.2f} %")

print(f"Average: {np.mean(list(results.values())):.2f} %")
