"""U-Net segmentation of circles and squares that are drawn on the fly."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Shapes(Dataset):
    def __init__(self, n, size=24, seed=0):
        self.n, self.size, self.seed = n, size, seed

    def __len__(self):
        return self.n

    def __getitem__(self, k):
        rng = np.random.default_rng((self.seed, k))
        yy, xx = np.mgrid[: self.size, : self.size]
        mask = np.zeros((self.size, self.size), bool)
        for _ in range(rng.integers(1, 3)):
            cx, cy, r = rng.integers(5, self.size - 5), rng.integers(5, self.size - 5), rng.integers(3, 6)
            if rng.random() < 0.5:
                mask |= (xx - cx) ** 2 + (yy - cy) ** 2 <= r * r
            else:
                mask |= (abs(xx - cx) <= r) & (abs(yy - cy) <= r)
        image = mask * rng.uniform(0.5, 1.0) + rng.normal(0, 0.4, mask.shape)
        return torch.tensor(image[None], dtype=torch.float32), torch.tensor(mask[None], dtype=torch.float32)


class DoubleConv(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True),
            nn.Conv2d(cout, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))

    def forward(self, x):
        return self.conv(x)


class UNet(nn.Module):
    def __init__(self, base=8):
        super().__init__()
        self.down1, self.down2 = DoubleConv(1, base), DoubleConv(base, 2 * base)
        self.bottom = DoubleConv(2 * base, 4 * base)
        self.up2 = nn.ConvTranspose2d(4 * base, 2 * base, 2, stride=2)
        self.dec2 = DoubleConv(4 * base, 2 * base)
        self.up1 = nn.ConvTranspose2d(2 * base, base, 2, stride=2)
        self.dec1 = DoubleConv(2 * base, base)
        self.head = nn.Conv2d(base, 1, 1)

    def forward(self, x):
        d1 = self.down1(x)
        d2 = self.down2(F.max_pool2d(d1, 2))
        b = self.bottom(F.max_pool2d(d2, 2))
        u2 = self.dec2(torch.cat([self.up2(b), d2], dim=1))
        u1 = self.dec1(torch.cat([self.up1(u2), d1], dim=1))
        return self.head(u1)


def dice_loss(logits, target, eps=1.0):
    p = torch.sigmoid(logits)
    num = 2 * (p * target).sum(dim=(1, 2, 3)) + eps
    den = p.sum(dim=(1, 2, 3)) + target.sum(dim=(1, 2, 3)) + eps
    return 1 - (num / den).mean()


train_loader = DataLoader(Shapes(480), batch_size=16, shuffle=True)
val_loader = DataLoader(Shapes(64, seed=1), batch_size=64)
model = UNet()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(4):
    model.train()
    for image, mask in train_loader:
        logits = model(image)
        loss = F.binary_cross_entropy_with_logits(logits, mask) + dice_loss(logits, mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        image, mask = next(iter(val_loader))
        pred = model(image) > 0
        iou = ((pred & mask.bool()).sum() / (pred | mask.bool()).sum()).item()
    print(f"epoch {epoch + 1} loss {loss.item():.4f} IoU {iou:.4f}")
