# Settles FLASH_STEPS_DEVICE: "auto" becomes cuda when nvcc and a GPU are here, sim otherwise.
# A GPU counts as here when its driver lists one.
execute_process(COMMAND nvidia-smi -L OUTPUT_VARIABLE gpus ERROR_QUIET RESULT_VARIABLE nvidia_smi_failed)
set(FLASH_STEPS_GPU_HERE OFF)
if(nvidia_smi_failed EQUAL 0 AND gpus MATCHES "GPU 0")
  set(FLASH_STEPS_GPU_HERE ON)
endif()

if(FLASH_STEPS_DEVICE STREQUAL "auto")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER AND FLASH_STEPS_GPU_HERE)
    set(FLASH_STEPS_DEVICE cuda)
  else()
    set(FLASH_STEPS_DEVICE sim)
  endif()
elseif(NOT FLASH_STEPS_DEVICE MATCHES "^(sim|cuda)$")
  message(FATAL_ERROR "FLASH_STEPS_DEVICE is '${FLASH_STEPS_DEVICE}'; it must be auto, sim or cuda.")
endif()
message(STATUS "flash-steps: CUDA kernels run on: ${FLASH_STEPS_DEVICE}")

# "native" stops the configuration where no GPU is present, so such machines name an architecture:
# 75 is the oldest that CUDA 13 still builds for (a T4).
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  if(FLASH_STEPS_GPU_HERE)
    set(CMAKE_CUDA_ARCHITECTURES native)
  else()
    set(CMAKE_CUDA_ARCHITECTURES 75)
  endif()
endif()
