#include "base/dump_listener.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string_view>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/signal_timer.h"

namespace tdbg {
namespace {

constexpr std::size_t kMaxQuestion = 64;
constexpr std::size_t kMaxDump = 1 << 20;
constexpr std::chrono::milliseconds kPause{20};
// A handler that has not begun to write by then is not going to.
constexpr int kMaxPauses = 75;
// What has not grown for so many pauses is complete.
constexpr int kQuietPauses = 3;

// Reads a file from its beginning; empty where it cannot.
std::string ReadFrom(int fd, std::size_t most) {
  std::string text(most, '\0');
  std::size_t n = 0;
  while (n < most) {
    const ssize_t got =
        ::pread(fd, text.data() + n, most - n, static_cast<off_t>(n));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    n += static_cast<std::size_t>(got);
  }
  text.resize(n);
  return text;
}

bool WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

// Writes a file that appears whole.
bool Publish(const std::string& path, std::string_view text) {
  const std::string fresh = path + ".new";
  const int fd =
      ::open(fresh.c_str(),
             O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return false;
  const bool is_written = WriteAll(fd, text);
  const bool is_closed = ::close(fd) == 0;
  if (is_written && is_closed && ::rename(fresh.c_str(), path.c_str()) == 0) {
    return true;
  }
  ::unlink(fresh.c_str());
  return false;
}

bool IsSameFile(int a, int b) {
  struct stat left{};
  struct stat right{};
  return ::fstat(a, &left) == 0 && ::fstat(b, &right) == 0 &&
         left.st_dev == right.st_dev && left.st_ino == right.st_ino;
}

std::size_t SizeOf(int fd) {
  struct stat status{};
  return ::fstat(fd, &status) == 0 ? static_cast<std::size_t>(status.st_size)
                                   : 0;
}

}  // namespace

class DumpListener::Work {
 public:
  explicit Work(Options options)
      : options_(std::move(options)),
        handler_(SignalHandler(options_.signal)),
        own_fd_(::fcntl(options_.dump_fd, F_DUPFD_CLOEXEC, 3)) {}
  ~Work() {
    if (own_fd_ >= 0) ::close(own_fd_);
  }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  void Look() {
    if (!is_known_) is_known_ = Introduce();
    const std::string question = Question();
    if (question.empty() || question == answered_) return;
    // What was asked before this process began concerns others.
    if (is_first_look_) {
      is_first_look_ = false;
      if (asked_ns_ < began_ns_) {
        answered_ = question;
        return;
      }
    }
    if (Publish(Path(".txt"), Answer(question))) {
      answered_ = question;
      n_answered_.fetch_add(1);
    }
  }

  void End() {
    ::unlink(Path(".json").c_str());
    ::unlink(Path(".txt").c_str());
  }

  [[nodiscard]] std::uint64_t n_answered() const { return n_answered_; }

 private:
  [[nodiscard]] std::string Path(const char* suffix) const {
    return options_.folder + "/" + options_.name + suffix;
  }

  // Says in the folder that this process can be asked.
  bool Introduce() {
    if (::mkdir(options_.folder.c_str(), 0700) != 0 && errno != EEXIST) {
      return false;
    }
    return Publish(Path(".json"), options_.identity);
  }

  std::string Question() {
    const std::string path = options_.folder + "/ask";
    const int fd =
        ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return {};
    struct stat status{};
    struct stat folder{};
    std::string text;
    if (::fstat(fd, &status) == 0 && S_ISREG(status.st_mode) &&
        ::stat(options_.folder.c_str(), &folder) == 0 &&
        (status.st_uid == folder.st_uid || status.st_uid == 0)) {
      text = ReadFrom(fd, kMaxQuestion);
      asked_ns_ =
          static_cast<std::int64_t>(status.st_mtim.tv_sec) * 1'000'000'000 +
          status.st_mtim.tv_nsec;
    }
    ::close(fd);
    return text;
  }

  std::string Answer(const std::string& question) {
    std::string head = "tdbg-stacks 1 " + question + "\ntime " +
                       std::to_string(WallNs()) + "\n";
    const std::string state = options_.state ? options_.state() : "";
    if (!state.empty()) head += "state " + state + "\n";
    if (options_.signal == 0 || handler_ == nullptr ||
        SignalHandler(options_.signal) != handler_) {
      return head + "taken\n";
    }
    // A program that closes all descriptors gets the number for another file.
    if (own_fd_ < 0 || !IsSameFile(own_fd_, options_.dump_fd)) {
      return head + "closed\n";
    }
    return head + Dump();
  }

  std::string Dump() {
    // The handler appends where the last dump ended.
    if (::ftruncate(own_fd_, 0) != 0 || ::lseek(own_fd_, 0, SEEK_SET) != 0) {
      return "closed\n";
    }
    if (::kill(::getpid(), options_.signal) != 0) return "silent\n";
    std::size_t size = 0;
    int n_quiet = 0;
    for (int i = 0; i < kMaxPauses && n_quiet < kQuietPauses; ++i) {
      std::this_thread::sleep_for(kPause);
      const std::size_t now = SizeOf(own_fd_);
      n_quiet = now == size && now > 0 ? n_quiet + 1 : 0;
      size = now;
    }
    if (size == 0) return "silent\n";
    return "stacks\n" + ReadFrom(own_fd_, kMaxDump);
  }

  const Options options_;
  const void* const handler_;
  const int own_fd_;
  // File systems round times down, to two seconds at worst.
  const std::int64_t began_ns_ = WallNs() - 2'000'000'000;
  std::int64_t asked_ns_ = 0;
  bool is_known_ = false;
  bool is_first_look_ = true;
  std::string answered_;
  std::atomic<std::uint64_t> n_answered_ = 0;
};

DumpListener::DumpListener(Options options, std::chrono::nanoseconds interval)
    : work_(std::make_shared<Work>(std::move(options))),
      thread_(
          "tdbg-stacks", interval, [work = work_] { work->Look(); },
          [work = work_] { work->End(); }) {}

std::uint64_t DumpListener::n_answered() const { return work_->n_answered(); }

}  // namespace tdbg
