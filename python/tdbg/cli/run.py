"""``tdbg run``: capture a training without a change of its script."""

from __future__ import annotations

import contextlib
import datetime as dt
import difflib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Never

import click

from tdbg.actions import Action
from tdbg.capture.opening import refuse_unfit
from tdbg.cli.accounts import uploads_text
from tdbg.cli.output import console, plain
from tdbg.cli.report import print_report, report_judged, report_option
from tdbg.cli.rule_options import (
    STOPPING,
    ActionOptions,
    action_options,
    asked_to_stop,
    parse_rules,
    print_findings,
)
from tdbg.config.collections import CollectionRegistry
from tdbg.config.files import resolve
from tdbg.config.options import is_disabled, number_or_word, parse_budget
from tdbg.config.profiler import ProfilerConfig
from tdbg.config.quantities import plural
from tdbg.errors import NotARun, RunInUse, StorageError, TdbgError
from tdbg.launch import command_of, environment_of, reads_no_environment
from tdbg.launch.family import Family, Place, existing, family_of, in_use
from tdbg.launch.supervise import end_like, holding_signals, supervise, was_asked_to_end
from tdbg.remote import FollowedRun, check_url, is_url, ship_seconds, wait_until_sent
from tdbg.rules import Engine, Report, Rule, with_absolute_path
from tdbg.trial import create_trial, open_place
from tdbg.view import diagnosis_of_report
from tdbg.view.time import lines_at_end, time_of

__all__ = ["BackgroundJudge", "FamilyJudge", "command"]


POLL_SECONDS = 0.1
# A store is asked this often whether a run is there.
STORE_SECONDS = 1.0
# How long the engine may go on when the program has ended: a rule of the user may only
# be starting its process.
LAST_SECONDS = 60.0


class FamilyJudge:
    """Judges all runs of a launch, each by a ``BackgroundJudge``, as they appear.

    Args:
        runs: The runs of the launch.
        rules: The rules to judge by.
        make_actions: Makes the actions to take about findings, given a run.
        report_file: Where to write the report of the first run; those of further runs
            are beside it, numbered from 2.
    """

    def __init__(
        self,
        runs: Family,
        rules: Sequence[Rule],
        make_actions: Callable[[str], Sequence[Action]],
        report_file: str | None = None,
    ) -> None:
        self._report_file = report_file
        self._runs = runs
        self._rules = rules
        self._make_actions = make_actions
        self._judges: dict[Place, BackgroundJudge] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._follow, name="tdbg-runs", daemon=True
        )

    def start(self) -> None:
        """Start to look for runs."""
        self._thread.start()

    def finish(self) -> None:
        """Judge the rest of all runs when the program has ended; print the result.

        REQUIRES: ``holding_signals``, as of ``BackgroundJudge.finish``.
        """
        self._ended.set()
        self._thread.join()
        if not self._judges:
            print_line("no training was captured, so there was nothing to judge")
        for judge in self._judges.values():
            judge.finish()

    def _follow(self) -> None:
        while True:
            is_last = self._ended.is_set()
            for path in self._runs.appeared():
                if path not in self._judges:
                    self._judge(path)
            if is_last:
                return
            self._ended.wait(POLL_SECONDS)

    def _judge(self, path: Place) -> None:
        if self._judges:
            print_line(f"judging another training: {path}")
        run = str(path)
        actions = self._make_actions(run)
        judge = BackgroundJudge(run, self._rules, actions, self._next_report())
        self._judges[path] = judge
        judge.start()

    def _next_report(self) -> str | None:
        if self._report_file is None or not self._judges:
            return self._report_file
        first = Path(self._report_file)
        name = f"{first.stem}-{len(self._judges) + 1}{first.suffix}"
        return str(first.with_name(name))


class BackgroundJudge:
    """Judges a run in a thread, and prints findings on standard error.

    Errors of the judging are printed there too and never reach the program.

    Args:
        run: The directory of the run, or its URL.
        rules: The rules to judge by.
        actions: The actions to take about findings.
        report_file: Where to write the report at the end; None: nowhere.
    """

    def __init__(
        self,
        run: str,
        rules: Sequence[Rule],
        actions: Sequence[Action],
        report_file: str | None = None,
    ) -> None:
        self._run = run
        self._report_file = report_file
        self._rules = tuple(rules)
        self._actions = tuple(actions)
        self._out = console(stderr=True)
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._judge, name="tdbg-rules", daemon=True
        )

    def start(self) -> None:
        """Start judging."""
        self._thread.start()

    def finish(self) -> None:
        """Judge the rest of the run when the program has ended; print the result.

        REQUIRES: ``holding_signals``; a signal that asks tdbg to end ends the judging.
        """
        self._ended.set()
        deadline = time.monotonic() + LAST_SECONDS
        while self._thread.is_alive():
            if was_asked_to_end() or time.monotonic() > deadline:
                print_line("some steps were not judged: run tdbg check")
                return
            self._thread.join(POLL_SECONDS)

    def _judge(self) -> None:
        try:
            self._wait_for_store()
            engine = Engine(self._run, self._rules, self._actions)
            stopping = False
            for found in engine.follow(until=self._ended.is_set):
                documents = [finding.to_json() for finding in found]
                print_findings(documents, self._out, live=True, how="tdbg check --all")
                if not stopping and asked_to_stop(self._actions):
                    stopping = True
                    print_line(STOPPING)
            report = engine.finish()
        except TdbgError as error:
            print_line(f"tdbg no longer judges the run: {error}")
            return
        for note in report.notes:
            print_line(note)
        found_text = plural(len(report.findings), "finding")
        print_line(f"{report.judged} judged by rules: {found_text}")
        self._print_change(report)
        print_report(report_judged(self._run, self._report_file, report), self._out)

    def _wait_for_store(self) -> None:
        """Wait until a run at a URL can be read there, or the program has ended.

        Raises:
            TdbgError: If it cannot be read.
        """
        while is_url(self._run):
            is_last = self._ended.is_set()
            try:
                open_place(self._run)
            except (NotARun, StorageError) as error:
                if is_last or error.kind not in ("missing", "io"):
                    raise
                self._ended.wait(STORE_SECONDS)
            else:
                return

    def _print_change(self, report: Report) -> None:
        """Print the change that would make the training faster by most, if any."""
        with contextlib.suppress(TdbgError):
            with create_trial(self._run).no_refresh() as trial:
                lines = time_of(trial, diagnosis_of_report(report)).lines
            for line in lines[1:]:
                print_line(line)


class Delivery:
    """Waits until what a launch wrote to a store is there, and says what is.

    Args:
        runs: The runs of the launch.
        is_judged: As of ``lines_at_end``.
    """

    def __init__(self, runs: Family, *, is_judged: bool) -> None:
        self._runs = runs
        self._is_judged = is_judged
        self._rests: dict[str, str] = {}

    def wait(self) -> None:
        """Wait for what the program has left to be sent: a minute, or as long as told.

        REQUIRES: ``holding_signals``; a signal that asks tdbg to end ends the wait.
        """
        deadline = time.monotonic() + ship_seconds()
        asked: list[bool] = []

        def is_asked() -> bool:
            if not asked and was_asked_to_end():
                asked.append(True)
            return bool(asked)

        for url in map(str, self._runs.appeared()):
            left = max(0.0, deadline - time.monotonic())
            self._rests[url] = wait_until_sent(url, left, until=is_asked)

    def print(self) -> None:
        """Print what is in the store; last of all what is not."""
        rests = [rest for rest in self._rests.values() if rest]
        if len(self._rests) == 1 and not rests:
            with contextlib.suppress(TdbgError):
                for line in lines_at_end(*self._rests, is_judged=self._is_judged):
                    print_line(line)
        for url, rest in self._rests.items():
            if not rest:
                print_line(_sent(url))
        for rest in rests:
            print_line(rest)


def _sent(url: str) -> str:
    """How much of a run is in the store, all of which was sent."""
    try:
        found = FollowedRun(url).uploads()
    except TdbgError as error:  # Perhaps this machine may only write.
        return f"everything is at {url}, which cannot be read here: {error}"
    return f"{url} has {uploads_text(found)}"


def print_line(text: str) -> None:
    """Print a line of tdbg's own, beside the output of the program."""
    console(stderr=True).print(plain(f"tdbg: {text}"))


EXIT_NOT_FOUND = 127
EXIT_NOT_EXECUTABLE = 126


def _budget(
    _ctx: click.Context, _parameter: click.Parameter, value: str | None
) -> float | str | None:
    share = None if value is None else number_or_word(value)
    parse_budget(share)
    return share


def _profiler(
    _ctx: click.Context, _parameter: click.Parameter, value: str | None
) -> str | None:
    ProfilerConfig.of(True if value is None else value)
    return value


@click.command(
    "run",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option(
    "--out",
    type=click.Path(file_okay=False),
    help="The run directory, or a URL such as s3://bucket/run.  Default: that of "
    "TDBG_OUT or of the file of settings, or a directory in runs/ named by the time.",
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False),
    help="A file of settings, like TDBG_CONFIG.",
)
@click.option(
    "--rules",
    multiple=True,
    metavar="NAME",
    help="Capture what this rule needs, and judge by it if --on-finding is given; "
    "-NAME leaves one out; repeatable.  Default: 'default', all rules.",
)
@click.option(
    "--include", multiple=True, help="Another collection to capture; repeatable."
)
@click.option(
    "--statistics-interval",
    type=click.IntRange(min=1),
    help="Steps between statistics; default 10.",
)
@click.option(
    "--save-interval",
    type=click.IntRange(min=1),
    help="Steps between raw values: of --include or, without it, of all collections.",
)
@click.option(
    "--budget",
    metavar="SHARE",
    callback=_budget,
    help="Share of the training's time that capture may cost, such as 0.02, or 'off'; "
    "default 'auto': 0.05, over the first minute and from then on.  Without it, "
    "TDBG_BUDGET and the file of settings apply.",
)
@click.option(
    "--profiler",
    metavar="SETTINGS",
    callback=_profiler,
    help="What to record about time: 'off', 'on', or settings such as "
    "'system_interval=0.1,start_step=100,num_steps=5'.  Without it, TDBG_PROFILER and "
    "the file of settings apply.",
)
@action_options
@report_option
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def command(
    ctx: click.Context,
    out: str | None,
    config: str | None,
    rules: tuple[str, ...],
    include: tuple[str, ...],
    statistics_interval: int | None,
    save_interval: int | None,
    budget: float | str | None,
    profiler: str | None,
    actions: ActionOptions,
    report_file: str | None,
    program: tuple[str, ...],
) -> None:
    """Run PROGRAM and capture the training in it.

    PROGRAM replaces tdbg, so input, output, signals and exit code are its own.
    With --on-finding, --actions or --report, rules judge the run meanwhile.  With a
    URL, tdbg waits at the end until everything is in the store.

        tdbg run -- python train.py --epochs 3

        tdbg run --rules default --on-finding stop -- python train.py

        tdbg run --out runs/digits -- torchrun --nproc-per-node 2 train.py

        tdbg run --out s3://bucket/digits -- python train.py
    """
    _refuse_option(ctx, program[0])
    chosen = parse_rules(rules)
    CollectionRegistry(include)
    arguments = command_of(program)
    if is_disabled():
        print_line("nothing will be captured: TDBG_DISABLED is set")
        _become(ctx, arguments, dict(os.environ))
    out = _place_of(out, config)
    path = check_url(out) if is_url(out) else str(Path(out).absolute())
    _refuse_if_in_use(path)
    is_judged = bool(actions) or report_file is not None
    settings: dict[str, Any] = {
        "out_dir": path,
        "existing": existing(path),
        # The program may change its directory before it makes a hook.
        "rules": [with_absolute_path(rule) for rule in rules] or None,
        "include_collections": list(include),
        "statistics_interval": statistics_interval,
        "save_interval": save_interval,
        "budget": budget,
        "profiler": profiler,
        "is_judged": is_judged,
    }
    _say_if_nothing_is_captured(arguments)
    if is_judged:  # Bad actions are refused before anything is printed or started.
        actions.make(out, chosen, checks_only=True)
    click.echo(f"tdbg: writing the run to {out}", err=True)
    if not is_judged and not is_url(out):
        _become(ctx, arguments, _environment(settings, config))
    with _claims(settings), _exit_code_of_a_shell(ctx, arguments[0]):
        runs = family_of(settings)
        judge = delivery = None
        if is_judged:
            judge = FamilyJudge(
                runs, chosen, lambda run: actions.make(run, chosen), report_file
            )
        if is_url(out):
            delivery = Delivery(runs, is_judged=is_judged)
        status = _attended(arguments, _environment(settings, config), judge, delivery)
    end_like(status)


def _environment(settings: Mapping[str, Any], config: str | None) -> dict[str, str]:
    """The environment of the program."""
    environment = environment_of(settings, os.environ)
    if config is not None:
        environment["TDBG_CONFIG"] = str(Path(config).absolute())
    return environment


@contextlib.contextmanager
def _claims(settings: dict[str, Any]) -> Iterator[None]:
    """Make the folder by which processes share out the URLs of a launch."""
    if not is_url(settings["out_dir"]):
        yield
        return
    with tempfile.TemporaryDirectory(
        prefix="tdbg-launch-", ignore_cleanup_errors=True
    ) as folder:
        settings["claims"] = folder
        yield


def _attended(
    arguments: list[str],
    environment: dict[str, str],
    judge: FamilyJudge | None,
    delivery: Delivery | None,
) -> int:
    """Run the program as a child; judge its runs, and see them into the store."""
    with holding_signals() as before:
        if judge is not None:
            judge.start()
        status = supervise(arguments, environment, before)
        if delivery is not None:
            delivery.wait()
        if judge is not None:
            judge.finish()
        if delivery is not None:
            delivery.print()
        return status


def _place_of(out: str | None, config: str | None) -> str:
    """Return where the run is to be: by the option, the variable or the file.

    The settings of all sources are checked, before the program starts.

    Raises:
        ConfigurationError: If they cannot be obeyed there.
    """
    time_now = dt.datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    defaults = {"out_dir": Path("runs") / time_now}
    found = resolve({"out_dir": out}, defaults, config)
    refuse_unfit(found.out_dir, found.retention, found.spool_bytes)
    return str(found.out_dir)


def _say_if_nothing_is_captured(arguments: list[str]) -> None:
    """Say so if an option of Python keeps tdbg out of the program."""
    option = reads_no_environment(arguments)
    if option is not None:
        print_line(
            f"nothing will be captured: with {option}, Python ignores PYTHONPATH, "
            f"which tdbg needs to enter the program"
        )


def _become(
    ctx: click.Context, arguments: list[str], environment: dict[str, str]
) -> Never:
    """Let the program take the place of this process."""
    with _exit_code_of_a_shell(ctx, arguments[0]):
        os.execvpe(arguments[0], arguments, environment)  # noqa: S606
    raise AssertionError


@contextlib.contextmanager
def _exit_code_of_a_shell(ctx: click.Context, program: str) -> Iterator[None]:
    """End as a shell does if the program cannot be started."""
    try:
        yield
    except OSError as error:
        click.echo(f"tdbg: {program}: {error.strerror}", err=True)
        is_missing = isinstance(error, FileNotFoundError)
        ctx.exit(EXIT_NOT_FOUND if is_missing else EXIT_NOT_EXECUTABLE)


def _refuse_option(ctx: click.Context, word: str) -> None:
    """Refuse what begins the program and is an option that tdbg does not have.

    Raises:
        click.NoSuchOption: If it is one.
    """
    if word.startswith("-") and word != "-m":
        option = word.partition("=")[0]
        known = [name for each in ctx.command.params for name in each.opts]
        raise click.NoSuchOption(
            option, possibilities=difflib.get_close_matches(option, known), ctx=ctx
        )


def _refuse_if_in_use(out: Place) -> None:
    """Raise if a training writes to the run that this launch would write to.

    Raises:
        RunInUse: If one does.
    """
    found = in_use(out)
    if found is not None:
        where = "" if found.is_here else " of another machine"
        msg = (
            f"{out} is in use: process {found.process}{where} is training and writes "
            f"to it. Give another --out, or end that training first"
        )
        raise RunInUse(msg, file=str(out), kind="in_use")
