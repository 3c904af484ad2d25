// The parameters of a module of which a step wants something, with their
// gradients: found by their places in the modules, and taken in one call.
//
// Thread safety: call with the GIL held.
//
// Errors: throws pybind11::error_already_set where Python did (a property that
// raises); then nothing was taken.

#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

#include "bindings/taker.h"

namespace tdbg::bindings {

class ParameterList {
 public:
  // `entries`: tuples of a weak reference to a module, the parameter's name in
  // it, the slot of the parameter, what is wanted of it, the slot of its
  // gradient, and what is wanted of that.
  // Raises TypeError for anything else.
  ParameterList(pybind11::object taker, const pybind11::iterable& entries);

  // Takes parameters and gradients that exist now.  Returns None, or a list of
  // what it cannot read: tuples of an entry's number times two, one more for
  // its gradient, and the tensor.
  pybind11::object Take(std::int64_t step);

  // What the last Take found, in the same numbers.
  [[nodiscard]] std::vector<std::size_t> Found() const { return found_; }

 private:
  struct Entry {
    pybind11::object owner;
    pybind11::object key;
    pybind11::object weight_slot;  // Keeps what `weight` points to.
    pybind11::object gradient_slot;
    Slot* weight = nullptr;
    long of_weight = 0;
    Slot* gradient = nullptr;
    long of_gradient = 0;
  };

  const pybind11::object owner_;  // Keeps the taker.
  Taker& taker_;
  std::vector<Entry> entries_;
  std::vector<std::size_t> found_;
};

}  // namespace tdbg::bindings
