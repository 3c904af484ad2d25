"""Skip-gram with negative sampling over the words of Python's pydoc topics."""
import re
from collections import Counter
from pydoc_data.topics import topics

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

np.random.seed(0)
torch.manual_seed(0)

text = " ".join(topics[k] for k in sorted(topics))[:250000].lower()
tokens = re.findall(r"[a-z]+", text)
counts = Counter(tokens)
vocab = [w for w, c in counts.most_common(800)]
word2idx = {w: i for i, w in enumerate(vocab)}
freq = np.array([counts[w] for w in vocab], dtype=float)
ids = [word2idx[w] for w in tokens if w in word2idx]
# subsample what is frequent
keep = np.minimum(1, np.sqrt(1e-3 / (freq / freq.sum())))
ids = [i for i in ids if np.random.rand() < keep[i]]
noise = torch.tensor(freq**0.75)
window = 3
pairs = [(ids[i], ids[j]) for i in range(len(ids)) for j in range(max(0, i - window), min(len(ids), i + window + 1)) if i != j]
pairs = torch.tensor(pairs)
print(len(ids), "tokens", len(pairs), "pairs")


class SkipGram(nn.Module):
    def __init__(self, vocab_size, dim):
        super().__init__()
        self.in_embed = nn.Embedding(vocab_size, dim)
        self.out_embed = nn.Embedding(vocab_size, dim)
        nn.init.uniform_(self.in_embed.weight, -0.5 / dim, 0.5 / dim)
        nn.init.zeros_(self.out_embed.weight)

    def forward(self, center, context, negatives):
        v = self.in_embed(center)
        pos = (v * self.out_embed(context)).sum(1)
        neg = torch.bmm(self.out_embed(negatives), v.unsqueeze(2)).squeeze(2)
        return -(F.logsigmoid(pos) + F.logsigmoid(-neg).sum(1)).mean()


model = SkipGram(len(vocab), 48)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
held_out, train = pairs[:2000], pairs[2000:]
steps = 0
for epoch in range(2):
    running = 0.0
    for batch in torch.randperm(len(train)).split(256):
        p = train[batch]
        negatives = torch.multinomial(noise, len(p) * 5, replacement=True).view(len(p), 5)
        loss = model(p[:, 0], p[:, 1], negatives)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running = 0.99 * running + 0.01 * loss.item()
        steps += 1
    with torch.no_grad():
        negatives = torch.multinomial(noise, 10000, replacement=True).view(2000, 5)
        test = model(held_out[:, 0], held_out[:, 1], negatives).item()
    print(f"epoch {epoch} steps {steps} loss {running:.4f} held out {test:.4f}")

emb = F.normalize(model.in_embed.weight.data, dim=1)
for word in ("class", "string"):
    near = (emb @ emb[word2idx[word]]).topk(6).indices.tolist()
    print(word, "->", [vocab[i] for i in near[1:]])
