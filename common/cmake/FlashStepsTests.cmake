# add_flash_steps_test(NAME FILES LIBRARIES...) makes NAME_test from FILES, each a list of doctest cases
# named "cpu: ..." or "device: ...", and tells ctest of every case as NAME/CASE with the label cpu, or
# the device's kind (sim or cuda). 77 means skipped. Case names hold no comma and no semicolon: doctest's
# discovery would split them.
include(doctest)

add_library(flash_steps_test_support STATIC ${PROJECT_SOURCE_DIR}/tests/support/main.cpp
            ${PROJECT_SOURCE_DIR}/tests/support/program.cpp
            ${PROJECT_SOURCE_DIR}/tests/support/report.cpp)
target_link_libraries(flash_steps_test_support PUBLIC doctest::doctest flash_steps_tensor
                      flash_steps_device flash_steps_reference)
target_compile_definitions(flash_steps_test_support PUBLIC
                           FLASH_STEPS_GOLDEN_DIR="${PROJECT_SOURCE_DIR}/tests/golden")
flash_steps_warnings(flash_steps_test_support)

function(add_flash_steps_test name files)
  add_executable(${name}_test ${files})
  target_link_libraries(${name}_test flash_steps_test_support ${ARGN})
  # compiling takes longer than running, with sanitizers all the more
  set(optimisation -O1)
  if(FLASH_STEPS_SANITIZE)
    set(optimisation -O0)
  endif()
  target_compile_options(${name}_test PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${optimisation}>)
  flash_steps_warnings(${name}_test)
  foreach(group cpu device)
    set(label cpu)
    if(group STREQUAL "device")
      set(label ${FLASH_STEPS_DEVICE})
    endif()
    doctest_discover_tests(${name}_test TEST_SPEC "${group}:*" TEST_PREFIX "${name}/"
                           TEST_LIST ${name}_${group}_tests
                           PROPERTIES LABELS ${label} SKIP_RETURN_CODE 77 TIMEOUT 300)
  endforeach()
endfunction()
