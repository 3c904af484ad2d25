// Status and Result carry what went wrong and where.

#include "base/status.h"

#include <memory>
#include <string>
#include <utility>

#include "testing.h"

namespace {

using namespace tdbg;  // NOLINT: a test.

TDBG_TEST(ADefaultStatusIsOk) {
  EXPECT_OK(Status());
  EXPECT_OK(Status::Ok());
  EXPECT_TRUE(Status::Ok().message().empty());
}

TDBG_TEST(AnIoErrorKeepsTheErrno) {
  const Status status = Status::IoError("cannot write a.tds", 28);
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(status.code() == StatusCode::kIoError);
  EXPECT_EQ(status.system_error(), 28);
  EXPECT_EQ(status.message(), "cannot write a.tds");
  EXPECT_FALSE(status.offset().has_value());
}

TDBG_TEST(ACorruptionKeepsTheOffset) {
  const Status status = Status::Corruption("bad checksum", 4096);
  EXPECT_TRUE(status.code() == StatusCode::kCorruption);
  EXPECT_TRUE(status.offset() == std::optional<std::uint64_t>(4096));
}

TDBG_TEST(AResultHoldsAValueThatCanBeMovedOut) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(5));
  EXPECT_OK(result);
  const std::unique_ptr<int> value = std::move(result).value();
  EXPECT_EQ(*value, 5);
}

TDBG_TEST(AResultWithoutValueHasAStatus) {
  const Result<int> result(Status::NotFound("no such step"));
  EXPECT_FALSE(result.ok());
  EXPECT_TRUE(result.status().code() == StatusCode::kNotFound);
}

Status Outer(const Status& inner, bool* reached) {
  TDBG_RETURN_IF_ERROR(inner);
  *reached = true;
  return Status::Ok();
}

TDBG_TEST(AnErrorLeavesTheFunctionAtOnce) {
  bool reached = false;
  const Status closed = Outer(Status::Closed("closed"), &reached);
  EXPECT_EQ(closed.message(), "closed");
  EXPECT_FALSE(reached);
  EXPECT_OK(Outer(Status::Ok(), &reached));
  EXPECT_TRUE(reached);
}

}  // namespace

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
