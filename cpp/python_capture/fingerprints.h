// Fingerprints of the samples of a training: a hash of each row of what the
// root module and the losses are given, from the arguments of their calls.
//
// They wait here, as rows of the table `fingerprint` (FingerprintRow), until
// somebody takes them.  Tensors on devices are not read: that would cost a
// copy.
//
// Thread safety: call with the GIL held.  Large batches release it.
//
// Errors: none; what cannot be hashed is counted.

#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "python_capture/batch_capture.h"

namespace tdbg::python_capture {

// A row of the table, as it is on disk: run/profile_tables.py.
struct FingerprintRow {
  static constexpr std::size_t kHashes = 16;

  std::int64_t time = 0;  // Monotonic ns: when the call began.
  std::int64_t step = 0;  // The global step.
  std::array<std::uint64_t, kHashes> hashes{};
  std::uint32_t call = 0;       // Number of the root's call in the step.
  std::uint32_t samples = 0;    // Of the tensor.
  std::uint32_t first = 0;      // The sample of the first hash.
  std::uint32_t row_bytes = 0;  // Of a sample.
  std::uint16_t mode = 0;       // tdbg.modes.ModeKeys.
  std::uint8_t n = 0;           // Hashes in the row.
  std::uint8_t n_varied = 0;    // Of their samples; kNotLooked: unknown.
  std::uint8_t kind = 0;        // As NumPy's: f, i, u or b.
  std::uint8_t is_whole = 0;    // Whether all bytes of a sample were hashed.
  std::uint16_t reserved = 0;

  static constexpr std::uint8_t kNotLooked = 255;
};
static_assert(sizeof(FingerprintRow) == 168);

class Fingerprints {
 public:
  // `batch`: a BatchCapture, which reads tensors.  No more than `most_trained`
  // samples of training are hashed, and `most_others` of other modes.
  Fingerprints(pybind11::object batch, std::int64_t most_trained,
               std::int64_t most_others, int training_mode);

  // Names a root, which is known by the event that its call begins, and a loss;
  // returns the number of the loss.
  void AddRoot(const pybind11::object& event, std::string name);
  std::size_t AddLoss(std::string name);

  // The steps that are counted next come after this one.
  void BeginCounting(std::int64_t step) { counted_from_ = step + 1; }

  // Hashes the tensors that a root is called with.
  void TakeInputs(PyObject* event, std::int64_t step, int mode, PyObject* args,
                  PyObject* kwargs) noexcept;
  // The same in a step of training that is counted, after `n_steps` others.
  void TakeCounted(PyObject* event, std::int64_t n_steps, PyObject* args,
                   PyObject* kwargs) noexcept;
  // Hashes the labels that a loss is called with: its second argument.  They
  // belong to the latest call of a root.
  void TakeLabels(std::size_t loss, PyObject* args, PyObject* kwargs) noexcept;

  // Whether so many rows wait, or for so long, that they are to be taken.
  [[nodiscard]] bool IsDue() const;
  // The rows of each tensor by its name, as bytes; forgets them.
  pybind11::list Take();

  // Whether no more samples of training, and of other modes, are hashed.
  [[nodiscard]] bool is_full(bool is_training) const {
    return n_hashed_[is_training ? 0 : 1] >= most_[is_training ? 0 : 1];
  }
  // Hashes of training, and of other modes.
  [[nodiscard]] std::int64_t n_hashed(bool is_training) const {
    return n_hashed_[is_training ? 0 : 1];
  }
  // Samples beyond the bound of a call, and tensors that lie on a device.
  [[nodiscard]] std::int64_t n_beyond() const { return n_beyond_; }
  [[nodiscard]] std::int64_t n_on_devices() const { return n_on_devices_; }
  // Time spent in calls that Python does not measure.
  [[nodiscard]] std::int64_t spent_ns() const { return spent_ns_; }

 private:
  struct Source {
    std::string name;
    std::vector<FingerprintRow> waiting;
  };
  struct Root {
    pybind11::object event;
    std::string name;
    std::vector<std::size_t> sources;  // Of each tensor.
  };
  // The latest call of a root.
  struct Call {
    std::int64_t step = -1;
    int mode = 0;
    std::uint32_t number = 0;
    std::uint64_t samples = 0;
  };

  void TakeArguments(Root* root, PyObject* args, PyObject* kwargs);
  // Hashes a tensor, which is cut into as many rows as there are samples if
  // that is possible.
  void TakeTensor(std::size_t source, const TensorDescriptor& tensor,
                  std::uint64_t samples);
  std::size_t AddSource(std::string name);

  pybind11::object owner_;
  BatchCapture& batch_;
  std::array<std::int64_t, 2> most_;
  int training_mode_;
  std::array<std::int64_t, 2> n_hashed_{};
  std::int64_t n_beyond_ = 0;
  std::int64_t n_on_devices_ = 0;
  std::int64_t spent_ns_ = 0;
  std::int64_t counted_from_ = 0;
  // Places in them stay valid: another thread may add some while the GIL is
  // released.
  std::deque<Root> roots_;
  std::deque<Source> sources_;
  Call call_;
  std::size_t n_waiting_ = 0;
  std::int64_t taken_ns_ = 0;
};

}  // namespace tdbg::python_capture
