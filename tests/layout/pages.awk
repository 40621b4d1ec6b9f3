# Checks Markdown pages: listings after "<!-- region 03.fold-tile -->" are that region's code, and
# relative links lead to a file, and to a heading of it. Variables: files, a list of the project's
# files; regions, the output of scan_regions. Prints violations.
function violation(text) { print FILENAME ":" FNR ": " text }

# Text without the indentation that all its lines share.
function unindented(text,    lines, count, i, least, indent) {
  count = split(text, lines, "\n")
  least = -1
  for (i = 1; i <= count; ++i) {
    if (lines[i] ~ /^ *$/) continue
    match(lines[i], /^ */)
    if (least < 0 || RLENGTH < least) least = RLENGTH
  }
  text = ""
  for (i = 1; i <= count; ++i) text = text (i > 1 ? "\n" : "") substr(lines[i], least + 1)
  return text
}

function region_text(id,    text, number, input) {
  while ((getline input < region_file[id]) > 0) {
    if (++number <= region_begin[id]) continue
    if (number >= region_end[id]) break
    text = text (number > region_begin[id] + 1 ? "\n" : "") input
  }
  close(region_file[id])
  return unindented(text)
}

function compare(id, listing,    ours, theirs, i, count) {
  if (!(id in region_file)) {
    print FILENAME ":" quote_line ": there is no region " id
    return
  }
  count = split(unindented(listing), ours, "\n")
  i = split(region_text(id), theirs, "\n")
  if (i > count) count = i
  for (i = 1; i <= count; ++i) {
    if (ours[i] == theirs[i]) continue
    print FILENAME ":" listing_line + i ": the listing is not region " id " of " region_file[id] ", where this line is: " theirs[i]
    return
  }
}

# What GitHub makes of a heading, to be linked to.
function slug(text) {
  gsub(/`/, "", text)
  while (match(text, /\[[^]]*\]\([^)]*\)/)) {
    link = substr(text, RSTART + 1, RLENGTH - 1)
    sub(/\].*/, "", link)
    text = substr(text, 1, RSTART - 1) link substr(text, RSTART + RLENGTH)
  }
  text = tolower(text)
  gsub(/[!-,.\/:-@[-^`{-~]/, "", text)  # all ASCII punctuation but - and _
  gsub(/ /, "-", text)
  return text
}

function load_anchors(page,    input, fenced, name) {
  if (page in anchors_loaded) return
  anchors_loaded[page] = 1
  while ((getline input < page) > 0) {
    if (input ~ /^ *(```|~~~)/) fenced = !fenced
    if (fenced) continue
    if (input ~ /^#+ /) {
      sub(/^#+ +/, "", input)
      sub(/ +#* *$/, "", input)
      name = slug(input)
      anchor[page, times[page, name]++ ? name "-" (times[page, name] - 1) : name] = 1
    }
    while (match(input, /<a (id|name)="[^"]*"/)) {
      name = substr(input, RSTART, RLENGTH - 1)
      sub(/.*"/, "", name)
      anchor[page, name] = 1
      input = substr(input, RSTART + RLENGTH)
    }
  }
  close(page)
}

# "a/b/../c/./d" -> "a/c/d"; ".." if it leaves the project.
function normalised(path,    part, count, i, kept, depth) {
  count = split(path, part, "/")
  depth = 0
  for (i = 1; i <= count; ++i) {
    if (part[i] == "" || part[i] == ".") continue
    if (part[i] == "..") { if (--depth < 0) return ".."; continue }
    kept[++depth] = part[i]
  }
  path = ""
  for (i = 1; i <= depth; ++i) path = path (i > 1 ? "/" : "") kept[i]
  return path
}

function check_link(link,    path, fragment) {
  sub(/^ */, "", link)
  sub(/ +["'(].*$/, "", link)  # a title
  gsub(/^<|>$/, "", link)
  if (link == "" || link ~ /^[A-Za-z][A-Za-z0-9+.-]*:/) return
  fragment = path = link
  sub(/#.*/, "", path)
  if (!sub(/^[^#]*#/, "", fragment)) fragment = ""
  if (path == "") path = FILENAME
  else if (path ~ /^\//) path = normalised(path)
  else {
    fragment_home = FILENAME
    sub(/[^\/]*$/, "", fragment_home)
    path = normalised(fragment_home path)
  }
  if (!(path in known)) {
    violation("the link " link " leads nowhere")
    return
  }
  if (fragment != "" && path ~ /\.md$/) {
    load_anchors(path)
    if (!((path, fragment) in anchor)) violation("the link " link " leads to no heading of " path)
  }
}

BEGIN {
  known[""] = 1  # the project itself
  while ((getline name < files) > 0) {
    known[name] = 1
    while (sub(/\/[^\/]*$/, "", name)) known[name] = 1
  }
  while ((getline name < regions) > 0) {
    split(name, field, " ")
    region_file[field[1]] = field[2]
    region_begin[field[1]] = field[3]
    region_end[field[1]] = field[4]
  }
}

FNR == 1 {
  if (pending != "") print previous ":" quote_line ": no listing follows"
  pending = ""
  fence = ""
  previous = FILENAME
}

# Inside a listing.
fence != "" {
  closing = $0
  gsub(/^ *| *$/, "", closing)
  if (closing == fence) {
    if (pending != "") compare(pending, listing)
    pending = fence = ""
  } else {
    listing = listing (lines++ ? "\n" : "") $0
  }
  next
}

/^ *(```|~~~)/ {
  fence = $0
  sub(/^ */, "", fence)
  match(fence, /^(`+|~+)/)
  fence = substr(fence, 1, RLENGTH)
  listing = ""
  listing_line = FNR
  lines = 0
  next
}

/^<!-- *region / {
  if (pending != "") print FILENAME ":" quote_line ": no listing follows"
  pending = $3
  quote_line = FNR
  if ($0 !~ /^<!-- region [^ ]+ -->$/) violation("must be \"<!-- region ID -->\"")
  next
}

pending != "" && !/^ *$/ {
  print FILENAME ":" quote_line ": no listing follows"
  pending = ""
}

{
  text = $0
  gsub(/``[^`]*``|`[^`]*`/, "", text)
  if (text ~ /^ *\[[^]^][^]]*\]: /) {
    link = text
    sub(/^ *\[[^]]*\]: */, "", link)
    check_link(link)
  }
  while (match(text, /\]\([^()]*(\([^()]*\)[^()]*)*\)|(href|src)="[^"]*"/)) {
    link = substr(text, RSTART, RLENGTH)
    text = substr(text, RSTART + RLENGTH)
    sub(/^(\]\(|(href|src)=")/, "", link)
    sub(/[)"]$/, "", link)
    check_link(link)
  }
}

END { if (pending != "") print FILENAME ":" quote_line ": no listing follows" }
