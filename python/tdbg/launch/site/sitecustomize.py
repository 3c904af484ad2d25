"""Runs first in every Python process below ``tdbg run``; see ``tdbg.launch``.

Every Python reads this file, 2.7 among them: programs start tools by other Pythons.
First comes the user's own ``sitecustomize``, which this one hides, as if it were alone;
then the search for trainings (``tdbg_search``), where Python is new enough.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
# The oldest Python that can read the search.
_OLDEST = (3, 6)


def _search():  # type: ignore[no-untyped-def]
    """Return the search of this process, or None."""
    if sys.version_info >= _OLDEST:
        import tdbg_search

        del sys.modules["tdbg_search"]  # The program has no module more than without.
        return tdbg_search.search()
    if os.environ.get("TDBG_LAUNCH_PID") == str(os.getpid()):
        sys.stderr.write(
            "tdbg: nothing is captured: tdbg needs Python 3.11, and "
            "{} is older\n".format(sys.executable)
        )
    return None


def _run_users_own():  # type: ignore[no-untyped-def]
    """Run the ``sitecustomize`` that would have been found without this one."""
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _HERE]
    this = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        # Python 2.7 has no name, and keeps silent about all of them.
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = this


_found = _search()  # type: ignore[no-untyped-call]
try:
    _run_users_own()  # type: ignore[no-untyped-call]
finally:
    if _found is not None:
        _found.begin()
