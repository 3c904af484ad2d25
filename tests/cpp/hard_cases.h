// Tensors that statistics are known to get wrong, in every type that can hold
// them.  The same at their full size: benchmarks/reducers/accuracy.py.

#pragma once

#include <cmath>
#include <cstddef>
#include <functional>
#include <random>
#include <vector>

#include "reduce_reference.h"
#include "tensor/dtype.h"

namespace tdbg::testing {

inline constexpr std::size_t kHardElements =
    700001;  // More than a segment of each type.

struct HardCase {
  const char* name;
  // The i-th element, from a standard normal and a uniform number.
  std::function<double(std::size_t i, double normal, double uniform)> draw;
  bool fits_half;
};

inline const HardCase kHardCases[] = {
    {"N(0, 0.02)", [](auto, double g, double) { return 0.02 * g; }, true},
    {"N(0.5, 1e-3)", [](auto, double g, double) { return 0.5 + 1e-3 * g; },
     true},
    {"N(1e4, 0.02)", [](auto, double g, double) { return 1e4 + 0.02 * g; },
     true},
    {"N(1e6, 1)", [](auto, double g, double) { return 1e6 + g; }, false},
    {"lognormal, s=8",
     [](auto, double g, double) { return std::exp(8 * std::fmin(g, 4.7)); },
     false},
    {"sorted",
     [](std::size_t i, double, double) {
       return static_cast<double>(i) / kHardElements;
     },
     true},
    {"pairs of +-1e8",
     [](std::size_t i, double g, double) {
       return (i % 2 == 0 ? 1e8 : -1e8) + g;
     },
     false},
    {"outlier of 1e30",
     [](std::size_t i, double g, double) {
       return i == kHardElements / 3 ? 1e30 : g;
     },
     false},
    {"N(1e9, 1e-3)", [](auto, double g, double) { return 1e9 + 1e-3 * g; },
     false},
    {"half of them zero", [](auto, double g, double) { return g > 0 ? g : 0; },
     true},
    {"all positive", [](auto, double g, double) { return std::fabs(g); }, true},
    {"sigmoid", [](auto, double g, double) { return 1 / (1 + std::exp(-g)); },
     true},
    {"two values",
     [](auto, double, double u) { return u < 0.5 ? 1 : 1.0078125; }, true},
    {"one other value",
     [](std::size_t i, double, double) {
       return i == kHardElements / 2 ? 1.0078125 : 1.0;
     },
     true},
    {"the mean moves",
     [](std::size_t i, double g, double) {
       return g + (i > kHardElements / 2 ? 3000 : -3000);
     },
     true},
};

inline std::vector<std::byte> HardElements(const HardCase& of, DType dtype) {
  std::mt19937_64 random(11);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  const std::size_t item = ItemSize(dtype);
  std::vector<std::byte> elements(kHardElements * item);
  for (std::size_t i = 0; i < kHardElements; ++i) {
    const double g = normal(random);
    const double x = of.draw(i, g, uniform(random));
    std::byte* p = elements.data() + i * item;
    switch (dtype) {
      case DType::kFloat32:
        Put(static_cast<float>(x), p);
        break;
      case DType::kFloat16:
        Put(ToFloat16(x), p);
        break;
      case DType::kBFloat16:
        Put(ToBFloat16(x), p);
        break;
      default:
        Put(x, p);
    }
  }
  return elements;
}

}  // namespace tdbg::testing
