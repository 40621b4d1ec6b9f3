// `course watch`: checks an exercise each time that it is saved.
#pragma once

#include <string>

#include "common/course/screen.hpp"

namespace flash_steps::course {

// Until q, or an interrupt. Begins with `id`, or with the first open one if it is empty. Keys:
// n next, h hint, l list, c check all, q quit; never goes on by itself. Keys are read from a
// terminal without Return, from anything else as they come; its end is no reason to stop.
void watch(const Project& project, const CheckSettings& settings, std::string id);

// The next hint for an id, as text; the hints given so far with it.
std::string next_hint(const Project& project, Progress& progress, const std::string& id);

}  // namespace flash_steps::course
