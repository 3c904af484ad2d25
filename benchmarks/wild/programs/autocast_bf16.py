"""Mixed precision with autocast in bfloat16; a convolutional network in channels_last."""
import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


def conv_bn(cin, cout, stride=1):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(conv_bn(1, 16), conv_bn(16, 32, 2), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10))


@torch.no_grad()
def evaluate(model, x, y):
    model.eval()
    with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
        out = model(x)
    return (out.float().argmax(1) == y).float().mean().item()


def run(opts):
    torch.manual_seed(opts.seed)
    d = load_digits()
    x = torch.tensor(d.images, dtype=torch.float32).sub_(5).div_(6).unsqueeze(1)
    y = torch.tensor(d.target)
    test = torch.arange(len(x)) % 5 == 0
    x_train, y_train, x_test, y_test = x[~test], y[~test], x[test], y[test]
    model = Net().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=opts.lr, momentum=0.9, weight_decay=5e-4)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for epoch in range(opts.epochs):
        model.train()
        for idx in torch.randperm(len(x_train)).split(64):
            optimizer.zero_grad()
            with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
                output = model(x_train[idx].to(memory_format=torch.channels_last))
                loss = F.cross_entropy(output, y_train[idx])
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        print(f"epoch {epoch} loss {loss.item():.4f} acc {evaluate(model, x_test, y_test):.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    run(parser.parse_args())
