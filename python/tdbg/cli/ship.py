"""``tdbg ship``: send a run to an object store, or go on where a crash ended that."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, DownloadColumn, TextColumn
from rich.progress import Progress as Bar

from tdbg.cli import options
from tdbg.cli.output import EXIT_FOUND, console, emit_json, n_bytes, plain
from tdbg.errors import ConfigurationError, RunInUse
from tdbg.remote import Progress, Uploader, lead_spool, spool_url
from tdbg.run.directory import open_run

__all__ = ["command"]


@click.command("ship")
@options.run
@click.argument("url", required=False)
@click.option("--follow", is_flag=True, help="Go on until the training has ended.")
@options.as_json
@click.pass_context
def command(
    ctx: click.Context, run: str, url: str | None, follow: bool, as_json: bool
) -> None:
    """Send RUN to URL, as in s3://bucket/run.

    RUN is a run on this machine, or the spool of one that was written to a URL: what
    tdbg could not send is sent, and then deleted here. URL is needed for a run only.
    What is there already is not sent again.
    """
    path = open_run(run).path
    target = spool_url(path)
    if url is None and target is None:
        msg = f"{run} was not written to a URL: say where to send it, tdbg ship RUN URL"
        raise ConfigurationError(msg)
    with _alone(path, is_spool=target is not None):
        uploader = Uploader(path, url or str(target), empties=target is not None)
        uploader.prepare()
        with _bar(path) as tell:
            is_whole = uploader.run(tell=tell) if follow else _once(uploader, tell)
    progress = uploader.progress()
    if as_json:
        emit_json(_as_json(run, uploader, progress, is_whole=is_whole))
    else:
        _print(uploader.url, progress)
    if uploader.refused:
        ctx.exit(EXIT_FOUND)


@contextlib.contextmanager
def _alone(path: Path, *, is_spool: bool) -> Iterator[None]:
    """Be the only one who sends a spool."""
    if not is_spool:
        yield
        return
    with lead_spool(path) as is_mine:
        if not is_mine:
            msg = f"a process of this machine is sending {path} at this moment"
            raise RunInUse(msg, file=str(path), kind="in_use")
        yield


def _once(uploader: Uploader, tell: Callable[[Progress], None]) -> bool:
    """Send what is complete by now; whether that is all, because it has ended."""
    with ThreadPoolExecutor(thread_name_prefix="tdbg-upload") as pool:
        while True:
            is_done = uploader.step(pool)
            progress = uploader.progress()
            tell(progress)
            if is_done or not progress.pending_bytes:
                return is_done
            uploader.pause()


@contextlib.contextmanager
def _bar(path: Path) -> Iterator[Callable[[Progress], None]]:
    """A bar on standard error, if that is a terminal, and what moves it."""
    out = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Bar(*columns, console=out, transient=True, disable=not out.is_terminal) as bar:
        task = bar.add_task(path.name, total=None)

        def tell(progress: Progress) -> None:
            total = progress.n_bytes + progress.pending_bytes
            words = progress.error or path.name
            bar.update(task, total=total, completed=progress.n_bytes, description=words)

        yield tell


def _as_json(
    run: str, uploader: Uploader, progress: Progress, *, is_whole: bool
) -> dict[str, Any]:
    return {
        "run": run,
        "url": uploader.url,
        "complete": is_whole and not uploader.refused,
        "files": progress.n_files,
        "bytes": progress.n_bytes,
        "writers": progress.writers,
        "uploads": progress.uploads,
    }


def _print(url: str, progress: Progress) -> None:
    out = console()
    counts = progress.uploads
    size = n_bytes(progress.n_bytes)
    out.print(plain(f"{url} has {progress.n_files} files, {size}"))
    if counts["failures"]:
        out.print(
            plain(f"{counts['failures']} of {counts['requests']} requests failed")
        )
    for name, state in progress.writers.items():
        if state == "open":
            out.print(plain(f"{name} still writes: --follow sends the rest"))
        elif state not in ("closed", "dead"):
            out.print(plain(f"{name} was not sent: {state}"))
