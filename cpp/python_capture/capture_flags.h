// What to capture of one tensor at one step, as bits that can be combined.
//
// Thread safety: constants.

#pragma once

namespace tdbg::python_capture::capture_flags {

inline constexpr long kRows = 1;            // Its row of statistics.
inline constexpr long kValues = 2;          // Its raw values.
inline constexpr long kSmallValues = 4;     // Its value, if it has one element.
inline constexpr long kHistogram = 8;       // Its histogram.
inline constexpr long kUnits = 16;          // The counts of its units.
inline constexpr long kLimitedValues = 32;  // Raw values up to a size limit.

}  // namespace tdbg::python_capture::capture_flags
