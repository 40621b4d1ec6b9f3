#include <doctest/doctest.h>

#include <cstdlib>

#include "chapters/01_sum/sum.hpp"
#include "chapters/01_sum/twice.cuh"

TEST_CASE("cpu: the sum of a few") {
  const double a = sum({1, 2, 3.5}), e = 6.5;
  const int i = 0;
  CAPTURE(i);
  CAPTURE(a);
  CAPTURE(e);
  CHECK(a == e);
}
TEST_CASE("cpu: the sum of none is 0") { CHECK(sum({}) == 0); }
TEST_CASE("cpu: the mean of a few") { CHECK(mean({1, 2, 6}) == 3); }
TEST_CASE("cpu: each value is read once") {
  reads = 0;
  CHECK(sum({1, 2, 3}) == 6);
  CHECK(reads == 3);
}
TEST_CASE("device: twice") { CHECK(twice(2) == 4); }
TEST_CASE("device: raw") { CHECK(true); }
TEST_CASE("cpu: asserts nothing") {}
TEST_CASE("cpu: the seed of the data") {
  const char* seed = std::getenv("FLASH_STEPS_DATA_SEED");
  REQUIRE(seed);
  CHECK(seed == doctest::String("77"));
}
