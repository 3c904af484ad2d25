// Definitions one by one, and as columns: a run may have 100,000.

#include <pybind11/stl.h>

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/checked_math.h"
#include "bindings/convert.h"
#include "bindings/locked_reader.h"
#include "bindings/tables.h"
#include "reader/definitions.h"
#include "reader/run_reader.h"

namespace tdbg::bindings {
namespace {

constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();

// Numbers for values, in the order in which they came.
template <typename Value>
class Numbered {
 public:
  std::uint32_t Of(const Value& value) {
    const auto next = static_cast<std::uint32_t>(numbers_.size());
    const auto [found, is_new] = numbers_.try_emplace(value, next);
    if (is_new) values_.push_back(value);
    return found->second;
  }
  [[nodiscard]] const std::vector<Value>& values() const { return values_; }

 private:
  std::map<Value, std::uint32_t> numbers_;
  std::vector<Value> values_;
};

bool IsShard(const Definition& definition) {
  for (const Placement& placement : definition.placements) {
    if (placement.kind == PlacementKind::kShard) return true;
  }
  return false;
}

std::uint64_t Elements(const std::vector<std::int64_t>& shape) {
  std::uint64_t n = 1;
  for (const std::int64_t extent : shape) {
    if (!CheckedMul(n, static_cast<std::uint64_t>(extent), &n)) return kMost;
  }
  return n;
}

std::string DTypeText(const Definition& definition) {
  return definition.dtype == DType::kNumpy
             ? definition.dtype_text
             : std::string(DTypeName(definition.dtype));
}

struct DefinitionColumns {
  std::vector<std::uint32_t> ids;
  std::vector<std::uint16_t> roles;
  std::vector<std::uint32_t> dtype_numbers;
  std::vector<std::uint32_t> shape_numbers;
  std::vector<std::uint64_t> n_elements;
  std::vector<std::uint8_t> is_placed;
  Numbered<std::string> dtypes;
  Numbered<std::vector<std::int64_t>> shapes;

  void Add(const Definition& definition) {
    ids.push_back(definition.id);
    roles.push_back(static_cast<std::uint16_t>(definition.role));
    dtype_numbers.push_back(dtypes.Of(DTypeText(definition)));
    shape_numbers.push_back(shapes.Of(
        IsShard(definition) ? definition.global_shape : definition.shape));
    n_elements.push_back(Elements(definition.shape));
    is_placed.push_back(definition.placements.empty() ? 0 : 1);
  }
};

// Calls `visit` for the first definition of each id, in the order in which they
// came.
template <typename Visit>
void ForEachId(const Definitions& definitions, Visit visit) {
  for (std::size_t i = 0; i < definitions.size(); ++i) {
    if (definitions.IsFirst(i)) visit(definitions.At(i));
  }
}

template <typename Texts>
py::list ListOf(const Texts& texts) {
  py::list result(texts.size());
  for (std::size_t i = 0; i < texts.size(); ++i) result[i] = Text(texts[i]);
  return result;
}

py::dict Columns(LockedReader& reader,
                 const std::optional<Numbers<std::uint32_t>>& chosen) {
  std::optional<std::vector<std::uint32_t>> asked;
  if (chosen) asked = VectorOf(*chosen);
  DefinitionColumns found = reader.With([&](RunReader& inner) {
    DefinitionColumns columns;
    const Definitions& all = inner.definitions();
    if (!asked) {
      ForEachId(all, [&](const Definition& each) { columns.Add(each); });
      return columns;
    }
    for (const std::uint32_t id : *asked) {
      if (const auto definition = all.Find(id)) columns.Add(*definition);
    }
    return columns;
  });
  py::list shapes;
  for (const auto& shape : found.shapes.values()) {
    shapes.append(py::tuple(py::cast(shape)));
  }
  py::dict result;
  result["dtypes"] = ListOf(found.dtypes.values());
  result["shapes"] = shapes;
  const auto put = [&](const char* name, auto values) {
    using Value = typename decltype(values)::value_type;
    result[name] = ArrayOf(std::move(values), py::dtype::of<Value>());
  };
  put("id", std::move(found.ids));
  put("role", std::move(found.roles));
  put("dtype", std::move(found.dtype_numbers));
  put("shape", std::move(found.shape_numbers));
  put("n_elements", std::move(found.n_elements));
  put("is_placed", std::move(found.is_placed));
  return result;
}

py::tuple DefinitionNames(LockedReader& reader) {
  std::vector<std::uint32_t> numbers;
  const auto names = reader.With([&](RunReader& inner) {
    std::unordered_map<std::string, std::uint32_t> known;
    std::vector<std::string> found;
    ForEachId(inner.definitions(), [&](const Definition& each) {
      const auto next = static_cast<std::uint32_t>(found.size());
      const auto [place, is_new] = known.try_emplace(each.name, next);
      if (is_new) found.push_back(each.name);
      numbers.push_back(place->second);
    });
    return found;
  });
  return py::make_tuple(ListOf(names), ArrayOf(std::move(numbers),
                                               py::dtype::of<std::uint32_t>()));
}

// The names of all definitions that are neither spans nor tables, each once.
py::list Names(LockedReader& reader) {
  return ListOf(reader.With([](RunReader& inner) {
    std::vector<std::string> found;
    const Definitions& all = inner.definitions();
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!all.IsFirstOfName(i)) continue;
      Definition definition = all.At(i);
      if (definition.role == TensorRole::kSpan ||
          definition.role == TensorRole::kTable) {
        continue;
      }
      found.push_back(std::move(definition.name));
    }
    return found;
  }));
}

py::tuple IdsOfNames(LockedReader& reader, const py::list& names) {
  std::vector<std::string> texts;
  texts.reserve(names.size());
  for (const py::handle name : names) texts.push_back(Utf8(name));
  std::vector<std::uint32_t> ids;
  std::vector<std::uint32_t> places;
  reader.With([&](RunReader& inner) {
    for (std::size_t i = 0; i < texts.size(); ++i) {
      for (const std::uint32_t id : inner.definitions().IdsOf(texts[i])) {
        ids.push_back(id);
        places.push_back(static_cast<std::uint32_t>(i));
      }
    }
  });
  return py::make_tuple(
      ArrayOf(std::move(ids), py::dtype::of<std::uint32_t>()),
      ArrayOf(std::move(places), py::dtype::of<std::uint32_t>()));
}

std::vector<Definition> DefinitionsFrom(LockedReader& reader,
                                        std::size_t start) {
  return reader.With([&](RunReader& inner) {
    std::vector<Definition> found;
    const Definitions& all = inner.definitions();
    for (std::size_t i = start; i < all.size(); ++i) found.push_back(all.At(i));
    return found;
  });
}

}  // namespace

void RegisterDefinitions(py::class_<LockedReader>& type) {
  using Self = LockedReader;
  type.def("definitions", &DefinitionsFrom, py::arg("start") = 0)
      .def(
          "definition",
          [](Self& self, std::uint32_t id) {
            return self.With([&](RunReader& reader) {
              return reader.definitions().Find(id);
            });
          },
          py::arg("id"))
      .def("definition_columns", &Columns, py::arg("ids") = py::none())
      .def("definition_names", &DefinitionNames)
      .def("names", &Names)
      .def(
          "ids_of",
          [](Self& self, const py::str& name) {
            const std::string text = Utf8(name);
            return self.With([&](RunReader& reader) {
              return reader.definitions().IdsOf(text);
            });
          },
          py::arg("name"))
      .def("ids_of_names", &IdsOfNames, py::arg("names"))
      .def_property_readonly("n_definitions",
                             [](Self& self) {
                               return self.With([](RunReader& reader) {
                                 return reader.definitions().size();
                               });
                             })
      .def_property_readonly("n_names", [](Self& self) {
        return self.With(
            [](RunReader& reader) { return reader.definitions().n_names(); });
      });
}

}  // namespace tdbg::bindings
