// The kernels, compiled by nvcc and embedded in the build.
//
// Thread safety: constant.

#pragma once

#include <cstddef>
#include <span>

namespace tdbg::cuda {

// The image that cuModuleLoadData takes; empty in a build without nvcc.
[[nodiscard]] std::span<const std::byte> Fatbin();
// What compiled it: "nvcc 13.0"; empty where there is none.
[[nodiscard]] const char* FatbinCompiler();

}  // namespace tdbg::cuda
