import numpy as np
import torch
from torch import nn, optim
from torch.utils.data import DataLoader

# Autoencoder for 0/1 matrices: shopping baskets that come from a few kinds of customers
rng = np.random.default_rng(0)
torch.manual_seed(0)
n_items, n_kinds = 60, 6
profiles = rng.random((n_kinds, n_items)) ** 6
baskets = np.array([rng.random(n_items) < profiles[rng.integers(n_kinds)] for _ in range(3000)]).astype(np.float32)
print("share of ones: %.3f" % baskets.mean())
train, test = torch.from_numpy(baskets[:2500]), torch.from_numpy(baskets[2500:])


class AutoEncoder(nn.Module):
    def __init__(self, n_items, n_code=8):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(n_items, 32), nn.ReLU(), nn.Linear(32, n_code))
        self.decoder = nn.Sequential(nn.Linear(n_code, 32), nn.ReLU(), nn.Linear(32, n_items))

    def forward(self, x):
        return self.decoder(self.encoder(x))


net = AutoEncoder(n_items)
loss_function = nn.BCEWithLogitsLoss()
opt = optim.Adam(net.parameters(), lr=2e-3)
loader = DataLoader(train, batch_size=50, shuffle=True)
base = train.mean(0).clamp(1e-4, 1 - 1e-4)
baseline = nn.functional.binary_cross_entropy(base.expand_as(test), test).item()

for epoch in range(15):
    total = 0
    net.train()
    for batch in loader:
        recon = net(batch)
        loss = loss_function(recon, batch)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    net.eval()
    with torch.no_grad():
        test_loss = loss_function(net(test), test).item()
    print("epoch %d train %.4f test %.4f (popularity alone: %.4f) ratio %.4f" % (
        epoch, total / len(loader), test_loss, baseline, test_loss / baseline))
