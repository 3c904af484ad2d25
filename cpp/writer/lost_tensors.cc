#include "writer/lost_tensors.h"

#include <array>
#include <cstdio>

namespace tdbg {
namespace {

void AppendJsonString(const std::string& text, std::string* out) {
  *out += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      *out += {'\\', c};
    } else if (byte < 0x20) {
      std::array<char, 8> escaped{};
      (void)std::snprintf(escaped.data(), escaped.size(), "\\u%04x", byte);
      *out += escaped.data();
    } else {
      *out += c;
    }
  }
  *out += '"';
}

}  // namespace

std::string LostTensorsJson(const LostForReason& lost,
                            DefinitionTable* definitions) {
  std::string out = R"({"what":"lost","reason":)";
  out += std::to_string(static_cast<std::uint32_t>(lost.reason));
  out += R"(,"tensors":[)";
  std::uint64_t n_more = lost.n_more;
  for (const LostForReason::Tensor& each : lost.named) {
    const Definition* definition = definitions->Find(each.definition);
    if (definition == nullptr || out.size() > kMaxText) {
      ++n_more;
      continue;
    }
    if (out.back() != '[') out += ',';
    out += R"({"tensor":)";
    AppendJsonString(definition->name, &out);
    out += R"(,"records":)" + std::to_string(each.records);
    out += R"(,"step":)" + std::to_string(each.first_step) + '}';
  }
  out += R"(],"more":)" + std::to_string(n_more) + '}';
  return out;
}

void LostTensors::Add(GapReason reason, std::int64_t step,
                      std::span<const std::uint32_t> definitions,
                      std::uint64_t records) {
  OfReason& found = reasons_[static_cast<std::size_t>(reason)];
  for (const std::uint32_t id : definitions) {
    if (id == 0) continue;
    if (id >= found.records.size()) found.records.resize(id + 1);
    found.losses.reason = reason;
    found.losses.n_records += records;
    std::uint64_t& known = found.records[id];
    if (known == 0 && found.losses.named.size() < kMaxNamed) {
      found.losses.named.push_back({.definition = id, .first_step = step});
    } else if (known == 0) {
      ++found.losses.n_more;
    }
    known += records;
  }
}

std::vector<LostForReason> LostTensors::TakeNews(bool all) {
  std::vector<LostForReason> news;
  for (OfReason& found : reasons_) {
    const std::uint64_t n_records = found.losses.n_records;
    if (n_records == found.told_records) continue;
    const bool has_more_names = found.losses.named.size() != found.told_names;
    if (!all && !has_more_names && n_records < 2 * found.told_records) continue;
    found.told_records = n_records;
    found.told_names = found.losses.named.size();
    news.push_back(Counted(found));
  }
  return news;
}

void LostTensors::Forget() {
  for (OfReason& found : reasons_) found.told_records = 0;
}

std::vector<LostForReason> LostTensors::All() const {
  std::vector<LostForReason> all;
  for (const OfReason& found : reasons_) {
    if (found.losses.n_records != 0) all.push_back(Counted(found));
  }
  return all;
}

LostForReason LostTensors::Counted(const OfReason& found) {
  LostForReason losses = found.losses;
  for (LostForReason::Tensor& each : losses.named) {
    each.records = found.records[each.definition];
  }
  return losses;
}

}  // namespace tdbg
