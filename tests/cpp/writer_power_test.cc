// The power goes at every moment of a training: what was synced is there, the
// rest is kept in part, in order or not, torn, zero or garbage, and names of
// files that were not synced may be gone.  Whatever is left, a reader opens it,
// finds all that was flushed durably, and nothing that was not written.
//
//   writer_power_test [FILTER [ROUNDS]]     images of each moment

#include <fcntl.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "fault_injection.h"
#include "format/commit_page.h"
#include "sanitized.h"
#include "temporary_directory.h"
#include "testing.h"
#include "writer/writer.h"
#include "writer_workload.h"

namespace tdbg {
namespace {

using std::chrono::milliseconds;
using testing::Found;
using testing::TemporaryDirectory;

constexpr std::int64_t kSteps = 9;
constexpr milliseconds kPatience{20000};
constexpr std::size_t kSector = 512;

std::uint64_t n_rounds = 2;

enum class Kind : std::uint8_t {
  kMakeDirectory,
  kCreate,
  kWrite,
  kUnlink,
  kSyncFile,
  kSyncDirectory,
  kFlushed,  // Everything up to a step, durably.
};

struct Change {
  Kind kind = Kind::kWrite;
  std::string path = {};
  std::uint64_t offset = 0;
  std::string bytes = {};
  std::int64_t step = -1;
};

// Writes down what it is asked to change.
class RecordingFileSystem : public testing::FaultyFileSystem {
 public:
  int Open(const char* path, int flags, unsigned mode) override {
    const int fd = FaultyFileSystem::Open(path, flags, mode);
    const std::lock_guard lock(mutex_);
    if (fd >= 0) paths_[fd] = path;
    if (fd >= 0 && (flags & O_CREAT) != 0) Note({Kind::kCreate, path});
    return fd;
  }
  std::int64_t Pwrite(int fd, const void* data, std::size_t n,
                      std::uint64_t offset) override {
    const std::int64_t done = FaultyFileSystem::Pwrite(fd, data, n, offset);
    const std::lock_guard lock(mutex_);
    if (done > 0) {
      Note({Kind::kWrite, paths_[fd], offset,
            std::string(static_cast<const char*>(data),
                        static_cast<std::size_t>(done))});
    }
    return done;
  }
  int Fdatasync(int fd) override { return Synced(fd, Kind::kSyncFile); }
  int Fsync(int fd) override {
    return Synced(fd, Kind::kSyncDirectory);  // The writer's use of it.
  }
  int Mkdir(const char* path, unsigned mode) override {
    const int result = FaultyFileSystem::Mkdir(path, mode);
    const std::lock_guard lock(mutex_);
    if (result >= 0) Note({Kind::kMakeDirectory, path});
    return result;
  }
  int Unlink(const char* path) override {
    const int result = FaultyFileSystem::Unlink(path);
    const std::lock_guard lock(mutex_);
    if (result >= 0) Note({Kind::kUnlink, path});
    return result;
  }
  void Flushed(std::int64_t step) {
    const std::lock_guard lock(mutex_);
    Note({.kind = Kind::kFlushed, .step = step});
  }
  [[nodiscard]] const std::vector<Change>& changes() const { return changes_; }

 private:
  int Synced(int fd, Kind kind) {
    const int result = kind == Kind::kSyncFile ? FaultyFileSystem::Fdatasync(fd)
                                               : FaultyFileSystem::Fsync(fd);
    const std::lock_guard lock(mutex_);
    if (result >= 0) Note({kind, paths_[fd]});
    return result;
  }
  void Note(Change change) { changes_.push_back(std::move(change)); }

  std::mutex mutex_;
  std::map<int, std::string> paths_;
  std::vector<Change> changes_;
};

std::string ParentOf(const std::string& path) {
  return path.substr(0, path.rfind('/'));
}

// Which of the first `n` changes are on the disk for certain.
std::vector<bool> Durable(const std::vector<Change>& changes, std::size_t n) {
  std::vector<bool> durable(n, false);
  for (std::size_t i = 0; i < n; ++i) {
    const Change& sync = changes[i];
    for (std::size_t j = 0; j < i; ++j) {
      const Change& change = changes[j];
      const bool is_data = change.kind == Kind::kWrite;
      const bool is_name = change.kind == Kind::kMakeDirectory ||
                           change.kind == Kind::kCreate ||
                           change.kind == Kind::kUnlink;
      if (sync.kind == Kind::kSyncFile && is_data && change.path == sync.path) {
        durable[j] = true;
      } else if (sync.kind == Kind::kSyncDirectory && is_name &&
                 ParentOf(change.path) == sync.path) {
        durable[j] = true;
      }
    }
  }
  return durable;
}

// What of a write got to the disk, by sectors: new, old, zero or garbage.
void WriteInPart(const Change& change, std::mt19937_64* random,
                 std::string* file) {
  for (std::size_t at = 0; at < change.bytes.size();) {
    const std::uint64_t offset = change.offset + at;
    const std::size_t n = std::min<std::size_t>(kSector - offset % kSector,
                                                change.bytes.size() - at);
    const std::uint64_t chance = (*random)() % 8;
    if (chance != 0) {  // Of one in eight not even room was made.
      if (file->size() < offset + n) file->resize(offset + n, '\0');
      for (std::size_t i = 0; i < n; ++i) {
        char& byte = (*file)[offset + i];
        if (chance < 4) byte = change.bytes[at + i];
        if (chance == 4) byte = '\0';
        if (chance == 5) byte = static_cast<char>((*random)());
      }
    }
    at += n;
  }
}

// Builds what is left when the power goes after `n` changes.
void BuildImage(const std::vector<Change>& changes, std::size_t n,
                bool in_order, std::mt19937_64* random, const std::string& from,
                const std::string& to) {
  const std::vector<bool> durable = Durable(changes, n);
  const std::size_t kept = (*random)() % (n + 1);
  std::map<std::string, std::string> files;
  std::map<std::string, bool> directories{{from, true}};
  for (std::size_t i = 0; i < n; ++i) {
    const Change& change = changes[i];
    const bool is_kept =
        durable[i] || (in_order ? i < kept : (*random)() % 2 == 0);
    if (change.kind == Kind::kWrite) {
      const auto file = files.find(change.path);
      if (file == files.end()) continue;
      if (is_kept) {
        std::string& bytes = file->second;
        bytes.resize(std::max<std::size_t>(bytes.size(),
                                           change.offset + change.bytes.size()),
                     '\0');
        bytes.replace(change.offset, change.bytes.size(), change.bytes);
      } else if (!in_order) {
        WriteInPart(change, random, &file->second);
      }
      continue;
    }
    if (!is_kept) continue;
    if (change.kind == Kind::kUnlink) files.erase(change.path);
    if (!directories.contains(ParentOf(change.path))) continue;
    if (change.kind == Kind::kMakeDirectory) directories[change.path] = true;
    if (change.kind == Kind::kCreate) files[change.path];
  }
  const auto place = [&](const std::string& path) {
    return to + path.substr(from.size());
  };
  for (const auto& [path, _] : directories) {
    std::filesystem::create_directories(place(path));
  }
  for (const auto& [path, bytes] : files) {
    std::ofstream(place(path), std::ios::binary) << bytes;
  }
}

// As after a restart of the machine: it has another boot id.
void Restart(const std::string& page) {
  std::string bytes;
  {
    std::ifstream file(page, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(file), {});
  }
  if (bytes.size() < kCommitPageBytes) return;
  const auto all = std::as_bytes(std::span(bytes));
  auto header = DecodeCommitHeader(all);
  const auto slot = DecodeCommitSlots(all);
  if (!header.ok() || !slot.ok()) return;
  CommitHeader restarted = header.value();
  restarted.boot_id[0] ^= std::byte{1};
  const auto encoded = EncodeCommitPage(restarted, slot.value());
  std::ofstream(page, std::ios::binary)
      .write(reinterpret_cast<const char*>(encoded.data()),
             static_cast<std::streamsize>(encoded.size()));
}

struct Training {
  std::string directory;
  std::vector<Change> changes;
};

Training Record(const TemporaryDirectory& run, bool compress) {
  RecordingFileSystem disk;
  WriterOptions options = testing::WorkloadOptions(run.path());
  options.file_system = &disk;
  options.codec = compress ? CodecPolicy::kAuto : CodecPolicy::kNone;
  options.queue_bytes = 4U << 20;
  auto opened = Writer::Open(options);
  EXPECT_OK(opened);
  Writer& writer = *opened.value();
  testing::Workload workload(&writer);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    workload.Step(step);
    const bool durable = step % 3 == 1;
    EXPECT_OK(writer.Flush(durable, kPatience));
    if (durable) disk.Flushed(step);
  }
  EXPECT_OK(writer.Close(kPatience));
  disk.Flushed(kSteps - 1);  // A run that is closed is synced.
  return {writer.directory(), disk.changes()};
}

struct Seen {
  std::uint64_t images = 0, durable = 0, lost = 0, told = 0;
};

ReaderOptions OptionsOf(bool use_caches, bool use_index) {
  ReaderOptions options;
  options.use_caches = use_caches;
  options.use_index = use_index;
  return options;
}

// Whether a full check of what is left says that something is missing.
bool IsTold(const std::string& directory) {
  auto opened = RunReader::Open(directory, OptionsOf(true, false));
  if (!opened.ok()) return true;
  opened.value()->FinishCheck();
  return !opened.value()->problems().empty() ||
         opened.value()->end_is_unknown();
}

void CheckImage(const std::string& directory, std::int64_t flushed,
                bool in_order, Seen* seen) {
  ++seen->images;
  if (!std::filesystem::exists(directory)) {
    EXPECT_EQ(flushed, std::int64_t{-1});
    return;
  }
  Restart(directory + "/COMMIT");
  for (const bool use_caches : {true, false}) {
    const Found found =
        testing::ReadWorkload(directory, OptionsOf(use_caches, true));
    EXPECT_TRUE(found.readable);
    // Values whose chunks are torn are an error when they are asked for.
    EXPECT_EQ(found.wrong, found.unreadable.size());
    if (in_order) {
      EXPECT_EQ(found.wrong, 0U);
      EXPECT_EQ(found.damage, 0U);
      EXPECT_EQ(found.missing, 0U);
      EXPECT_LE(found.torn, 1U);
    }
    for (std::int64_t step = 0; step <= flushed; ++step) {
      EXPECT_TRUE(found.steps.contains(step));
      EXPECT_TRUE(found.tensors.contains(step));
      EXPECT_FALSE(found.unreadable.contains(step));
    }
    if (flushed >= 0 && use_caches) ++seen->durable;
    if (use_caches && found.records < kSteps * testing::kWorkloadRecords) {
      ++seen->lost;
      seen->told += IsTold(directory) ? 1 : 0;
    }
  }
}

// Sabotages seen to fail here: no sync of the directory of a new shard; a slot
// that says durable before the sync.
void CutAtEveryMoment(bool in_order) {
  Seen seen;
  std::mt19937_64 random(20261123);
  for (const bool compress : {true, false}) {
    const TemporaryDirectory run;
    const Training training = Record(run, compress);
    std::int64_t flushed = -1;
    for (std::size_t n = 0; n <= training.changes.size(); ++n) {
      if (n > 0 && training.changes[n - 1].kind == Kind::kFlushed) {
        flushed = training.changes[n - 1].step;
      }
      for (std::uint64_t round = 0; round < n_rounds; ++round) {
        const int before = testing::Failures();
        const TemporaryDirectory image;
        BuildImage(training.changes, n, in_order, &random, run.path(),
                   image.path());
        CheckImage(image.path() + training.directory.substr(run.path().size()),
                   flushed, in_order, &seen);
        if (testing::Failures() == before) continue;
        std::fprintf(stderr,
                     "    after %zu of %zu changes, flushed step %lld\n", n,
                     training.changes.size(), static_cast<long long>(flushed));
        if (testing::Failures() > 20) return;
      }
    }
  }
  std::printf(
      "       %llu images, %llu with what was flushed, %llu lacked something, "
      "%llu of them say so\n",
      static_cast<unsigned long long>(seen.images),
      static_cast<unsigned long long>(seen.durable),
      static_cast<unsigned long long>(seen.lost),
      static_cast<unsigned long long>(seen.told));
  EXPECT_GE(seen.images, 150U);
  EXPECT_GE(seen.durable, seen.images / 2);
  EXPECT_GE(seen.lost, seen.images / 4);
}

TDBG_TEST(WhatWasFlushedDurablyOutlivesAPowerFailureThatKeepsTheOrder) {
  CutAtEveryMoment(/*in_order=*/true);
}

TDBG_TEST(WhatWasFlushedDurablyOutlivesAPowerFailureThatKeepsNoOrder) {
  CutAtEveryMoment(/*in_order=*/false);
}

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) {
  if (argc > 2)
    tdbg::n_rounds = std::strtoull(argv[2], nullptr, 10);
  else if (tdbg::testing::RepeatsLess())
    tdbg::n_rounds = 1;
  return tdbg::testing::Run(argc, argv);
}
