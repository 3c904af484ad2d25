// TDBG_HOST_DEVICE: what host code and CUDA kernels share.

#pragma once

#ifdef __CUDACC__
#define TDBG_HOST_DEVICE __host__ __device__
#else
#define TDBG_HOST_DEVICE
#endif
