"""Graph convolution by hand (Kipf & Welling) on a random graph with communities."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parameter import Parameter

np.random.seed(42)
torch.manual_seed(42)


def make_graph(n_classes=4, per_class=60, p_in=0.08, p_out=0.01, n_features=32):
    n = n_classes * per_class
    labels = np.repeat(np.arange(n_classes), per_class)
    same = labels[:, None] == labels[None, :]
    adj = (np.random.rand(n, n) < np.where(same, p_in, p_out)).astype(np.float32)
    adj = np.triu(adj, 1)
    adj = adj + adj.T
    centers = np.random.randn(n_classes, n_features) * 0.25
    features = centers[labels] + np.random.randn(n, n_features)
    return adj, features.astype(np.float32), labels


def normalize_adj(adj):
    adj = adj + np.eye(len(adj), dtype=np.float32)
    d = adj.sum(1) ** -0.5
    return torch.from_numpy(adj * d[:, None] * d[None, :])


class GraphConvolution(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.weight = Parameter(torch.empty(in_features, out_features))
        self.bias = Parameter(torch.empty(out_features))
        stdv = 1.0 / np.sqrt(out_features)
        self.weight.data.uniform_(-stdv, stdv)
        self.bias.data.uniform_(-stdv, stdv)

    def forward(self, x, adj):
        return adj @ (x @ self.weight) + self.bias


class GCN(nn.Module):
    def __init__(self, nfeat, nhid, nclass, dropout):
        super().__init__()
        self.gc1 = GraphConvolution(nfeat, nhid)
        self.gc2 = GraphConvolution(nhid, nclass)
        self.dropout = dropout

    def forward(self, x, adj):
        x = F.relu(self.gc1(x, adj))
        x = F.dropout(x, self.dropout, training=self.training)
        return F.log_softmax(self.gc2(x, adj), dim=1)


adj, features, labels = make_graph()
adj, features, labels = normalize_adj(adj), torch.from_numpy(features), torch.from_numpy(labels)
idx = torch.randperm(len(labels))
idx_train, idx_val, idx_test = idx[:60], idx[60:120], idx[120:]

model = GCN(features.shape[1], 16, 4, dropout=0.5)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)


def accuracy(output, labels):
    return (output.argmax(1) == labels).float().mean().item()


for epoch in range(200):
    model.train()
    optimizer.zero_grad()
    output = model(features, adj)
    loss_train = F.nll_loss(output[idx_train], labels[idx_train])
    loss_train.backward()
    optimizer.step()
    if epoch % 20 == 19:
        model.eval()
        with torch.no_grad():
            output = model(features, adj)
            loss_val = F.nll_loss(output[idx_val], labels[idx_val])
        print("Epoch: {:04d} loss_train: {:.4f} loss_val: {:.4f} acc_val: {:.4f}".format(
            epoch + 1, loss_train.item(), loss_val.item(), accuracy(output[idx_val], labels[idx_val])))

model.eval()
with torch.no_grad():
    output = model(features, adj)
print("Test set accuracy= {:.4f}".format(accuracy(output[idx_test], labels[idx_test])))
