"""Sums of bits: equal for equal tensors, however many of them are summed at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tdbg.capture.replica_prints import OneElement, one_element
from tdbg.hooks.pytorch.device import bits

TYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float64,
    torch.int64,
    torch.bool,
    torch.complex64,
)


def tensors(*sizes: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(n).mul(3).to(dtype) for dtype in TYPES for n in sizes]


def expected(tensor: torch.Tensor) -> list[int]:
    """The sums by arithmetic that never wraps, of 64 bits with a sign."""
    size = tensor.element_size() // (2 if tensor.is_complex() else 1)
    words = tensor.contiguous().view(torch.uint8).numpy().view(f"<i{size}").tolist()
    totals = [
        sum(i**power * word for i, word in enumerate(words)) for power in (0, 1, 2)
    ]
    return [(total + 2**63) % 2**64 - 2**63 for total in totals]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n", [1, 1000, (1 << 16) + 3])
def test_sums_are_those_of_exact_arithmetic(dtype: torch.dtype, n: int) -> None:
    tensor = torch.randn(n).mul(3).to(dtype)
    assert bits.sums_of([tensor])[0].tolist() == [expected(tensor)]
    assert int(bits.first_sum(tensor)) == expected(tensor)[0]


@pytest.mark.parametrize("pack", [7, 50_000, 1 << 24])
def test_packs_of_a_device_have_the_same_sums(
    pack: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = tensors(0, 1, 100, 300 if pack == 7 else 70_001)
    found, sizes = bits.sums_of(every)
    monkeypatch.setattr(bits, "_PACK", pack)
    flat = [bits._flat(each) for each in every]
    sums, values = bits._sums_of_packs(flat)
    assert torch.equal(sums, found)
    # The signs go by the place in the pack, the same on all ranks.
    np.testing.assert_allclose(values[:, 0], sizes[:, 0], rtol=1e-6)


def test_the_order_of_memory_does_not_matter() -> None:
    tensor = torch.randn(3, 4, 5, 6)
    other = tensor.to(memory_format=torch.channels_last)
    assert torch.equal(bits.sums_of([tensor])[0], bits.sums_of([other])[0])


def test_a_flipped_bit_is_located() -> None:
    tensor = torch.randn(100_000)
    other = tensor.clone()
    other.view(torch.int32)[77_777] ^= 1 << 30
    first, second = bits.sums_of([tensor, other])[0].tolist()
    assert one_element(first, second) == OneElement(77_777, 30)


def test_no_random_numbers_are_used() -> None:
    state = torch.get_rng_state()
    bits.sums_of([torch.ones(10)])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(2, device="meta"),
        torch.zeros(2).to_sparse(),
        torch.nn.UninitializedParameter(),
        "text",
        None,
    ],
)
def test_other_objects_have_no_bits(tensor: object) -> None:
    assert not bits.has_bits(tensor)
