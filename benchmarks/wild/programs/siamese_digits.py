import argparse
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset


class PairDataset(Dataset):
    """Pairs of digits, half of them of the same class."""

    def __init__(self, images, labels, n_pairs, seed):
        rng = random.Random(seed)
        self.images = images
        by_class = [[i for i, y in enumerate(labels) if y == c] for c in range(10)]
        self.pairs = []
        for k in range(n_pairs):
            a = rng.randrange(10)
            b = a if k % 2 else rng.choice([c for c in range(10) if c != a])
            self.pairs.append((rng.choice(by_class[a]), rng.choice(by_class[b]), float(a == b)))

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, k):
        i, j, same = self.pairs[k]
        return self.images[i], self.images[j], torch.tensor(same)


class SiameseNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        )
        self.fc = nn.Sequential(nn.Linear(32 * 16, 64), nn.ReLU(), nn.Linear(64, 16))

    def forward_once(self, x):
        return self.fc(torch.flatten(self.cnn(x), 1))

    def forward(self, input1, input2):
        return self.forward_once(input1), self.forward_once(input2)


class ContrastiveLoss(nn.Module):
    def __init__(self, margin=1.0):
        super().__init__()
        self.margin = margin

    def forward(self, a, b, same):
        distance = F.pairwise_distance(a, b)
        near = same * distance.pow(2)
        far = (1 - same) * torch.clamp(self.margin - distance, min=0.0).pow(2)
        return torch.mean(near + far)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    digits = load_digits()
    images = torch.tensor(digits.images / 16.0).float().unsqueeze(1)
    train = PairDataset(images[:1400], digits.target[:1400].tolist(), 3200, seed=0)
    test = PairDataset(images[1400:], digits.target[1400:].tolist(), 500, seed=1)
    net, criterion = SiameseNetwork(), ContrastiveLoss()
    optimizer = torch.optim.Adam(net.parameters(), lr=args.lr)

    for epoch in range(args.epochs):
        net.train()
        running = 0.0
        for img0, img1, same in DataLoader(train, batch_size=args.batch_size, shuffle=True):
            optimizer.zero_grad()
            out1, out2 = net(img0, img1)
            loss = criterion(out1, out2, same)
            loss.backward()
            optimizer.step()
            running += loss.item()
        net.eval()
        hits = 0
        with torch.no_grad():
            for img0, img1, same in DataLoader(test, batch_size=250):
                d = F.pairwise_distance(*net(img0, img1))
                hits += ((d < 0.5).float() == same).sum().item()
        print(f"epoch {epoch + 1} loss {running / 50:.4f} pair accuracy {hits / len(test):.4f}")


if __name__ == "__main__":
    main()
