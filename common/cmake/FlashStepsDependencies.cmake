# Everything is found, nothing is fetched. Whatever is missing stops the configuration with one
# sentence that names the package and where the README's install line is.
macro(flash_steps_need package debian_package)
  find_package(${package} ${ARGN} QUIET)
  if(NOT ${package}_FOUND)
    message(FATAL_ERROR
      "flash-steps needs ${package} (Debian: ${debian_package}); README.md has the line that installs everything.")
  endif()
endmacro()

flash_steps_need(Eigen3 libeigen3-dev 3.4)
flash_steps_need(fmt libfmt-dev)
flash_steps_need(CLI11 libcli11-dev)
flash_steps_need(nlohmann_json nlohmann-json3-dev)
flash_steps_need(doctest doctest-dev)
flash_steps_need(benchmark libbenchmark-dev)
if(FLASH_STEPS_DEVICE STREQUAL "sim")
  flash_steps_need(Boost libboost-context-dev COMPONENTS context)
endif()

find_package(OpenMP QUIET COMPONENTS CXX)
if(OpenMP_CXX_FOUND)
  set(FLASH_STEPS_OPENMP OpenMP::OpenMP_CXX)
else()
  set(FLASH_STEPS_OPENMP "")
  message(STATUS "flash-steps: no OpenMP, so the CPU versions use one thread")
endif()
