// The identity of this process and of its machine, and whether it was forked.
//
// Thread safety: pure functions.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tdbg {

// The boot id of the kernel: two equal ones mean the same machine since the
// same boot.  All zero where /proc does not say.
[[nodiscard]] std::array<std::byte, 16> BootId();

// SHA-256 of the host name, cut to 16 bytes.
[[nodiscard]] std::array<std::byte, 16> HostId();

// When process `pid` started, in clock ticks since boot (field 22 of
// /proc/<pid>/stat); 0 where there is no such process, or only a zombie.  Tells
// a process from a later one with the same pid.
[[nodiscard]] std::uint64_t ProcessStart(std::int64_t pid);

// How many forks lie between the process that loaded this library and this
// one.  An object that remembers it knows when it is a copy in a child.
[[nodiscard]] std::uint64_t ForkDepth();

// Random bits of the kernel; mixed from clocks where it has none to give.
[[nodiscard]] std::uint64_t RandomBits();

}  // namespace tdbg
