"""GAN on 8x8 digits."""
import numpy as np
import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader

torch.manual_seed(999)

latent_dim = 16
n_epochs = 40

images = load_digits().data.astype(np.float32) / 8.0 - 1.0
dataloader = DataLoader(torch.from_numpy(images), batch_size=64, shuffle=True, drop_last=True)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()

        def block(in_feat, out_feat, normalize=True):
            layers = [nn.Linear(in_feat, out_feat)]
            if normalize:
                layers.append(nn.BatchNorm1d(out_feat))
            layers.append(nn.LeakyReLU(0.2, inplace=True))
            return layers

        self.model = nn.Sequential(
            *block(latent_dim, 64, normalize=False),
            *block(64, 128),
            nn.Linear(128, 64),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.model(z)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(
            nn.Linear(64, 128),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Dropout(0.3),
            nn.Linear(128, 64),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Dropout(0.3),
            nn.Linear(64, 1),
            nn.Sigmoid(),
        )

    def forward(self, img):
        return self.model(img)


adversarial_loss = torch.nn.BCELoss()
generator = Generator()
discriminator = Discriminator()
optimizer_G = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
optimizer_D = torch.optim.Adam(discriminator.parameters(), lr=5e-4, betas=(0.5, 0.999))

for epoch in range(n_epochs):
    for i, imgs in enumerate(dataloader):
        valid = torch.ones(imgs.size(0), 1)
        fake = torch.zeros(imgs.size(0), 1)

        # train the generator
        optimizer_G.zero_grad()
        z = torch.randn(imgs.size(0), latent_dim)
        gen_imgs = generator(z)
        g_loss = adversarial_loss(discriminator(gen_imgs), valid)
        g_loss.backward()
        optimizer_G.step()

        # train the discriminator
        optimizer_D.zero_grad()
        real_loss = adversarial_loss(discriminator(imgs), valid)
        fake_loss = adversarial_loss(discriminator(gen_imgs.detach()), fake)
        d_loss = (real_loss + fake_loss) / 2
        d_loss.backward()
        optimizer_D.step()

    if epoch % 10 == 9:
        print("[Epoch %d/%d] [D loss: %f] [G loss: %f]" % (epoch + 1, n_epochs, d_loss.item(), g_loss.item()))

# how far are generated images from real ones, by mean and deviation of each pixel?
generator.eval()
with torch.no_grad():
    made = generator(torch.randn(1000, latent_dim)).numpy()
gap = np.abs(made.mean(0) - images.mean(0)).mean() + np.abs(made.std(0) - images.std(0)).mean()
print("gap: %.4f" % gap)
