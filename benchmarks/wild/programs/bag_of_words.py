"""Bag-of-words classification: from which module of Python is a line of code?"""
import inspect
import json.decoder
import random
import re
import statistics
import textwrap
import tokenize

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

torch.manual_seed(1)
random.seed(1)

modules = {"textwrap": textwrap, "json": json.decoder, "statistics": statistics, "tokenize": tokenize}
data = []
for name, module in modules.items():
    lines = inspect.getsource(module).splitlines()
    chunks = [" ".join(lines[i : i + 3]) for i in range(0, len(lines), 3)]
    data += [(re.findall(r"[a-z_]{2,}", c.lower()), name) for c in chunks]
data = [d for d in data if len(d[0]) >= 4]
random.shuffle(data)
split = int(0.8 * len(data))
train_data, test_data = data[:split], data[split:]

word_to_ix = {}
for sent, _ in train_data:
    for word in sent:
        if word not in word_to_ix:
            word_to_ix[word] = len(word_to_ix)
label_to_ix = {name: i for i, name in enumerate(modules)}
VOCAB_SIZE, NUM_LABELS = len(word_to_ix), len(label_to_ix)
print(VOCAB_SIZE, "words,", len(train_data), "samples")


class BoWClassifier(nn.Module):
    def __init__(self, num_labels, vocab_size):
        super(BoWClassifier, self).__init__()
        self.linear = nn.Linear(vocab_size, num_labels)

    def forward(self, bow_vec):
        return F.log_softmax(self.linear(bow_vec), dim=1)


def make_bow_vector(sentence, word_to_ix):
    vec = torch.zeros(len(word_to_ix))
    for word in sentence:
        if word in word_to_ix:
            vec[word_to_ix[word]] += 1
    return vec.view(1, -1)


def make_target(label, label_to_ix):
    return torch.LongTensor([label_to_ix[label]])


model = BoWClassifier(NUM_LABELS, VOCAB_SIZE)
loss_function = nn.NLLLoss()
optimizer = optim.SGD(model.parameters(), lr=0.1)

# one sample at a time, as in the tutorial
for epoch in range(4):
    random.shuffle(train_data)
    for instance, label in train_data:
        model.zero_grad()
        bow_vec = make_bow_vector(instance, word_to_ix)
        target = make_target(label, label_to_ix)
        log_probs = model(bow_vec)
        loss = loss_function(log_probs, target)
        loss.backward()
        optimizer.step()

with torch.no_grad():
    hits = [model(make_bow_vector(s, word_to_ix)).argmax().item() == label_to_ix[name] for s, name in test_data]
print(f"accuracy {sum(hits) / len(hits):.4f}")
