import argparse

import torch
from sklearn.datasets import make_moons
from torch import nn


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--n_T", type=int, default=50)
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def ddpm_schedules(beta1, beta2, T):
    beta_t = torch.linspace(beta1, beta2, T)
    alpha_t = 1 - beta_t
    alphabar_t = torch.cumprod(alpha_t, dim=0)
    return {"beta_t": beta_t, "alpha_t": alpha_t, "alphabar_t": alphabar_t}


class EpsModel(nn.Module):
    def __init__(self, n_T, width=64):
        super().__init__()
        self.time = nn.Embedding(n_T, 16)
        self.inp = nn.Linear(2 + 16, width)
        self.mid = nn.Linear(width, width)
        self.out = nn.Linear(width, 2)
        self.act = nn.SiLU()

    def forward(self, x, t):
        h = self.act(self.inp(torch.cat([x, self.time(t)], dim=1)))
        h = h + self.act(self.mid(h))
        return self.out(h)


class DDPM(nn.Module):
    def __init__(self, eps_model, betas, n_T):
        super().__init__()
        self.eps_model = eps_model
        for k, v in ddpm_schedules(*betas, n_T).items():
            self.register_buffer(k, v)
        self.n_T = n_T
        self.criterion = nn.MSELoss()

    def forward(self, x):
        t = torch.randint(0, self.n_T, (x.shape[0],))
        eps = torch.randn_like(x)
        ab = self.alphabar_t[t, None]
        x_t = ab.sqrt() * x + (1 - ab).sqrt() * eps
        return self.criterion(eps, self.eps_model(x_t, t))

    @torch.no_grad()
    def sample(self, n):
        x = torch.randn(n, 2)
        for i in reversed(range(self.n_T)):
            z = torch.randn(n, 2) if i > 0 else 0
            eps = self.eps_model(x, torch.full((n,), i))
            a, ab, b = self.alpha_t[i], self.alphabar_t[i], self.beta_t[i]
            x = (x - eps * (1 - a) / (1 - ab).sqrt()) / a.sqrt() + b.sqrt() * z
        return x


def main():
    args = parse()
    torch.manual_seed(args.seed)
    data, _ = make_moons(4000, noise=0.05, random_state=0)
    data = torch.tensor(data, dtype=torch.float32)
    data = (data - data.mean(0)) / data.std(0)

    ddpm = DDPM(EpsModel(args.n_T), (1e-3, 0.2), args.n_T)
    optim = torch.optim.Adam(ddpm.parameters(), lr=args.lr)
    ddpm.train()
    loss_ema = None
    for i in range(args.steps):
        x = data[torch.randint(0, len(data), (256,))]
        optim.zero_grad()
        loss = ddpm(x)
        loss.backward()
        optim.step()
        loss_ema = loss.item() if loss_ema is None else 0.98 * loss_ema + 0.02 * loss.item()
        if i % 500 == 499:
            print(f"step {i + 1} loss {loss_ema:.4f}")

    ddpm.eval()
    samples = ddpm.sample(500)
    nearest = torch.cdist(samples, data).min(dim=1).values
    print(f"distance to the data: {nearest.mean().item():.4f}")


if __name__ == "__main__":
    main()
