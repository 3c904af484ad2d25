"""Pretrain as a denoising autoencoder on all images, fine-tune on few labels."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits

torch.manual_seed(2)

digits = load_digits()
X = torch.tensor(digits.data / 16.0, dtype=torch.float32)
y = torch.tensor(digits.target)
perm = torch.randperm(len(X), generator=torch.Generator().manual_seed(0))
X, y = X[perm], y[perm]
X_few, y_few, X_test, y_test = X[:200], y[:200], X[1200:], y[1200:]


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32), nn.ReLU())

    def forward(self, x):
        return self.net(x)


def pretrain(encoder, epochs=15):
    decoder = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 64))
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
    for epoch in range(epochs):
        for idx in torch.randperm(1200).split(64):
            x = X[idx]
            noisy = x * (torch.rand_like(x) > 0.3)
            loss = F.mse_loss(decoder(encoder(noisy)), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch % 5 == 4:
            print(f"pretrain epoch {epoch + 1} mse {loss.item():.4f}")


def finetune(encoder, epochs=40):
    model = nn.Sequential(encoder, nn.Linear(32, 10))
    # the head learns faster than what was pretrained
    optimizer = torch.optim.Adam([
        {"params": model[0].parameters(), "lr": 5e-4},
        {"params": model[1].parameters(), "lr": 5e-3},
    ])
    for epoch in range(epochs):
        model.train()
        for idx in torch.randperm(len(X_few)).split(20):
            loss = F.cross_entropy(model(X_few[idx]), y_few[idx])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        return (model(X_test).argmax(1) == y_test).float().mean().item()


encoder = Encoder()
pretrain(encoder)
print(f"fine-tuned accuracy: {finetune(encoder):.4f}")
