#include "sampler/text.h"

#include <algorithm>
#include <charconv>
#include <system_error>

#include "base/checked_math.h"

namespace tdbg {
namespace {

constexpr std::string_view kBlanks = " \t\n\r";

}  // namespace

std::string_view TakeLine(std::string_view* text) {
  const std::size_t end = std::min(text->find('\n'), text->size());
  const std::string_view line = text->substr(0, end);
  text->remove_prefix(std::min(end + 1, text->size()));
  return line;
}

std::string_view TakeWord(std::string_view* line) {
  line->remove_prefix(std::min(line->find_first_not_of(kBlanks), line->size()));
  const std::size_t end = std::min(line->find_first_of(kBlanks), line->size());
  const std::string_view word = line->substr(0, end);
  line->remove_prefix(end);
  return word;
}

void SkipWords(std::string_view* line, int n) {
  for (int i = 0; i < n; ++i) TakeWord(line);
}

std::optional<std::uint64_t> ParseNumber(std::string_view word) {
  std::uint64_t value = 0;
  const char* const end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data(), end, value);
  if (word.empty() || error != std::errc() || stop != end) return std::nullopt;
  return value;
}

std::uint64_t TakeNumber(std::string_view* line) {
  return ParseNumber(TakeWord(line)).value_or(kNotMeasured);
}

std::uint64_t FirstNumber(std::string_view text) { return TakeNumber(&text); }

std::uint64_t NumberOf(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    std::string_view line = TakeLine(&text);
    if (line.starts_with(key) && TakeWord(&line) == key) {
      return TakeNumber(&line);
    }
  }
  return kNotMeasured;
}

std::uint64_t Scaled(std::uint64_t value, std::uint64_t factor) {
  std::uint64_t product = 0;
  if (value == kNotMeasured || !CheckedMul(value, factor, &product)) {
    return kNotMeasured;
  }
  return product;
}

std::uint64_t Sum(std::uint64_t value, std::uint64_t other) {
  std::uint64_t sum = 0;
  if (value == kNotMeasured || other == kNotMeasured ||
      !CheckedAdd(value, other, &sum)) {
    return kNotMeasured;
  }
  return sum;
}

std::uint32_t Narrow(std::uint64_t value) {
  return value < kNotMeasured32 ? static_cast<std::uint32_t>(value)
                                : kNotMeasured32;
}

}  // namespace tdbg
