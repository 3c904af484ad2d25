"""Advice names what the framework that writes the run has."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pytest

import tdbg.hooks
import tdbg.rules.builtin
from run_builder import RunBuilder
from tdbg.config import Role
from tdbg.config.needs import Needs
from tdbg.rules import Evaluation, Rule, check
from tdbg.rules.engine.engine import Engine
from tdbg.rules.vocabulary import VOCABULARIES, Vocabulary, vocabulary_of
from tdbg.rules.window import Description, TensorInfo, Window
from tdbg.run.findings import Severity
from tdbg.run.schema import EventKind

# Names that only PyTorch has.
OF_TORCH = re.compile(
    r"torch|zero_grad\(\)|requires_grad_|optimizer\.step\(|load_state_dict|no_grad"
    r"|clip_grad_norm_|ModuleList|F\.dropout|(?<!Softmax)CrossEntropyLoss"
    r"|WeightedRandomSampler|kaiming|xavier_normal_|model\.(train|eval)\(\)|eval\(\)"
)
BUILTIN = Path(tdbg.rules.builtin.__file__).parent
# Rules, and functions of rules, about facts that only the hook of PyTorch writes down,
# and the field of the model info or the fault that stands for them.
ONLY_PYTORCH = {
    "gradients/clipping.py": (
        "ClippingMisuse _nothing _between _scaled",
        "CLIPPED_NOTHING",
    ),
    "gradients/accumulation.py": ("_last_alone _lost", "MICRO_BATCHES_CLEARED"),
    "gradients/not_cleared.py": ("GradientsNotCleared", "keeps_gradients"),
    "weights/code_misuse.py": ("_of_line _of_statement _of_backward", "RESULT_DROPPED"),
    "weights/dropout_in_evaluation.py": ("DropoutInEvaluation", "dropping"),
    "weights/eval_mode.py": ("TrainedInEvalMode", "evaluating"),
    "weights/model_copies.py": (
        (
            "_of_reference _of_statistics _of_average _of_mean _of_target _of_best "
            "_of_no_average _of_no_target _of_swap _of_another _of_parts "
            "_of_unasked _of_present"
        ),
        "STATISTICS_LEFT_BEHIND",
    ),
    "weights/optimizer_misuse.py": (
        (
            "_decayed _shared _filled _never_steps _made_anew _cleared _twice _scaled "
            "_of_copy _upside_down _not_read _unread _exchanged"
        ),
        "GRADIENTS_OF_ANOTHER_LOSS",
    ),
    "weights/resumption_misuse.py": (
        "_optimizer _unused_state _schedule _unmatched _remedy _own _wiped",
        "OPTIMIZER_BEGINS_ANEW",
    ),
    "weights/running_statistics.py": ("_of_mode _of_part", "EVALUATED_IN_TRAINING"),
    "weights/schedule_misuse.py": (
        (
            "_too_often _in_epochs _in_micro_batches _for_all_ranks "
            "_warm_up_too_long _warm_up_not_over _wrong_way _of_another _overwritten "
            "_in_batches _decays_in_epochs _never_steps _made_anew _plateau_each "
            "_plateau_of_epochs _set_elsewhere _factor_is_rate"
        ),
        "SCHEDULE_TOO_OFTEN",
    ),
    "weights/slow_schedule.py": ("SlowSchedule", "schedules"),
    "weights/teacher_misuse.py": ("_of_learning _of_dropping", "TEACHER_LEARNS"),
    "weights/unregistered.py": ("UnregisteredParameter", "untrained"),
    "data/label_shift.py": ("LabelShift", "LABELS_ARE_INPUTS"),
    "data/label_misuse.py": (
        "LabelMisuse _of_padding _of_unmasked _of_class _of_end",
        "PADDING_COUNTS",
    ),
    "data/loader_misuse.py": (
        (
            "_of_workers _of_epochs _of_first _of_weights _of_idle _of_exchanged "
            "_of_misplaced _of_overwritten _of_parts _of_masks"
        ),
        "",
    ),
    "weights/batch_dependence.py": ("BatchDependence _advice", "SAMPLES_ARE_MIXED"),
    "weights/mask_leak.py": (
        "MaskLeak _of_later_tokens _of_inverted_mask _of_padding _of_mask",
        "LATER_IS_SEEN",
    ),
    "weights/nondeterministic_evaluation.py": (
        "NondeterministicEvaluation _advice",
        "RANDOM_IN_EVALUATION",
    ),
    "loss/metric_misuse.py": ("_of_half", "SCORES_ABOVE_HALF"),
    "loss/term_misuse.py": (
        "_of_weights _of_target _of_advantage _of_number _of_slope",
        "TARGET_LEARNS",
    ),
    "loss/misuse.py": (
        "_softmax_twice _of_scores _of_probabilities _no_graph",
        "is_loss_open",
    ),
}
# The rules that judge boosted trees, or any run.
OF_TREES = (
    "trees/*.py",
    "data/class_imbalance.py",
    "data/confusion.py",
    "loss/over*.py",
    "loss/underfitting.py",
    "loss/not_decreasing.py",
    "runs/*.py",
)


def texts() -> Iterator[tuple[str, str]]:
    """Every text in the rules that is no docstring, with its file."""
    for path in sorted(BUILTIN.rglob("*.py")):
        name = path.relative_to(BUILTIN).as_posix()
        own = ONLY_PYTORCH.get(name, ("", ""))[0].split()
        tree = ast.parse(path.read_text())
        left_out = {
            id(node)
            for part in tree.body
            if getattr(part, "name", None) in own
            for node in ast.walk(part)
        }
        left_out |= {
            id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)
        }
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and id(node) not in left_out
            ):
                yield name, node.value


def test_no_rule_names_what_only_pytorch_has():
    assert [each for each in texts() if OF_TORCH.search(each[1])] == []


@pytest.mark.parametrize("fact", [fact for _, fact in ONLY_PYTORCH.values() if fact])
def test_only_pytorch_writes_down_the_facts_whose_rules_name_it(fact: str):
    hooks = Path(tdbg.hooks.__file__).parent
    found = {
        path.relative_to(hooks).parts[0]
        for path in hooks.rglob("*.py")
        if re.search(rf"\b{fact}=|Fault\.{fact}\b", path.read_text())
    }
    assert found == {"pytorch"}


@pytest.mark.parametrize("framework", ["jax", "keras", "mxnet", "tensorflow"])
def test_no_vocabulary_has_names_of_pytorch(framework: str):
    words = VOCABULARIES[framework]
    given = {field.name: getattr(words, field.name) for field in fields(Vocabulary)}
    assert not {name: text for name, text in given.items() if OF_TORCH.search(text)}


@pytest.mark.parametrize("framework", ["catboost", "lightgbm", "xgboost"])
def test_what_is_said_of_trees_has_no_names_of_pytorch(framework: str):
    names = {
        name
        for pattern in OF_TREES
        for path in BUILTIN.glob(pattern)
        for name in re.findall(r"(?<!observation\.)\bwords\.(\w+)", path.read_text())
    }
    assert {"class_weights", "oversampling", "overfitting"} <= names
    given = {name: getattr(VOCABULARIES[framework], name) for name in names}
    assert not {name: text for name, text in given.items() if OF_TORCH.search(text)}


@pytest.mark.parametrize("name", [field.name for field in fields(Vocabulary)])
def test_every_word_of_the_vocabulary_stands_in_the_advice_of_a_rule(name: str):
    code = "\n".join(path.read_text() for path in BUILTIN.rglob("*.py"))
    assert f"words.{name}" in code


def test_a_framework_without_a_vocabulary_has_that_of_pytorch():
    pytorch = VOCABULARIES["pytorch"]
    assert vocabulary_of("unheard of") is vocabulary_of(None) is pytorch
    assert vocabulary_of(["jax"]) is pytorch


NODES = {
    "trees/Node": np.arange(2**12 - 1, dtype=np.int32),
}


def deep_trees(path: Path, framework: str) -> None:
    with RunBuilder(path) as run:
        content = json.dumps(
            {"framework": {"name": framework, "version": "1"}}
        ).encode()
        run.capture.event(0, EventKind.CONFIGURATION, 1, content)
        run.save(0, "trees/Node", NODES["trees/Node"], what="values", role=Role.OTHER)
        run.end_step(0)


def test_the_framework_is_the_one_that_wrote_the_run(run_dir: Path):
    deep_trees(run_dir, "lightgbm")
    (finding,) = check(run_dir, "TreeDepth", record=False).findings
    assert "lower num_leaves" in finding.advice
    assert "gamma" not in finding.advice


@dataclass(frozen=True, slots=True, kw_only=True)
class OfSomebodyElse(Rule):
    """A rule that is no part of tdbg, whose advice is a text or asks for words."""

    asks: bool = False

    @property
    def needs(self) -> Needs:
        return Needs(collections=frozenset({"trees"}), raw=True)

    def selects(self, tensor: TensorInfo) -> bool:
        return tensor.name == "trees/Node"

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        said = Description(
            message="bad",
            advice=(lambda words: f"Use {words.column_sampling}.")
            if self.asks
            else "Lower colsample_bytree.",
        )
        for table in window.tables():
            n_new = len(table.steps) - table.start
            levels = np.full(n_new, Severity.WARNING, dtype=np.int8)
            yield table.judge_one("trees/Node", levels, lambda _: said)


@pytest.mark.parametrize(
    ("asks", "advice"), [(False, "Lower colsample_bytree."), (True, "Use rsm.")]
)
def test_other_peoples_advice_is_theirs_and_may_ask_for_words(
    run_dir: Path, asks: bool, advice: str
):
    deep_trees(run_dir, "catboost")
    rule = OfSomebodyElse(asks=asks)
    engine = Engine(run_dir, rule, record=False, isolate=False)
    engine.poll()
    (finding,) = engine.finish().findings
    assert finding.advice == advice
