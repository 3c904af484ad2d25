// LocalDirectory: given up and opened again, if it is still the same.
//
// Seen to fail when what was given up is not opened again, and when another
// directory is taken for it.

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "reader/local_directory.h"
#include "temporary_directory.h"
#include "testing.h"

namespace tdbg::testing {
namespace {

bool HasFile(const LocalDirectory& directory) {
  return ::faccessat(directory.descriptor(), "file", R_OK, 0) == 0;
}

TDBG_TEST(ADirectoryThatWasClosedIsOpenedAgain) {
  const TemporaryDirectory temporary;
  std::ofstream(temporary.path() + "/file") << "x";
  const auto directory = LocalDirectory::Open(temporary.path());
  EXPECT_OK(directory);
  EXPECT_TRUE(HasFile(*directory.value()));
  const int before = directory.value()->descriptor();
  directory.value()->Close();
  EXPECT_EQ(::fcntl(before, F_GETFD), -1);
  EXPECT_TRUE(HasFile(*directory.value()));
}

TDBG_TEST(AnotherDirectoryInItsPlaceIsNotTaken) {
  const TemporaryDirectory temporary;
  const std::string path = temporary.path() + "/writer";
  std::filesystem::create_directory(path);
  const auto directory = LocalDirectory::Open(path);
  EXPECT_OK(directory);
  std::filesystem::rename(path, path + "-moved");
  std::filesystem::create_directory(path);
  EXPECT_GE(directory.value()->descriptor(), 0);  // While it is held open.
  directory.value()->Close();
  EXPECT_EQ(directory.value()->descriptor(), -1);
  std::filesystem::remove(path);
  EXPECT_EQ(directory.value()->descriptor(), -1);
  std::filesystem::rename(path + "-moved", path);
  EXPECT_GE(directory.value()->descriptor(), 0);
}

TDBG_TEST(WhatIsNoDirectoryIsNotOpened) {
  const TemporaryDirectory temporary;
  std::ofstream(temporary.path() + "/file") << "x";
  for (const char* name : {"/file", "/missing"}) {
    EXPECT_TRUE(LocalDirectory::Open(temporary.path() + name).status().code() ==
                StatusCode::kNotFound);
  }
}

}  // namespace
}  // namespace tdbg::testing

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
