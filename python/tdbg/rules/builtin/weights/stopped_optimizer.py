"""StoppedOptimizer: optimizers that no longer step while the training goes on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tdbg.config.quantities import plural
from tdbg.rules.builtin.weights.model_state_rule import ModelStateRule
from tdbg.rules.registry import register
from tdbg.rules.window import Description, Evaluation, Idle
from tdbg.run.findings import Severity, Stage
from tdbg.run.model_info import ModelInfo

__all__ = ["StoppedOptimizer"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedOptimizer(ModelStateRule):
    """Report optimizers that no longer step although the model runs in training mode.

    The rule also reports those that never stepped by the end of a program that only
    evaluated the model.

    Args:
        num_steps: Steps for which this must have held.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO, Severity.WARNING)
    stage = Stage.RATE

    def on_idle(self, idle: Idle) -> Iterator[Evaluation]:
        """Judge a program that has ended, and may never have trained."""
        info = idle.model_info
        if not idle.ended or info is None or not info.never_trained:
            return
        severity = Severity.WARNING if info.empty_loader else Severity.INFO
        name = f"{next(iter(info.modules), 'model')}_output_0"
        yield idle.judge(name, severity, lambda: self._describe_never(info))

    def _describe_never(self, info: ModelInfo) -> Description:
        optimizers = ", ".join(info.optimizers)
        message = (
            f"The optimizer ({optimizers}) has never stepped: the program only "
            "evaluated the model."
        )
        if len(info.empty_loader) == 2:
            n_samples, size = info.empty_loader
            return Description(
                message=(
                    f"{message} A DataLoader has no batch: it has "
                    f"{plural(n_samples, 'sample')}, fewer than its batch size of "
                    f"{size:,}, and drop_last=True leaves them out."
                ),
                value=float(n_samples),
                threshold=float(size),
                since=0,
                advice=(
                    f"Set a batch size of at most {n_samples:,}, or drop_last=False. "
                    "An epoch without a batch trains nothing and raises nothing."
                ),
            )
        return Description(
            message=message,
            value=0.0,
            threshold=1.0,
            since=0,
            advice=(
                "If you meant to train, check that the loop over the training data has "
                "any batch (len(loader) > 0). If you only evaluate, ignore this."
            ),
        )

    def severity_of(self, model_info: ModelInfo) -> Severity:  # noqa: ARG002
        """Return the severity of an optimizer that stopped during the training."""
        return Severity.WARNING

    def holds(self, model_info: ModelInfo) -> bool:
        """Return whether the optimizers have stopped."""
        return model_info.has_stopped

    def describe(self, model_info: ModelInfo, since: int) -> Description:
        """Name the optimizers, and their last step."""
        optimizers = ", ".join(model_info.optimizers)
        # The first step is one that has ended.
        when = f"has not stepped since step {since:,}" if since else "has never stepped"
        return Description(
            message=(
                f"The optimizer ({optimizers}) {when} although the program calls the "
                "model in training mode, so the model does not learn."
            ),
            value=0.0,
            threshold=1.0,
            advice=lambda words: (
                f"Check why the program does not reach {words.stepping}: a condition "
                "on the iteration or epoch, a `continue`, or a caught exception. If "
                f"you only evaluate here, {words.evaluating}."
            ),
        )
