"""A training as smdebug's users write it: the hook from a JSON file, modes, two epochs.

Unedited but for its data: it imports smdebug.  SMDEBUG_CONFIG_FILE_PATH names the file.
"""

from __future__ import annotations

import smdebug.pytorch as smd
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody writes it
from sklearn.datasets import load_digits
from smdebug import modes
from torch import nn, optim


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3)
        self.conv2 = nn.Conv2d(4, 8, 3)
        self.bn = nn.BatchNorm2d(8)
        self.relu = nn.ReLU()
        self.fc1 = nn.Linear(8 * 4 * 4, 16)
        self.fc2 = nn.Linear(16, 10)

    def forward(self, x):
        x = self.relu(self.conv1(x))
        x = self.relu(self.bn(self.conv2(x)))
        x = x.view(x.shape[0], -1)
        return self.fc2(self.relu(self.fc1(x)))


def batches(images, labels, size):
    for start in range(0, len(images) - size + 1, size):
        yield images[start : start + size], labels[start : start + size]


def train(model, data, criterion, optimizer, hook):
    model.train()
    hook.set_mode(modes.TRAIN)
    for images, labels in batches(*data, 32):
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()


def test(model, data, criterion, hook, epoch):
    model.eval()
    hook.set_mode(modes.EVAL)
    correct = 0
    with torch.no_grad():
        for images, labels in batches(*data, 32):
            output = model(images)
            criterion(output, labels)
            correct += F.log_softmax(output, 1).argmax(1).eq(labels).sum().item()
    hook.save_scalar("correct", correct, sm_metric=True)
    return epoch, correct


def main():
    torch.manual_seed(7)
    torch.set_num_threads(1)
    digits = load_digits()
    images = torch.tensor(digits.images / 16.0, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target)
    model = Net()
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    hook = smd.Hook.create_from_json_file()
    hook.register_module(model)
    hook.register_loss(criterion)

    for epoch in range(2):
        train(model, (images[:384], labels[:384]), criterion, optimizer, hook)
        test(model, (images[384:480], labels[384:480]), criterion, hook, epoch)
    hook.close()


if __name__ == "__main__":
    main()
