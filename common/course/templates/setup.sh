#!/usr/bin/env bash
# Run once, as root, when the grading image is built: installs what the course needs and builds all
# that does not depend on a submission, so that a grading compiles little. Needs CMake 3.25: Ubuntu
# 24.04, Debian 12 or newer.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install -y g++ cmake ninja-build libeigen3-dev doctest-dev libbenchmark-dev \
    libcli11-dev libfmt-dev nlohmann-json3-dev libboost-context-dev
cd "${AUTOGRADER:-/autograder}/source/project"
cmake -S . -B build/grader -G Ninja -DFLASH_STEPS_DEVICE=sim -DFLASH_STEPS_NATIVE=OFF
cmake --build build/grader --target course
build/grader/bin/course prepare
