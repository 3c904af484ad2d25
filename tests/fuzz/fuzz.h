// What a fuzz target and the program that drives it know of each other.
//
// A target is one file, <structure>_fuzz.cc.  It takes any bytes, and aborts
// where an answer is wrong; a crash, a finding of a sanitizer, more than a
// second of processor time and more than 512 MB at once are wrong for all of
// them.
//
// The functions are libFuzzer's, so that clang's engine can drive a target as
// well as driver.cc does.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

extern "C" {
// Gives the bytes to what is tested.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
// Mutates in place, at most to `max_size` bytes; returns the new size.  Targets
// whose bytes carry checksums repair them here: nothing else gets past them.
std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                    std::size_t max_size, unsigned seed);
// The driver's own mutation, of any bytes.
std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size,
                             std::size_t max_size);
}

namespace tdbg::fuzz {

using Bytes = std::vector<std::byte>;

// Inputs to begin with, beside those of the corpus: one of each kind.
std::vector<Bytes> Seeds();

inline std::span<const std::byte> AsBytes(const std::uint8_t* data,
                                          std::size_t size) {
  return {reinterpret_cast<const std::byte*>(data), size};
}

// A promise of the code under test.
inline void Expect(bool holds, const char* promise) {
  if (holds) return;
  std::fprintf(stderr, "broken promise: %s\n", promise);
  std::abort();
}

}  // namespace tdbg::fuzz
