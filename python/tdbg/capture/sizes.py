"""What things take on the disk, in bytes: in their shard, and in its index.

Follows docs/format.md.  Exact for records; padding of blocks, and what is written
once (headers, definitions, events), is not in here.
"""

from __future__ import annotations

__all__ = [
    "ROW",
    "SCALAR",
    "head_bytes",
    "histogram_bytes",
    "step_bytes",
    "tensor_bytes",
]

_HEADER = 64
_CHUNK = 256 * 1024
_ENTRY = 64  # In the `index` record, for each record.
# A statistics row, and its copy in the column of its tensor.
ROW = 112 + 120
# A number, which is a record of its own, its entries in the index, and its posting.
SCALAR = 128 + _ENTRY + 32 + 4


def head_bytes(raw: int) -> int:
    """What stands before the data of a tensor of *raw* bytes, in its payload."""
    return _padded(64 + 16 * -(-raw // _CHUNK))


def tensor_bytes(raw: int, stored: int) -> int:
    """A `tensor` record of *raw* bytes that are *stored* as so many."""
    return _padded(_HEADER + head_bytes(raw) + stored) + _ENTRY + 48 + 4


def histogram_bytes(n_bins: int) -> int:
    """A `histogram` record of so many bins."""
    payload = 16 + (2 * n_bins + 7) // 8 * 8 + 8 * n_bins
    return _padded(_HEADER + payload) + 2 * _ENTRY


def step_bytes(n_rows: int) -> int:
    """The `step` record of a step and what its rows take as a record."""
    total = _padded(_HEADER + 88) + _ENTRY + 104
    if n_rows:
        rows = 112 * n_rows
        total += _padded(_HEADER + 16 + rows) - rows + _ENTRY + 48
    return total


def _padded(n_bytes: int) -> int:
    return (n_bytes + 63) // 64 * 64
