// The kernels, compiled by nvcc and embedded in the build.
//
// Thread safety: constant.

#pragma once

#include <cstddef>
#include <span>

namespace tdbg::cuda {

// The image that cuModuleLoadData takes; empty in a build without nvcc.
[[nodiscard]] std::span<const std::byte> Fatbin();
// The compiler, such as "nvcc 13.0"; empty without a fatbin.
[[nodiscard]] const char* FatbinCompiler();

}  // namespace tdbg::cuda
