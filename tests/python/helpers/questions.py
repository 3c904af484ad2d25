"""Every question to a trial that names nothing."""

from __future__ import annotations

from tdbg.trial import Trial


def ask_everything(trial: Trial) -> None:
    """Every question that does not name something; none may fail."""
    for name in trial.tensor_names():
        tensor = trial.tensor(name)
        for step in tensor.steps():
            tensor.stats(step)
            tensor.shape(step)
    trial.statistics()
    trial.step_table()
    trial.findings()
    trial.rule_statuses()
    trial.collections()
    trial.configuration()
    trial.counters()
    trial.scalars()
    trial.modes()
    trial.events()
    trial.problems()
