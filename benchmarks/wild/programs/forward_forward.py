"""The forward-forward algorithm: each layer is trained by itself, with its own optimizer."""
import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.optim import Adam

torch.manual_seed(1234)


def overlay_y_on_x(x, y):
    """Replace the first 10 values by a one-hot label."""
    x_ = x.clone()
    x_[:, :10] *= 0.0
    x_[range(x.shape[0]), y] = 3.0 * x.max()
    return x_


class Layer(nn.Linear):
    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features)
        self.relu = nn.ReLU()
        self.opt = Adam(self.parameters(), lr=0.03)
        self.threshold = 0.5
        self.num_epochs = 250

    def forward(self, x):
        x_direction = x / (x.norm(2, 1, keepdim=True) + 1e-4)
        return self.relu(torch.mm(x_direction, self.weight.T) + self.bias.unsqueeze(0))

    def train_layer(self, x_pos, x_neg):
        for i in range(self.num_epochs):
            g_pos = self.forward(x_pos).pow(2).mean(1)
            g_neg = self.forward(x_neg).pow(2).mean(1)
            loss = torch.log(1 + torch.exp(torch.cat([-g_pos + self.threshold, g_neg - self.threshold]))).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            if i % 50 == 49:
                print("   loss", round(loss.item(), 4))
        return self.forward(x_pos).detach(), self.forward(x_neg).detach()


class Net(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.layers = nn.ModuleList([Layer(dims[d], dims[d + 1]) for d in range(len(dims) - 1)])

    def predict(self, x):
        goodness_per_label = []
        for label in range(10):
            h = overlay_y_on_x(x, torch.full((len(x),), label))
            goodness = []
            for layer in self.layers:
                h = layer(h)
                goodness += [h.pow(2).mean(1)]
            goodness_per_label += [sum(goodness).unsqueeze(1)]
        return torch.cat(goodness_per_label, 1).argmax(1)

    def fit(self, x_pos, x_neg):
        h_pos, h_neg = x_pos, x_neg
        for i, layer in enumerate(self.layers):
            print("training layer", i, "...")
            h_pos, h_neg = layer.train_layer(h_pos, h_neg)


X, y = load_digits(return_X_y=True)
X = torch.nn.functional.pad(torch.tensor(X / 16.0, dtype=torch.float32), (10, 0))
y = torch.tensor(y)
x, x_te, y, y_te = X[:1400], X[1400:], y[:1400], y[1400:]
net = Net([74, 200, 200])
x_pos = overlay_y_on_x(x, y)
wrong = (y + torch.randint(1, 10, y.shape)) % 10
x_neg = overlay_y_on_x(x, wrong)
net.fit(x_pos, x_neg)
with torch.no_grad():
    print(f"train accuracy: {net.predict(x).eq(y).float().mean().item():.4f}")
    print(f"test accuracy: {net.predict(x_te).eq(y_te).float().mean().item():.4f}")
