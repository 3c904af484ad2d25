import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(42)


class DeepNN(nn.Module):
    def __init__(self, num_classes=10):
        super(DeepNN, self).__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, kernel_size=3, padding=1), nn.ReLU(),
            nn.MaxPool2d(kernel_size=2, stride=2),
            nn.Conv2d(32, 32, kernel_size=3, padding=1), nn.ReLU(),
        )
        self.classifier = nn.Sequential(
            nn.Linear(512, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, num_classes))

    def forward(self, x):
        x = self.features(x)
        x = torch.flatten(x, 1)
        return self.classifier(x)


class LightNN(nn.Module):
    def __init__(self, num_classes=10):
        super(LightNN, self).__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 4, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(kernel_size=2, stride=2))
        self.classifier = nn.Linear(64, num_classes)

    def forward(self, x):
        return self.classifier(torch.flatten(self.features(x), 1))


def train(model, train_loader, epochs, learning_rate):
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.Adam(model.parameters(), lr=learning_rate)
    model.train()
    for epoch in range(epochs):
        running_loss = 0.0
        for inputs, labels in train_loader:
            optimizer.zero_grad()
            outputs = model(inputs)
            loss = criterion(outputs, labels)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
        print(f"Epoch {epoch + 1}/{epochs}, Loss: {running_loss / len(train_loader):.4f}")


def train_knowledge_distillation(teacher, student, train_loader, epochs, learning_rate, T, soft_weight, ce_weight):
    ce_loss = nn.CrossEntropyLoss()
    optimizer = optim.Adam(student.parameters(), lr=learning_rate)
    teacher.eval()
    student.train()
    for epoch in range(epochs):
        running_loss = 0.0
        for inputs, labels in train_loader:
            optimizer.zero_grad()
            with torch.no_grad():
                teacher_logits = teacher(inputs)
            student_logits = student(inputs)
            soft_targets = F.softmax(teacher_logits / T, dim=-1)
            soft_prob = F.log_softmax(student_logits / T, dim=-1)
            soft_loss = torch.sum(soft_targets * (soft_targets.log() - soft_prob)) / soft_prob.size(0) * T**2
            label_loss = ce_loss(student_logits, labels)
            loss = soft_weight * soft_loss + ce_weight * label_loss
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
        print(f"KD epoch {epoch + 1}/{epochs}, Loss: {running_loss / len(train_loader):.4f}")


def test(model, test_loader):
    model.eval()
    correct = total = 0
    with torch.no_grad():
        for inputs, labels in test_loader:
            correct += (model(inputs).argmax(1) == labels).sum().item()
            total += labels.size(0)
    return 100 * correct / total


digits = load_digits()
X, y = torch.tensor(digits.images / 16.0).float().unsqueeze(1), torch.tensor(digits.target)
train_loader = DataLoader(TensorDataset(X[:1347], y[:1347]), batch_size=64, shuffle=True)
test_loader = DataLoader(TensorDataset(X[1347:], y[1347:]), batch_size=450)

teacher = DeepNN()
train(teacher, train_loader, epochs=8, learning_rate=0.002)
print(f"Teacher accuracy: {test(teacher, test_loader):.2f}%")
student = LightNN()
train_knowledge_distillation(teacher, student, train_loader, 12, 0.01, T=2, soft_weight=0.5, ce_weight=0.5)
print(f"Student accuracy: {test(student, test_loader):.2f}%")
