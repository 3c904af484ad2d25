#include "writer/index_writer.h"

#include <utility>

namespace tdbg {

Status WriteIndexFile(FileSystem* file_system, const std::string& path,
                      std::span<const std::byte> bytes) {
  Result<File> created = File::Create(file_system, path);
  if (!created.ok()) return created.status();
  File file = std::move(created).value();
  Status status = file.WriteAt(bytes, 0);
  if (status.ok()) status = file.Close();
  if (!status.ok()) {
    if (file.is_open()) (void)file.Close();
    (void)RemoveFile(file_system, path);
  }
  return status;
}

}  // namespace tdbg
