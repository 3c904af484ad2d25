#include "bindings/python_files.h"

#include <pybind11/stl.h>

#include <cstring>
#include <optional>
#include <vector>

#include "bindings/convert.h"
#include "bindings/register.h"
#include "format/commit_page.h"

namespace tdbg::bindings {
namespace {

std::optional<Liveness> ParseLiveness(const std::string& state) {
  for (const auto& [name, liveness] : {std::pair("unknown", Liveness::kUnknown),
                                       std::pair("running", Liveness::kRunning),
                                       std::pair("stalled", Liveness::kStalled),
                                       std::pair("closed", Liveness::kClosed),
                                       std::pair("dead", Liveness::kDead)}) {
    if (state == name) return liveness;
  }
  Throw(Status::InvalidArgument("'" + state + "' is no state of a writer"));
}

void Add(PythonFiles& files, const std::string& name, std::uint64_t size,
         const std::vector<std::pair<std::uint64_t, py::bytes>>& pieces) {
  std::vector<RemoteFiles::Piece> copies;
  copies.reserve(pieces.size());
  for (const auto& [offset, bytes] : pieces) {
    std::string copy = bytes;
    if (offset > size || copy.size() > size - offset) {
      Throw(Status::InvalidArgument(name + ": a piece lies beyond its end"));
    }
    copies.emplace_back(offset, std::move(copy));
  }
  files.Add(name, size, std::move(copies));
}

void Tell(PythonFiles& files, const py::bytes& commit_page,
          const std::string& state, bool is_whole) {
  files.Tell(commit_page, ParseLiveness(state), is_whole);
}

}  // namespace

Status PythonFiles::Fetch(std::span<const FileRange> ranges,
                          std::span<const std::span<std::byte>> out) {
  const py::gil_scoped_acquire held;
  try {
    py::list asked;
    for (const FileRange& range : ranges) {
      asked.append(py::make_tuple(range.name, range.offset, range.n));
    }
    const py::list found = fetch_(asked);
    if (found.size() != out.size()) {
      throw py::value_error("another number of ranges than was asked for");
    }
    for (std::size_t i = 0; i < out.size(); ++i) {
      const auto bytes = py::cast<py::bytes>(found[i]);
      const std::string_view view = bytes;
      if (view.size() != out[i].size()) {
        Throw(Status::Corruption(
                  ranges[i].name + ": " + std::to_string(view.size()) +
                      " bytes came of " + std::to_string(out[i].size()),
                  ranges[i].offset),
              ranges[i].name);
      }
      std::memcpy(out[i].data(), view.data(), view.size());
    }
    return Status::Ok();
  } catch (...) {
    error_ = std::current_exception();
  }
  return Status::IoError("the store does not give it", 0);
}

void RegisterRemoteFiles(py::module_& module) {
  py::class_<PythonFiles, std::shared_ptr<PythonFiles>>(module, "RemoteFiles",
                                                        PlainType())
      .def(py::init<py::function>(), py::arg("fetch"))
      .def("add", &Add, py::arg("name"), py::arg("size"), py::arg("pieces"))
      .def("tell", &Tell, py::arg("commit_page"), py::arg("state"),
           py::arg("is_whole"))
      .def_property_readonly("n_bytes", &PythonFiles::CountBytes);
}

}  // namespace tdbg::bindings
