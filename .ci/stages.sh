# What .ci/run and .ci/full consist of; sourced, not executed.
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
work=build/ci
mkdir -p "$work/logs"
rm -f "$work"/logs/*

# ---- running stages

table=() broken=0

# Sets `cpu` to the processor time, in seconds, of all programs that have ended. (Not to be called
# in $(...), which would have a time of its own.)
count_cpu() {
  times >"$work/times"
  cpu=$(awk -F'[ms ]+' 'NR == 2 { print int($1 * 60 + $2 + $3 * 60 + $4) }' "$work/times")
}

# stage TITLE COMMAND...: runs it, keeps its output, and goes on whatever happens. COMMAND may say
# with `not_here WHY` that this machine cannot run it.
stage() {
  local title=$1 log began=$SECONDS cpu cpu_began status result
  count_cpu
  cpu_began=$cpu
  shift
  log=$work/logs/$((${#table[@]} + 1)).log
  printf '\n=== %s\n' "$title"
  set +e
  (set -euo pipefail; "$@") 2>&1 | tee "$log"
  status=${PIPESTATUS[0]}
  set -e
  case $status in
    0) result=ok ;;
    99) result="not run: $(tail -n 1 "$log")" ;;
    *) result="FAILED (exit $status)" broken=1 ;;
  esac
  count_cpu
  table+=("$(printf '%5d s %5d s  %-40s %s' $((SECONDS - began)) $((cpu - cpu_began)) "$title" \
    "$result$(count_tests "$log" | awk '$1 + $2 + $3 { printf ": %d passed, %d failed, %d skipped", $1, $2, $3 }')")")
}

not_here() {
  echo "$*"
  exit 99
}

# "PASSED FAILED SKIPPED" over the ctest runs in these logs.
count_tests() {
  cat "$@" | awk '
    !/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: / { next }
    / Passed +[0-9.]+ sec/ { ++passed; next }
    /\*\*\*Skipped/ { ++skipped; next }
    { ++failed }
    END { print passed + 0, failed + 0, skipped + 0 }'
}

# The closing table, and as the last line the number of tests; then ends the script.
finish() {
  local passed failed skipped
  read -r passed failed skipped < <(count_tests "$work"/logs/*.log)
  printf '\n=== summary\n   time    CPU\n'
  printf '%s\n' "${table[@]}"
  printf '%5d s          all\n\n' "$SECONDS"
  echo "$passed passed, $failed failed"
  exit "$broken"
}

# ---- the stages

# The N-th sh block of README.md: what CI runs is what README tells people to run.
readme_command() {
  local text
  text=$(awk -v n="$1" '/^```sh$/ { inside = ++block == n; next } /^```/ { inside = 0 } inside' README.md)
  if [ -z "$text" ]; then
    echo "error: README.md has no sh block number $1" >&2
    return 1
  fi
  printf '%s\n' "$text"
}

run_readme_command() {
  local text
  text=$(readme_command "$1")
  sed 's/^/$ /' <<<"$text"
  bash -euo pipefail -c "$text"
}

check_layout() {
  tests/layout/run
  tests/mutants/run --check
}

test_programs() { ninja -C "$1" -t targets all | sed -n 's/^\([A-Za-z0-9_]*_test\): phony$/\1/p' | grep -v '^cmake_'; }

# build_and_test DIR CTEST_OPTION... -- CMAKE_OPTION...: the test programs and nothing else.
build_and_test() {
  local dir=$1 ctest_options=() programs
  shift
  while [ "$1" != -- ]; do ctest_options+=("$1") && shift; done
  shift
  cmake -S . -B "$dir" -G Ninja "$@"
  mapfile -t programs < <(test_programs "$dir")
  ninja -C "$dir" "${programs[@]}"
  ctest --test-dir "$dir" -j "$(nproc)" --output-on-failure --no-tests=error "${ctest_options[@]}"
}

# With the chapter template, so that it is built and tested somewhere. FLASH_STEPS_SANITIZE_SKIP is
# the preset's, or what is given.
sanitize() { build_and_test build/sanitize -- --preset sanitize -DFLASH_STEPS_TEMPLATE=ON "$@"; }

# The homework proves itself, with the program that README's commands have built. What it draws is
# another sample each time; it says how to have the same again.
verify_course() { build/default/bin/course verify --reduced; }

fuzz_replay() {
  ${CXX:-g++} -std=c++20 -O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all \
    -DFLASH_STEPS_FUZZ_STANDALONE -I. tests/fuzz/npy_fuzz.cpp common/tensor/npy.cpp common/tensor/npy_header.cpp \
    -o "$work/npy_fuzz"
  "$work/npy_fuzz" -runs=20000 -seed=1 tests/fuzz/corpus/npy
}

# Everything with nvcc. Without a GPU the device tests must be shown as skipped, none as passed.
cuda_build() {
  local log=$work/cuda_tests.log
  command -v nvcc >/dev/null || not_here "no nvcc"
  cmake --preset cuda
  cmake --build --preset cuda
  ctest --preset cuda -j "$(nproc)" -L cuda | tee "$log"
  nvidia-smi -L >/dev/null 2>&1 && return
  if grep -E '^ *[0-9]+/[0-9]+ Test .* Passed ' "$log" || ! grep -q '\*\*\*Skipped' "$log"; then
    echo "error: there is no GPU here, so every device test should be skipped"
    return 1
  fi
}
