# `cmake --build build/default --target tour` runs the demonstration of every chapter, in order.
get_property(chapters GLOBAL PROPERTY FLASH_STEPS_TOUR)
add_custom_target(tour
  COMMAND ${CMAKE_COMMAND} "-DCHAPTERS=${chapters}" -DBIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}
          -P ${CMAKE_CURRENT_LIST_DIR}/tour.cmake
  DEPENDS ${chapters} USES_TERMINAL VERBATIM)
