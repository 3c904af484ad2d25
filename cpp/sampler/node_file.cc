#include "sampler/node_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <map>
#include <new>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "base/process.h"
#include "sampler/text.h"

namespace tdbg {
namespace {

constexpr off_t kSamplerByte = 0;
constexpr off_t kMemberByte = 1;
// Somebody who leaves holds the file for microseconds.
constexpr int kTries = 100;
constexpr std::chrono::milliseconds kPause{1};

bool Lock(int fd, short type, off_t byte) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return ::fcntl(fd, F_SETLK, &lock) == 0;
}

// The NodeFiles of this process by path.  A forked child makes one of its own:
// the lock of its parent's may be held by a thread that it does not have.
struct OpenNodeFiles {
  struct Entry {
    NodeFile* file = nullptr;
    int n_users = 0;
  };
  const std::uint64_t fork_depth = ForkDepth();
  Mutex mutex;
  std::map<std::string, Entry> files TDBG_GUARDED_BY(mutex);
};
std::atomic<OpenNodeFiles*> open_node_files{nullptr};

OpenNodeFiles* OpenFiles() {
  OpenNodeFiles* known = open_node_files.load(std::memory_order_acquire);
  if (known != nullptr && known->fork_depth == ForkDepth()) return known;
  auto* const own = new OpenNodeFiles;  // Never freed, like what it replaces.
  if (open_node_files.compare_exchange_strong(known, own)) return own;
  delete own;
  return known;
}

bool IsStillNamed(int fd, const std::string& path) {
  struct stat named{};
  struct stat open{};
  return ::fstat(fd, &open) == 0 && ::stat(path.c_str(), &named) == 0 &&
         open.st_ino == named.st_ino && open.st_dev == named.st_dev;
}

}  // namespace

std::string WrittenProcess(const TrainingProcess& process) {
  return std::to_string(process.pid) + ' ' +
         std::to_string(process.start_ticks) + ' ' +
         std::to_string(process.rank) + ' ' + std::to_string(process.kind) +
         ' ' + (process.worker < 0 ? "-" : std::to_string(process.worker)) +
         '\n';
}

std::vector<TrainingProcess> ParseTrainingProcesses(std::string_view text) {
  constexpr std::uint64_t kMaxPid = 1U << 30;
  std::vector<TrainingProcess> processes;
  while (!text.empty()) {
    std::string_view line = TakeLine(&text);
    const std::uint64_t pid = TakeNumber(&line);
    const std::uint64_t start = TakeNumber(&line);
    const std::uint64_t rank = TakeNumber(&line);
    const std::uint64_t kind = TakeNumber(&line);
    const std::string_view word = TakeWord(&line);
    const std::uint64_t worker = ParseNumber(word).value_or(kNotMeasured);
    if (pid == 0 || pid >= kMaxPid || start == kNotMeasured ||
        rank >= kMaxPid || kind >= kMaxPid || word.empty()) {
      continue;
    }
    processes.push_back(
        {.pid = static_cast<std::int32_t>(pid),
         .start_ticks = start,
         .rank = static_cast<std::int32_t>(rank),
         .kind = static_cast<std::uint32_t>(kind),
         .worker = worker < kMaxPid ? static_cast<std::int32_t>(worker) : -1});
  }
  return processes;
}

NodeFile::NodeFile(std::string path, int fd)
    : path_(std::move(path)), fd_(fd), fork_depth_(ForkDepth()) {}

bool NodeFile::is_copy() const { return fork_depth_ != ForkDepth(); }

NodeFile::~NodeFile() {
  // The shared lock goes first: of two that leave at once, each would else find
  // the other's.  Closing frees the locks of this process.
  if (takes_part_ && Lock(fd_, F_UNLCK, kMemberByte) &&
      Lock(fd_, F_WRLCK, kMemberByte) && IsStillNamed(fd_, path_)) {
    ::unlink(path_.c_str());
  }
  ::close(fd_);
}

bool NodeFile::TakePart() {
  takes_part_ = Lock(fd_, F_RDLCK, kMemberByte) && IsStillNamed(fd_, path_);
  return takes_part_;
}

Result<NodeFile*> NodeFile::Open(const std::string& path) {
  constexpr int kFlags = O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW;
  const auto error = [&path](const char* what) {
    return Status::IoError(std::string(what) + " " + path, errno);
  };
  for (int i = 0; i < kTries; ++i) {
    int fd = ::open(path.c_str(), kFlags, 0600);
    if (fd >= 0 && fd <= STDERR_FILENO) {
      const int higher = ::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
      ::close(fd);
      fd = higher;
    }
    if (fd < 0) return error("cannot open");
    auto* const file = new NodeFile(path, fd);
    struct stat status{};
    if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) ||
        status.st_uid != ::geteuid()) {
      delete file;
      return Status::InvalidArgument(path + " is not a file of this user");
    }
    if (file->TakePart()) return file;
    delete file;
    std::this_thread::sleep_for(kPause);
  }
  errno = EAGAIN;
  return error("cannot lock");
}

Result<std::shared_ptr<NodeFile>> NodeFile::Join(const std::string& path) {
  if (path.empty()) {
    const int fd = ::memfd_create("tdbg-sampler", MFD_CLOEXEC);
    if (fd < 0) return Status::IoError("cannot make a file in memory", errno);
    return std::shared_ptr<NodeFile>(new NodeFile(path, fd), &NodeFile::Leave);
  }
  OpenNodeFiles* const open = OpenFiles();
  MutexLock lock(open->mutex);
  OpenNodeFiles::Entry& entry = open->files[path];
  if (entry.file == nullptr) {
    Result<NodeFile*> file = Open(path);
    if (!file.ok()) {
      open->files.erase(path);
      return file.status();
    }
    entry.file = file.value();
  }
  ++entry.n_users;
  return std::shared_ptr<NodeFile>(entry.file, &NodeFile::Leave);
}

void NodeFile::Leave(NodeFile* file) {
  if (file->is_copy()) return;
  if (file->path_.empty()) {
    delete file;
    return;
  }
  OpenNodeFiles* const open = OpenFiles();
  MutexLock lock(open->mutex);
  const auto entry = open->files.find(file->path_);
  if (--entry->second.n_users > 0) return;
  delete file;
  open->files.erase(entry);
}

bool NodeFile::TrySample() {
  if (is_copy() || is_sampled_.exchange(true)) return false;
  const bool is_first = Lock(fd_, F_WRLCK, kSamplerByte);
  if (!is_first) is_sampled_ = false;
  return is_first;
}

void NodeFile::StopSampling() {
  if (is_copy()) return;
  (void)Lock(fd_, F_UNLCK, kSamplerByte);
  is_sampled_ = false;
}

bool NodeFile::Add(const TrainingProcess& process) {
  struct stat status{};
  if (is_copy() || ::fstat(fd_, &status) != 0 ||
      static_cast<std::uint64_t>(status.st_size) >= kMaxBytes) {
    return false;
  }
  // Behind all others, in one piece: the file is open for appending.
  const std::string line = WrittenProcess(process);
  return ::write(fd_, line.data(), line.size()) ==
         static_cast<ssize_t>(line.size());
}

std::vector<TrainingProcess> NodeFile::ReadFrom(std::uint64_t* offset) {
  std::string text;
  struct stat status{};
  if (is_copy() || ::fstat(fd_, &status) != 0 ||
      static_cast<std::uint64_t>(status.st_size) <= *offset) {
    return {};
  }
  text.resize(static_cast<std::uint64_t>(status.st_size) - *offset);
  const ssize_t n =
      ::pread(fd_, text.data(), text.size(), static_cast<off_t>(*offset));
  text.resize(n < 0 ? 0 : static_cast<std::size_t>(n));
  text.resize(text.rfind('\n') + 1);  // npos + 1 is 0.
  *offset += text.size();
  return ParseTrainingProcesses(text);
}

}  // namespace tdbg
