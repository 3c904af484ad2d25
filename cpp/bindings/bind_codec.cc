#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "base/mutex.h"
#include "bindings/convert.h"
#include "bindings/names.h"
#include "bindings/register.h"
#include "format/tensor_record.h"
#include "writer/tensor_encoder.h"

namespace tdbg::bindings {
namespace {

// The bytes of a contiguous buffer.
template <typename Byte>
std::span<Byte> BytesOf(const py::buffer_info& info) {
  const auto n = static_cast<std::size_t>(info.size * info.itemsize);
  if (PyBuffer_IsContiguous(info.view(), 'C') == 0) {
    Throw(Status::InvalidArgument("a buffer must be contiguous"));
  }
  return {static_cast<Byte*>(info.ptr), n};
}

std::span<const std::byte> Readable(const py::buffer_info& info) {
  return BytesOf<const std::byte>(info);
}

// What the writer does with tensors, without a writer.
class TensorCodec {
 public:
  TensorCodec(const std::string& codec, std::uint64_t previous_bytes)
      : encoder_(ParseCodec(codec), previous_bytes) {}

  std::size_t Encode(const py::buffer& values, const py::buffer& out,
                     const std::string& dtype, std::uint16_t role,
                     double backlog) {
    const py::buffer_info from = values.request();
    const py::buffer_info to = out.request(true);
    const ElementType type = ParseElementType(dtype, from.itemsize);
    const auto raw = Readable(from);
    const auto payload = BytesOf<std::byte>(to);
    const std::size_t n_chunks = (raw.size() + kChunkBytes - 1) / kChunkBytes;
    Definition definition;
    definition.id = 1;
    definition.role = static_cast<TensorRole>(role);
    definition.dtype = type.dtype;
    definition.item_size = type.item_size;
    TensorHead head;
    head.definition = definition.id;
    head.chunk_size = kChunkBytes;
    head.raw_length = raw.size();
    head.data_offset = static_cast<std::uint32_t>(TensorDataOffset(n_chunks));
    head.chunks.resize(n_chunks);
    if (payload.size() < head.data_offset + raw.size()) {
      Throw(Status::InvalidArgument(
          "out needs " + std::to_string(head.data_offset + raw.size()) +
          " bytes"));
    }
    const ReleaseGil released;
    const MutexLock lock(mutex_);
    const bool is_encoded =
        encoder_.Begin(definition, head, raw, {.backlog = backlog});
    if (is_encoded) head.base_sequence = encoder_.base_sequence();
    std::size_t at = head.data_offset;
    for (std::size_t i = 0; i < n_chunks; ++i) {
      Chunk& chunk = head.chunks[i];
      if (is_encoded) {
        chunk = encoder_.Encode(i, payload.subspan(at));
      } else {
        const auto plain = raw.subspan(
            i * kChunkBytes,
            std::min<std::size_t>(kChunkBytes, raw.size() - i * kChunkBytes));
        chunk.stored_length = static_cast<std::uint32_t>(
            EncodeChunk(plain, {}, payload.subspan(at)).length);
        chunk.crc = MaskedCrc32c(plain.data(), plain.size());
      }
      at += chunk.stored_length;
    }
    ++sequence_;
    if (is_encoded) encoder_.Commit(sequence_);
    const std::vector<std::byte> table = EncodeTensorHead(head);
    std::memcpy(payload.data(), table.data(), table.size());
    return at;
  }

  void BeginShard() {
    const ReleaseGil released;
    const MutexLock lock(mutex_);
    encoder_.BeginShard();
  }

  std::uint64_t PreviousBytes() {
    const ReleaseGil released;
    const MutexLock lock(mutex_);
    return encoder_.previous_bytes();
  }

 private:
  Mutex mutex_;
  TensorEncoder encoder_;
  std::uint64_t sequence_ = 0;
};

void Decode(const py::buffer& payload, std::uint32_t item_size,
            const py::buffer& out, const py::buffer& base) {
  const py::buffer_info from = payload.request();
  const py::buffer_info to = out.request(true);
  const py::buffer_info before = base.request();
  const auto bytes = Readable(from);
  const auto raw = BytesOf<std::byte>(to);
  const auto base_bytes = Readable(before);
  const Status status = [&]() -> Status {
    const ReleaseGil released;
    const Result<TensorHead> head = DecodeTensorHead(bytes, bytes.size());
    if (!head.ok()) return head.status();
    if (head.value().raw_length != raw.size()) {
      return Status::InvalidArgument("out must have " +
                                     std::to_string(head.value().raw_length) +
                                     " bytes");
    }
    return DecodeTensor(head.value(), bytes.subspan(head.value().data_offset),
                        item_size, base_bytes, raw);
  }();
  ThrowIfError(status);
}

}  // namespace

void RegisterCodec(py::module_& module) {
  py::class_<TensorCodec>(module, "TensorCodec", PlainType())
      .def(py::init<const std::string&, std::uint64_t>(),
           py::arg("codec") = "auto",
           py::arg("previous_bytes") = std::uint64_t{1} << 30)
      .def("encode", &TensorCodec::Encode, py::arg("values"), py::arg("out"),
           py::arg("dtype"), py::arg("role") = 1, py::arg("backlog") = 0.0)
      .def("begin_shard", &TensorCodec::BeginShard)
      .def_property_readonly("previous_bytes", &TensorCodec::PreviousBytes);
  module.def("decode_tensor", &Decode, py::arg("payload"), py::arg("item_size"),
             py::arg("out"), py::arg("base") = py::bytes());
}

}  // namespace tdbg::bindings
