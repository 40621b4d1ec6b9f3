// The device is a GPU: arrays and limits through the CUDA runtime. Every failed call becomes a
// DeviceError that names the call, the last kernel launched and CUDA's own words.
#include <cuda_runtime.h>
#include <cxxabi.h>

#include <cstdlib>
#include <memory>

#include "common/device/array.hpp"
#include "common/device/launch.hpp"

namespace flash_steps {
namespace {

const char* last_kernel = nullptr;  // mangled; only for messages

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  return status == 0 ? text.get() : name;
}

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  std::string message = std::string(call) + ": " + cudaGetErrorString(status);
  if (last_kernel) message += " (last kernel launched: " + demangled(last_kernel) + ")";
  throw DeviceError(message);
}

int attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

}  // namespace

const char* device_kind() { return "cuda"; }

bool device_available() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

std::string device_name() {
  int device = 0;
  cudaDeviceProp properties{};
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  return properties.name;
}

DeviceLimits device_limits() {
  return {.threads_per_block = attribute(cudaDevAttrMaxThreadsPerBlock),
          .shared_bytes_per_block = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin),
          .grid_x = attribute(cudaDevAttrMaxGridDimX),
          .grid_y = attribute(cudaDevAttrMaxGridDimY),
          .grid_z = attribute(cudaDevAttrMaxGridDimZ),
          .multiprocessors = attribute(cudaDevAttrMultiProcessorCount)};
}

void set_thread_order(ThreadOrder, std::uint64_t) {}

void synchronize_device() { check(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }

std::optional<Traffic> device_traffic() { return std::nullopt; }
void reset_device_traffic() {}

DeviceMemory::DeviceMemory(std::size_t bytes) {
  if (bytes == 0) return;
  check(cudaMalloc(&data_, bytes), "cudaMalloc");
  bytes_ = bytes;
  check(cudaMemset(data_, 0xFF, bytes), "cudaMemset");
}

DeviceMemory::~DeviceMemory() {
  cudaFree(data_);  // a failure here was reported by the call that caused it
}

void DeviceMemory::upload(const void* host, std::size_t bytes) {
  if (bytes > 0)
    check(cudaMemcpy(data_, host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy to the device");
}

void DeviceMemory::download(void* host, std::size_t bytes) const {
  if (bytes > 0)
    check(cudaMemcpy(host, data_, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy to the host");
}

void before_launch(const void* kernel, std::int64_t shared_bytes) {
  check(cudaFuncGetName(&last_kernel, kernel), "cudaFuncGetName");
  // More than 48 KB must be asked for, kernel by kernel and device by device: so at every
  // launch.
  constexpr std::int64_t kDefault = 48 * 1024;
  if (shared_bytes > kDefault) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_bytes)),
          "cudaFuncSetAttribute");
  }
}

void after_launch() { check(cudaGetLastError(), "kernel launch"); }

}  // namespace flash_steps
