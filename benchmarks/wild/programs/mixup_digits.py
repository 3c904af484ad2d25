import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset

SEED = 11
np.random.seed(SEED)
torch.manual_seed(SEED)


def mixup_data(x, y, alpha=0.4):
    """Returns mixed inputs, pairs of targets, and lambda."""
    lam = np.random.beta(alpha, alpha) if alpha > 0 else 1
    index = torch.randperm(x.size(0))
    mixed_x = lam * x + (1 - lam) * x[index, :]
    return mixed_x, y, y[index], lam


def mixup_criterion(criterion, pred, y_a, y_b, lam):
    return lam * criterion(pred, y_a) + (1 - lam) * criterion(pred, y_b)


digits = load_digits()
Xtr, Xte, ytr, yte = train_test_split(digits.data, digits.target, test_size=0.2, random_state=SEED)
mu, sigma = Xtr.mean(), Xtr.std()
to_x = lambda a: torch.tensor((a - mu) / sigma, dtype=torch.float32)  # noqa: E731
trainloader = DataLoader(TensorDataset(to_x(Xtr), torch.tensor(ytr)), batch_size=64, shuffle=True)
testloader = DataLoader(TensorDataset(to_x(Xte), torch.tensor(yte)), batch_size=120)

net = nn.Sequential(
    nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(),
    nn.Linear(128, 64), nn.BatchNorm1d(64), nn.ReLU(),
    nn.Linear(64, 10),
)
criterion = nn.CrossEntropyLoss()
optimizer = optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
scheduler = optim.lr_scheduler.MultiStepLR(optimizer, milestones=[10, 15], gamma=0.1)


def train(epoch):
    net.train()
    train_loss, reg_correct, total = 0, 0, 0
    for inputs, targets in trainloader:
        inputs, targets_a, targets_b, lam = mixup_data(inputs, targets)
        outputs = net(inputs)
        loss = mixup_criterion(criterion, outputs, targets_a, targets_b, lam)
        train_loss += loss.item()
        predicted = outputs.data.argmax(1)
        total += targets.size(0)
        reg_correct += lam * predicted.eq(targets_a).sum().item() + (1 - lam) * predicted.eq(targets_b).sum().item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return train_loss / len(trainloader), 100.0 * reg_correct / total


def test(epoch):
    net.eval()
    correct, total, loss = 0, 0, 0.0
    with torch.no_grad():
        for inputs, targets in testloader:
            outputs = net(inputs)
            loss += criterion(outputs, targets).item()
            correct += outputs.argmax(1).eq(targets).sum().item()
            total += targets.size(0)
    return loss / len(testloader), 100.0 * correct / total


for epoch in range(18):
    tr_loss, tr_acc = train(epoch)
    te_loss, te_acc = test(epoch)
    scheduler.step()
    print(f"Epoch {epoch}: train {tr_loss:.3f}/{tr_acc:.1f}  test {te_loss:.3f}  test_acc {te_acc:.2f}")
