#include "reader/input_file.h"

#include <algorithm>

namespace tdbg {
namespace {

constexpr std::size_t kKeptBuffer = 1 << 20;

}  // namespace

InputFile::InputFile(const Directory* directory, std::string name)
    : name_(std::move(name)), file_(directory->File(name_)) {}

InputFile::InputFile(std::span<const std::byte> bytes, std::string name)
    : name_(std::move(name)), memory_(bytes) {}

void InputFile::Close() {
  if (file_) file_->Close();
  std::vector<std::byte>().swap(buffer_);
}

std::optional<std::span<const std::byte>> InputFile::Held(
    std::uint64_t offset, std::uint64_t n) const {
  if (!memory_ && map_ == nullptr) return std::nullopt;
  const auto bytes = memory_ ? *memory_ : map_->bytes();
  if (offset > bytes.size() || n > bytes.size() - offset) return std::nullopt;
  return bytes.subspan(offset, n);
}

Result<std::uint64_t> InputFile::Size() {
  if (memory_) return std::uint64_t{memory_->size()};
  return file_->Size();
}

std::uint64_t InputFile::AllocatedBytes() {
  return memory_ ? memory_->size() : file_->AllocatedBytes();
}

Status InputFile::Read(std::uint64_t offset, std::span<std::byte> out) {
  if (const auto held = Held(offset, out.size())) {
    std::copy(held->begin(), held->end(), out.begin());
    return Status::Ok();
  }
  if (!memory_) return file_->Read(offset, out);
  return Status::Corruption(
      name_ + ": has only " + std::to_string(memory_->size()) + " bytes",
      memory_->size());
}

Result<std::span<const std::byte>> InputFile::View(std::uint64_t offset,
                                                   std::uint64_t n,
                                                   std::uint64_t end) {
  if (const auto held = Held(offset, n)) return *held;
  const bool is_read = offset >= buffer_offset_ &&
                       offset - buffer_offset_ <= buffer_.size() &&
                       n <= buffer_.size() - (offset - buffer_offset_);
  if (!is_read) {
    const std::uint64_t ahead = file_ ? file_->ReadAhead() : 0;
    buffer_.resize(
        std::max(n, std::min(ahead, end > offset ? end - offset : 0)));
    buffer_offset_ = offset;
    const Status status = Read(offset, buffer_);
    if (!status.ok()) {
      buffer_.clear();
      return status;
    }
  }
  return std::span<const std::byte>(buffer_).subspan(offset - buffer_offset_,
                                                     n);
}

void InputFile::Forget() {
  buffer_.clear();
  if (buffer_.capacity() > kKeptBuffer) buffer_.shrink_to_fit();
}

void InputFile::Map(std::uint64_t n_bytes) {
  if (map_ != nullptr || memory_ || n_bytes == 0) return;
  map_ = file_->Map(n_bytes);
  if (map_ != nullptr) Forget();
}

std::uint64_t InputFile::NextData(std::uint64_t offset, std::uint64_t end) {
  return memory_ ? offset : file_->NextData(offset, end);
}

}  // namespace tdbg
