"""Momentum contrast with a queue of negatives, as a class with methods."""
import copy

import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier
from torch import nn
from torch.nn import functional as F


class Encoder(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
        self.head = nn.Linear(64, dim)

    def forward(self, x):
        return F.normalize(self.head(self.body(x)), dim=1)


class MoCo(nn.Module):
    def __init__(self, dim=32, K=512, m=0.99, T=0.1):
        super().__init__()
        self.K, self.m, self.T = K, m, T
        self.encoder_q = Encoder(dim)
        self.encoder_k = copy.deepcopy(self.encoder_q)
        for param_k in self.encoder_k.parameters():
            param_k.requires_grad = False
        self.register_buffer("queue", F.normalize(torch.randn(dim, K), dim=0))
        self.ptr = 0

    @torch.no_grad()
    def _momentum_update_key_encoder(self):
        for q, k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            k.data = k.data * self.m + q.data * (1.0 - self.m)

    @torch.no_grad()
    def _dequeue_and_enqueue(self, keys):
        n = keys.shape[0]
        self.queue[:, self.ptr : self.ptr + n] = keys.T
        self.ptr = (self.ptr + n) % self.K

    def forward(self, im_q, im_k):
        q = self.encoder_q(im_q)
        with torch.no_grad():
            self._momentum_update_key_encoder()
            k = self.encoder_k(im_k)
        l_pos = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
        l_neg = torch.einsum("nc,ck->nk", [q, self.queue.clone().detach()])
        logits = torch.cat([l_pos, l_neg], dim=1) / self.T
        labels = torch.zeros(logits.shape[0], dtype=torch.long)
        self._dequeue_and_enqueue(k)
        return logits, labels


def view(x):
    return x * (torch.rand_like(x) > 0.15) + 0.15 * torch.randn_like(x)


def main():
    torch.manual_seed(0)
    X, y = load_digits(return_X_y=True)
    X = torch.tensor(X / 16.0, dtype=torch.float32)
    model = MoCo()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9, weight_decay=1e-4)
    for epoch in range(40):
        total, hits, n = 0.0, 0, 0
        for idx in torch.randperm(1536).split(64):
            output, target = model(view(X[idx]), view(X[idx]))
            loss = criterion(output, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            hits += (output.argmax(1) == target).sum().item()
            n += len(idx)
        if epoch % 10 == 9:
            print(f"Epoch {epoch + 1}: loss {total / 24:.4f}, Acc@1 {hits / n:.4f}")
    with torch.no_grad():
        z = model.encoder_q(X).numpy()
    knn = KNeighborsClassifier(5).fit(z[:1536], y[:1536])
    print(f"kNN accuracy: {knn.score(z[1536:], y[1536:]):.4f}")


if __name__ == "__main__":
    main()
