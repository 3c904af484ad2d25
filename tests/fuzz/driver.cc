// Drives a fuzz target: mutates inputs, and keeps those that reach something
// new.
//
//   record_fuzz [-seconds=60] [-runs=N] [-seed=1] [-max_len=65536]
//               [-minimize] [CORPUS] [INPUT...]
//
// CORPUS is a folder: its files are run first, and `-minimize` replaces them by
// the fewest that reach all that was reached.  INPUTs are run once each,
// without mutations: what a failure has left behind is seen again that way.
//
// Coverage is what GCC's -fsanitize-coverage=trace-pc,trace-cmp tells: which
// blocks ran how often, and how near the sides of each comparison came.  Both
// sides of comparisons are also written into inputs, which finds magic numbers.
//
// A failure leaves failure-<hash> in the working directory, and its name on
// stderr.

#include <dirent.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>

#include "fuzz.h"

extern "C" {
std::size_t LLVMFuzzerCustomMutator(std::uint8_t*, std::size_t, std::size_t,
                                    unsigned) __attribute__((weak));
void __sanitizer_set_death_callback(void (*callback)());
const char* __asan_default_options() {
  return "max_allocation_size_mb=512:hard_rss_limit_mb=2048:"
         "detect_leaks=1:abort_on_error=1";
}
}

namespace {

using Clock = std::chrono::steady_clock;
using Input = std::vector<std::uint8_t>;

// --- Coverage --------------------------------------------------------------

// Blocks of code come first, then comparisons with the distance of their sides.
constexpr std::size_t kBlocks = 1 << 16;
constexpr std::size_t kPlaces = 2 * kBlocks;

struct Coverage {
  std::array<std::uint8_t, kPlaces> counts{};
  std::array<std::uint32_t, kPlaces> touched{};
  std::size_t n_touched = 0;
  bool is_on = false;

  void Note(std::size_t place) {
    if (counts[place] == 0) {
      touched[n_touched++] = static_cast<std::uint32_t>(place);
    }
    if (counts[place] != 255) ++counts[place];
  }

  void Clear() {
    for (std::size_t i = 0; i < n_touched; ++i) counts[touched[i]] = 0;
    n_touched = 0;
  }
};
Coverage coverage;

// Sides of comparisons that were not equal, the newest first to be replaced.
struct Comparison {
  std::uint64_t left = 0;
  std::uint64_t right = 0;
  unsigned width = 0;
};
std::array<Comparison, 256> comparisons;
std::size_t n_comparisons = 0;

std::size_t Mix(std::uint64_t x) {
  x *= 0x9e3779b97f4a7c15ULL;
  return static_cast<std::size_t>(x >> 32);
}

void NoteComparison(const void* where, std::uint64_t left, std::uint64_t right,
                    unsigned width) {
  if (!coverage.is_on) return;
  const auto place = reinterpret_cast<std::uint64_t>(where);
  const auto distance = static_cast<unsigned>(std::popcount(left ^ right));
  coverage.Note(kBlocks + Mix(place * 67 + distance + 1) % kBlocks);
  if (left == right || width < 2) return;
  comparisons[n_comparisons++ % comparisons.size()] = {left, right, width};
}

}  // namespace

extern "C" {
void __sanitizer_cov_trace_pc() {
  if (!coverage.is_on) return;
  const auto block =
      reinterpret_cast<std::uint64_t>(__builtin_return_address(0));
  coverage.Note(Mix(block) % kBlocks);
}
#define TDBG_COMPARISON(name, type)                                         \
  void name(type left, type right) {                                        \
    NoteComparison(__builtin_return_address(0), left, right, sizeof(type)); \
  }
TDBG_COMPARISON(__sanitizer_cov_trace_cmp1, std::uint8_t)
TDBG_COMPARISON(__sanitizer_cov_trace_cmp2, std::uint16_t)
TDBG_COMPARISON(__sanitizer_cov_trace_cmp4, std::uint32_t)
TDBG_COMPARISON(__sanitizer_cov_trace_cmp8, std::uint64_t)
TDBG_COMPARISON(__sanitizer_cov_trace_const_cmp1, std::uint8_t)
TDBG_COMPARISON(__sanitizer_cov_trace_const_cmp2, std::uint16_t)
TDBG_COMPARISON(__sanitizer_cov_trace_const_cmp4, std::uint32_t)
TDBG_COMPARISON(__sanitizer_cov_trace_const_cmp8, std::uint64_t)
#undef TDBG_COMPARISON
void __sanitizer_cov_trace_cmpf(float, float) {}
void __sanitizer_cov_trace_cmpd(double, double) {}
void __sanitizer_cov_trace_switch(std::uint64_t value, std::uint64_t* cases) {
  if (!coverage.is_on) return;
  const auto* where = static_cast<char*>(__builtin_return_address(0));
  for (std::uint64_t i = 0; i < cases[0]; ++i) {
    NoteComparison(where + i, value, cases[2 + i],
                   static_cast<unsigned>(cases[1] / 8));
  }
}
}

namespace {

// --- Failures --------------------------------------------------------------

const Input* running = nullptr;
std::atomic<int> seconds_of_input = 0;

void LeaveInput() {
  if (running == nullptr) return;
  std::uint64_t hash = 14695981039346656037ULL;
  for (const std::uint8_t b : *running) hash = (hash ^ b) * 1099511628211ULL;
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "failure-%016llx",
                static_cast<unsigned long long>(hash));
  std::FILE* file = std::fopen(name.data(), "wb");
  if (file != nullptr) {
    std::fwrite(running->data(), 1, running->size(), file);
    std::fclose(file);
  }
  std::fprintf(stderr, "the input is in %s (%zu bytes)\n", name.data(),
               running->size());
  running = nullptr;
}

void OnSecond(int) {
  // Of processor time, twice, as the first may have begun before the input.
  if (++seconds_of_input < 3) return;
  std::fprintf(stderr, "an input takes more than a second\n");
  LeaveInput();
  std::abort();
}

// --- Mutation --------------------------------------------------------------

std::mt19937_64 random_bits;  // NOLINT - seeded by an argument, to be repeated

std::size_t Below(std::size_t n) { return n == 0 ? 0 : random_bits() % n; }

constexpr std::array<std::uint64_t, 22> kNumbers = {
    0,          1,          2,          16,         63,         64,
    127,        128,        255,        256,        4096,       32767,
    65535,      65536,      0x7fffffff, 0x80000000, 0xffffffff, 1ULL << 32,
    1ULL << 62, ~0ULL >> 1, 1ULL << 63, ~0ULL};

void PutNumber(Input* input, std::size_t at, std::uint64_t value,
               unsigned width) {
  for (unsigned i = 0; i < width && at + i < input->size(); ++i) {
    (*input)[at + i] = static_cast<std::uint8_t>(value >> (8 * i));
  }
}

// Replaces one side of a comparison by the other, where it stands in the input.
bool PutComparison(Input* input) {
  const std::size_t known = std::min(n_comparisons, comparisons.size());
  if (known == 0) return false;
  Comparison c = comparisons[Below(known)];
  if (Below(2) == 0) std::swap(c.left, c.right);
  if (c.width > input->size()) return false;
  const std::size_t n_starts = input->size() - c.width + 1;
  const std::size_t first = Below(n_starts);
  for (std::size_t i = 0; i < n_starts; ++i) {
    const std::size_t at = (first + i) % n_starts;
    if (std::memcmp(input->data() + at, &c.left, c.width) == 0) {
      PutNumber(input, at, c.right + Below(3) - 1, c.width);
      return true;
    }
  }
  PutNumber(input, first, c.right, c.width);
  return true;
}

void MutateOnce(Input* input, std::size_t max_size) {
  if (input->empty()) input->push_back(0);
  const std::size_t size = input->size();
  const std::size_t at = Below(size);
  const std::size_t n = 1 + Below(std::min<std::size_t>(size - at, 64));
  const auto begin = input->begin() + static_cast<std::ptrdiff_t>(at);
  const auto end = begin + static_cast<std::ptrdiff_t>(n);
  switch (Below(9)) {
    case 0:
      (*input)[at] ^= static_cast<std::uint8_t>(1U << Below(8));
      break;
    case 1:
      (*input)[at] = static_cast<std::uint8_t>(random_bits());
      break;
    case 2:
      PutNumber(input, at, kNumbers[Below(kNumbers.size())], 1U << Below(4));
      break;
    case 3: {  // A small step of a number that is there.
      std::uint64_t value = 0;
      const unsigned width = 1U << Below(4);
      std::memcpy(&value, input->data() + at,
                  std::min<std::size_t>(width, size - at));
      PutNumber(input, at, value + Below(33) - 16, width);
      break;
    }
    case 4:
      if (size > n) input->erase(begin, end);
      break;
    case 5:
      if (size + n <= max_size) {
        const Input copy(begin, end);
        const auto to = static_cast<std::ptrdiff_t>(Below(size + 1));
        input->insert(input->begin() + to, copy.begin(), copy.end());
      }
      break;
    case 6: {
      const Input copy(begin, end);
      const std::size_t to = Below(size - n + 1);
      std::copy(copy.begin(), copy.end(),
                input->begin() + static_cast<std::ptrdiff_t>(to));
      break;
    }
    case 7:
      if (Below(8) == 0) input->resize(1 + Below(size));
      break;
    default:
      PutComparison(input);
  }
}

// --- The corpus ------------------------------------------------------------

// What an input reached: each place, with the magnitude of its count.
using Features = std::vector<std::uint32_t>;

Features FeaturesNow() {
  Features found;
  for (std::size_t i = 0; i < coverage.n_touched; ++i) {
    const std::uint32_t place = coverage.touched[i];
    const auto magnitude = static_cast<std::uint32_t>(
        std::bit_width(unsigned{coverage.counts[place]}) - 1);
    found.push_back(place * 8 + magnitude);
  }
  return found;
}

class Fuzzer {
 public:
  // Runs an input; keeps it when it reaches something new.
  void Run(const Input& input) {
    Execute(input);
    const Features features = FeaturesNow();
    bool is_new = false;
    for (const std::uint32_t feature : features) {
      if (!seen_[feature]) {
        seen_[feature] = true;
        ++n_seen_;
        is_new = true;
      }
    }
    if (is_new) kept_.push_back(input);
  }

  void Mutate(std::size_t max_size) {
    // Half of the time one of the newest: what they reach is known least.
    const std::size_t newest = std::min<std::size_t>(kept_.size(), 16);
    Input input = Below(2) == 0 ? kept_[Below(kept_.size())]
                                : kept_[kept_.size() - 1 - Below(newest)];
    if (Below(8) == 0) Splice(&input, max_size);
    input.reserve(max_size);
    if (LLVMFuzzerCustomMutator != nullptr) {
      const std::size_t size = input.size();
      input.resize(max_size);
      input.resize(LLVMFuzzerCustomMutator(
          input.data(), size, max_size, static_cast<unsigned>(random_bits())));
    } else {
      for (std::size_t i = 0; i <= Below(6); ++i) MutateOnce(&input, max_size);
    }
    Run(input);
  }

  // The fewest inputs, the short ones first, that reach all blocks.
  std::vector<Input> Fewest() {
    std::vector<Input> ordered = kept_;
    std::stable_sort(
        ordered.begin(), ordered.end(),
        [](const Input& a, const Input& b) { return a.size() < b.size(); });
    std::vector<bool> covered(kBlocks);
    std::vector<Input> fewest;
    for (const Input& input : ordered) {
      Execute(input);
      bool is_new = false;
      for (std::size_t i = 0; i < coverage.n_touched; ++i) {
        const std::uint32_t place = coverage.touched[i];
        if (place >= kBlocks || covered[place]) continue;
        covered[place] = true;
        is_new = true;
      }
      if (is_new) fewest.push_back(input);
    }
    return fewest;
  }

  [[nodiscard]] std::size_t n_runs() const { return n_runs_; }
  [[nodiscard]] std::size_t n_seen() const { return n_seen_; }
  [[nodiscard]] std::size_t n_kept() const { return kept_.size(); }

 private:
  void Execute(const Input& input) {
    // A copy of exactly this size: AddressSanitizer sees what reads beyond.
    const Input exact(input);
    coverage.Clear();
    running = &exact;
    seconds_of_input = 0;
    coverage.is_on = true;
    LLVMFuzzerTestOneInput(exact.data(), exact.size());
    coverage.is_on = false;
    running = nullptr;
    ++n_runs_;
  }

  void Splice(Input* input, std::size_t max_size) {
    const Input& other = kept_[Below(kept_.size())];
    const std::size_t from = Below(other.size());
    input->resize(Below(input->size() + 1));
    input->insert(input->end(),
                  other.begin() + static_cast<std::ptrdiff_t>(from),
                  other.end());
    if (input->size() > max_size) input->resize(max_size);
  }

  std::vector<Input> kept_;
  std::vector<bool> seen_ = std::vector<bool>(kPlaces * 8);
  std::size_t n_seen_ = 0;
  std::size_t n_runs_ = 0;
};

// --- Files and arguments ---------------------------------------------------

Input ReadInput(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "cannot read %s\n", path.c_str());
    std::exit(2);
  }
  return {std::istreambuf_iterator<char>(file), {}};
}

bool IsFolder(const std::string& path) {
  struct stat about{};
  return stat(path.c_str(), &about) == 0 && S_ISDIR(about.st_mode);
}

std::vector<std::string> FilesIn(const std::string& folder) {
  std::vector<std::string> paths;
  DIR* open = opendir(folder.c_str());
  while (const dirent* entry = readdir(open)) {
    if (entry->d_name[0] != '.') paths.push_back(folder + "/" + entry->d_name);
  }
  closedir(open);
  std::sort(paths.begin(), paths.end());
  return paths;
}

void WriteCorpus(const std::string& folder, const std::vector<Input>& inputs) {
  for (const std::string& path : FilesIn(folder)) unlink(path.c_str());
  int number = 0;
  for (const Input& input : inputs) {
    std::array<char, 16> name{};
    std::snprintf(name.data(), name.size(), "/%04d", number++);
    std::ofstream file(folder + name.data(), std::ios::binary);
    file.write(reinterpret_cast<const char*>(input.data()),
               static_cast<std::streamsize>(input.size()));
  }
}

struct Arguments {
  std::map<std::string, std::uint64_t> numbers = {{"seconds", 60},
                                                  {"runs", 0},
                                                  {"seed", 1},
                                                  {"max_len", 65536},
                                                  {"minimize", 0}};
  std::string corpus;
  std::vector<std::string> inputs;
};

Arguments Parse(int argc, char** argv) {
  Arguments found;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument[0] != '-') {
      if (IsFolder(argument)) {
        found.corpus = argument;
      } else {
        found.inputs.push_back(argument);
      }
      continue;
    }
    const std::size_t equals = argument.find('=');
    const auto number = found.numbers.find(argument.substr(1, equals - 1));
    if (number == found.numbers.end()) {
      std::fprintf(stderr, "unknown argument %s\n", argument.c_str());
      std::exit(2);
    }
    number->second = equals == std::string::npos
                         ? 1
                         : std::strtoull(argv[i] + equals + 1, nullptr, 10);
  }
  return found;
}

void Begin(std::uint64_t seed) {
  random_bits.seed(seed);
  __sanitizer_set_death_callback(LeaveInput);
  std::signal(SIGABRT, [](int) { LeaveInput(); });
  std::signal(SIGPROF, OnSecond);
  const itimerval second{{1, 0}, {1, 0}};
  setitimer(ITIMER_PROF, &second, nullptr);
}

}  // namespace

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size,
                                        std::size_t max_size) {
  Input input(data, data + size);
  MutateOnce(&input, max_size);
  std::copy(input.begin(), input.end(), data);
  return input.size();
}

int main(int argc, char** argv) {
  Arguments arguments = Parse(argc, argv);
  auto& numbers = arguments.numbers;
  Begin(numbers["seed"]);
  Fuzzer fuzzer;
  for (const std::string& path : arguments.inputs) fuzzer.Run(ReadInput(path));
  if (!arguments.inputs.empty()) return 0;
  for (const auto& seed : tdbg::fuzz::Seeds()) {
    Input input(seed.size());
    std::memcpy(input.data(), seed.data(), seed.size());
    fuzzer.Run(input);
  }
  if (!arguments.corpus.empty()) {
    for (const std::string& path : FilesIn(arguments.corpus)) {
      fuzzer.Run(ReadInput(path));
    }
  }
  const std::size_t n_first = fuzzer.n_seen();
  const auto start = Clock::now();
  const auto end = start + std::chrono::seconds(numbers["seconds"]);
  while (Clock::now() < end &&
         (numbers["runs"] == 0 || fuzzer.n_runs() < numbers["runs"])) {
    for (int i = 0; i < 100; ++i) fuzzer.Mutate(numbers["max_len"]);
  }
  const std::chrono::duration<double> took = Clock::now() - start;
  std::printf(
      "%s: %zu runs in %.1f s, %zu features (%zu of the corpus), %zu inputs "
      "kept\n",
      program_invocation_short_name, fuzzer.n_runs(), took.count(),
      fuzzer.n_seen(), n_first, fuzzer.n_kept());
  if (numbers["minimize"] != 0) {
    WriteCorpus(arguments.corpus, fuzzer.Fewest());
  }
  return 0;
}
