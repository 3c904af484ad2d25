// TensorEncoder chooses how the chunks of a tensor are stored, and encodes
// them.
//
// Implements docs/format.md, "tensor", codecs and bases.  The choice follows
// from the policy, the element type, what is known of the values, and how far
// the writer is behind.
//
// Thread safety: none; the writer thread owns it.
//
// Errors: none; what does not get smaller is stored raw.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "format/record.h"
#include "format/tensor_record.h"
#include "writer/writer.h"

namespace tdbg {

// What the writer knows of a tensor beside its definition.
struct TensorHint {
  float zero_share = Writer::kUnknownShare;
  double backlog = 0;  // How full the queue is, 0 to 1.
};

class TensorEncoder {
 public:
  explicit TensorEncoder(CodecPolicy policy) : policy_(policy) {}
  TensorEncoder(const TensorEncoder&) = delete;
  TensorEncoder& operator=(const TensorEncoder&) = delete;

  // A new shard: the first tensor of each name is a key frame.
  void BeginShard() {}

  // Takes up a tensor.  False when it is to be stored as it is, so that the
  // writer need not copy it.  `raw` must live until Commit.
  bool Begin(const Definition& definition, const TensorHead& head,
             std::span<const std::byte> raw, const TensorHint& hint);

  // Sequence of the record that it is a difference to; 0 for a key frame.
  [[nodiscard]] std::uint64_t base_sequence() const { return 0; }

  // Encodes chunk `i` into `out`, which has room for its raw bytes.
  // REQUIRES: Begin returned true; called once for each chunk, in order.
  Chunk Encode(std::size_t i, std::span<std::byte> out);

  // The tensor is in the shard as record `sequence`.
  void Commit(std::uint64_t /*sequence*/) {}

 private:
  const CodecPolicy policy_;

  // The tensor that was begun.
  std::span<const std::byte> raw_;
  std::uint32_t item_size_ = 1;
};

}  // namespace tdbg
