"""Which rank of a training this process is, and the store that its ranks share.

Thread safety: pure functions; ``StoreBoard`` as the store of PyTorch, which locks.

Errors: variables of the environment that make no sense raise ConfigurationError;
a store that fails raises RuntimeError.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import distributed

from tdbg.errors import ConfigurationError

__all__ = ["StoreBoard", "launch", "place", "same_on_all"]

# Variables of rank and number of ranks; the first pair that is there counts.  Those
# marked may stand alone: their launchers also set one of them around a training.
_PLACES = (
    ("RANK", "WORLD_SIZE", False),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", False),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", False),
    ("PMI_RANK", "PMI_SIZE", False),
    ("SLURM_PROCID", "SLURM_NTASKS", True),
)
# What launchers call one start of a training.
_LAUNCHES = (
    ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
    ("SLURM_JOB_ID", "SLURM_STEP_ID"),
)

_boards: Counter[str] = Counter()  # How many of each name were made.


def place(environment: Mapping[str, str] | None = None) -> tuple[int, int]:
    """Rank of this process in its training, and how many there are.

    As ``torch.distributed`` says, if it is initialized; else as the launcher's
    variables do: torchrun's, those of MPI, Slurm's.  Without any: 0 of 1.

    Args:
        environment: The variables; None: those of the process.

    Raises:
        ConfigurationError: If the variables contradict each other, or one of a pair
            is missing.
    """
    if _is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    variables = os.environ if environment is None else environment
    for rank_name, size_name, may_be_alone in _PLACES:
        rank, size = variables.get(rank_name), variables.get(size_name)
        if rank is None and size is None:
            continue
        if rank is None or size is None:
            if may_be_alone:
                continue
            there, missing = rank_name, size_name
            if rank is None:
                there, missing = missing, there
            msg = (
                f"{there}={variables[there]!r} is set and {missing} is not: set both, "
                f"or neither, or make the hook after init_process_group"
            )
            raise ConfigurationError(msg)
        found = _number(rank_name, rank), _number(size_name, size)
        if not found[0] < found[1]:
            msg = (
                f"{rank_name}={rank} is not below {size_name}={size}: "
                f"ranks are counted from 0"
            )
            raise ConfigurationError(msg)
        return found
    return 0, 1


def same_on_all(name: str, value: str) -> str:
    """The value that the first rank to ask gave, where the ranks can agree on it."""
    try:
        return StoreBoard(name).settle("value", value)
    except (OSError, RuntimeError):
        return value


def launch(environment: Mapping[str, str] | None = None) -> str:
    """What the launcher calls this start of the training; empty where it does not.

    The same on all ranks; not always another one at the next start.
    """
    variables = os.environ if environment is None else environment
    for names in _LAUNCHES:
        if names[0] in variables:
            return "/".join(variables.get(name, "") for name in names)
    return ""


class StoreBoard:
    """Notes that ranks leave for each other in the default store of PyTorch.

    It may be made before ``init_process_group``: until then nothing can be posted,
    and nobody has.

    Args:
        name: What it is about, the same on all ranks: the run's directory as it was
            given.  Of several of one name the first on each rank are one board, and
            so on.
    """

    def __init__(self, name: str) -> None:
        self._prefix = f"tdbg/{name}/{_boards[name]}"
        _boards[name] += 1
        self._asked: Any = None  # An event of the device.

    def post(self, key: str, value: bytes) -> None:
        """Put the value there; whoever looks from now on sees it.

        Raises:
            RuntimeError: If there is no store, or it failed.
        """
        store = self._find()
        if store is None:
            msg = "there is no process group"
            raise RuntimeError(msg)
        store.set(self._name(key), value)

    def look(self, key: str) -> bytes | None:
        """The value, or None where nobody has posted one.

        Raises:
            RuntimeError: If the store failed.
        """
        store = self._find()
        if store is None or not store.check([self._name(key)]):
            return None
        return bytes(store.get(self._name(key)))

    def settle(self, key: str, value: str) -> str:
        """The value of whoever was first to settle this: this one, or another's.

        Raises:
            RuntimeError: If there is no store, or it failed.
        """
        store = self._find()
        if store is None:
            msg = "there is no process group"
            raise RuntimeError(msg)
        return bytes(store.compare_set(self._name(key), "", value)).decode()

    def keep_pace(self) -> bool:
        """Wait for what this rank had asked of its device before the last such call.

        Collective operations of a device are far behind those who asked for them;
        so far, and no farther.

        Returns:
            Whether there is such a device.

        Raises:
            RuntimeError: If the device failed.
        """
        cuda: Any = torch.cuda
        if not cuda.is_initialized():
            return False
        if not cuda.is_current_stream_capturing():
            before, self._asked = self._asked, cuda.Event(blocking=True)
            self._asked.record()
            if before is not None:
                before.synchronize()
        return True

    def _name(self, key: str) -> str:
        return f"{self._prefix}/{key}"

    @staticmethod
    def _find() -> Any:
        """The store; None while there is none."""
        # Looked for each time: a store that is kept outlives its process group.
        if not _is_initialized():
            return None
        # There is no public way to it, and every backend has one.
        find = getattr(distributed.distributed_c10d, "_get_default_store", None)
        return None if find is None else find()


def _is_initialized() -> bool:
    return distributed.is_available() and distributed.is_initialized()


def _number(name: str, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        msg = f"{name}={text!r} is no number of ranks: whole, and not negative"
        raise ConfigurationError(msg)
    return number
