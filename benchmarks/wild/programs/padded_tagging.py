"""Tag the words of a toy language with an LSTM; sentences are padded to one length."""
import random

import torch
import torch.nn as nn
import torch.optim as optim

random.seed(0)
torch.manual_seed(0)

DET, NOUN, VERB, ADJ = ["the", "a"], ["dog", "cat", "run", "walk", "light"], ["sees", "likes", "run", "walk", "light"], ["old", "big", "light"]
TAGS = {"<pad>": 0, "D": 1, "N": 2, "V": 3, "A": 4}


def sentence():
    """Words such as "run" are nouns or verbs by their place."""
    s = []
    for part in range(2):
        s.append((random.choice(DET), "D"))
        if random.random() < 0.4:
            s.append((random.choice(ADJ), "A"))
        s.append((random.choice(NOUN), "N"))
        if part == 0:
            s.append((random.choice(VERB), "V"))
    return s


words = sorted(set(DET + NOUN + VERB + ADJ))
word_to_ix = {w: i + 1 for i, w in enumerate(words)}
MAX_LEN = 12


def encode(sentences):
    x = torch.zeros(len(sentences), MAX_LEN, dtype=torch.long)
    y = torch.zeros(len(sentences), MAX_LEN, dtype=torch.long)
    for i, s in enumerate(sentences):
        for j, (w, t) in enumerate(s):
            x[i, j], y[i, j] = word_to_ix[w], TAGS[t]
    return x, y


class LSTMTagger(nn.Module):
    def __init__(self, embedding_dim, hidden_dim, vocab_size, tagset_size):
        super(LSTMTagger, self).__init__()
        self.word_embeddings = nn.Embedding(vocab_size, embedding_dim, padding_idx=0)
        self.lstm = nn.LSTM(embedding_dim, hidden_dim, batch_first=True, bidirectional=True)
        self.hidden2tag = nn.Linear(2 * hidden_dim, tagset_size)

    def forward(self, x):
        lstm_out, _ = self.lstm(self.word_embeddings(x))
        return self.hidden2tag(lstm_out)


x_train, y_train = encode([sentence() for _ in range(1000)])
x_test, y_test = encode([sentence() for _ in range(200)])
model = LSTMTagger(16, 16, len(word_to_ix) + 1, len(TAGS))
loss_function = nn.CrossEntropyLoss(ignore_index=0)
optimizer = optim.SGD(model.parameters(), lr=0.5, momentum=0.5)

for epoch in range(12):
    for i in torch.randperm(len(x_train)).split(32):
        model.zero_grad()
        scores = model(x_train[i])
        loss = loss_function(scores.transpose(1, 2), y_train[i])
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        real = y_test != 0
        acc = (model(x_test).argmax(-1) == y_test)[real].float().mean().item()
    print(f"epoch {epoch} loss {loss.item():.4f} tag accuracy {acc:.4f}")
