// The part of zstd's C interface that tdbg uses, declared by hand.
//
// tdbg links zstd statically, usually from the archive inside the blosc2 wheel
// (cmake/TdbgZstd.cmake), which holds the code but not zstd.h.  What stands
// here is the stable interface of <zstd.h>, unchanged in name, signature and
// value since zstd 1.4.0, and one parameter of its experimental section, whose
// refusal must be harmless (kLiteralCompressionMode); no more of that may be
// added.
// A user of this header checks kZstdOldestVersion against
// ZSTD_versionNumber() once.
//
// Thread safety: functions without a context are safe; a context belongs to one
// thread at a time.
//
// Errors: functions that return a size return an error code in it, which
// ZSTD_isError() recognises and ZSTD_getErrorName() names.  Nothing throws.

#pragma once

#include <cstddef>

namespace tdbg {

// The interface below is stable from this version on (1.4.0).
inline constexpr unsigned kZstdOldestVersion = 10400;

}  // namespace tdbg

// The names are zstd's: they are linked by name.
// NOLINTBEGIN(readability-identifier-naming,modernize-use-using)
extern "C" {

// Version of the linked library: major * 10000 + minor * 100 + patch.
unsigned ZSTD_versionNumber();

// Not zero when `code`, returned by a function below, is an error.
unsigned ZSTD_isError(std::size_t code);
// The name of an error, a string with static lifetime.
const char* ZSTD_getErrorName(std::size_t code);

// The largest size that compressing `n` bytes can give.
std::size_t ZSTD_compressBound(std::size_t n);

// `n` must be the exact size of one or more whole frames.
std::size_t ZSTD_decompress(void* to, std::size_t capacity, const void* from,
                            std::size_t n);

// Compression with a context that is kept, which saves its allocation.
struct ZSTD_CCtx_s;
using ZSTD_CCtx = ZSTD_CCtx_s;
// Null when out of memory.
ZSTD_CCtx* ZSTD_createCCtx();
// Accepts null.
std::size_t ZSTD_freeCCtx(ZSTD_CCtx* context);
// With the parameters set on the context, which stay set.
std::size_t ZSTD_compress2(ZSTD_CCtx* context, void* to, std::size_t capacity,
                           const void* from, std::size_t n);

enum ZSTD_cParameter : int {
  ZSTD_c_compressionLevel = 100,
  ZSTD_c_windowLog = 101,
  ZSTD_c_hashLog = 102,
  ZSTD_c_minMatch = 105,
  ZSTD_c_targetLength = 106,
  ZSTD_c_strategy = 107,
  ZSTD_c_contentSizeFlag = 200,
  ZSTD_c_checksumFlag = 201,
  // Experimental: literalCompressionMode.  0 by strategy, 1 always, 2 never.
  // Had this number and these values since 1.3.8; a library without it refuses
  // it, and then literals of the fast strategy stay as they are: larger frames,
  // no wrong ones.
  ZSTD_c_experimentalParam5 = 1002,
};
// Values of parameters.
enum ZSTD_strategy : int { ZSTD_fast = 1 };
// Sets one parameter for the frames that follow.
std::size_t ZSTD_CCtx_setParameter(ZSTD_CCtx* context,
                                   ZSTD_cParameter parameter, int value);

enum ZSTD_ResetDirective : int {
  ZSTD_reset_session_only = 1,
  ZSTD_reset_parameters = 2,
  ZSTD_reset_session_and_parameters = 3,
};
std::size_t ZSTD_CCtx_reset(ZSTD_CCtx* context, ZSTD_ResetDirective what);

// Decompression with a context that is kept.
struct ZSTD_DCtx_s;
using ZSTD_DCtx = ZSTD_DCtx_s;
// Null when out of memory.
ZSTD_DCtx* ZSTD_createDCtx();
// Accepts null.
std::size_t ZSTD_freeDCtx(ZSTD_DCtx* context);
std::size_t ZSTD_decompressDCtx(ZSTD_DCtx* context, void* to,
                                std::size_t capacity, const void* from,
                                std::size_t n);

// The size that the frame at `from` says it has when decompressed, or one of
// the two values below.  It is a claim, to be checked against a limit.
unsigned long long ZSTD_getFrameContentSize(const void* from, std::size_t n);

// The stored size of the frame that begins at `from`; an error when damaged.
std::size_t ZSTD_findFrameCompressedSize(const void* from, std::size_t n);

}  // extern "C"
// NOLINTEND(readability-identifier-naming,modernize-use-using)

namespace tdbg {

// Results of ZSTD_getFrameContentSize() that are not sizes.
inline constexpr unsigned long long kZstdContentSizeUnknown = 0ULL - 1;
inline constexpr unsigned long long kZstdContentSizeError = 0ULL - 2;

}  // namespace tdbg
