"""Rules about windows with kernels, and about GPUs that wait for the host.

Windows and samples are as PyTorch's profiler and NVML would give them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from profile_fake import SECOND, START, ProfiledTraining
from rules_fake import FakeRun, judge
from tdbg.rules import (
    HostBound,
    Rule,
    SyncInLoop,
    UncopiedAhead,
    UnusedTensorCores,
    check,
)
from tdbg.run.findings import Finding, Severity

Timed = Mapping[str, tuple[int, float]]
SCALAR = "aten::_local_scalar_dense"
HOST: Timed = {"aten::addmm": (30, 0.1), "cudaLaunchKernel": (400, 0.05)}
KERNELS: Timed = {"ampere_bf16_s16816gemm_128x64": (30, 0.2)}


def training(
    host: Timed = HOST, kernels: Timed | None = KERNELS, **given: Any
) -> ProfiledTraining:
    """Steps of 0.1 s, with a window of 5 of them after a minute."""
    made = ProfiledTraining(FakeRun())
    made.steps(60, {"forward": 0.05, "backward": 0.05})
    made.window(host, kernels, **given)
    made.steps(30, {"forward": 0.05, "backward": 0.05})
    return made


def found(made: ProfiledTraining, rule: Rule) -> list[Finding]:
    return [each for each in judge(made.run, rule) if each.phase == "begin"]


def message_of(made: ProfiledTraining, rule: Rule) -> str:
    return check(made.run, [rule], record=False).statuses[0].message


# --- SyncInLoop -----------------------------------------------------------------------


def asking(calls: int, seconds: float, **more: tuple[int, float]) -> Timed:
    return {**HOST, SCALAR: (calls, seconds), **more}


def test_numbers_that_each_step_asks_the_device_for_are_found() -> None:
    (finding,) = found(training(asking(15, 0.1)), SyncInLoop())
    assert finding.severity is Severity.WARNING
    assert ".item()" in finding.message
    assert "3 times a step, which takes 20% of its time" in finding.message
    assert "no work for 60% of the time" in finding.message
    assert "up to 20% shorter steps" in finding.advice


def test_the_gain_is_at_most_what_the_device_idles() -> None:
    busy = {"ampere_bf16_s16816gemm_128x64": (30, 0.48)}
    (finding,) = found(training(asking(15, 0.1), busy), SyncInLoop())
    assert finding.severity is Severity.INFO
    assert finding.gain == pytest.approx(0.04)
    full = {"ampere_bf16_s16816gemm_128x64": (30, 0.5)}
    assert found(training(asking(15, 0.1), full), SyncInLoop()) == []


def test_what_nvml_saw_of_the_device_counts_where_it_is_busier() -> None:
    """A window slows the host down, and the device seems idle."""
    made = training(asking(15, 0.1))
    made.samples("gpu", START, instance="a", index=0, busy=0.99, run_processes=1)
    assert found(made, SyncInLoop()) == []


def test_logging_every_few_steps_is_fine() -> None:
    assert found(training(asking(1, 0.1)), SyncInLoop()) == []


def test_a_gradient_scaler_asks_for_one_number_in_each_step() -> None:
    unscale = {"aten::_amp_foreach_non_finite_check_and_unscale_": (5, 0.001)}
    assert found(training(asking(5, 0.1, **unscale)), SyncInLoop()) == []
    (finding,) = found(training(asking(10, 0.1, **unscale)), SyncInLoop())
    assert "1 times a step, which takes 10%" in finding.message


def test_synchronize_and_indices_are_named() -> None:
    host = {**HOST, "aten::nonzero": (5, 0.05), "cudaDeviceSynchronize": (5, 0.05)}
    (finding,) = found(training(host), SyncInLoop())
    assert "(nonzero, masks) and synchronize(), 2 times" in finding.message


def test_the_line_is_that_of_the_samples() -> None:
    made = training(asking(15, 0.1))
    stack = ["train.py:80 main"]
    samples = [{"phase": 0, "stack": stack, "count": 90}]
    made.event("python_lines", start_ns=START + 50 * SECOND, samples=samples)
    (finding,) = found(made, SyncInLoop())
    assert "train.py:80 main" in finding.advice


def test_a_window_without_kernels_or_of_another_framework_is_not_judged() -> None:
    rule = SyncInLoop()
    assert message_of(training(asking(15, 0.1), None), rule) == (
        "does not apply: tdbg saw no GPU"
    )
    made = training({"PjitFunction(step)": (5, 0.1)})
    made.samples("gpu", START, instance="a", index=0, busy=0.5, run_processes=1)
    expected = "nothing to judge: the rule needs a window of 3 steps or more"
    assert message_of(made, rule).startswith(expected)


def test_a_window_of_one_step_says_nothing_of_each_step() -> None:
    assert found(training(asking(3, 0.1), steps=1), SyncInLoop()) == []


def test_a_window_is_judged_alike_when_it_is_written_late() -> None:
    """It counts from when it was written down on, so live and finished runs agree."""
    made = ProfiledTraining(FakeRun())
    made.steps(35, {"forward": 0.05, "backward": 0.05})
    taken = made.now
    made.steps(30, {"forward": 0.05, "backward": 0.05})
    made.window(asking(15, 0.1), KERNELS)
    made.run.reported[-1].data.update(start_ns=taken - SECOND // 2, end_ns=taken)
    made.steps(30, {"forward": 0.05, "backward": 0.05})
    (finding,) = found(made, SyncInLoop())
    assert finding.last_step >= 600


# --- UncopiedAhead, UnusedTensorCores -------------------------------------------------

PAGEABLE = "Memcpy HtoD (Pageable -> Device)"


def test_copies_from_pageable_memory_are_found_with_what_loaders_are_set_to() -> None:
    made = training(kernels={**KERNELS, PAGEABLE: (10, 0.05)})
    (finding,) = found(made, UncopiedAhead())
    assert "take 10% of the time of a step: 2 in each" in finding.message
    assert "pin_memory=True" in finding.advice
    made.event("loader", loader=0, pin_memory=True)
    (finding,) = found(made, UncopiedAhead())
    assert "pins its batches" in finding.advice


def test_pinned_and_short_copies_are_fine() -> None:
    pinned = {**KERNELS, "Memcpy HtoD (Pinned -> Device)": (10, 0.2)}
    assert found(training(kernels=pinned), UncopiedAhead()) == []
    assert (
        found(training(kernels={**KERNELS, PAGEABLE: (5, 0.01)}), UncopiedAhead()) == []
    )


@pytest.mark.parametrize(
    "kernel",
    [
        "ampere_sgemm_128x64_tn",
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(Params)",
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_ffma_kernel",
    ],
)
def test_products_of_float32_matrices_without_tensor_cores_are_an_info(
    kernel: str,
) -> None:
    made = training(kernels={kernel: (30, 0.3), "vectorized_elementwise": (60, 0.2)})
    (finding,) = found(made, UnusedTensorCores())
    assert finding.severity is Severity.INFO
    assert "take 60% of the device's time" in finding.message
    assert kernel in finding.message
    assert "set_float32_matmul_precision" in finding.advice


@pytest.mark.parametrize(
    "kernel",
    [
        "sm80_xmma_gemm_tf32f32_tf32f32_f32_tn_n_tilesize128x128x16",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64",
        "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x5_nt_align4>",
        "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_tn",
        # A device without TF32.
        "volta_sgemm_128x64_tn",
    ],
)
def test_products_on_tensor_cores_and_on_old_devices_are_fine(kernel: str) -> None:
    assert found(training(kernels={kernel: (30, 0.3)}), UnusedTensorCores()) == []


def test_few_products_are_no_matter() -> None:
    kernels = {"ampere_sgemm_128x64_tn": (30, 0.05), "softmax": (60, 0.3)}
    assert found(training(kernels=kernels), UnusedTensorCores()) == []


# --- HostBound ------------------------------------------------------------------------


def on_gpus(*busy: float, **phases: float) -> ProfiledTraining:
    made = ProfiledTraining(FakeRun())
    made.steps(90, {"backward": 0.05, **phases}, loader={"workers": 1, "fetch": 0.01})
    for k, share in enumerate(busy):
        made.samples(
            "gpu", START, instance=f"G{k}", index=k, busy=share, run_processes=1
        )
    return made


def test_a_device_without_work_while_the_host_is_in_the_model_is_an_info() -> None:
    (finding,) = found(on_gpus(0.4, forward=0.04, other=0.01), HostBound())
    assert finding.severity is Severity.INFO
    assert "no work for 60% of the time" in finding.message
    assert "in the model for 90% of it: for at least 50%" in finding.message
    assert "torch.compile" in finding.advice


def test_a_device_that_waits_for_data_or_other_code_does_not_wait_for_launches() -> (
    None
):
    assert found(on_gpus(0.4, data_wait=0.07), HostBound()) == []
    assert found(on_gpus(0.4, other=0.07), HostBound()) == []
    assert found(on_gpus(0.9, forward=0.05), HostBound()) == []


def test_the_busiest_device_counts() -> None:
    assert found(on_gpus(0.1, 0.9, forward=0.05), HostBound()) == []


def test_without_a_gpu_nothing_waits_for_the_host() -> None:
    assert message_of(on_gpus(forward=0.05), HostBound()) == (
        "does not apply: tdbg saw no GPU"
    )
