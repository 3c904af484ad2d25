"""MAML on sine waves: learn weights from which a few steps fit a new wave."""
import argparse
import math

import torch
from torch import nn
from torch.func import functional_call


class SineModel(nn.Module):
    def __init__(self, dim=40):
        super().__init__()
        self.hidden1 = nn.Linear(1, dim)
        self.hidden2 = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, 1)

    def forward(self, x):
        x = torch.relu(self.hidden1(x))
        x = torch.relu(self.hidden2(x))
        return self.out(x)


def sample_task(k):
    amplitude = torch.rand(1) * 4.9 + 0.1
    phase = torch.rand(1) * math.pi
    x = torch.rand(2 * k, 1) * 10 - 5
    y = amplitude * torch.sin(x + phase)
    return x[:k], y[:k], x[k:], y[k:]


def adapt(model, x, y, inner_lr, steps, create_graph):
    params = dict(model.named_parameters())
    for _ in range(steps):
        loss = nn.functional.mse_loss(functional_call(model, params, (x,)), y)
        grads = torch.autograd.grad(loss, list(params.values()), create_graph=create_graph)
        params = {name: p - inner_lr * g for (name, p), g in zip(params.items(), grads)}
    return params


def evaluate(model, args, n_tasks=50):
    before, after = 0.0, 0.0
    generator_state = torch.get_rng_state()
    torch.manual_seed(10_000)
    for _ in range(n_tasks):
        xs, ys, xq, yq = sample_task(args.k)
        params = adapt(model, xs, ys, args.inner_lr, 3, False)
        with torch.no_grad():
            before += nn.functional.mse_loss(model(xq), yq).item()
            after += nn.functional.mse_loss(functional_call(model, params, (xq,)), yq).item()
    torch.set_rng_state(generator_state)
    return before / n_tasks, after / n_tasks


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--meta-batch", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=500)
    parser.add_argument("--inner-lr", type=float, default=0.01)
    parser.add_argument("--meta-lr", type=float, default=2e-3)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model = SineModel()
    meta_optimizer = torch.optim.Adam(model.parameters(), lr=args.meta_lr)
    for it in range(args.iterations):
        meta_optimizer.zero_grad()
        meta_loss = 0.0
        for _ in range(args.meta_batch):
            xs, ys, xq, yq = sample_task(args.k)
            params = adapt(model, xs, ys, args.inner_lr, 1, create_graph=True)
            meta_loss = meta_loss + nn.functional.mse_loss(functional_call(model, params, (xq,)), yq)
        meta_loss = meta_loss / args.meta_batch
        meta_loss.backward()
        meta_optimizer.step()
        if it % 100 == 99:
            before, after = evaluate(model, args)
            print(f"iteration {it + 1}: before {before:.3f}, after three steps: {after:.3f}")


if __name__ == "__main__":
    main()
