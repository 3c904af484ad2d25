"""Sequence classification with a tiny BERT and the Trainer; sentences are lines of Python."""
import inspect
import json.decoder
import re
import tempfile
import textwrap

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed
from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()


def load_lines():
    texts, labels = [], []
    for label, module in enumerate((textwrap, json.decoder)):
        lines = [line.strip() for line in inspect.getsource(module).splitlines()]
        words = [re.findall(r"\w+|[^\w\s]", line) for line in lines]
        words = [w for w in words if len(w) >= 3]
        chunks = [sum(words[i : i + 2], []) for i in range(len(words) - 1)]
        texts += chunks
        labels += [label] * len(chunks)
    return texts, labels


class CodeDataset(torch.utils.data.Dataset):
    def __init__(self, encodings, masks, labels):
        self.encodings, self.masks, self.labels = encodings, masks, labels

    def __getitem__(self, i):
        return {"input_ids": self.encodings[i], "attention_mask": self.masks[i], "labels": self.labels[i]}

    def __len__(self):
        return len(self.labels)


def compute_metrics(p):
    return {"accuracy": float((p.predictions.argmax(-1) == p.label_ids).mean())}


def main():
    set_seed(42)
    texts, labels = load_lines()
    vocab = {w: i + 2 for i, w in enumerate(sorted({w for t in texts for w in t}))}
    ids = torch.zeros(len(texts), 24, dtype=torch.long)
    for row, t in enumerate(texts):
        encoded = [1] + [vocab[w] for w in t][:23]
        ids[row, : len(encoded)] = torch.tensor(encoded)
    order = np.random.default_rng(0).permutation(len(texts))
    ids, labels = ids[order], torch.tensor(labels)[order]
    n = int(0.8 * len(ids))
    mask = (ids != 0).long()
    train, test = CodeDataset(ids[:n], mask[:n], labels[:n]), CodeDataset(ids[n:], mask[n:], labels[n:])

    config = BertConfig(
        vocab_size=len(vocab) + 2, hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=96, max_position_embeddings=24, num_labels=2)
    model = BertForSequenceClassification(config)
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out, learning_rate=1e-3, per_device_train_batch_size=16, num_train_epochs=6,
            warmup_steps=20, weight_decay=0.01, eval_strategy="epoch", save_strategy="no", logging_steps=20,
            report_to="none", disable_tqdm=True, use_cpu=True, seed=42)
        trainer = Trainer(model=model, args=args, train_dataset=train, eval_dataset=test, compute_metrics=compute_metrics)
        trainer.train()
        print(f"final eval_accuracy: {trainer.evaluate()['eval_accuracy']:.4f}")


if __name__ == "__main__":
    main()
