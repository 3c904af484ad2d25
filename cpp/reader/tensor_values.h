// Reads the values of tensors from their shards and decodes them.
//
// Implements docs/format.md, "tensor".  Raw values of a mapped shard are given
// where they lie; others are decoded, the chunks of a large tensor by several
// threads that are gone before the call returns.
//
// Thread safety: none.
//
// Errors: every failed check names file, record and chunk; kLimitExceeded
// names the option that raises the limit.

#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>

#include "base/status.h"
#include "reader/definitions.h"
#include "reader/shard_reader.h"
#include "reader/value_buffer.h"

namespace tdbg {

// The bytes of a tensor: decoded ones, or those of a mapped shard.
struct TensorValue {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> keep_alive;  // Holds them.
};

class TensorValues {
 public:
  struct Options {
    std::uint64_t max_tensor_bytes = 2ULL << 30;
    // Threads that decode a large tensor, this one included.
    unsigned n_threads = 1;
    // Bytes of decoded tensors that are kept because others are differences to
    // them, so that steps are read one after the other without decoding the
    // whole chain each time.
    std::uint64_t kept_bytes = 256ULL << 20;
  };

  explicit TensorValues(const Options& options) : options_(options) {}

  // The values of tensors[i], which lies in `shard` as all `tensors` do, in the
  // order of their sequences.
  Result<TensorValue> Read(std::span<const TensorEntry> tensors, std::size_t i,
                           const Definitions& definitions, ShardReader* shard);

 private:
  friend class TensorReading;
  using Key = std::pair<std::uint32_t, std::uint64_t>;  // Shard and sequence.
  struct Kept {
    Key key;
    std::shared_ptr<const ValueBuffer> values;
  };

  std::shared_ptr<const ValueBuffer> FindKept(Key key);
  void Keep(Key key, std::shared_ptr<const ValueBuffer> values);

  const Options options_;
  std::list<Kept> kept_;  // The one used last in front.
  std::map<Key, std::list<Kept>::iterator> kept_of_key_;
  std::uint64_t kept_bytes_ = 0;
  std::set<Key> verified_;  // Raw tensors of mapped shards.
};

}  // namespace tdbg
