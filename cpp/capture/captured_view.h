// Checks of an item, shared by the captures of all devices.
//
// Thread safety: as the writer's.

#pragma once

#include <cstdint>

#include "capture/capture_item.h"
#include "tensor/tensor_view.h"
#include "writer/writer.h"

namespace tdbg {

// The item as a view; false when it cannot be captured.
bool ViewOf(const Writer& writer, const CaptureItem& item, TensorView* view);

// Counts a tensor of this definition as offered and dropped.
void RefuseTensor(Writer* writer, std::int64_t step, std::uint32_t definition);

}  // namespace tdbg
