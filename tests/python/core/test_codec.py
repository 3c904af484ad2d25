"""Codecs: every policy stores a training so that it comes back bit by bit, and a
third party decodes it with the lines of docs/format.md.

Seen to fail when: planes are joined in another order; a rotated element is not
turned back; a tensor of a new shard refers to the shard before; a backlog changes
nothing.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import reference_codecs
from reference_reader import Reader
from run_builder import RunBuilder
from tdbg import _core
from tdbg.config import Role
from tdbg.errors import ConfigurationError, StorageError

POLICIES = ("none", "auto", "max")
WEIGHT, GRADIENT, OUTPUT = 1, 3, 5
random = np.random.default_rng(0)
CONTENTS: dict[str, NDArray[Any]] = {
    "float32": random.normal(0, 0.02, 100_003).astype(np.float32),
    "float64": random.normal(0, 0.02, 50_001),
    "float16": random.normal(0, 0.02, 80_001).astype(np.float16),
    "bfloat16": random.normal(0, 0.02, 200_001).astype(ml_dtypes.bfloat16),
    "complex64": random.normal(0, 1, 60_000).astype(np.complex64),
    "relu": np.maximum(random.normal(0, 1, 150_000), 0).astype(np.float32),
    "rounded": random.normal(0, 1, 150_000)
    .astype(ml_dtypes.bfloat16)
    .astype(np.float32),
    "special": np.tile(
        np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-45], np.float32), 2000
    ),
    "tokens": random.integers(0, 50_000, 70_000),
    "mask": random.random(90_000) < 0.01,
    "noise": random.integers(0, 256, 300_000, dtype=np.uint8),
    "zeros": np.zeros(100_000, np.float32),
}


def encode(codec: _core.TensorCodec, array: NDArray[Any], **options: Any) -> bytes:
    """The payload of a `tensor` record."""
    out = bytearray(array.nbytes + 16 * (array.nbytes >> 18) + 256)
    raw = array.view(np.uint8)
    length = codec.encode(raw, out, array.dtype.name, **options)
    return bytes(out[:length])


def chunks(payload: bytes) -> list[tuple[int, int, int, bytes]]:
    """Codec, flags, raw length and stored bytes of each chunk."""
    size, raw = struct.unpack_from("<IQ", payload, 12)
    n, at = struct.unpack_from("<II", payload, 32)
    found = []
    for i in range(n):
        stored, _, codec, flags = struct.unpack_from("<IIBB", payload, 64 + 16 * i)
        length = min(size, raw - i * size)
        found.append((codec, flags, length, payload[at : at + stored]))
        at += stored
    return found


def base_of(payload: bytes) -> int:
    return int(struct.unpack_from("<Q", payload, 24)[0])


def by_reference(payload: bytes, base: bytes = b"") -> bytes:
    """What the lines of docs/format.md make of a payload."""
    out = b""
    for codec, flags, length, stored in chunks(payload):
        raw = stored
        if codec == 1:
            raw = reference_codecs.frame(stored, length).tobytes()
        elif codec == 3:
            raw = reference_codecs.planes(stored, length)
        elif codec == 4:
            raw = reference_codecs.sparse(stored, length)
        if flags:
            before = np.frombuffer(base, np.uint8, length, len(out))
            raw = (np.frombuffer(raw, np.uint8) ^ before).tobytes()
        out += raw
    return out


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", CONTENTS)
def test_a_third_party_decodes_what_is_encoded(name: str, policy: str) -> None:
    array = CONTENTS[name]
    payload = encode(_core.TensorCodec(policy), array, role=OUTPUT)
    assert by_reference(payload) == array.tobytes()
    out = bytearray(array.nbytes)
    _core.decode_tensor(payload, array.itemsize, out)
    assert out == array.tobytes()


def test_each_content_gets_the_codec_that_suits_it() -> None:
    def used(name: str) -> set[int]:
        payload = encode(_core.TensorCodec("auto"), CONTENTS[name], role=OUTPUT)
        return {codec for codec, *_ in chunks(payload)}

    assert used("float32") == used("bfloat16") == used("rounded") == {3}
    assert used("relu") == {4}
    assert used("noise") == {0}


@pytest.mark.parametrize("policy", ["auto", "max"])
def test_weights_become_differences_that_a_third_party_decodes(policy: str) -> None:
    codec = _core.TensorCodec(policy)
    weights = CONTENTS["float32"].copy()
    saved: dict[int, bytes] = {0: b""}
    bases = []
    for number in range(1, 11):
        payload = encode(codec, weights, role=WEIGHT)
        bases.append(base_of(payload))
        assert by_reference(payload, saved[bases[-1]]) == weights.tobytes()
        saved[number] = weights.tobytes()
        weights += random.normal(0, 1e-6, weights.size).astype(np.float32)
    chain = [0, 1, 2, 3, 4, 5, 6, 7, 0, 9]
    assert bases == (chain if policy == "max" else [0, *[1] * 7, 0, 9])
    assert codec.previous_bytes == weights.nbytes
    codec.begin_shard()
    assert base_of(encode(codec, weights, role=WEIGHT)) == 0


def test_a_backlog_costs_ratio() -> None:
    codec = _core.TensorCodec("auto")
    array = CONTENTS["float32"]
    sizes = [
        len(encode(codec, array, role=GRADIENT, backlog=backlog))
        for backlog in (0.0, 0.2, 0.3, 0.6)
    ]
    assert sizes[0] == sizes[1] <= sizes[2] < sizes[3]
    assert sizes[3] > array.nbytes


def test_a_buffer_that_is_too_small_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="out needs"):
        _core.TensorCodec().encode(np.zeros(100, np.uint8), bytearray(100), "uint8")
    with pytest.raises(ConfigurationError, match="codec must be"):
        _core.TensorCodec("best")


def test_damage_is_refused() -> None:
    array = CONTENTS["float32"]
    payload = bytearray(encode(_core.TensorCodec("auto"), array))
    payload[-1] ^= 1
    with pytest.raises(StorageError, match="checksum"):
        _core.decode_tensor(payload, 4, bytearray(array.nbytes))


def train(builder: RunBuilder, steps: int) -> list[dict[str, NDArray[Any]]]:
    """Descend on a least-squares problem; returns what was saved."""
    dice = np.random.default_rng(1)
    x = dice.normal(size=(256, 128)).astype(np.float32)
    y = x @ dice.normal(size=(128, 64)).astype(np.float32)
    weight = dice.normal(0, 0.1, (128, 64)).astype(np.float32)
    saved = []
    for step in range(steps):
        output = np.maximum(x @ weight, 0)
        gradient = (x.T @ (x @ weight - y) / len(x)).astype(np.float32)
        tensors = {
            "weight": weight,
            "gradient/weight": gradient,
            "model_output_0": output,
        }
        saved.append({name: array.copy() for name, array in tensors.items()})
        builder.step(step, tensors)
        weight = weight - np.float32(1e-4) * gradient
    return saved


@pytest.mark.parametrize("policy", POLICIES)
def test_a_training_comes_back_bit_by_bit(policy: str, tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run", codec=policy, shard_bytes=1 << 20)
    saved = train(builder, 30)
    builder.close()
    reader = _core.RunReader(str(builder.directory))
    names = {d.id: d.name for d in reader.definitions()}
    tensors = reader.tensors()
    assert len(tensors) == 90
    for i, row in enumerate(tensors):
        expected = saved[int(row["step"])][names[int(row["definition"])]]
        assert reader.read_tensor(i).tobytes() == expected.tobytes()
    # The same by the reader that shares no code with the core.
    lines = [line for line in Reader(builder.directory).lines if line[0] == "tensor"]
    assert len(lines) == 90
    for _, step, _, definition, *_, value in lines:
        assert value == saved[step][names[definition]].tobytes().hex()


@pytest.mark.parametrize("policy", ["auto", "max"])
def test_a_shard_begins_with_key_frames(policy: str, tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run", codec=policy, shard_bytes=1 << 20)
    train(builder, 60)
    builder.close()
    shards = sorted(builder.directory.glob("*.tds"))
    assert len(shards) >= 3
    n_differences = 0
    for shard in shards:
        bases: list[int] = []
        for definition, base, sequence in tensors_of(shard.read_bytes()):
            if definition == 1:
                bases.append(base)
                assert base == 0 or base < sequence
        assert bases[0] == 0
        n_differences += sum(base > 0 for base in bases)
    assert n_differences > 30


def tensors_of(shard: bytes) -> list[tuple[int, int, int]]:
    """Definition, base and sequence of the tensor records."""
    found, at = [], 128
    while at + 64 <= len(shard):
        kind, _, _, sequence, _, length = struct.unpack_from("<HHQQqQ", shard, at + 4)
        if kind == 4:
            (definition,) = struct.unpack_from("<I", shard, at + 64)
            found.append((definition, base_of(shard[at + 64 : at + 128]), sequence))
        at += 64 + (length + 63 & ~63)
    return found


@pytest.mark.parametrize("what", ["any", "values"])
def test_statistics_tell_the_writer_of_zeros(what: str, tmp_path: Path) -> None:
    # Chunks: one without zeros, then three of almost nothing else but where a glance
    # (eight runs of 32 elements) falls.
    n = 1 << 16
    array = random.normal(0, 1, 4 * n).astype(np.float32)
    seen = np.zeros(n, bool)
    for run in range(8):
        seen[run * (n - 32) // 7 :][:32] = True
    array[n:] *= np.tile(seen, 3)
    known = "statistics" if what == "any" else "nothing"
    builder = RunBuilder(tmp_path / "run")
    for step in range(2):
        # Other rows of the step lie between the statistics and the values.
        for name in ("a", "b", "relu_output_0", "c"):
            builder.save(step, name, array, what=known, role=Role.OUTPUT)
        for name in ("a", "relu_output_0"):
            builder.save(step, name, array, what="values", role=Role.OUTPUT)
        builder.end_step(step)
    builder.close()
    data = (builder.directory / "000001.tds").read_bytes()
    forms = [[codec for codec, *_ in chunks(p)] for p in payloads(data)]
    assert len(forms) == 4
    # Who knows nothing only glances at a chunk that is like the one before.
    assert forms == [[3, 4, 4, 4] if what == "any" else [3, 3, 3, 3]] * 4


def payloads(shard: bytes) -> list[bytes]:
    """Those of the tensor records."""
    found, at = [], 128
    while at + 64 <= len(shard):
        kind, _, _, _, _, length = struct.unpack_from("<HHQQqQ", shard, at + 4)
        if kind == 4:
            found.append(shard[at + 64 : at + 64 + length])
        at += 64 + (length + 63 & ~63)
    return found


def test_policies_differ_in_size(tmp_path: Path) -> None:
    sizes = []
    for policy in POLICIES:
        builder = RunBuilder(tmp_path / policy, codec=policy)
        train(builder, 20)
        builder.close()
        sizes.append(sum(p.stat().st_size for p in builder.directory.glob("*.tds")))
    assert sizes[0] > 1.2 * sizes[1] > 1.2 * sizes[2]
