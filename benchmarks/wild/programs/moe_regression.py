"""Mixture of experts with a gate and a load-balancing loss, on a piecewise function."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Expert(nn.Module):
    def __init__(self, d_in, d_hidden, d_out):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d_in, d_hidden), nn.ReLU(), nn.Linear(d_hidden, d_out))

    def forward(self, x):
        return self.net(x)


class MoE(nn.Module):
    def __init__(self, d_in, d_hidden, d_out, num_experts=4, k=2):
        super().__init__()
        self.k = k
        self.experts = nn.ModuleList([Expert(d_in, d_hidden, d_out) for _ in range(num_experts)])
        self.gate = nn.Linear(d_in, num_experts)

    def forward(self, x):
        probs = F.softmax(self.gate(x), dim=-1)
        top, idx = probs.topk(self.k, dim=-1)
        top = top / top.sum(dim=-1, keepdim=True)
        out = torch.zeros(x.size(0), 1)
        for e, expert in enumerate(self.experts):
            rows, slot = (idx == e).nonzero(as_tuple=True)
            if len(rows):
                out = out.index_add(0, rows, expert(x[rows]) * top[rows, slot].unsqueeze(1))
        importance = probs.mean(0)
        load = F.one_hot(idx[:, 0], len(self.experts)).float().mean(0)
        aux_loss = len(self.experts) * (importance * load).sum()
        return out, aux_loss


def target_fn(x):
    a = torch.where(x[:, :1] > 0, torch.sin(3 * x[:, 1:2]), x[:, 1:2] ** 2)
    return torch.where(x[:, 1:2] > 0, a, a - x[:, :1])


def main():
    torch.manual_seed(0)
    x_train = torch.randn(4000, 2)
    y_train = target_fn(x_train) + 0.05 * torch.randn(4000, 1)
    x_test = torch.randn(1000, 2)
    y_test = target_fn(x_test)
    model = MoE(2, 64, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(20):
        model.train()
        total = 0.0
        for idx in torch.randperm(len(x_train)).split(64):
            pred, aux = model(x_train[idx])
            loss = F.mse_loss(pred, y_train[idx]) + 0.01 * aux
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(idx)
        model.eval()
        with torch.no_grad():
            mse = F.mse_loss(model(x_test)[0], y_test).item()
        print(f"epoch {epoch:02d} | train {total / len(x_train):.4f} | test mse {mse:.4f}")


if __name__ == "__main__":
    main()
