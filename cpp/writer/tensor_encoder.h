// TensorEncoder chooses how the chunks of a tensor are stored, and encodes
// them.
//
// Implements docs/format.md, "tensor", codecs and bases.  The choice follows
// from the policy, the element type, what is known of the values and what a
// sample of them says, and how far the writer is behind:
//
//   kNone  everything as it is.
//   kAuto  entropy coding only, of planes or of what is not zero, where it
//          gains more than a few per cent; weights as differences to their last
//          key frame where that gains kWorthDifference more.  From a backlog of
//          kCheapBacklog on without differences and only where much is gained,
//          above kRawBacklog as it is.
//   kMax   the smallest of all that the format has, at any backlog; weights as
//          differences to the save before.
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
#include "format/sample.h"
#include "format/tensor_record.h"
#include "writer/previous_values.h"
#include "writer/writer.h"

namespace tdbg {

// Facts about a tensor that help to choose its encoding.
struct TensorHint {
  float zero_share = Writer::kUnknownShare;
  double backlog = 0;  // How full the queue is, 0 to 1.
};

class TensorEncoder {
 public:
  // Fewer bytes gain less than their frames cost.
  static constexpr std::size_t kMinBytes = 4096;
  static constexpr double kCheapBacklog = 0.25;
  static constexpr double kRawBacklog = 0.5;
  // How many times smaller the estimates must say that a difference is.
  static constexpr float kWorthDifference = 1.15F;
  // Reading a difference means reading what it is a difference to: under kAuto
  // always a key frame, under kMax a chain.  A key frame is made again after
  // as many saves, so that a reader is never far from one.
  static constexpr std::uint32_t kMaxDifferences = 7;
  // How often a tensor that gained nothing as a difference is not tried.
  static constexpr std::uint32_t kRest = 32;

  // `previous_bytes` bounds the values kept to be differences to.
  TensorEncoder(CodecPolicy policy, std::uint64_t previous_bytes)
      : policy_(policy), previous_(previous_bytes) {}
  TensorEncoder(const TensorEncoder&) = delete;
  TensorEncoder& operator=(const TensorEncoder&) = delete;

  // A new shard: the first tensor of each name is a key frame.
  void BeginShard();

  // Begins a tensor.  False if it is to be stored as it is, so that the
  // writer need not copy it.  `raw` must live until Commit.
  bool Begin(const Definition& definition, const TensorHead& head,
             std::span<const std::byte> raw, const TensorHint& hint);

  // Sequence of the record that it is a difference to; 0 for a key frame.
  [[nodiscard]] std::uint64_t base_sequence() const { return base_sequence_; }

  // Encodes chunk `i` into `out`, which has room for its raw bytes.
  // REQUIRES: Begin returned true; called once for each chunk, in order.
  Chunk Encode(std::size_t i, std::span<std::byte> out);

  // The tensor is in the shard as record `sequence`.
  void Commit(std::uint64_t sequence);

  [[nodiscard]] std::uint64_t previous_bytes() const {
    return previous_.bytes();
  }

 private:
  // Estimates from samples, in bits an element.
  struct Estimate {
    float plain = 0;
    float difference = 0;
    bool rotate = false;
  };

  [[nodiscard]] std::span<const std::byte> ChunkOf(
      std::span<const std::byte> bytes, std::size_t i) const;
  [[nodiscard]] float Bits(const PlaneSample& sample) const;
  [[nodiscard]] Estimate EstimateTensor(std::span<const std::byte> base) const;
  // Decides whether the tensor is a difference, and whether it is kept.
  void ChooseBase(const TensorKey& key);
  // Net saving by rotation, in bits an element.
  [[nodiscard]] float GainOfRotation(const PlaneSample& straight,
                                     const PlaneSample& rotated) const;
  [[nodiscard]] Encoding Choose(const PlaneSample& sample, bool rotate) const;
  // Chooses anew for chunk `i` where it is of another kind than those before:
  // a glance at each shows.  Zeros are seldom spread evenly (rows of an
  // embedding's gradient): where there are many, every chunk has its own.
  void Update(std::size_t i, std::span<const std::byte> bytes);
  StoredChunk EncodeSmallest(std::span<const std::byte> bytes,
                             std::span<std::byte> out);

  const CodecPolicy policy_;
  PreviousValues previous_;

  // The tensor that was begun.
  std::span<const std::byte> raw_;
  std::uint32_t width_ = 1;
  bool is_float_ = false;
  bool is_cheap_ = false;  // The writer is behind.
  bool may_be_sparse_ = true;
  bool is_uneven_ = false;  // Much of it is zeros.
  FrameEffort effort_ = FrameEffort::kHuffman;
  Estimate estimate_;
  // Of the chunks from the last sample on, and what was seen of the first.
  Encoding encoding_;
  PlaneSample glance_;
  PreviousValues::Entry* entry_ = nullptr;
  bool keep_ = false;  // entry_ is to hold these values.
  std::span<const std::byte> base_;
  std::uint64_t base_sequence_ = 0;

  std::vector<std::byte> difference_;
  std::vector<std::byte> candidate_;
};

}  // namespace tdbg
