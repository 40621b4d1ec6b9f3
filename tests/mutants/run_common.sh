# Shared by tests/mutants/run, tests/barriers/run and tests/layout/run; sourced, not executed.
#
# Two things: where the marked regions of the chapters are, and scratch copies of the sources that
# are built for the simulator, in which code may be broken on purpose.
export LC_ALL=C

die() { echo "error: $*" >&2; exit 2; }

# The project's files below $1, as paths relative to it: what git has or would add. Without git (or
# outside a checkout), everything but build/.
project_files() {
  (
    cd "$1"
    if [ -e .git ] && git ls-files -co --exclude-standard >/dev/null 2>&1; then
      git ls-files -co --exclude-standard
    else
      find . \( -path ./build -o -path ./.git \) -prune -o -type f -print | sed 's|^\./||'
    fi | sort -u | while IFS= read -r file; do [ -f "$file" ] && echo "$file"; done
  )
}

# ---- marked regions
#
#   // [begin 03.fold-tile]
#   ...
#   // [end]
#
# scan_regions ROOT prints "ID FILE BEGIN END" for each region of the chapters, BEGIN and END being
# the lines of its marks. What is wrong with the marks goes to stderr as "FILE:LINE: ...", and the
# status is then 1. The regions of _template have the number NN.
scan_regions() {
  (
    cd "$1"
    find chapters -type f \( -name '*.cpp' -o -name '*.hpp' -o -name '*.cu' -o -name '*.cuh' \) |
      sort | xargs awk '
      function complain(text) { print file ":" FNR ": " text > "/dev/stderr"; wrong = 1 }
      function unclosed() {
        if (id != "") { print file ":" begin ": region " id " is never closed" > "/dev/stderr"; wrong = 1 }
      }
      FNR == 1 {
        unclosed(); id = ""
        file = FILENAME
        split(file, part, "/")
        chapter = part[2]
        number = chapter == "_template" ? "NN" : substr(chapter, 1, 2)
        device = file ~ /\.cuh?$/
      }
      /^ *\/\/ \[begin [^ ]+\]$/ {
        name = $3; sub(/\]$/, "", name)
        if (id != "") { complain("region " name " begins inside region " id ", which began in line " begin); next }
        if (name !~ /^([0-9][0-9]|NN)\.[a-z0-9][a-z0-9-]*$/)
          complain("\"" name "\" is no region id: two digits, a dot, lower-case words with hyphens")
        else if (substr(name, 1, 2) != number)
          complain("region " name " stands in chapter " chapter ": its number must be " number)
        if (device && name !~ /-cuda$/) complain("region " name " is device code: its id must end in -cuda")
        if (!device && name ~ /-cuda$/) complain("region " name " ends in -cuda, but is not in a .cu or .cuh")
        if (name in seen) complain("region " name " is there twice: also in " seen[name])
        id = name; begin = FNR; seen[name] = file ":" FNR
        next
      }
      /^ *\/\/ \[end\]$/ {
        if (id == "") { complain("[end] without a [begin ...]"); next }
        print id, file, begin, FNR
        if (FNR == begin + 1) complain("region " id " is empty")
        id = ""
        next
      }
      /\/\/ *\[ *([Bb]egin|[Ee]nd)[] ]/ { complain("a mark must be a line of its own: \"// [begin NN.name]\" or \"// [end]\"") }
      END { unclosed(); exit wrong }'
  )
}

# ---- scratch copies
#
# A scratch directory DIR holds DIR/source, a copy of the project, and DIR/build. Making it again
# touches only the files that changed, so that a kept one rebuilds little.

scratch_make() {  # ROOT DIR
  local root=$1 dir=$2 file
  mkdir -p "$dir"
  project_files "$root" >"$dir/files"
  if [ ! -d "$dir/source" ]; then
    mkdir "$dir/source"
    tar -C "$root" -cf - -T "$dir/files" | tar -C "$dir/source" -xf -
    return
  fi
  (cd "$dir/source" && find . -type f | sed 's|^\./||' | sort) | comm -23 - "$dir/files" |
    while IFS= read -r file; do rm -f "$dir/source/$file"; done
  while IFS= read -r file; do
    cmp -s "$root/$file" "$dir/source/$file" && continue
    mkdir -p "$(dirname "$dir/source/$file")"
    cp "$root/$file" "$dir/source/$file"  # with the time of now, so that it is rebuilt
  done <"$dir/files"
}

# Warnings are off: a broken body need not be a tidy one. -O1 compiles fast; assertions are off, as in
# every release build: the tests themselves must notice.
scratch_configure() {  # DIR
  [ -f "$1/build/build.ninja" ] && return
  cmake -S "$1/source" -B "$1/build" -G Ninja -DFLASH_STEPS_DEVICE=sim -DFLASH_STEPS_NATIVE=OFF \
    -DCMAKE_CXX_FLAGS=-w "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG" >"$1/log" 2>&1 || {
    cat "$1/log" >&2
    die "the scratch copy cannot be configured"
  }
}

scratch_build() {  # DIR JOBS TARGET...; the compiler's output goes to DIR/log
  local dir=$1 jobs=$2
  shift 2
  ninja -C "$dir/build" -j "$jobs" "$@" >"$dir/log" 2>&1
}

# Whether anything that was built depends on this file of the sources.
scratch_has_built() {  # DIR FILE
  ninja -C "$1/build" -t deps 2>/dev/null | grep -xF "    $1/source/$2" >/dev/null
}

compile_errors() {  # DIR
  grep -E -m 3 'error: |undefined reference|FAILED' "$1/log" | cut -c1-200 | sed 's/^/      /'
}

# Runs a chapter's test program; its output goes to DIR/log. 124: it took longer than 60 s.
kTestSeconds=60
scratch_test() {  # DIR CHAPTER DOCTEST_OPTION...
  local dir=$1 chapter=$2 status=0
  shift 2
  OMP_WAIT_POLICY=passive timeout -k 5 "$kTestSeconds" \
    "$dir/build/bin/${chapter}_test" --no-colors "$@" >"$dir/log" 2>&1 || status=$?
  [ "$status" = 137 ] && status=124
  return "$status"
}

# Configures the copy and builds the test programs of these chapters, without any change.
scratch_start() {  # DIR JOBS CHAPTER...
  local dir=$1 jobs=$2
  shift 2
  scratch_configure "$dir"
  scratch_build "$dir" "$jobs" "${@/%/_test}" || {
    compile_errors "$dir" >&2
    die "the sources do not build as they are"
  }
}

# ---- many things to try, side by side

# Sets `dir`, where the scratch copies go: the directory $1, or a temporary one if $1 is empty.
scratch_directory() {
  if [ -z "$1" ]; then
    dir=$(mktemp -d)
    trap 'rm -rf "$dir"' EXIT
  else
    mkdir -p "$1"
    dir=$(cd "$1" && pwd)
    rm -f "$dir"/*/verdicts
  fi
}

# Splits the things 1..COUNT among workers: runs `FUNCTION COPY FIRST LAST JOBS` side by side, each
# with a scratch copy of its own, and fails if one of them does. The first copy must be there. A
# handful of things does not repay the building of another copy.
run_workers() {  # ROOT FUNCTION COUNT JOBS
  local root=$1 function=$2 count=$3 jobs=$4 workers=$((1 + ($3 - 1) / 8)) pids=() k status=0
  [ "$workers" -le "$jobs" ] || workers=$jobs
  echo "$count to try, $workers at a time, in $dir"
  for ((k = 0; k < workers; ++k)); do
    [ "$k" = 0 ] || scratch_make "$root" "$dir/$((k + 1))"
    "$function" "$dir/$((k + 1))" $((k * count / workers + 1)) $(((k + 1) * count / workers)) \
      $((jobs / workers)) &
    pids+=($!)
  done
  for k in "${pids[@]}"; do wait "$k" || status=1; done
  return "$status"
}

# Prints FIRST..LAST, beginning somewhere that depends on the commit and going around: with a limit
# of time, other things are tried after each commit. Without a limit, in order.
in_turn() {  # FIRST LAST SECONDS
  local first=$1 last=$2 count=$(($2 - $1 + 1)) start=0 i commit
  if [ -n "$3" ] && [ "$count" -gt 0 ]; then
    commit=$(git rev-parse --short=7 HEAD 2>/dev/null || echo 0)
    start=$((16#$commit % count))
  fi
  for ((i = 0; i < count; ++i)); do echo $((first + (start + i) % count)); done
}

# Whether there is time for another thing: SECONDS, if given, counts from the start of the script.
time_left() { [ -z "$1" ] || [ "$SECONDS" -lt "$1" ]; }

# Workers write what became of each thing to COPY/verdicts, a line each.
count_verdicts() { cat "$dir"/*/verdicts | grep -c "^$1" || true; }  # how many begin with $1
