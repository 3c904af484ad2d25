import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(0)

X, y = load_digits(return_X_y=True)
X = torch.tensor((X - X.mean()) / X.std(), dtype=torch.float32)
dataset = TensorDataset(X, torch.tensor(y))
train_set, val_set = random_split(dataset, [1400, 397], generator=torch.Generator().manual_seed(0))
train_loader = DataLoader(train_set, batch_size=8, shuffle=True)
val_loader = DataLoader(val_set, batch_size=128)

model = nn.Sequential(
    nn.Linear(64, 96),
    nn.LayerNorm(96),
    nn.GELU(),
    nn.Dropout(0.1),
    nn.Linear(96, 10),
)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
accum_iter = 4

for epoch in range(10):
    model.train()
    for batch_idx, (inputs, labels) in enumerate(train_loader):
        preds = model(inputs)
        loss = criterion(preds, labels)
        # normalize loss to account for batch accumulation
        loss = loss / accum_iter
        loss.backward()
        if ((batch_idx + 1) % accum_iter == 0) or (batch_idx + 1 == len(train_loader)):
            optimizer.step()
            optimizer.zero_grad()
    model.eval()
    correct = 0
    with torch.no_grad():
        for inputs, labels in val_loader:
            correct += (model(inputs).argmax(1) == labels).sum().item()
    print(f"epoch {epoch} loss {loss.item() * accum_iter:.4f} val accuracy {correct / len(val_set):.4f}")
