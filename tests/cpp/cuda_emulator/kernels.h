// The kernels by name.

#pragma once

#include <string_view>

namespace tdbg::cuda_emulator {

// Calls a kernel in the calling fiber, with pointers to its parameters.
using Invoke = void (*)(void** args);

// Null where there is none.
Invoke KernelCalled(std::string_view name);

}  // namespace tdbg::cuda_emulator
