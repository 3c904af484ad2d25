"""A plugin of pytest-xdist: file by file, and a worker that dies loses one test.

``--dist loadfile`` of pytest-xdist 3.8 waits for ever after a worker has died: files
that the worker had finished are given to the next one as work, which then answers
nothing, and a worker that has a single test left does not begin it before it knows
what follows.  (pytest-xdist issues 1323 and 1327; and the test that killed the worker
is run again, and kills the next one: pull request 1371.)
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import pytest


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def remove_node(self, node: Any) -> str | None:
            """Give what a dead worker had to the others, but what it died of."""
            left = {
                file: [test for test, is_done in unit.items() if not is_done]
                for file, unit in self.assigned_work.pop(node).items()
            }
            crashed = next((tests[0] for tests in left.values() if tests), None)
            for file, tests in left.items():
                again = dict.fromkeys((t for t in tests if t != crashed), False)
                if again:
                    self.workqueue[file] = again
            for other in self.nodes:
                self._reschedule(other)
            return crashed

        def _reschedule(self, node: Any) -> None:
            """Give a worker the next files, so that it always knows what follows."""
            # One that was started in the place of another first collects.
            if node.shutting_down or node not in self.registered_collections:
                return
            while self.workqueue and self._pending_of(self.assigned_work[node]) <= 2:
                # One that has just died keeps them until that is noticed.
                with contextlib.suppress(OSError):
                    self._assign_work_unit(node)
            if not self.workqueue:
                node.shutdown()

    return ByFile(config, log)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Have forked children let go of the pipe to xdist's controller.

    The controller notices that a worker has died when nobody holds the other end of
    that pipe any more.
    """
    if hasattr(session.config, "workerinput"):
        plugins = session.config.pluginmanager.get_plugins()
        (channel,) = {p.channel for p in plugins if hasattr(p, "channel")}
        pipes = channel.gateway._io
        os.register_at_fork(after_in_child=lambda: _let_go(pipes))


def _let_go(pipes: Any) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for end in (pipes.infile, pipes.outfile):
        os.dup2(nowhere, end.fileno(), inheritable=False)
    os.close(nowhere)
