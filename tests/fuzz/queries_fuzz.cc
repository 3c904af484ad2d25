// Questions to a run on the disk, in any order and with any bounds.
//
// Promises: with its caches a reader answers what it answers without.

#include <filesystem>

#include "answers.h"
#include "complete_shard.h"
#include "fuzz.h"
#include "repair.h"

namespace tdbg::fuzz {

// 17 bytes a question: which one, and two numbers.
constexpr std::size_t kQuestion = 17;

std::vector<Bytes> Seeds() {
  std::vector<Bytes> seeds;
  for (unsigned kind = 0; kind < 8; ++kind) {
    Bytes seed(kQuestion);
    seed[0] = static_cast<std::byte>(kind);
    seed[9] = std::byte{4};
    seeds.push_back(seed);
  }
  return seeds;
}

namespace {

// The directory of a writer with a sealed shard, removed at the end.
class SomeRun {
 public:
  SomeRun() {
    std::string name = "/dev/shm/tdbg-fuzz-XXXXXX";
    root_ = mkdtemp(name.data());
    directory_ = root_ + "/train-3-2";
    std::filesystem::create_directory(directory_);
    const testing::ShardBuilder shard = testing::CompleteShard();
    Put("000001.tds", shard.bytes());
    Put("000001.tdi", shard.Index());
  }
  ~SomeRun() { std::filesystem::remove_all(root_); }
  SomeRun(const SomeRun&) = delete;
  SomeRun& operator=(const SomeRun&) = delete;

  [[nodiscard]] std::unique_ptr<RunReader> Open(bool use_caches) const {
    ReaderOptions options;
    options.use_caches = use_caches;
    auto reader = RunReader::Open(directory_, options);
    Expect(reader.ok(), "the run can be opened");
    return std::move(reader).value();
  }

 private:
  void Put(const std::string& name, const testing::Bytes& bytes) {
    std::ofstream file(directory_ + "/" + name, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }

  std::string root_;
  std::string directory_;
};

// What one reader answers to one question, as text that can be compared.
std::string Ask(RunReader& reader, unsigned kind, std::uint64_t a,
                std::uint64_t b) {
  testing::AnswerText text;
  const StepRange steps{static_cast<std::int64_t>(a),
                        static_cast<std::int64_t>(b)};
  const std::vector<std::uint32_t> ids{static_cast<std::uint32_t>(a % 9),
                                       static_cast<std::uint32_t>(a % 9 + 1)};
  switch (kind % 8) {
    case 0:
      return testing::TextOfRows(reader.FindRows(steps, ids));
    case 1:
      text.Put(reader.SavedSteps(steps, std::nullopt, {}));
      break;
    case 2:
      text.Put(reader.SavedSteps(steps, ids, {}));
      break;
    case 3:
      text.Put(reader.CountSteps(steps));
      for (const StepEntry& e : reader.FindSteps(steps)) text.Put(e.sequence);
      break;
    case 4:
      for (const auto& e : reader.FindTensors(steps, ids)) text.Put(e.place);
      break;
    case 5:
      for (const auto& e : reader.FindScalars(steps, ids)) text.Put(e.place);
      break;
    case 6: {
      const std::uint64_t last = b % (reader.n_rows() + 1);
      return testing::TextOfRows(reader.Rows(a % (last + 1), last));
    }
    default:
      text.Put(reader.HasData(steps.first));
      for (const Segment& s : reader.FindSegments(steps)) {
        text.Put(s.step);
        text.Put(s.n_rows);
      }
  }
  return text.Take();
}

}  // namespace
}  // namespace tdbg::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  using namespace tdbg;  // NOLINT
  static const fuzz::SomeRun run;
  static const auto with = run.Open(true);
  static const auto without = run.Open(false);
  const auto bytes = fuzz::AsBytes(data, size);
  for (std::size_t at = 0; at + fuzz::kQuestion <= size;
       at += fuzz::kQuestion) {
    const auto a = fuzz::Load<std::uint64_t>(bytes, at + 1);
    const auto b = fuzz::Load<std::uint64_t>(bytes, at + 9);
    fuzz::Expect(
        fuzz::Ask(*with, data[at], a, b) == fuzz::Ask(*without, data[at], a, b),
        "caches change no answer");
  }
  return 0;
}
