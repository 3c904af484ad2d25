#include "sampler/machine_facts.h"

#include <unistd.h>

#include <charconv>
#include <cmath>

namespace tdbg {
namespace {

template <typename Range, typename Written>
std::string JsonList(const Range& range, const Written& written) {
  std::string list = "[";
  for (const auto& each : range) {
    if (list.size() > 1) list += ", ";
    list += written(each);
  }
  return list + "]";
}

std::string JsonNumber(std::uint64_t number) {
  return number == kNotMeasured ? "null" : std::to_string(number);
}

std::string JsonNumber(double number) {
  if (!std::isfinite(number)) return "null";
  std::string text(32, '\0');
  const auto end =
      std::to_chars(text.data(), text.data() + text.size(), number);
  text.resize(static_cast<std::size_t>(end.ptr - text.data()));
  return text;
}

std::string JsonGpu(const GpuFacts& gpu) {
  return "{\"index\": " + std::to_string(gpu.index) +
         ", \"uuid\": " + JsonString(gpu.uuid) +
         ", \"name\": " + JsonString(gpu.name) +
         ", \"memory\": " + JsonNumber(gpu.memory) + "}";
}

}  // namespace

std::string JsonString(std::string_view text) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string json = "\"";
  for (const char each : text) {
    const auto code = static_cast<unsigned char>(each);
    if (each == '"' || each == '\\') {
      json += '\\';
      json += each;
    } else if (code < 0x20 || code == 0x7f) {
      json += "\\u00";
      json += kDigits[code >> 4];
      json += kDigits[code & 15];
    } else {
      json += code < 0x80 ? each : '?';
    }
  }
  return json + "\"";
}

std::string MachineEvent(const MachineFacts& facts) {
  std::string json = "{\"what\": \"machine\"";
  const auto add = [&json](const char* key, const std::string& value) {
    json += ", " + JsonString(key) + ": " + value;
  };
  add("node", JsonString(facts.node));
  add("boot_id", JsonString(facts.boot_id));
  add("cores", std::to_string(facts.cores));
  add("allowed_cores", std::to_string(facts.allowed_cores));
  add("quota", JsonNumber(facts.quota));
  add("memory", JsonNumber(facts.memory));
  add("memory_limit", JsonNumber(facts.memory_limit));
  add("gpus", JsonList(facts.gpus, JsonGpu));
  add("networks", JsonList(facts.networks, JsonString));
  add("disks", JsonList(facts.disks, JsonString));
  add("kernel", JsonString(facts.kernel));
  add("container",
      facts.container.empty() ? "null" : JsonString(facts.container));
  std::string reasons;
  for (const auto& [name, reason] : facts.not_measured) {
    if (!reasons.empty()) reasons += ", ";
    reasons += JsonString(name) + ": " + JsonString(reason);
  }
  add("not_measured", "{" + reasons + "}");
  return json + "}";
}

std::string FindContainer(const std::string& root, std::string_view group) {
  const auto exists = [&root](const char* path) {
    return ::access((root + path).c_str(), F_OK) == 0;
  };
  if (group.find("kubepods") != std::string_view::npos ||
      exists("/var/run/secrets/kubernetes.io")) {
    return "kubernetes";
  }
  if (exists("/.dockerenv")) return "docker";
  if (exists("/run/.containerenv")) return "podman";
  if (exists("/.singularity.d")) return "apptainer";
  for (const char* name : {"docker", "libpod", "lxc"}) {
    if (group.find(name) != std::string_view::npos) return name;
  }
  return {};
}

}  // namespace tdbg
