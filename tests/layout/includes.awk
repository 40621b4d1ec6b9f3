# Dependencies run one way. Reads the list of files, then lines "FILE:LINE:#include ..."; prints
# violations.
function violation(i, text) { print from[i] ":" line[i] ": " text }

function directory(path) {
  sub(/[^\/]*$/, "", path)
  return path
}

# The chapter that a path lies in, as "03_tiled_forward"; "" outside the chapters.
function chapter(path) {
  if (path !~ /^chapters\/[^\/]*\//) return ""
  sub(/^chapters\//, "", path)
  sub(/\/.*/, "", path)
  return path
}

function is_bench(path) { return path ~ /^(chapters\/.*\/bench[^\/]*|docs\/benchmarks\/limits)\.cpp$/ }

# Why a header of others may not be included by `path`; "" if it may.
function outsider(path, header) {
  if (path ~ /^tests\//) return ""
  if (header ~ /^(fmt|CLI|nlohmann)\// && path !~ /^common\/(cli|course)\//)
    return "fmt, CLI11 and JSON stay inside common/cli and common/course"
  if (header ~ /^boost\// && path !~ /^common\/simulator\//) return "Boost stays inside common/simulator"
  if (header ~ /^benchmark\// && path != "common/bench/bench.hpp" && !is_bench(path)) return "only bench.cpp times things"
  if (header ~ /^doctest\//) return "only tests test"
  return ""
}

# Device code and what it is called through: nvcc compiles these.
function is_device(path) { return path ~ /\.cuh?$/ || path ~ /_cuda\.hpp$/ }

function is_lesson(path) { return chapter(path) != "" && path !~ /\/((main|bench)[^\/]*\.cpp|demonstration\.hpp)$/ }

# Looks for headers that match `pattern` in what `path` includes, directly or not. Returns the chain
# "a.hpp -> b.hpp -> Eigen/Core" or "".
function chain(path, pattern, visited,    k, i, rest) {
  if (path in visited) return ""
  visited[path] = 1
  for (k = 1; k <= count[path]; ++k) {
    i = of[path, k]
    if (!inside[i]) {
      if (target[i] ~ pattern) { found = i; return target[i] }
      continue
    }
    rest = chain(target[i], pattern, visited)
    if (rest != "") { found = i; return target[i] " -> " rest }
  }
  return ""
}

FNR == NR { known[$0] = 1; next }

{
  split($0, part, ":")
  ++n
  from[n] = part[1]
  line[n] = part[2]
  header = $0
  sub(/^[^:]*:[^:]*:[ \t]*#[ \t]*include[ \t]*/, "", header)
  quoted = header ~ /^"/
  sub(/^["<]/, "", header)
  sub(/[">].*$/, "", header)
  target[n] = header
  if (quoted) {
    inside[n] = 1
    if (directory(from[n]) header in known) target[n] = directory(from[n]) header
    else if (!(header in known)) violation(n, "there is no \"" header "\" in the project")
  }
  of[from[n], ++count[from[n]]] = n
}

END {
  for (i = 1; i <= n; ++i) {
    path = from[i]
    other = target[i]
    if (!inside[i]) {
      why = outsider(path, other)
      if (why != "") violation(i, "includes <" other ">, but " why)
      continue
    }
    if (other ~ /^tests\// && path !~ /^tests\//) violation(i, "includes " other ", but nothing outside tests includes tests")
    if (chapter(other) != "" && path ~ /^common\//) violation(i, "includes " other ", but common knows no chapter")
    if (other ~ /^common\/bench\// && !is_bench(path)) violation(i, "includes " other ", but only bench.cpp times things")
    if (chapter(other) == "_template" && chapter(path) != "_template" && path != "tests/_template.cpp")
      violation(i, "includes " other ", which is only there to be copied")
    else if (chapter(other) != "" && chapter(path) != "" && chapter(other) != chapter(path)) {
      if (chapter(path) < chapter(other) || chapter(path) == "_template" || substr(chapter(path), 1, 2) == substr(chapter(other), 1, 2))
        violation(i, "includes " other ", but a chapter includes only earlier ones")
    }
    if (is_lesson(path) && other ~ /^common\/(cli|course)\//)
      violation(i, "includes " other ", but lesson code takes no options and prints nothing")
  }
  for (path in count) {
    if (is_device(path)) {
      split("", visited)
      seen = chain(path, "^(unsupported\\/)?Eigen\\/", visited)
      if (seen != "") print path ":" line[found] ": device code sees Eigen: " seen
    }
    if (is_lesson(path)) {
      split("", visited)
      seen = chain(path, "^(fmt|CLI|nlohmann|boost)\\/", visited)
      if (seen ~ / -> /) print path ":" line[found] ": lesson code sees more than Eigen and common: " seen
    }
  }
}
