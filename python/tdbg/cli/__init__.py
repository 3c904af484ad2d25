"""The command line: ``tdbg VERB``.

Every verb but ``run`` takes ``--json`` and then prints one JSON document (``watch``:
one a line) and nothing else on standard output.  Exit codes, of every verb:

====  ==============================================================
0     done, and nothing wrong was found
1     done, and what was looked for is there: findings, or damage
2     the command line itself is wrong
3     the run cannot be read
130   Ctrl-C, before there was anything to tell
====  ==============================================================
"""

from __future__ import annotations

import importlib
from typing import Any

import click

from tdbg.cli.output import EXIT_INTERRUPTED, EXIT_UNREADABLE, flush, nobody_reads
from tdbg.errors import ConfigurationError, NotARun, TdbgError

__all__ = ["main"]

# Verbs are imported when they are called: `tdbg ls` must not load what `tdbg demo`
# needs.
VERBS = {
    "demo": "train on real digits, healthy and sick, watched live",
    "run": "run a training and capture it, without a change of its script",
    "ls": "list runs, or the tensors of a run",
    "show": "statistics over steps, or the values of a tensor",
    "check": "judge runs with rules; exit code 1 on findings",
    "watch": "judge runs while they train; may stop them",
    "rules": "list rules, what they need captured and what that costs",
    "new-rule": "write a rule of one's own to begin with, and its test",
    "attach": "let a running training capture something else for a while",
    "stop": "ask a training to stop",
    "export": "write a run as files of TensorBoard",
    "fsck": "verify every checksum of a run",
}


class _Verbs(click.Group):
    """A group that knows its verbs by name and loads them on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"tdbg.cli.{cmd_name.replace('-', '_')}")
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
            import difflib

            near = difflib.get_close_matches(name, VERBS, n=1)
            hint = f", did you mean {near[0]!r}?" if near else ""
            ctx.fail(f"there is no verb {name!r}{hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            try:
                return super().invoke(ctx)
            finally:
                flush()
        except KeyboardInterrupt:
            # Neither 0 nor what findings are told by; as a shell has it.
            click.echo(err=True)
            ctx.exit(EXIT_INTERRUPTED)
        except ConfigurationError as error:
            raise click.UsageError(str(error)) from error
        except TdbgError as error:
            click.echo(f"tdbg: {error}{self._hint(ctx, error)}", err=True)
            ctx.exit(EXIT_UNREADABLE)
        except OSError as error:  # As of a disk that is full: no fault of tdbg's.
            nobody_reads()
            click.echo(f"tdbg: {error}", err=True)
            ctx.exit(EXIT_UNREADABLE)

    @staticmethod
    def _hint(ctx: click.Context, error: TdbgError) -> str:
        """How to judge all runs of a folder, where a folder of runs was named."""
        if ctx.invoked_subcommand not in ("check", "watch"):
            return ""
        if not isinstance(error, NotARun) or not error.file:
            return ""
        from pathlib import Path

        from tdbg.run_directory import RUN_FILE, find_runs

        folder = Path(error.file).parent
        if Path(error.file).name != RUN_FILE or Path(error.file).exists():
            return ""
        if not find_runs(folder, depth=1):
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
