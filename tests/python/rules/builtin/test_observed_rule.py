"""What a hook saw becomes a finding: when it begins, and what it is about."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import tdbg.pytorch
from tdbg.rules import Description, Severity, check, default_rules
from tdbg.rules.builtin.observed_rule import ObservedRule
from tdbg.rules.testing import judge
from tdbg.run.observations import Fault, Observation
from tdbg.trial import create_trial

FAULT = Fault.BROKEN_INVARIANT
# The folders in which each framework's faults are found.
HOOKS = {
    "PyTorch": ("hooks/pytorch", "profiler", "capture"),
    "Keras": ("hooks/keras",),
    "JAX": ("hooks/jax",),
    "TensorFlow": ("hooks/tensorflow",),
    "MXNet": ("hooks/mxnet",),
}
FAMILY = [type(each) for each in default_rules() if isinstance(each, ObservedRule)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken(ObservedRule):
    faults = frozenset({FAULT})
    severities = (Severity.INFO, Severity.WARNING)

    def severity_of(self, observation: Observation) -> Severity:
        is_large = observation.numbers.get("distance", 0.0) > 1.0
        return Severity.WARNING if is_large else Severity.INFO

    def describe(self, observation: Observation) -> Description:
        return Description(message=f"{observation.names}", advice="mend it")


Observe = Callable[[Observation], None]


def train(path: Path, at_step: Callable[[int, Observe], None]) -> None:
    """Six steps of a training; *at_step* may observe something before each of them."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook = tdbg.pytorch.Hook(out_dir=path, probes=False)
    loss_function = torch.nn.MSELoss()
    hook.register_module(model)
    hook.register_loss(loss_function)
    session = hook._session

    def observe(observation: Observation) -> None:
        session.run(session.observe, observation)

    for i in range(6):
        optimizer.zero_grad()
        loss = loss_function(model(torch.randn(4, 2)), torch.randn(4, 1))
        loss.backward()
        at_step(i, observe)
        optimizer.step()
    at_step(6, observe)
    hook.close()


def once(step: int, *observations: Observation) -> Callable[[int, Observe], None]:
    def at_step(i: int, observe: Observe) -> None:
        for each in observations if i == step else ():
            observe(each)

    return at_step


def test_a_finding_begins_at_the_step_of_the_observation(run_dir: Path) -> None:
    train(run_dir, once(3, Observation(FAULT, 3, ("tied",))))
    (finding,) = judge(run_dir, Broken())
    assert (finding.tensor, finding.first_step, finding.last_step) == ("tied", 3, 5)
    assert finding.severity is Severity.INFO


def test_what_became_known_after_the_last_step_is_reported(run_dir: Path) -> None:
    train(run_dir, once(6, Observation(FAULT, 6, ("tied",))))
    (finding,) = check(run_dir, [Broken()], record=False).findings
    assert finding.message == "('tied',)"


def test_observations_of_one_name_are_one_finding_that_gets_worse(
    run_dir: Path,
) -> None:
    def at_step(i: int, observe: Observe) -> None:
        if i == 1:
            observe(Observation(FAULT, 1, ("tied", "a")))
        if i == 4:
            observe(Observation(FAULT, 4, ("tied", "b"), {"distance": 2.0}))

    train(run_dir, at_step)
    (finding,) = judge(run_dir, Broken())
    assert (finding.first_step, finding.severity) == (1, Severity.WARNING)
    assert finding.message == "('tied', 'b')"


def test_the_same_is_written_once(run_dir: Path) -> None:
    train(run_dir, lambda i, observe: observe(Observation(FAULT, i, ("tied",))))
    (seen,) = create_trial(run_dir).observations()
    assert seen == Observation(FAULT, 0, ("tied",))


def test_numbers_and_words_are_read_as_they_were_written(run_dir: Path) -> None:
    written = Observation(FAULT, 2, ("a", "b"), {"n": 2.0}, {"kind": "Adam"})
    train(run_dir, once(2, written))
    assert create_trial(run_dir).observations() == (written,)


def test_a_sound_training_has_no_finding(run_dir: Path) -> None:
    train(run_dir, lambda _i, _observe: None)
    report = check(run_dir, [Broken()], record=False)
    assert not report.findings
    assert create_trial(run_dir).observations() == ()


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"what": "observation", "fault": "no such fault", "step": 1},
        {"what": "observation", "fault": "broken_invariant", "step": "1"},
        {"what": "observation", "fault": ["broken_invariant"], "step": 1},
    ],
)
def test_what_is_no_observation_is_passed_over(document: dict[str, object]) -> None:
    assert Observation.from_json(document) is None


def test_odd_members_of_an_observation_are_left_out() -> None:
    document = {
        "what": "observation",
        "fault": "broken_invariant",
        "step": 1,
        "names": ["a", 3],
        "numbers": {"n": True, "m": 1},
        "words": {"w": 2, "v": "v"},
    }
    assert Observation.from_json(document) == Observation(
        FAULT, 1, ("a",), {"m": 1.0}, {"v": "v"}
    )


@functools.cache
def names_of_faults(folder: str) -> set[str]:
    """The faults that the sources in a folder of tdbg name."""
    sources = (Path(tdbg.__file__).parent / folder).rglob("*.py")
    text = "".join(each.read_text() for each in sources)
    return {*re.findall(r"\bFault\.([A-Z_]+)", text)}


@pytest.mark.parametrize("rule", [each for each in FAMILY if each.faults - {FAULT}])
def test_a_rule_names_the_hooks_that_look_for_its_faults(
    rule: type[ObservedRule],
) -> None:
    found = {
        hook
        for hook, folders in HOOKS.items()
        for folder in folders
        if names_of_faults(folder) & {each.name for each in rule.faults}
    }
    assert rule.hooks == found
