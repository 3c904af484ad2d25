"""The callback for Hugging Face's Trainer: a tiny classifier of digits from scratch."""

from __future__ import annotations

import functools
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

from tdbg.errors import ConfigurationError
from tdbg.modes import EVAL, TRAIN
from tdbg.pytorch import SaveConfig, create_trial
from tdbg.rules import default_rules
from tdbg.run.observations import Fault
from tdbg.run.requests import request_stop
from torch_helpers import Recorded

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        GPT2Config,
        GPT2LMHeadModel,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    from tdbg.integrations.transformers import TdbgCallback, _counters

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
EVERYTHING = SaveConfig(save_interval=1, statistics_interval=1)


def bert() -> Any:
    torch.manual_seed(1)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=17,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=64,
            num_labels=10,
        )
    )


def digits(count: int) -> list[dict[str, Any]]:
    """Pictures as texts: a word for each grey."""
    data = load_digits()
    return [
        {
            "input_ids": torch.tensor(image[:16], dtype=torch.long),
            "labels": int(label),
        }
        for image, label in zip(data.data[:count], data.target, strict=False)
    ]


def trainer(tmp_path: Path, callback: Any, **options: Any) -> Any:
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "out"),
        **{
            "use_cpu": True,
            "report_to": [],
            "disable_tqdm": True,
            "per_device_train_batch_size": 4,
            "per_device_eval_batch_size": 4,
            "max_steps": 4,
            "logging_steps": 2,
            "save_strategy": "no",
            **options,
        },
    )
    return Trainer(
        model=bert(),
        args=arguments,
        train_dataset=digits(64),
        eval_dataset=digits(8),
        callbacks=[callback],
    )


def callback(run_dir: Path, **options: Any) -> Any:
    settings: dict[str, Any] = {
        "include_collections": ["weights", "gradients", "outputs"],
        "save_config": EVERYTHING,
        "min_free_bytes": 0,
    }
    return TdbgCallback(run_dir, **{**settings, **options})


@pytest.mark.parametrize("loads_best", [True, False])
def test_a_trainer_that_loads_the_best_model_at_its_end_keeps_it(
    run_dir: Path, tmp_path: Path, loads_best: bool
) -> None:
    every = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps"}
    work = trainer(
        tmp_path,
        callback(run_dir),
        **every,
        save_steps=2,
        load_best_model_at_end=loads_best,
    )
    work.train()
    seen = create_trial(run_dir).observations()
    found = [each for each in seen if each.fault is Fault.BEST_KEPT]
    assert [each.words for each in found] == [{"monitor": "loss"}] * loads_best


def test_a_training_with_evaluation_is_captured(run_dir: Path, tmp_path: Path) -> None:
    tdbg = callback(run_dir)
    work = trainer(
        tmp_path,
        tdbg,
        eval_strategy="steps",
        eval_steps=2,
        gradient_accumulation_steps=2,
        max_grad_norm=1e-3,
    )
    work.train()
    assert tdbg.hook is None
    assert not work.model._forward_hooks, "the callback's own is off the model"
    trial = create_trial(run_dir)
    assert trial.steps(mode=TRAIN) == [0, 1, 2, 3]
    assert trial.steps(mode=EVAL) == [0, 1, 2, 3]  # 2 batches, twice.
    names = [n for n in trial.tensor_names() if n.startswith("gradient/")]
    assert len(names) > 10
    for step in range(4):
        norms = [
            trial.tensor(name).reduction_value(step, "l2", mode=TRAIN) for name in names
        ]
        total = sum(norm**2 for norm in norms) ** 0.5
        assert total == pytest.approx(1e-3, rel=1e-2), "clipped, and accumulated"
    assert trial.tensor("loss_output_0").steps(mode=TRAIN) == [0, 1, 2, 3]
    assert trial.tensor("loss_output_0").steps(mode=EVAL) == [0, 1, 2, 3]
    assert trial.tensor("classifier_output_0").steps(mode=TRAIN) == [0, 1, 2, 3]
    assert trial.tensor("scalar/loss").steps(mode=TRAIN) == [1, 3]
    assert trial.tensor("scalar/eval_loss").steps(mode=EVAL) == [1, 3]
    table = Recorded(run_dir).step_table
    counts = [
        int(n)
        for n, mode in zip(table["micro_batches"], table["mode"], strict=True)
        if mode == 1
    ]
    assert counts == [2, 2, 2, 2]


def test_a_loss_that_the_trainer_computes_itself_is_captured(
    run_dir: Path, tmp_path: Path
) -> None:
    seen = []

    def compute(outputs: Any, labels: Any, **_: Any) -> Any:
        loss = torch.nn.functional.cross_entropy(outputs.logits, labels)
        seen.append(float(loss.detach()))
        return loss

    work = trainer(tmp_path, callback(run_dir))
    work.compute_loss_func = compute
    work.train()
    loss = create_trial(run_dir).tensor("loss_output_0")
    values = [float(loss.value(step, mode=TRAIN)) for step in range(4)]
    assert values == pytest.approx(seen)
    assert not hasattr(torch.autograd.backward, "_tdbg_original")


def test_a_stop_ends_the_training_by_its_own_flag(
    run_dir: Path, tmp_path: Path
) -> None:
    class Asks(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
            del args
            if state.global_step == 3:
                request_stop(run_dir, reason="enough of it")

    work = trainer(tmp_path, callback(run_dir), max_steps=1000)
    work.add_callback(Asks())
    work.train()
    assert 3 < work.state.global_step < 1000
    assert Recorded(run_dir).events(5)[-1] == {
        "training": "stopped",
        "reason": "enough of it",
    }


def test_a_training_resumed_from_a_checkpoint_goes_on_with_its_steps(
    run_dir: Path, tmp_path: Path
) -> None:
    options = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps"}
    trainer(tmp_path, callback(run_dir), save_steps=2, **options).train()
    checkpoint = str(tmp_path / "out" / "checkpoint-2")
    work = trainer(tmp_path, callback(run_dir), save_steps=100, **options)
    work.train(resume_from_checkpoint=checkpoint)
    trial = create_trial(run_dir)
    assert len(trial.attempts()) == 2
    assert trial.steps(mode=TRAIN) == [0, 1, 2, 3]
    assert trial.steps(mode=EVAL) == [0, 1, 2, 3]


def test_a_training_after_one_that_failed_is_an_attempt_of_its_own(
    run_dir: Path, tmp_path: Path
) -> None:
    class Fails(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            raise ZeroDivisionError

    work = trainer(tmp_path, callback(run_dir), max_steps=2)
    work.add_callback(Fails)
    with pytest.raises(ZeroDivisionError):
        work.train()
    work.remove_callback(Fails)
    work.train()
    trial = create_trial(run_dir)
    assert len(trial.attempts()) == 2
    assert trial.steps(mode=TRAIN) == [0, 1]


def test_numbers_of_steps_that_are_not_the_checkpoints_are_not_believed(
    tmp_path: Path,
) -> None:
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    folder = tmp_path / "checkpoint-4"
    folder.mkdir()
    for told, step in ((4, 9), (5, 4)):
        counters = {"version": 1, "step": 9, "modes": {"TRAIN": told}}
        (folder / "tdbg.json").write_text(json.dumps(counters))
        assert _counters(arguments, 4)["step"] == step


def test_what_is_wrong_with_the_options_is_said_at_once(run_dir: Path) -> None:
    with pytest.raises(ConfigurationError, match="weights"):
        callback(run_dir, include_collections=["wieghts"])
    assert not run_dir.exists()


PADDING = 0


def sentences() -> list[dict[str, Any]]:
    """Sentences of several lengths, in which a token does not follow from another."""
    generator = torch.Generator().manual_seed(1)
    return [
        {"input_ids": torch.randint(1, 17, (6 + i % 9,), generator=generator)}
        for i in range(128)
    ]


def collated(rows: list[dict[str, Any]], *, shift: int, counts: bool) -> Any:
    """Pad; the model itself shifts the labels by one."""
    tokens = nn.utils.rnn.pad_sequence(
        [row["input_ids"] for row in rows], batch_first=True, padding_value=PADDING
    )
    mask = (tokens != PADDING).long()
    labels = tokens if counts else tokens.masked_fill(mask == 0, -100)
    labels = functional.pad(labels, (0, shift), value=-100)[:, shift:]
    return {"input_ids": tokens, "attention_mask": mask, "labels": labels}


@pytest.mark.parametrize(
    ("shift", "counts", "faults"),
    [
        (0, False, set()),
        (0, True, {Fault.PADDING_COUNTS}),
        (1, False, {Fault.LABELS_SKIP_ONE}),
    ],
)
def test_labels_that_the_models_own_loss_gets_are_compared(
    run_dir: Path, tmp_path: Path, shift: int, counts: bool, faults: set[Fault]
) -> None:
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=17, bos_token_id=1, eos_token_id=1, **sizes)
    )
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "out"),
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        per_device_train_batch_size=8,
        max_steps=9,
        save_strategy="no",
    )
    work = Trainer(
        model=model,
        args=arguments,
        train_dataset=sentences(),
        data_collator=functools.partial(collated, shift=shift, counts=counts),
        callbacks=[callback(run_dir, include_collections=[], rules=default_rules())],
    )
    work.train()
    trial = create_trial(run_dir)
    seen = {each.fault for each in trial.observations()}
    assert seen & {Fault.PADDING_COUNTS, Fault.LABELS_SKIP_ONE} == faults
    assert "cross_entropy_output_0" not in trial.tensor_names()


@pytest.mark.parametrize(
    ("metric", "rises", "is_told"),
    [
        ("error_rate", None, True),
        ("error_rate", False, False),
        ("accuracy", False, True),
        ("eval_accuracy", None, False),
        ("score", False, False),
    ],
)
def test_a_trainer_that_keeps_the_worst_checkpoint_is_named(
    run_dir: Path, tmp_path: Path, metric: str, rises: bool | None, is_told: bool
) -> None:
    calls: list[int] = []

    def measures(_: Any) -> dict[str, float]:
        calls.append(1)
        accuracy = 0.2 * len(calls)
        return {"accuracy": accuracy, "error_rate": 1 - accuracy, "score": accuracy}

    work = trainer(
        tmp_path,
        TdbgCallback(run_dir),
        eval_strategy="steps",
        eval_steps=1,
        metric_for_best_model=metric,
        **({} if rises is None else {"greater_is_better": rises}),
    )
    work.compute_metrics = measures
    work.train()
    seen = create_trial(run_dir).observations()
    found = [each for each in seen if each.fault is Fault.WATCHES_WRONG_WAY]
    assert len(found) == is_told
    for each in found:
        assert "greater_is_better" in each.words["setting"]
