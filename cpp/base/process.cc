#include "base/process.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstring>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/sha256.h"

namespace tdbg {
namespace {

// Reads a small file of /proc; empty where it cannot.
std::string ReadSmall(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  std::array<char, 4096> buffer{};
  const ssize_t n = ::read(fd, buffer.data(), buffer.size());
  ::close(fd);
  return n <= 0 ? std::string()
                : std::string(buffer.data(), static_cast<std::size_t>(n));
}

std::atomic<std::uint64_t> fork_depth{0};

// Registered when the library is loaded and not at the first use: a fork in the
// middle of a once-only registration would leave the child unable to finish it.
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] {
  fork_depth.fetch_add(1, std::memory_order_relaxed);
});

}  // namespace

std::array<std::byte, 16> BootId() {
  std::array<std::byte, 16> id{};
  std::string text = ReadSmall("/proc/sys/kernel/random/boot_id");
  std::erase(text, '-');
  if (text.size() < 2 * id.size()) return id;
  for (std::size_t i = 0; i < id.size(); ++i) {
    unsigned value = 0;
    std::from_chars(text.data() + 2 * i, text.data() + 2 * i + 2, value, 16);
    id[i] = static_cast<std::byte>(value);
  }
  return id;
}

std::array<std::byte, 16> HostId() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) name[0] = '\0';
  const auto digest = Sha256(name.data(), std::strlen(name.data()));
  std::array<std::byte, 16> id{};
  std::copy_n(digest.begin(), id.size(), id.begin());
  return id;
}

std::uint64_t ProcessStart(std::int64_t pid) {
  const std::string text = ReadSmall("/proc/" + std::to_string(pid) + "/stat");
  // The second field is the name in parentheses and may contain anything; the
  // fields after its last parenthesis are numbers, from the third on.
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::string_view rest = std::string_view(text).substr(name_end + 1);
  // A zombie writes no more, however long its parent takes to notice.
  if (rest.size() > 1 && (rest[1] == 'Z' || rest[1] == 'X')) return 0;
  for (int field = 2; field < 22; ++field) {
    const std::size_t space = rest.find(' ');
    if (space == std::string_view::npos) return 0;
    rest.remove_prefix(space + 1);
  }
  std::uint64_t start = 0;
  std::from_chars(rest.data(), rest.data() + rest.size(), start);
  return start;
}

std::uint64_t ForkDepth() { return fork_depth.load(std::memory_order_relaxed); }

std::uint64_t RandomBits() {
  std::uint64_t bits = 0;
  if (::getrandom(&bits, sizeof(bits), GRND_NONBLOCK) !=
      static_cast<ssize_t>(sizeof(bits))) {
    bits = static_cast<std::uint64_t>(WallNs()) * 0x9e3779b97f4a7c15ULL ^
           static_cast<std::uint64_t>(BootNs()) ^
           static_cast<std::uint64_t>(::getpid()) << 40;
  }
  return bits;
}

}  // namespace tdbg
