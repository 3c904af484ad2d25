// Words and numbers of the kernel's text files, which may be cut, empty or
// anything else: what is no number was not measured.
//
// Thread safety: pure functions.

#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tdbg {

// An unsigned measurement that is missing; python/tdbg/run/profile_tables.py.
inline constexpr std::uint64_t kNotMeasured = ~std::uint64_t{0};
inline constexpr std::uint32_t kNotMeasured32 = ~std::uint32_t{0};

// Takes the first line off the text, without its end.
std::string_view TakeLine(std::string_view* text);

// Takes the first word off a line: what stands between blanks.  Empty at its
// end.
std::string_view TakeWord(std::string_view* line);

// Takes `n` words off a line.
void SkipWords(std::string_view* line, int n);

// The number that a word is: digits only, below 2^64.
std::optional<std::uint64_t> ParseNumber(std::string_view word);

// Takes the first word off a line: the number that it is, or kNotMeasured.
std::uint64_t TakeNumber(std::string_view* line);

// The first word of a text as a number, or kNotMeasured.
std::uint64_t FirstNumber(std::string_view text);

// The number behind the line's first word, in the line that begins with `key`;
// kNotMeasured if there is none.
std::uint64_t NumberOf(std::string_view text, std::string_view key);

// value * factor, and value + other; kNotMeasured if an operand is, or if it
// does not fit.
std::uint64_t Scaled(std::uint64_t value, std::uint64_t factor);
std::uint64_t Sum(std::uint64_t value, std::uint64_t other);

// The value in 32 bits; kNotMeasured32 if it does not fit.
std::uint32_t Narrow(std::uint64_t value);

}  // namespace tdbg
