#include "reader/mapped_file.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"

namespace tdbg {

Result<std::shared_ptr<const MappedFile>> MappedFile::Map(
    int descriptor, std::uint64_t n_bytes) {
  TDBG_DCHECK(n_bytes > 0);
  void* at = ::mmap(nullptr, n_bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE,
                    descriptor, 0);
  if (at == MAP_FAILED) {
    return Status::IoError(std::string("mmap: ") + std::strerror(errno), errno);
  }
  return std::shared_ptr<const MappedFile>(
      new MappedFile({static_cast<const std::byte*>(at), n_bytes}));
}

MappedFile::~MappedFile() {
  ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace tdbg
