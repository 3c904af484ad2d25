// What tests tell the fake CUDA driver, and ask it.
//
// libfakecuda.so has the symbols of libcuda.so.1 that tdbg uses and those by
// which a test plays the framework (graph capture, synchronization).  Devices
// are threads: each stream is a queue with a thread of its own, device memory
// is host memory, and kernels run in the emulator (cuda_emulator/).
//
// By environment: TDBG_FAKE_CUDA="devices=1 delay_us=500
// fail=cuLaunchKernel:3:719", read when the library is first used; `fail` may
// stand more than once.
//
// Stricter than a driver where that shows mistakes: an address that is not
// allocated, a handle of another device, a call that is not allowed while a
// stream is captured, a missing context are errors at once.
//
// Thread safety: safe.

#pragma once

extern "C" {

// Forgets all failures, delays and holds, and sets the number of devices.
// REQUIRES: nothing is alive (fakecuda_live).
void fakecuda_reset(int n_devices);
// The n-th call of `function` from now (1: the next) answers `code`; 0: every
// one from now.  A second call for the same function replaces the first.
void fakecuda_fail(const char* function, int nth, int code);
// What the calling thread calls from now on neither fails nor counts; or does
// again.
void fakecuda_exempt(int on);
// Takes all that is alive as freed: it was left behind on purpose.
void fakecuda_forget(void);
// How often it was called since the reset.
int fakecuda_calls(const char* function);
// Streams do nothing from now on, or go on.
void fakecuda_hold(int on);
// This stream alone does nothing from now on, or goes on.
void fakecuda_hold_stream(void* stream, int on);
// Each operation of a stream takes so long at least.
void fakecuda_delay(int microseconds);
// How many there are: "device" bytes, "pinned" bytes, "registered" ranges,
// "streams", "events", "modules", "contexts" (retained), "objects" (of graphs),
// "graphs".
long fakecuda_live(const char* what);
// How many frees had to wait for streams with something to do since the reset.
int fakecuda_drained(void);
// Bytes copied to or from devices since the reset.
long fakecuda_copied(void);

}  // extern "C"
