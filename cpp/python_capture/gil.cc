#include "python_capture/gil.h"

#include <cxxabi.h>
#include <unistd.h>

namespace tdbg::python_capture {

ReleaseGil::~ReleaseGil() {
  try {
    PyEval_RestoreThread(state_);
  } catch (abi::__forced_unwind&) {
    while (true) {
      pause();
    }
  }
}

}  // namespace tdbg::python_capture
