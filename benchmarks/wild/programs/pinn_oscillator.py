"""A physics-informed network for the damped oscillator u'' + 2 d u' + w0^2 u = 0."""
import math

import torch
import torch.nn as nn

torch.manual_seed(123)
d, w0 = 1.0, 6.0


def exact_solution(t):
    w = math.sqrt(w0**2 - d**2)
    phi = math.atan(-d / w)
    A = 1 / (2 * math.cos(phi))
    return torch.exp(-d * t) * 2 * A * torch.cos(phi + w * t)


class FCN(nn.Module):
    def __init__(self, n_hidden=32, n_layers=3):
        super().__init__()
        self.fcs = nn.Sequential(nn.Linear(1, n_hidden), nn.Tanh())
        self.fch = nn.Sequential(*[nn.Sequential(nn.Linear(n_hidden, n_hidden), nn.Tanh()) for _ in range(n_layers - 1)])
        self.fce = nn.Linear(n_hidden, 1)

    def forward(self, x):
        return self.fce(self.fch(self.fcs(x)))


pinn = FCN()
t_boundary = torch.tensor(0.0).view(-1, 1).requires_grad_(True)
t_physics = torch.linspace(0, 1, 40).view(-1, 1).requires_grad_(True)
t_data = torch.linspace(0, 0.4, 10).view(-1, 1)
u_data = exact_solution(t_data)
t_test = torch.linspace(0, 1, 300).view(-1, 1)
optimiser = torch.optim.Adam(pinn.parameters(), lr=2e-3)

for i in range(1500):
    optimiser.zero_grad()
    # initial conditions u(0) = 1, u'(0) = 0
    u = pinn(t_boundary)
    loss1 = (torch.squeeze(u) - 1) ** 2
    dudt = torch.autograd.grad(u, t_boundary, torch.ones_like(u), create_graph=True)[0]
    loss2 = (torch.squeeze(dudt) - 0) ** 2
    # physics
    u = pinn(t_physics)
    dudt = torch.autograd.grad(u, t_physics, torch.ones_like(u), create_graph=True)[0]
    d2udt2 = torch.autograd.grad(dudt, t_physics, torch.ones_like(dudt), create_graph=True)[0]
    loss3 = torch.mean((d2udt2 + 2 * d * dudt + w0**2 * u) ** 2)
    # a few measurements
    loss4 = torch.mean((pinn(t_data) - u_data) ** 2)
    loss = loss1 + 1e-1 * loss2 + 1e-3 * loss3 + loss4
    loss.backward()
    optimiser.step()
    if i % 300 == 299:
        with torch.no_grad():
            error = (pinn(t_test) - exact_solution(t_test)).abs().mean().item()
        print(f"{i + 1}: loss {loss.item():.6f} error {error:.4f}")
