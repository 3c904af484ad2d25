// The hand-written declarations of cpp/format/zstd_api.h against the library
// that was linked.

#include "format/zstd_api.h"

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "testing.h"

namespace tdbg {
namespace {

std::string Sample() {
  std::string text;
  for (int i = 0; i < 4000; ++i) text += std::to_string(i * i % 97) + ",";
  return text;
}

std::vector<char> Compressed(const std::string& text, bool with_checksum) {
  std::vector<char> frame(ZSTD_compressBound(text.size()));
  ZSTD_CCtx* context = ZSTD_createCCtx();
  EXPECT_FALSE(ZSTD_isError(
      ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, 3)));
  EXPECT_FALSE(ZSTD_isError(ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag,
                                                   with_checksum ? 1 : 0)));
  const std::size_t n = ZSTD_compress2(context, frame.data(), frame.size(),
                                       text.data(), text.size());
  EXPECT_FALSE(ZSTD_isError(n));
  ZSTD_freeCCtx(context);
  frame.resize(ZSTD_isError(n) ? 0 : n);
  return frame;
}

TDBG_TEST(TheLinkedVersionIsNotOlderThanTheDeclarations) {
  EXPECT_GE(ZSTD_versionNumber(), kZstdOldestVersion);
}

TDBG_TEST(BytesComeBackAsTheyWere) {
  const std::string text = Sample();
  const std::vector<char> frame = Compressed(text, false);
  EXPECT_LT(frame.size(), text.size() / 2);
  EXPECT_EQ(ZSTD_getFrameContentSize(frame.data(), frame.size()),
            static_cast<unsigned long long>(text.size()));
  EXPECT_EQ(ZSTD_findFrameCompressedSize(frame.data(), frame.size()),
            frame.size());

  std::string back(text.size(), '\0');
  ZSTD_DCtx* context = ZSTD_createDCtx();
  EXPECT_EQ(ZSTD_decompressDCtx(context, back.data(), back.size(), frame.data(),
                                frame.size()),
            text.size());
  EXPECT_TRUE(back == text);
  ZSTD_freeDCtx(context);
}

TDBG_TEST(ParametersMeanWhatTheirNumbersSay) {
  // The checksum adds its four bytes and nothing else.
  const std::string text = Sample();
  EXPECT_EQ(Compressed(text, true).size(), Compressed(text, false).size() + 4);

  // A frame that does not say its size.
  std::vector<char> frame(ZSTD_compressBound(text.size()));
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, 0);
  const std::size_t n = ZSTD_compress2(context, frame.data(), frame.size(),
                                       text.data(), text.size());
  EXPECT_FALSE(ZSTD_isError(n));
  EXPECT_EQ(ZSTD_getFrameContentSize(frame.data(), n), kZstdContentSizeUnknown);

  // A reset brings the size back.
  EXPECT_FALSE(ZSTD_isError(
      ZSTD_CCtx_reset(context, ZSTD_reset_session_and_parameters)));
  const std::size_t m = ZSTD_compress2(context, frame.data(), frame.size(),
                                       text.data(), text.size());
  EXPECT_EQ(ZSTD_getFrameContentSize(frame.data(), m),
            static_cast<unsigned long long>(text.size()));
  ZSTD_freeCCtx(context);
}

TDBG_TEST(DamageIsAnErrorWithAName) {
  const std::string text = Sample();
  std::vector<char> frame = Compressed(text, true);
  std::string back(text.size(), '\0');
  const std::size_t truncated =
      ZSTD_decompress(back.data(), back.size(), frame.data(), frame.size() - 1);
  EXPECT_TRUE(ZSTD_isError(truncated));
  EXPECT_GT(std::strlen(ZSTD_getErrorName(truncated)), 0U);
  EXPECT_TRUE(ZSTD_isError(ZSTD_decompress(back.data(), back.size() - 1,
                                           frame.data(), frame.size())));
  frame[0] = 0;
  EXPECT_EQ(ZSTD_getFrameContentSize(frame.data(), frame.size()),
            kZstdContentSizeError);
}

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
