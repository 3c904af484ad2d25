"""Waits in a process below ``tdbg run`` until a framework is imported.

It imports nothing that the interpreter has not loaded already.  Python 3.6 reads it: a
program that trains by a Python without tdbg hears at its framework's import that
nothing is captured.
"""

import atexit
import os
import sys
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# What is searched for, by the names of their packages.
_FRAMEWORKS = (
    "torch",
    "keras",
    "xgboost",
    "lightgbm",
    "catboost",
    "jax",
    "mxnet",
)
# Libraries of JAX, in which its search goes on when they are imported.
_LIBRARIES = ("flax.nnx", "equinox", "optax")
# The process that searches first; what it starts are further trainings, if they train.
_FIRST = "TDBG_LAUNCH_FIRST"
# Programs that only start others, which train: the module, or the script's name.
_LAUNCHERS = {
    "accelerate-launch",
    "accelerate.commands.launch",
    "deepspeed",
    "deepspeed.launcher.launch",
    "deepspeed.launcher.runner",
    "torch.distributed.launch",
    "torch.distributed.run",
    "torchrun",
}
_LAUNCHERS_BY_VERB = {"accelerate", "accelerate.commands.accelerate_cli"}


def _is_launcher() -> bool:
    """Whether the program of this process starts what trains, and trains nothing."""
    # Python 3.10 was the first to have it.
    words = iter(getattr(sys, "orig_argv", ())[1:])
    program = ""
    for word in words:
        if word in {"-W", "-X", "--check-hash-based-pycs"}:
            next(words, None)
        elif word == "-m":
            program = next(words, "")
            break
        elif not word.startswith("-"):
            program = os.path.basename(word)  # noqa: PTH119
            break
    if program in _LAUNCHERS_BY_VERB:
        return next(words, "") == "launch"
    return program in _LAUNCHERS


def _claim_first() -> bool:
    """Whether this is the first process, or a rank that a launcher has started."""
    own = str(os.getpid())
    if os.environ.setdefault(_FIRST, own) == own:
        return True
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


class _Finder:
    """Begins the search for trainings when a framework has been imported.

    It stays until that has been executed: programs ask ``importlib.util.find_spec``
    whether there is a torch long before they import it, if they ever do.  A framework
    that a finder before it has found by itself is noticed at the next import of all.

    Args:
        framework: Name of the framework's package.
        is_first: As of ``_claim_first``.
    """

    def __init__(self, framework: str, is_first: bool) -> None:
        self.framework = framework
        self._is_first = is_first
        self._asking: set[int] = set()
        self.has_begun = False

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != self.framework:
            if not self.has_begun and self.is_imported():
                self._search()  # Not begin(): the list of finders is in use.
            return None
        if self.has_begun or get_ident() in self._asking:
            return None
        self._asking.add(get_ident())  # Other finders may ask all finders in turn, too.
        try:
            spec = self._ask_others(name, path, target)  # type: ignore[no-untyped-call]
        finally:
            self._asking.discard(get_ident())
        loader: Any = getattr(spec, "loader", None)
        while hasattr(loader, "__wrapped__"):  # A proxy would have us call ourselves.
            loader = loader.__wrapped__
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return spec

        def execute_and_begin(module):  # type: ignore[no-untyped-def]
            execute(module)
            self.begin()

        loader.exec_module = execute_and_begin
        return spec

    def _ask_others(self, name, path, target):  # type: ignore[no-untyped-def]
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                return spec
        return None

    def is_imported(self) -> bool:
        """Whether the framework is there, and as a whole.

        Asking a module that ``importlib.util.LazyLoader`` has made would load it.
        """
        module = sys.modules.get(self.framework)
        try:
            spec = object.__getattribute__(module, "__spec__")
        except AttributeError:
            return False
        is_lazy = type(module).__name__ == "_LazyModule"
        return not (is_lazy or spec is None or getattr(spec, "_initializing", False))

    def begin(self) -> None:
        """Begin the search, once, and look for no imports any more."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self._search()

    def _search(self) -> None:
        if self.has_begun:
            return
        self.has_begun = True
        try:
            if self.framework == "torch":
                from tdbg.launch.discovery import begin

                begin(is_first=self._is_first)
            elif self.framework == "keras":
                from tdbg.launch import fitting

                fitting.begin(is_first=self._is_first)
            elif self.framework == "jax":
                from tdbg.launch import compiled

                compiled.begin(is_first=self._is_first)
            elif self.framework in _LIBRARIES:
                from tdbg.launch import compiled

                compiled.library_imported(self.framework)
            elif self.framework == "mxnet":
                from tdbg.launch import gluon

                gluon.begin(is_first=self._is_first)
            else:
                from tdbg.launch import boosting

                boosting.begin(self.framework, is_first=self._is_first)
        except Exception as error:  # noqa: BLE001, RUF100 - the script runs as without us
            _print_why(error)


def _explain(finders: "list[_Finder]") -> None:
    """Say at the end why nothing was captured, if no framework was ever imported."""
    # After an interrupt any import would change how the interpreter ends.
    if getattr(sys, "last_type", None) is KeyboardInterrupt:
        return
    if any(finder.has_begun for finder in finders):
        return
    hidden = [finder.framework for finder in finders if finder.is_imported()]
    if hidden:
        sys.stderr.write(
            f"tdbg: nothing was captured: {hidden[0]} was imported by an import hook "
            "of the program, which hides all others\n"
        )
        return
    try:
        from tdbg.launch.summary import explain_no_framework

        explain_no_framework()
    except Exception as error:  # noqa: BLE001, RUF100
        _print_why(error)


def _print_why(error: Exception) -> None:
    """Print why the search cannot be made in this process."""
    why = repr(error)
    if isinstance(error, ModuleNotFoundError) and error.name == "tdbg":
        why = f"tdbg is not installed for {sys.executable or 'the Python'} that runs it"
    sys.stderr.write(f"tdbg: nothing is captured: {why}\n")


class Search:
    """The search for trainings in this process.

    Make it before anything else runs: what a ``sitecustomize`` of the user starts is
    not the first process.
    """

    def __init__(self) -> None:
        self._is_first = _claim_first()

    def begin(self) -> None:
        """Wait for frameworks, before all finders that there are.

        One that finds a framework by itself would hide it from all that come after it.
        """
        names = (*_FRAMEWORKS, *_LIBRARIES)
        finders = [_Finder(name, self._is_first) for name in names]
        for finder in finders:
            if finder.framework in sys.modules:  # Imported by a .pth file, for example.
                finder.begin()
            else:
                sys.meta_path.insert(0, finder)
        # Of a shell script nobody knows which of its processes was meant to train.
        if self._is_first and os.environ.get("TDBG_LAUNCH_PID") in {
            str(os.getpid()),
            str(os.getppid()),
        }:
            atexit.register(_explain, finders)


def search() -> "Search | None":
    """Return the search of this process; None: it does not search."""
    if os.environ.get("TDBG_DISABLED", "0") in {"", "0"} and not _is_launcher():
        return Search()
    return None
