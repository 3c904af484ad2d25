#include "capture/captured_view.h"

namespace tdbg {

bool ViewOf(const Writer& writer, const CaptureItem& item, TensorView* view) {
  const Definition* definition = writer.definition(item.definition);
  if (definition == nullptr) return false;
  view->data = item.data;
  view->dtype = definition->dtype;
  view->item_size = definition->item_size;
  view->shape = definition->shape;
  view->strides = item.strides;
  if (!item.strides.empty() && item.strides.size() != view->shape.size()) {
    return false;
  }
  return item.data != nullptr || view->count() == 0;
}

void RefuseTensor(Writer* writer, std::int64_t step, std::uint32_t definition) {
  const Definition* known = writer->definition(definition);
  std::uint64_t n_bytes = 0;
  if (known != nullptr) {
    if (const auto raw = RawLength(*known); raw.ok()) n_bytes = raw.value();
  }
  writer->Refuse(step, 1, n_bytes, definition);
}

}  // namespace tdbg
