"""A GAN in Lightning with manual optimization, on a ring of eight Gaussians."""
import logging
import math
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def ring(n):
    k = torch.randint(0, 8, (n,)) * (2 * math.pi / 8)
    return torch.stack([k.cos(), k.sin()], dim=1) * 2 + 0.1 * torch.randn(n, 2)


class RingDataset(torch.utils.data.Dataset):
    def __init__(self, n):
        self.points = ring(n)

    def __len__(self):
        return len(self.points)

    def __getitem__(self, i):
        return self.points[i]


def mlp(d_in, d_out):
    return nn.Sequential(nn.Linear(d_in, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, d_out))


class GAN(L.LightningModule):
    def __init__(self, latent_dim=8, lr=1e-3):
        super().__init__()
        self.automatic_optimization = False
        self.latent_dim, self.lr = latent_dim, lr
        self.generator, self.discriminator = mlp(latent_dim, 2), mlp(2, 1)

    def forward(self, z):
        return self.generator(z)

    def adversarial_loss(self, y_hat, y):
        return F.binary_cross_entropy_with_logits(y_hat, y)

    def training_step(self, real):
        optimizer_g, optimizer_d = self.optimizers()
        z = torch.randn(real.shape[0], self.latent_dim)
        valid, fake = torch.ones(real.size(0), 1), torch.zeros(real.size(0), 1)

        self.toggle_optimizer(optimizer_g)
        g_loss = self.adversarial_loss(self.discriminator(self(z)), valid)
        optimizer_g.zero_grad()
        self.manual_backward(g_loss)
        optimizer_g.step()
        self.untoggle_optimizer(optimizer_g)

        self.toggle_optimizer(optimizer_d)
        real_loss = self.adversarial_loss(self.discriminator(real), valid)
        fake_loss = self.adversarial_loss(self.discriminator(self(z).detach()), fake)
        d_loss = (real_loss + fake_loss) / 2
        optimizer_d.zero_grad()
        self.manual_backward(d_loss)
        optimizer_d.step()
        self.untoggle_optimizer(optimizer_d)

    def configure_optimizers(self):
        opt_g = torch.optim.Adam(self.generator.parameters(), lr=self.lr, betas=(0.5, 0.999))
        opt_d = torch.optim.Adam(self.discriminator.parameters(), lr=self.lr, betas=(0.5, 0.999))
        return [opt_g, opt_d], []


if __name__ == "__main__":
    L.seed_everything(7)
    data = RingDataset(6400)
    trainer = L.Trainer(
        max_epochs=12, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False)
    model = GAN()
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=128, shuffle=True))
    with torch.no_grad():
        made = model(torch.randn(1000, 8))
        distance = (made.norm(dim=1) - 2).abs().mean().item()
        covered = (torch.cdist(ring(500), made).min(1).values < 0.25).float().mean().item()
    print(f"distance to the ring {distance:.4f}, covered {covered:.3f}")
