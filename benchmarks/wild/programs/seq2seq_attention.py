"""Sequence to sequence with attention: reverse strings of letters."""
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim

random.seed(0)
torch.manual_seed(0)
SOS, EOS, PAD, LETTERS, MAXLEN = 1, 2, 0, 12, 7


def batch(n):
    src, tgt = torch.full((n, MAXLEN + 1), PAD), torch.full((n, MAXLEN + 1), PAD)
    for row in range(n):
        word = [random.randrange(3, 3 + LETTERS) for _ in range(random.randint(3, MAXLEN))]
        src[row, : len(word) + 1] = torch.tensor(word + [EOS])
        tgt[row, : len(word) + 1] = torch.tensor(word[::-1] + [EOS])
    return src, tgt


class EncoderRNN(nn.Module):
    def __init__(self, vocab, hidden):
        super().__init__()
        self.embedding = nn.Embedding(vocab, hidden, padding_idx=PAD)
        self.gru = nn.GRU(hidden, hidden, batch_first=True)

    def forward(self, x):
        return self.gru(self.embedding(x))


class BahdanauAttention(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.Wa, self.Ua, self.Va = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, 1)

    def forward(self, query, keys):
        scores = self.Va(torch.tanh(self.Wa(query) + self.Ua(keys))).squeeze(2).unsqueeze(1)
        weights = F.softmax(scores, dim=-1)
        return torch.bmm(weights, keys), weights


class AttnDecoderRNN(nn.Module):
    def __init__(self, hidden, vocab):
        super().__init__()
        self.embedding = nn.Embedding(vocab, hidden)
        self.attention = BahdanauAttention(hidden)
        self.gru = nn.GRU(2 * hidden, hidden, batch_first=True)
        self.out = nn.Linear(hidden, vocab)

    def forward(self, encoder_outputs, hidden, target=None):
        token = torch.full((encoder_outputs.size(0), 1), SOS)
        outputs = []
        for t in range(MAXLEN + 1):
            context, _ = self.attention(hidden.permute(1, 0, 2), encoder_outputs)
            step, hidden = self.gru(torch.cat((self.embedding(token), context), dim=2), hidden)
            logits = self.out(step)
            outputs.append(logits)
            token = target[:, t].unsqueeze(1) if target is not None else logits.argmax(-1).detach()
        return F.log_softmax(torch.cat(outputs, dim=1), dim=-1)


encoder, decoder = EncoderRNN(3 + LETTERS, 48), AttnDecoderRNN(48, 3 + LETTERS)
encoder_optimizer = optim.Adam(encoder.parameters(), lr=0.005)
decoder_optimizer = optim.Adam(decoder.parameters(), lr=0.005)
criterion = nn.NLLLoss(ignore_index=PAD)

for it in range(1, 301):
    src, tgt = batch(48)
    encoder_optimizer.zero_grad()
    decoder_optimizer.zero_grad()
    encoder_outputs, encoder_hidden = encoder(src)
    log_probs = decoder(encoder_outputs, encoder_hidden, tgt)
    loss = criterion(log_probs.view(-1, log_probs.size(-1)), tgt.view(-1))
    loss.backward()
    encoder_optimizer.step()
    decoder_optimizer.step()
    if it % 50 == 0:
        with torch.no_grad():
            src, tgt = batch(100)
            outputs, hidden = encoder(src)
            guess = decoder(outputs, hidden).argmax(-1)
            right = ((guess == tgt) | (tgt == PAD)).all(1).float().mean().item()
        print(f"{it}: loss {loss.item():.4f}, whole words right {right:.3f}")
