"""A timm-like training script in small: cosine schedule with warmup, label smoothing, EMA of the weights."""
import argparse
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class ModelEma:
    def __init__(self, model, decay=0.99):
        self.module = copy.deepcopy(model)
        self.module.eval()
        self.decay = decay
        for p in self.module.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for e, m in zip(self.module.state_dict().values(), model.state_dict().values()):
            if e.dtype.is_floating_point:
                e.mul_(self.decay).add_(m, alpha=1 - self.decay)
            else:
                e.copy_(m)


class ResBlock(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.conv1 = nn.Conv2d(ch, ch, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(ch)
        self.conv2 = nn.Conv2d(ch, ch, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(ch)
        nn.init.zeros_(self.bn2.weight)

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(x + self.bn2(self.conv2(y)))


def build_model(ch=16):
    return nn.Sequential(
        nn.Conv2d(1, ch, 3, padding=1, bias=False), nn.BatchNorm2d(ch), nn.ReLU(inplace=True),
        ResBlock(ch), nn.MaxPool2d(2), ResBlock(ch), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(ch * 4, 10))


def validate(model, x, y):
    model.eval()
    with torch.no_grad():
        out = model(x)
    return F.cross_entropy(out, y).item(), (out.argmax(1) == y).float().mean().item() * 100


def main(args):
    torch.manual_seed(args.seed)
    d = load_digits()
    x = torch.tensor(d.images, dtype=torch.float32).unsqueeze(1) / 16
    x = (x - x[:1400].mean()) / x[:1400].std()
    y = torch.tensor(d.target)
    x_train, y_train, x_val, y_val = x[:1400], y[:1400], x[1400:], y[1400:]
    model = build_model()
    ema = ModelEma(model)
    decay = [p for n, p in model.named_parameters() if p.ndim > 1]
    no_decay = [p for n, p in model.named_parameters() if p.ndim <= 1]
    optimizer = torch.optim.SGD(
        [{"params": decay, "weight_decay": args.weight_decay}, {"params": no_decay, "weight_decay": 0.0}],
        lr=args.lr, momentum=0.9, nesterov=True)
    steps = args.epochs * math.ceil(1400 / args.batch_size)

    def schedule(step):
        if step < args.warmup:
            return (step + 1) / args.warmup
        return 0.5 * (1 + math.cos(math.pi * (step - args.warmup) / (steps - args.warmup)))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    loss_fn = nn.CrossEntropyLoss(label_smoothing=args.smoothing)
    for epoch in range(args.epochs):
        model.train()
        for idx in torch.randperm(1400).split(args.batch_size):
            output = model(x_train[idx])
            loss = loss_fn(output, y_train[idx])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            ema.update(model)
        loss_raw, acc_raw = validate(model, x_val, y_val)
        loss_ema, acc_ema = validate(ema.module, x_val, y_val)
        print(f"Test {epoch}: loss {loss_raw:.3f} top1 {acc_raw:.2f} | ema loss {loss_ema:.3f} ema top1 {acc_ema:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--smoothing", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=42)
    main(parser.parse_args())
