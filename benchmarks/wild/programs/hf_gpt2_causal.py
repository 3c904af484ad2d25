import inspect
import tempfile
import textwrap

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
from transformers.utils import logging

logging.set_verbosity_error()
set_seed(0)

# characters of a module as tokens, in blocks of 48
text = inspect.getsource(textwrap)
chars = sorted(set(text))
ids = torch.tensor([chars.index(c) for c in text])
block_size = 48
blocks = ids[: len(ids) // block_size * block_size].view(-1, block_size)
perm = torch.randperm(len(blocks), generator=torch.Generator().manual_seed(0))
blocks = blocks[perm]
train_dataset = [{"input_ids": b, "labels": b} for b in blocks[:-40]]
eval_dataset = [{"input_ids": b, "labels": b} for b in blocks[-40:]]

config = GPT2Config(vocab_size=len(chars), n_positions=block_size, n_embd=64, n_layer=2, n_head=4,
                    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
model = GPT2LMHeadModel(config)
print(f"{model.num_parameters()} parameters, {len(train_dataset)} blocks")

with tempfile.TemporaryDirectory() as output_dir:
    training_args = TrainingArguments(
        output_dir=output_dir,
        per_device_train_batch_size=16,
        learning_rate=3e-3,
        lr_scheduler_type="cosine",
        warmup_steps=20,
        max_steps=220,
        logging_steps=50,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(model=model, args=training_args, train_dataset=train_dataset, eval_dataset=eval_dataset)
    trainer.train()
    print(f"evaluation loss: {trainer.evaluate()['eval_loss']:.4f}")
