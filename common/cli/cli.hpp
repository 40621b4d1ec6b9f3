// What a chapter's main.cpp includes: options, input files, output, and the frame around them.
#pragma once

#include "common/cli/common_options.hpp"
#include "common/cli/error.hpp"
#include "common/cli/input.hpp"
#include "common/cli/options.hpp"
#include "common/cli/output_directory.hpp"
#include "common/cli/print.hpp"
#include "common/cli/program.hpp"
#include "common/cli/report.hpp"
