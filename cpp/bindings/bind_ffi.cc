// The handlers that XLA calls, and nothing else of XLA: the C interface has no
// library to link with, the runtime hands in its table of functions.
//
// Thread safety: XLA calls a handler from threads of its own, several at once
// and without the GIL.  Nothing here touches Python, takes a lock or waits.
//
// Errors: none is returned: what a tap cannot keep is counted by TapSteps, and
// the program goes on.

#include <xla/ffi/api/c_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

#include "bindings/convert.h"
#include "bindings/register.h"
#include "capture/tap.h"
#include "tensor/dtype.h"

namespace tdbg::bindings {
namespace {

// Registered with XLA by these names.  They have a version: a compiled program
// that was stored on disk calls the handler that it was compiled for.
constexpr const char* kTapTarget = "tdbg_tap_v1";
constexpr const char* kTapAllTarget = "tdbg_tap_all_v1";

DType DTypeOf(XLA_FFI_DataType type) {
  switch (type) {
    case XLA_FFI_DataType_PRED:
      return DType::kBool;
    case XLA_FFI_DataType_S8:
      return DType::kInt8;
    case XLA_FFI_DataType_S16:
      return DType::kInt16;
    case XLA_FFI_DataType_S32:
      return DType::kInt32;
    case XLA_FFI_DataType_S64:
      return DType::kInt64;
    case XLA_FFI_DataType_U8:
      return DType::kUInt8;
    case XLA_FFI_DataType_U16:
      return DType::kUInt16;
    case XLA_FFI_DataType_U32:
      return DType::kUInt32;
    case XLA_FFI_DataType_U64:
      return DType::kUInt64;
    case XLA_FFI_DataType_F16:
      return DType::kFloat16;
    case XLA_FFI_DataType_F32:
      return DType::kFloat32;
    case XLA_FFI_DataType_F64:
      return DType::kFloat64;
    case XLA_FFI_DataType_BF16:
      return DType::kBFloat16;
    case XLA_FFI_DataType_C64:
      return DType::kComplex64;
    case XLA_FFI_DataType_C128:
      return DType::kComplex128;
    case XLA_FFI_DataType_F8E4M3FN:
      return DType::kFloat8E4M3Fn;
    case XLA_FFI_DataType_F8E5M2:
      return DType::kFloat8E5M2;
    case XLA_FFI_DataType_F8E4M3FNUZ:
      return DType::kFloat8E4M3FnUz;
    case XLA_FFI_DataType_F8E5M2FNUZ:
      return DType::kFloat8E5M2FnUz;
    case XLA_FFI_DataType_F8E8M0FNU:
      return DType::kFloat8E8M0Fnu;
    default:
      return DType::kInvalid;
  }
}

std::span<const std::int64_t> NumbersOf(XLA_FFI_AttrType type,
                                        const void* attribute) {
  if (type == XLA_FFI_AttrType_SCALAR) {
    const auto* scalar = static_cast<const XLA_FFI_Scalar*>(attribute);
    if (scalar->dtype != XLA_FFI_DataType_S64) return {};
    return {static_cast<const std::int64_t*>(scalar->value), 1};
  }
  if (type == XLA_FFI_AttrType_ARRAY) {
    const auto* array = static_cast<const XLA_FFI_Array*>(attribute);
    if (array->dtype != XLA_FFI_DataType_S64) return {};
    return {static_cast<const std::int64_t*>(array->data), array->size};
  }
  return {};
}

// What the program was compiled with: hooks/jax/primitive.py.
struct TapAttributes {
  std::span<const std::int64_t> tap;
  // By device, the number of the part that it shows; negative: another one
  // shows the same.  Empty: there is one device.
  std::span<const std::int64_t> parts;
  std::span<const std::int64_t> global_shape;
  std::span<const std::int64_t> offsets;  // By device; empty: not known.
};

TapAttributes AttributesOf(const XLA_FFI_Attrs& attrs) {
  TapAttributes found;
  for (std::int64_t i = 0; i < attrs.size; ++i) {
    const std::string_view name(attrs.names[i]->ptr, attrs.names[i]->len);
    const auto numbers = NumbersOf(attrs.types[i], attrs.attrs[i]);
    if (name == "tap") found.tap = numbers;
    if (name == "parts") found.parts = numbers;
    if (name == "global_shape") found.global_shape = numbers;
    if (name == "offsets") found.offsets = numbers;
  }
  return found;
}

// Number of the device that runs the program, among those of this process.
std::size_t DeviceOf(const XLA_FFI_CallFrame& frame) {
  const XLA_FFI_Api* const api = frame.api;
  constexpr std::size_t kNeeded =
      offsetof(XLA_FFI_Api, XLA_FFI_DeviceOrdinal_Get) + sizeof(void*);
  if (api == nullptr || api->struct_size < kNeeded) return 0;
  XLA_FFI_DeviceOrdinal_Get_Args args{
      .struct_size = XLA_FFI_DeviceOrdinal_Get_Args_STRUCT_SIZE,
      .extension_start = nullptr,
      .ctx = frame.ctx,
      .device_ordinal = 0};
  if (XLA_FFI_Error* error = api->XLA_FFI_DeviceOrdinal_Get(&args)) {
    XLA_FFI_Error_Destroy_Args destroyed{
        .struct_size = XLA_FFI_Error_Destroy_Args_STRUCT_SIZE,
        .extension_start = nullptr,
        .error = error};
    api->XLA_FFI_Error_Destroy(&destroyed);
    return 0;
  }
  return static_cast<std::size_t>(args.device_ordinal);
}

// The second operand: low and high word of the ticket, and, where the program
// is written for each device, the number of the part that this one shows.
struct Ticket {
  std::int64_t number = TapSteps::kNoTicket;
  std::optional<std::int32_t> part;
};

Ticket TicketIn(const XLA_FFI_Buffer& buffer) {
  const std::int64_t n_words = buffer.rank == 1 ? buffer.dims[0] : 0;
  if (buffer.dtype != XLA_FFI_DataType_S32 || n_words < 2 || n_words > 3) {
    return {};
  }
  std::array<std::uint32_t, 3> words{};
  std::memcpy(words.data(), buffer.data,
              static_cast<std::size_t>(n_words) * sizeof words[0]);
  Ticket ticket{.number = static_cast<std::int64_t>(
                    words[0] | std::uint64_t{words[1]} << 32U),
                .part = std::nullopt};
  if (n_words == 3) ticket.part = static_cast<std::int32_t>(words[2]);
  return ticket;
}

void Show(const XLA_FFI_Buffer& operand, std::int64_t ticket, std::int64_t tap,
          const TapPart& part) {
  const DType dtype = DTypeOf(operand.dtype);
  if (dtype == DType::kInvalid) return;  // Not lowered: primitive.py.
  TapSteps::OfProcess().Take(
      ticket, tap, part,
      {.data = operand.data,
       .dtype = dtype,
       .item_size = ItemSize(dtype),
       .shape = {operand.dims, static_cast<std::size_t>(operand.rank)},
       .strides = {}});
}

void ShowTensor(const XLA_FFI_CallFrame& frame, const XLA_FFI_Buffer& operand,
                const XLA_FFI_Buffer& ticket_operand) {
  const TapAttributes attributes = AttributesOf(frame.attrs);
  if (attributes.tap.size() != 1) return;
  TapPart part{.number = 0,
               .global_shape = attributes.global_shape,
               .global_offset = {}};
  const Ticket ticket = TicketIn(ticket_operand);
  const auto rank = static_cast<std::size_t>(operand.rank);
  if (ticket.part.has_value()) {
    if (*ticket.part < 0) return;
    part.number = *ticket.part;
  }
  if (!attributes.parts.empty()) {
    const std::size_t device = DeviceOf(frame);
    if (device >= attributes.parts.size() || attributes.parts[device] < 0) {
      return;
    }
    part.number = static_cast<std::int32_t>(attributes.parts[device]);
    if (part.global_shape.size() == rank &&
        attributes.offsets.size() >= (device + 1) * rank) {
      part.global_offset = attributes.offsets.subspan(device * rank, rank);
    }
  }
  if (part.global_offset.empty()) part.global_shape = {};
  Show(operand, ticket.number, attributes.tap.front(), part);
}

// Says which version of the interface this was compiled with, when XLA asks.
bool AnswersMetadata(const XLA_FFI_CallFrame& frame) {
  XLA_FFI_Extension_Base* const extension = frame.extension_start;
  if (extension == nullptr || extension->type != XLA_FFI_Extension_Metadata) {
    return false;
  }
  XLA_FFI_Metadata* const metadata =
      reinterpret_cast<XLA_FFI_Metadata_Extension*>(extension)->metadata;
  metadata->api_version.major_version = XLA_FFI_API_MAJOR;
  metadata->api_version.minor_version = XLA_FFI_API_MINOR;
  metadata->traits = 0;
  return true;
}

// Copies the operand to the result, unless XLA has made them one.
void PassOn(const XLA_FFI_Buffer& operand, const XLA_FFI_Buffer& result,
            DType dtype) {
  if (result.data == operand.data) return;
  std::uint64_t n_bytes = ItemSize(dtype);
  for (std::int64_t i = 0; i < operand.rank; ++i) {
    n_bytes *= static_cast<std::uint64_t>(operand.dims[i]);
  }
  if (n_bytes > 0) std::memcpy(result.data, operand.data, n_bytes);
}

// Operands: a tensor, and the ticket.  The result is the tensor, in its place.
XLA_FFI_Error* HandleTap(XLA_FFI_CallFrame* frame) {
  if (AnswersMetadata(*frame) ||
      frame->stage != XLA_FFI_ExecutionStage_EXECUTE || frame->args.size != 2 ||
      frame->rets.size != 1) {
    return nullptr;
  }
  const auto* operand = static_cast<XLA_FFI_Buffer*>(frame->args.args[0]);
  const auto* ticket = static_cast<XLA_FFI_Buffer*>(frame->args.args[1]);
  const auto* result = static_cast<XLA_FFI_Buffer*>(frame->rets.rets[0]);
  ShowTensor(*frame, *operand, *ticket);
  PassOn(*operand, *result, DTypeOf(operand->dtype));
  return nullptr;
}

// Operands: whole tensors, each with a tap of its own, and the ticket, which is
// the result.
XLA_FFI_Error* HandleTapAll(XLA_FFI_CallFrame* frame) {
  if (AnswersMetadata(*frame) ||
      frame->stage != XLA_FFI_ExecutionStage_EXECUTE || frame->args.size < 1 ||
      frame->rets.size != 1) {
    return nullptr;
  }
  const auto n_tensors = static_cast<std::size_t>(frame->args.size - 1);
  const auto operand = [&](std::size_t i) {
    return static_cast<XLA_FFI_Buffer*>(frame->args.args[i]);
  };
  const auto taps = AttributesOf(frame->attrs).tap;
  const auto* ticket = operand(n_tensors);
  if (taps.size() == n_tensors) {
    for (std::size_t i = 0; i < n_tensors; ++i) {
      Show(*operand(i), TicketIn(*ticket).number, taps[i], {});
    }
  }
  PassOn(*ticket, *static_cast<XLA_FFI_Buffer*>(frame->rets.rets[0]),
         DType::kInt32);
  return nullptr;
}

}  // namespace

void RegisterFfi(py::module_& module) {
  const auto capsule = [](XLA_FFI_Error* (*handler)(XLA_FFI_CallFrame*)) {
    return py::capsule(reinterpret_cast<void*>(handler),
                       "xla._CUSTOM_CALL_TARGET");
  };
  module.attr("TAP_TARGET") = kTapTarget;
  module.attr("TAP_ALL_TARGET") = kTapAllTarget;
  module.def("tap_handlers", [capsule] {
    py::dict handlers;
    handlers[kTapTarget] = capsule(&HandleTap);
    handlers[kTapAllTarget] = capsule(&HandleTapAll);
    return handlers;
  });
}

}  // namespace tdbg::bindings
