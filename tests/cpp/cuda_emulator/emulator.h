// Runs the kernels of cpp/reducers/cuda on the host: the very source that nvcc
// compiles, compiled by the host's compiler, thread for thread.
//
// A thread of a block is a fiber.  Those of a warp meet at each warp-wide
// operation and those of a block at __syncthreads, as on a device; warps are
// resumed in an order drawn at random from a seed, so that blocks overtake one
// another.  Lanes that do not meet (divergence at a warp-wide operation, or a
// barrier that some threads left out) end the process with a message, because
// on a device they would hang or compute nonsense.
//
// What it cannot show: the memory model (all atomics are in one order), speed,
// and what the device's compiler makes of the source.
//
// Thread safety: safe; each calling thread runs its kernels itself.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tdbg::cuda_emulator {

struct Dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

// Runs the kernel called `name` to its end.  `args` are pointers to its
// parameters, as cuLaunchKernel takes them.  Device addresses are the host's.
// False, and nothing ran, where there is no such kernel or the launch would be
// refused by a device: a block of no or more than 1024 threads, of more than
// one dimension, or a grid of no block.
bool RunKernel(std::string_view name, Dim3 grid, Dim3 block,
               std::size_t shared_bytes, void** args);

// Whether there is such a kernel.
bool HasKernel(std::string_view name);

// In which order warps are resumed by the calling thread's next kernels.
void SetSeed(std::uint64_t seed);

}  // namespace tdbg::cuda_emulator
