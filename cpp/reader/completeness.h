// Completeness compares what the files of a writer say of each other, and finds
// what was written and is not there any more.
//
// Implements docs/format.md, "What is missing".  Three witnesses: the
// sequences, which go on from shard to shard; the index, which knows how long
// its shard was sealed; and the commit page, which knows how far the last shard
// could be read. None of them is needed to read what is there.
//
// Records that a writer lost itself are told by its `gap` records, and are no
// problem here.
//
// Thread safety: none.

#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "reader/commit_reader.h"
#include "reader/problem.h"
#include "reader/run_files.h"
#include "reader/shard_list.h"
#include "reader/tables.h"

namespace tdbg {

class Completeness {
 public:
  // REQUIRES: all outlive this.  Without `commit`, index and commit page are
  // not asked.
  Completeness(RunFiles* files, ShardList* shards, const CommitReader* commit,
               std::vector<Problem>* problems)
      : files_(files), shards_(shards), commit_(commit), problems_(problems) {}

  // After each look at the shards; reports what was found since.
  void Check();

  // At last, by a reader that walked every record: nothing is left undecided,
  // and what was written is counted.
  void CheckWalked();

  // What cannot be read, within shards and between them, ascending; without
  // what the writer itself says that it lost.
  [[nodiscard]] std::vector<Hole> Holes() const;

  // Whether nothing tells where the records end: there is no commit page, and
  // the last shard was not closed by its writer.
  [[nodiscard]] bool EndIsUnknown() const;

 private:
  // A step in the sequences from one shard to another.
  struct Jump {
    Hole hole;
    std::size_t before = 0;  // The last shard that could be read, or 0.
    std::size_t after = 0;   // The shard that goes on.
  };

  void FollowSequences();
  // Whether it is decided what becomes of a jump.
  bool Settle(const Jump& jump, bool is_final);
  void ReportJump(const Jump& jump, const Hole& missing);
  void CompareIndexes();
  void CompareCommit();
  void CompareLength(std::uint32_t number, std::uint64_t length);
  bool HasItsName(const Shard& shard) const;
  void ReportShort(const Shard& shard, const std::string& witness,
                   std::uint64_t length);
  void Report(const std::string& file, std::uint64_t offset,
              std::string message);

  RunFiles* const files_;
  ShardList* const shards_;
  const CommitReader* const commit_;  // May be null.
  std::vector<Problem>* const problems_;

  std::set<std::string> reported_;  // Each file once.
  // Whose end failed at one look, which may have been too early.
  std::set<std::uint32_t> suspects_;
  // Shards below were followed to their end, the one at it to its beginning.
  std::size_t followed_ = 0;
  bool has_begun_ = false;
  std::uint64_t expected_ = 1;  // The sequence that is due at followed_.
  std::size_t last_read_ = 0;   // The shard that expected_ is from.
  bool has_read_ = false;
  std::vector<Jump> jumps_;  // Not decided yet.
  std::vector<Hole> between_;
};

}  // namespace tdbg
