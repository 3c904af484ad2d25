#include "sampler/sources.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "sampler/host_memory.h"

namespace tdbg {
namespace {

// Threads of a process whose affinities are looked up, at most.
constexpr std::size_t kMaxThreadsOfProcess = 256;

// Adds the cores that a thread may run on.
void AddAffinity(pid_t tid, std::vector<bool>* cores) {
  std::array<cpu_set_t, ProcessorTicks::kMaxCores / CPU_SETSIZE> sets{};
  if (::sched_getaffinity(tid, sizeof(sets), sets.data()) != 0) return;
  for (std::size_t i = 0; i < ProcessorTicks::kMaxCores; ++i) {
    if (!CPU_ISSET_S(i, sizeof(sets), sets.data())) continue;
    if (i >= cores->size()) cores->resize(i + 1);
    (*cores)[i] = true;
  }
}

// Files that this process may keep open for its training's processes: a small
// part of what it may open, for it needs the rest itself.
std::size_t FilesToKeepOpen() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  return std::min<rlim_t>(limit.rlim_cur, 1U << 20) / 16;
}

std::string OneLine(std::string_view text) {
  return std::string(TakeWord(&text));
}

}  // namespace

std::vector<bool> AllowedCores(const std::vector<std::int32_t>& pids) {
  std::vector<bool> cores;
  for (const std::int32_t pid : pids) {
    // A library may bind the main thread to one core and its others to others.
    const auto tids = NamesIn("/proc/" + std::to_string(pid) + "/task");
    for (std::size_t i = 0; i < tids.size() && i < kMaxThreadsOfProcess; ++i) {
      AddAffinity(static_cast<pid_t>(FirstNumber(tids[i])), &cores);
    }
  }
  if (cores.empty()) AddAffinity(::getpid(), &cores);
  return cores;
}

// --- The host ----------------------------------------------------------------

HostSource::HostSource(const std::string& root,
                       std::shared_ptr<MachineBoard> board)
    : root_(root),
      board_(std::move(board)),
      stat_(root + "/proc/stat", KernelFile::Content::kRecord),
      meminfo_(root + "/proc/meminfo", KernelFile::Content::kRecord),
      vmstat_(root + "/proc/vmstat"),
      group_(root),
      disks_(root),
      networks_(root),
      energy_(root) {}

std::string_view HostSource::Text(KernelFile* file, const char* what) {
  const auto text = file->Read(&buffer_);
  if (text) return *text;
  board_->SetNotMeasured(what, "cannot read " + file->path() + ": " +
                                   std::strerror(file->error()));
  return {};
}

void HostSource::Sample(const Moment& moment, RowBuffer* rows) {
  SystemRow row{.time = moment.time_ns, .is_late = moment.is_late ? 1U : 0U};
  SampleGroup(moment, &row);
  SampleProcessors(moment, &row, rows);
  SampleMemory(&row);
  row.energy_uj = energy_.Read(&buffer_);
  rows->Add(row);
  SampleDevices(moment, rows);
  if (!std::exchange(is_explained_, true)) ExplainGaps(row);
  if (board_->IsMachineDue(moment.time_ns, moment.is_last)) {
    board_->WriteMachine(Facts(row));
  }
}

void HostSource::SampleProcessors(const Moment& moment, SystemRow* row,
                                  RowBuffer* rows) {
  ParseProcessorTicks(Text(&stat_, "cores"), &now_);
  row->processes_running = now_.processes_running;
  row->processes_blocked = now_.processes_blocked;
  if (n_cores_ == 0) n_cores_ = now_.cores.size();
  const bool is_long_enough =
      before_ns_ != 0 && moment.time_ns - before_ns_ >= kLeastShareNs;
  std::vector<CoreShares> shares(
      n_cores_, {kNoShare, kNoShare, kNoShare, kNoShare, kNoShare});
  if (is_long_enough) {
    const CoreShares all = SharesBetween(before_.all, now_.all);
    row->cpu_user = all.user;
    row->cpu_system = all.system;
    row->cpu_iowait = all.iowait;
    row->cpu_steal = all.steal;
    for (std::size_t i = 0; i < n_cores_ && i < before_.cores.size(); ++i) {
      shares[i] = SharesBetween(before_.cores[i], now_.cores[i]);
    }
  }
  LookUpAllowedCores(moment.time_ns);
  SampleAllowed(shares, row);
  if (is_long_enough || before_ns_ == 0) {
    std::swap(before_, now_);
    before_ns_ = moment.time_ns;
  }
  if (n_cores_ == 0) return;
  std::vector<std::byte> bytes(sizeof(moment.time_ns) + n_cores_);
  std::memcpy(bytes.data(), &moment.time_ns, sizeof(moment.time_ns));
  for (std::size_t i = 0; i < n_cores_; ++i) {
    bytes[sizeof(moment.time_ns) + i] =
        static_cast<std::byte>(HalfPercents(shares[i].busy));
  }
  rows->AddBytes(kCoreTable, CoreColumns(n_cores_), bytes);
}

void HostSource::LookUpAllowedCores(std::int64_t time_ns) {
  std::vector<std::int32_t> ranks = board_->ranks();
  const bool is_due = allowed_ns_ == 0 || time_ns - allowed_ns_ >= kAffinityNs;
  if (!is_due && ranks == allowed_ranks_) return;
  allowed_ = AllowedCores(ranks);
  allowed_ranks_ = std::move(ranks);
  allowed_ns_ = time_ns;
}

void HostSource::SampleAllowed(const std::vector<CoreShares>& shares,
                               SystemRow* row) {
  double busy = 0;
  int n = 0;
  for (std::size_t i = 0; i < shares.size() && i < allowed_.size(); ++i) {
    if (!allowed_[i] || std::isnan(shares[i].busy)) continue;
    busy += static_cast<double>(shares[i].busy);
    ++n;
  }
  if (n > 0) row->allowed_busy = static_cast<float>(busy / n);
  const auto n_allowed = std::count(allowed_.begin(), allowed_.end(), true);
  row->allowed_cores = static_cast<float>(
      std::min(static_cast<double>(n_allowed), quota_cores_));
}

void HostSource::SampleMemory(SystemRow* row) {
  const HostMemory memory = ParseHostMemory(Text(&meminfo_, "memory"));
  row->memory_total = memory.total;
  row->memory_available = memory.available;
  static const auto page_bytes =
      static_cast<std::uint64_t>(std::max(::sysconf(_SC_PAGESIZE), 1L));
  const Paging paging = ParsePaging(Text(&vmstat_, "paging"), page_bytes);
  row->swap_in_bytes = paging.swap_in_bytes;
  row->swap_out_bytes = paging.swap_out_bytes;
  row->major_faults = paging.major_faults;
  struct statvfs shm{};
  if (::statvfs((root_ + "/dev/shm").c_str(), &shm) == 0 && shm.f_blocks > 0) {
    row->shm_total = Scaled(shm.f_blocks, shm.f_frsize);
    row->shm_used = Scaled(shm.f_blocks - shm.f_bfree, shm.f_frsize);
  }
}

void HostSource::SampleGroup(const Moment& moment, SystemRow* row) {
  const ControlGroup::Reading group = group_.Read(moment.time_ns, &buffer_);
  row->cgroup_memory = group.memory;
  row->cgroup_limit = group.memory_limit;
  row->cgroup_oom_kills = group.oom_kills;
  row->cgroup_periods = group.throttling.periods;
  row->cgroup_throttled = group.throttling.throttled;
  row->cgroup_throttled_ns = group.throttling.throttled_ns;
  quota_cores_ = group.quota_cores;
  const ControlGroup::Stalls stalls = group_.ReadStalls(&buffer_);
  row->cpu_some_ns = stalls.cpu.some_ns;
  row->io_some_ns = stalls.io.some_ns;
  row->io_full_ns = stalls.io.full_ns;
  row->memory_some_ns = stalls.memory.some_ns;
  row->memory_full_ns = stalls.memory.full_ns;
}

void HostSource::SampleDevices(const Moment& moment, RowBuffer* rows) {
  const bool has_disks = disks_.Sample(
      moment.time_ns, &buffer_, [rows](std::string_view name, const auto& row) {
        rows->Add(row, std::string(name));
      });
  const bool has_networks = networks_.Sample(
      moment.time_ns, &buffer_, [rows](std::string_view name, const auto& row) {
        rows->Add(row, std::string(name));
      });
  if (!has_disks) board_->SetNotMeasured("disk", "cannot read /proc/diskstats");
  if (!has_networks) {
    board_->SetNotMeasured("network", "cannot read /proc/net/dev");
  }
}

void HostSource::ExplainGaps(const SystemRow& row) {
  const auto explain = [this](std::uint64_t value, const char* what,
                              const std::string& reason) {
    if (value == kNotMeasured) board_->SetNotMeasured(what, reason);
  };
  explain(row.cgroup_memory, "cgroup_memory",
          "no control group looks after the memory of this process");
  explain(row.cgroup_periods, "cgroup_throttled",
          "no control group looks after the processor time of this process");
  explain(row.cpu_some_ns, "pressure",
          "the kernel has no pressure stall information (PSI)");
  explain(row.shm_total, "shm", "there is no /dev/shm");
  explain(row.energy_uj, "energy", energy_.reason());
}

MachineFacts HostSource::Facts(const SystemRow& row) const {
  MachineFacts facts;
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) == 0)
    facts.node = host.data();
  TextBuffer buffer;
  facts.boot_id =
      OneLine(ReadOnce(root_ + "/proc/sys/kernel/random/boot_id", &buffer)
                  .value_or(""));
  utsname system{};
  if (::uname(&system) == 0) facts.kernel = system.release;
  facts.container = FindContainer(root_, group_.path());
  facts.cores = n_cores_;
  facts.allowed_cores = static_cast<std::size_t>(
      std::count(allowed_.begin(), allowed_.end(), true));
  facts.quota = quota_cores_;
  facts.memory = row.memory_total;
  facts.memory_limit = row.cgroup_limit;
  facts.networks = networks_.names();
  facts.disks = disks_.names();
  return facts;
}

// --- The processes -----------------------------------------------------------

ProcessSource::ProcessSource(const std::string& root,
                             std::shared_ptr<NodeFile> node_file,
                             std::shared_ptr<MachineBoard> board)
    : node_file_(std::move(node_file)),
      board_(std::move(board)),
      processes_(root, FilesToKeepOpen()) {}

void ProcessSource::Sample(const Moment& moment, RowBuffer* rows) {
  for (const TrainingProcess& each : node_file_->ReadFrom(&offset_)) {
    processes_.Add(each);
  }
  processes_.Sample(moment.time_ns, &buffer_,
                    [rows](const ProcessRow& row) { rows->Add(row); });
  board_->SetPids(processes_.pids(true), processes_.pids(false));
}

// --- The GPUs ----------------------------------------------------------------

GpuSource::GpuSource(std::string library, std::shared_ptr<MachineBoard> board)
    : board_(std::move(board)), gpus_(std::move(library), SeesAllPids()) {}

bool GpuSource::Prepare(SamplingThreads& /*threads*/) {
  const Status status = gpus_.Find();
  if (!status.ok()) board_->SetNotMeasured("gpu", status.message());
  board_->SetGpus(gpus_.facts());
  return status.ok();
}

void GpuSource::Sample(const Moment& moment, RowBuffer* rows) {
  gpus_.Sample(moment.time_ns, board_->pids(),
               [rows](const std::string& uuid, const GpuRow& row) {
                 rows->Add(row, uuid);
               });
}

}  // namespace tdbg
