import torch
from sklearn.datasets import load_wine
from sklearn.metrics import accuracy_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import nn, optim

torch.manual_seed(0)


class WineNet(nn.Module):
    def __init__(self, n_features=13, n_hidden=32, n_classes=3):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Linear(n_features, n_hidden),
            nn.ReLU(),
            nn.Linear(n_hidden, n_hidden),
            nn.ReLU(),
        )
        self.head = nn.Linear(n_hidden, n_classes)

    def forward(self, x):
        return self.head(self.backbone(x))


def load_data():
    wine = load_wine()
    X_train, X_test, y_train, y_test = train_test_split(
        wine.data, wine.target, test_size=0.3, random_state=1, stratify=wine.target
    )
    scaler = StandardScaler()
    X_train = scaler.fit_transform(X_train)
    X_test = scaler.transform(X_test)
    return (
        torch.tensor(X_train, dtype=torch.float32),
        torch.tensor(X_test, dtype=torch.float32),
        torch.tensor(y_train, dtype=torch.long),
        torch.tensor(y_test, dtype=torch.long),
    )


X_train, X_test, y_train, y_test = load_data()
net = WineNet()
criterion = nn.CrossEntropyLoss()
optimizer = optim.Adam(net.parameters(), lr=0.005)

# full batch, the data set is tiny
for epoch in range(1, 201):
    net.train()
    optimizer.zero_grad()
    outputs = net(X_train)
    loss = criterion(outputs, y_train)
    loss.backward()
    optimizer.step()

    if epoch % 20 == 0:
        net.eval()
        with torch.no_grad():
            val = net(X_test)
            val_loss = criterion(val, y_test).item()
            acc = accuracy_score(y_test.numpy(), val.argmax(dim=1).numpy())
        print(f"Epoch [{epoch}/200] loss {loss.item():.4f} val {val_loss:.4f} acc {acc:.4f}")
