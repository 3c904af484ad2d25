"""A training loop with everything put together by hand, as smdebug's users write it.

Unedited but for its data: it imports smdebug.  Usage: smdebug_custom.py OUT_DIR
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody writes it
from sklearn.datasets import load_digits
from smdebug.core.modes import ModeKeys
from smdebug.core.reduction_config import ReductionConfig
from smdebug.core.save_config import SaveConfig, SaveConfigMode
from smdebug.pytorch import Collection, Hook, get_hook
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.act = nn.Tanh()

    def forward(self, x):
        return self.act(self.linear(x)), x


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 12)
        self.block = Block(12)
        self.last = nn.Linear(12, 10)

    def forward(self, x):
        y, _ = self.block(self.first(x))
        y, skip = self.block(y)
        return self.last(y + skip)


def main(out_dir):
    torch.manual_seed(11)
    torch.set_num_threads(1)
    digits = load_digits()
    inputs = torch.tensor(digits.data / 16.0, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    model = Classifier()

    hook = Hook(
        out_dir,
        False,
        None,
        False,
        ReductionConfig(save_raw_tensor=True),
        {
            ModeKeys.TRAIN: SaveConfigMode(save_interval=3),
            ModeKeys.EVAL: SaveConfigMode(save_interval=1),
        },
        include_regex=["first_(in|out)put", "nll"],
        include_collections=["weights", "gradients", "tanh", "blocks", "norms"],
    )
    hook.register_hook(model)
    hook.get_collection("tanh").include([r"act_input"])
    hook.get_collection("tanh").save_config = SaveConfig(
        save_interval=2, start_step=2, end_step=8
    )
    hook.get_collection("blocks").add_module_tensors(model.block, inputs=True)
    norms = Collection(
        "norms",
        include_regex=["^gradient/.*last"],
        reduction_config=ReductionConfig(
            reductions=["min", "max", "mean"],
            abs_reductions=["max"],
            norms=["l1", "l2"],
        ),
        save_config=SaveConfig(save_steps=[1, 4], end_step=0),
    )
    hook.add_collection(norms)
    hook.get_collection("gradients").save_config = SaveConfig(save_interval=5)
    assert get_hook() is hook

    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(10):
        hook.set_mode(ModeKeys.TRAIN)
        chosen = slice(step * 16, step * 16 + 16)
        optimizer.zero_grad()
        output = F.log_softmax(model(inputs[chosen]), dim=1)
        loss = F.nll_loss(output, labels[chosen])
        hook.record_tensor_value(tensor_name="nll_loss", tensor_value=loss)
        hook.record_tensor_value(tensor_name="nll_output", tensor_value=output)
        loss.backward()
        optimizer.step()
        hook.save_scalar("learning_rate", 0.01)
    hook.set_mode(ModeKeys.EVAL)
    with torch.no_grad():
        for step in range(2):
            chosen = slice(1000 + step * 16, 1016 + step * 16)
            output = F.log_softmax(model(inputs[chosen]), dim=1)
            hook.record_tensor_value("nll_loss", F.nll_loss(output, labels[chosen]))
    hook.close()


if __name__ == "__main__":
    main(sys.argv[1])
