// The rows of the tables of a profile that the sampler fills, as they are
// stored, and the columns of each: python/tdbg/run/profile_tables.py says what
// they mean.
//
// Thread safety: values.

#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "sampler/text.h"

namespace tdbg {

// A share that was not measured.
inline constexpr float kNoShare = NAN;

#pragma pack(push, 1)

struct SystemRow {
  static constexpr char kTable[] = "system";
  static constexpr char kColumns[] =
      "time:<i8,is_late:<u4,processes_running:<u4,processes_blocked:<u4,"
      "reserved:<u4,cpu_user:<f4,cpu_system:<f4,cpu_iowait:<f4,cpu_steal:<f4,"
      "allowed_busy:<f4,allowed_cores:<f4,memory_total:<u8,"
      "memory_available:<u8,swap_in_bytes:<u8,swap_out_bytes:<u8,"
      "major_faults:<u8,cgroup_memory:<u8,cgroup_limit:<u8,"
      "cgroup_oom_kills:<u8,cgroup_periods:<u8,cgroup_throttled:<u8,"
      "cgroup_throttled_ns:<u8,cpu_some_ns:<u8,io_some_ns:<u8,io_full_ns:<u8,"
      "memory_some_ns:<u8,memory_full_ns:<u8,shm_used:<u8,shm_total:<u8,"
      "energy_uj:<u8";

  std::int64_t time = 0;
  std::uint32_t is_late = 0;
  std::uint32_t processes_running = kNotMeasured32;
  std::uint32_t processes_blocked = kNotMeasured32;
  std::uint32_t reserved = 0;
  float cpu_user = kNoShare;
  float cpu_system = kNoShare;
  float cpu_iowait = kNoShare;
  float cpu_steal = kNoShare;
  float allowed_busy = kNoShare;
  float allowed_cores = kNoShare;
  std::uint64_t memory_total = kNotMeasured;
  std::uint64_t memory_available = kNotMeasured;
  std::uint64_t swap_in_bytes = kNotMeasured;
  std::uint64_t swap_out_bytes = kNotMeasured;
  std::uint64_t major_faults = kNotMeasured;
  std::uint64_t cgroup_memory = kNotMeasured;
  std::uint64_t cgroup_limit = kNotMeasured;
  std::uint64_t cgroup_oom_kills = kNotMeasured;
  std::uint64_t cgroup_periods = kNotMeasured;
  std::uint64_t cgroup_throttled = kNotMeasured;
  std::uint64_t cgroup_throttled_ns = kNotMeasured;
  std::uint64_t cpu_some_ns = kNotMeasured;
  std::uint64_t io_some_ns = kNotMeasured;
  std::uint64_t io_full_ns = kNotMeasured;
  std::uint64_t memory_some_ns = kNotMeasured;
  std::uint64_t memory_full_ns = kNotMeasured;
  std::uint64_t shm_used = kNotMeasured;
  std::uint64_t shm_total = kNotMeasured;
  std::uint64_t energy_uj = kNotMeasured;
};

struct DiskRow {
  static constexpr char kTable[] = "disk";
  static constexpr char kColumns[] =
      "time:<i8,read_bytes:<u8,write_bytes:<u8,reads:<u8,writes:<u8,"
      "busy_ns:<u8";

  std::int64_t time = 0;
  std::uint64_t read_bytes = kNotMeasured;
  std::uint64_t write_bytes = kNotMeasured;
  std::uint64_t reads = kNotMeasured;
  std::uint64_t writes = kNotMeasured;
  std::uint64_t busy_ns = kNotMeasured;
};

struct NetworkRow {
  static constexpr char kTable[] = "network";
  static constexpr char kColumns[] =
      "time:<i8,received_bytes:<u8,sent_bytes:<u8,received_packets:<u8,"
      "sent_packets:<u8,bits_per_second:<u8";

  std::int64_t time = 0;
  std::uint64_t received_bytes = kNotMeasured;
  std::uint64_t sent_bytes = kNotMeasured;
  std::uint64_t received_packets = kNotMeasured;
  std::uint64_t sent_packets = kNotMeasured;
  std::uint64_t bits_per_second = kNotMeasured;
};

struct GpuRow {
  static constexpr char kTable[] = "gpu";
  static constexpr char kColumns[] =
      "time:<i8,index:<u4,throttle_reasons:<u4,busy:<f4,memory_busy:<f4,"
      "sm_clock_hz:<f4,temperature:<f4,power_watt:<f4,run_processes:<u4,"
      "memory_used:<u8,memory_total:<u8,energy_mj:<u8";

  std::int64_t time = 0;
  std::uint32_t index = kNotMeasured32;
  std::uint32_t throttle_reasons = kNotMeasured32;
  float busy = kNoShare;
  float memory_busy = kNoShare;
  float sm_clock_hz = kNoShare;
  float temperature = kNoShare;
  float power_watt = kNoShare;
  std::uint32_t run_processes = kNotMeasured32;
  std::uint64_t memory_used = kNotMeasured;
  std::uint64_t memory_total = kNotMeasured;
  std::uint64_t energy_mj = kNotMeasured;
};

struct ProcessRow {
  static constexpr char kTable[] = "process";
  static constexpr char kColumns[] =
      "time:<i8,pid:<i4,rank:<i4,kind:<u4,state:<u4,threads:<u4,worker:<i4,"
      "run_ns:<u8,queued_ns:<u8,resident_bytes:<u8,read_bytes:<u8,"
      "all_read_bytes:<u8,write_bytes:<u8,major_faults:<u8,cpu_ns:<u8";

  std::int64_t time = 0;
  std::int32_t pid = 0;
  std::int32_t rank = 0;
  std::uint32_t kind = 0;
  std::uint32_t state = kNotMeasured32;
  std::uint32_t threads = kNotMeasured32;
  std::int32_t worker = -1;
  std::uint64_t run_ns = kNotMeasured;
  std::uint64_t queued_ns = kNotMeasured;
  std::uint64_t resident_bytes = kNotMeasured;
  std::uint64_t read_bytes = kNotMeasured;
  std::uint64_t all_read_bytes = kNotMeasured;
  std::uint64_t write_bytes = kNotMeasured;
  std::uint64_t major_faults = kNotMeasured;
  std::uint64_t cpu_ns = kNotMeasured;
};

#pragma pack(pop)

// The table `core`: i64 time, then u8 busy of each core, in half per cents.
inline constexpr char kCoreTable[] = "core";
inline constexpr std::uint8_t kCoreNotMeasured = 255;
inline std::string CoreColumns(std::size_t n_cores) {
  return "time:<i8,busy:|u1*" + std::to_string(n_cores);
}

}  // namespace tdbg
