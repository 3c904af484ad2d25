// Tensors of floats, and the rows that the CPU makes of them.

#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "reducers/reduce.h"
#include "testing.h"

namespace tdbg::testing {

inline std::vector<float> Numbers(std::size_t n, float first) {
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) {
    values[i] = first + static_cast<float>(i % 17) - 5.0F;
  }
  return values;
}

inline void ExpectNear(double a, double b) {
  EXPECT_TRUE(std::fabs(a - b) <= 1e-6 * std::fabs(b) + 1e-12);
}

// Of floats.
inline void ExpectSame(const Summary& a, const Summary& b) {
  EXPECT_EQ(a.count, b.count);
  EXPECT_EQ(a.nan, b.nan);
  EXPECT_EQ(a.zero, b.zero);
  EXPECT_EQ(a.min.f64, b.min.f64);
  EXPECT_EQ(a.max.f64, b.max.f64);
  ExpectNear(a.mean, b.mean);
  ExpectNear(a.m2, b.m2);
  ExpectNear(a.l1, b.l1);
  ExpectNear(a.l2, b.l2);
}

inline Summary OnCpu(const std::vector<float>& values, double scale = 1.0) {
  const std::array<std::int64_t, 1> shape = {
      static_cast<std::int64_t>(values.size())};
  return Reduce({.data = values.data(),
                 .dtype = DType::kFloat32,
                 .item_size = 4,
                 .shape = shape,
                 .strides = {}},
                {.scale = scale});
}

}  // namespace tdbg::testing
