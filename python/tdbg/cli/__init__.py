"""The command line: ``tdbg VERB``.

Every verb but ``run`` and ``ui`` takes ``--json`` and then prints one JSON document
(``watch``: one for each line) and nothing else on standard output.  The exit codes of
all verbs:

====  ==============================================================
0     done, and nothing is wrong
1     done, and something is wrong: findings, damage, or a difference
2     the command line is wrong
3     the run cannot be read
4     tdbg itself failed, or a rule did
130   Ctrl-C, before there was a result
====  ==============================================================
"""

from __future__ import annotations

import importlib
import keyword
import traceback
from typing import Any

import click

from tdbg.cli.output import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_UNREADABLE,
    discard_output,
    flush,
)
from tdbg.config.messages import nearest
from tdbg.errors import ConfigurationError, NotARun, TdbgError

__all__ = ["main"]

# Verbs are imported when they are called: `tdbg ls` must not load what `tdbg demo`
# needs.
VERBS = {
    "demo": "train on real digits, healthy and sick, watched live",
    "run": "run a training and capture it, without changing its script",
    "ls": "list runs, or the tensors of a run",
    "sql": "ask one or many runs in SQL",
    "show": "show statistics over steps, or a tensor's values",
    "check": "judge runs with rules; exit code 1 on findings",
    "watch": "judge runs while they train; may stop them",
    "top": "show runs on the whole screen as they train: losses, findings, layers",
    "rules": "list rules, what they need captured and what that costs",
    "new-rule": "write a skeleton for your own rule, and its test",
    "stacks": "show where all ranks and loader workers are, also if they hang",
    "attach": "make a running training capture more for a while",
    "profile": "time some steps of a running training by operator and function",
    "learn": "learn from healthy runs what other runs are compared with",
    "stop": "ask a training to stop",
    "diff": "show where two runs part: the first tensor that differs",
    "report": "write a run, or two side by side, as one HTML file",
    "cost": "say what a run has cost, and which machines would have cost less",
    "export": "write a run as files of other tools: values, rows, timelines",
    "bridge": "forward a run to an experiment tracker: W&B, MLflow, Trackio",
    "import": "make a run of what another tool wrote: smdebug",
    "ship": "send a run to an object store, or go on where a crash ended that",
    "ui": "show runs live in the browser: losses, findings, all layers",
    "docs": "show the pages of the manual",
    "fsck": "verify every checksum of a run, and that nothing is missing",
    "gc": "remove old data from runs, and keep what you say",
    "rm": "remove runs",
}


def module_of(verb: str) -> str:
    """Return the module of a verb; a keyword of Python has a ``_`` at its end."""
    name = verb.replace("-", "_")
    return f"tdbg.cli.{name}_" if keyword.iskeyword(name) else f"tdbg.cli.{name}"


class _Verbs(click.Group):
    """A group that knows its verbs by name and loads them on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(module_of(cmd_name))
        command: click.Command = module.command
        return command

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002
        formatter: click.HelpFormatter,
    ) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = click.utils.make_str(args[0])
        if name not in VERBS and not name.startswith("-"):
            ctx.fail(f"there is no verb {name!r}; {nearest(name, VERBS)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            try:
                return super().invoke(ctx)
            finally:
                flush()
        except KeyboardInterrupt:
            # Neither 0 nor the code of findings: that of shells.
            click.echo(err=True)
            ctx.exit(EXIT_INTERRUPTED)
        except ConfigurationError as error:
            raise click.UsageError(str(error)) from error
        except TdbgError as error:
            click.echo(f"tdbg: {error}{self._hint(ctx, error)}", err=True)
            ctx.exit(EXIT_UNREADABLE)
        except OSError as error:  # Such as a full disk: not tdbg's fault.
            discard_output()
            click.echo(f"tdbg: {error}", err=True)
            ctx.exit(EXIT_UNREADABLE)
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except Exception as error:
            # Python's own exit code of a crash is that of findings.
            click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
            what = str(error) or type(error).__name__
            click.echo(f"tdbg failed because of a bug in tdbg: {what}", err=True)
            ctx.exit(EXIT_FAILED)

    @staticmethod
    def _hint(ctx: click.Context, error: TdbgError) -> str:
        """Propose how to judge all runs of a folder, if the user named the folder."""
        if ctx.invoked_subcommand not in ("check", "watch"):
            return ""
        if not isinstance(error, NotARun) or not error.file:
            return ""
        from pathlib import Path

        from tdbg.run.directory import RUN_FILE, find_runs

        folder = Path(error.file).parent
        try:
            if Path(error.file).name != RUN_FILE or Path(error.file).exists():
                return ""
            if not find_runs(folder, depth=1):
                return ""
        except (OSError, TdbgError):  # The error says what is wrong; this is a hint.
            return ""
        verb = f"tdbg {ctx.invoked_subcommand} '{folder}/*'"
        return f" To judge all of them: {verb}"


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tdbg", message="tdbg %(version)s")
def _tdbg() -> None:
    """Find out what is wrong with a training while it trains."""


def main() -> None:
    """Run the command line and exit with its code."""
    _tdbg(prog_name="tdbg")
