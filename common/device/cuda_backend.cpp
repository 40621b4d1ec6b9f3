// The device is a GPU: arrays and limits through the CUDA runtime. Every failed call becomes a
// DeviceError that names the call, the last kernel launched and CUDA's own words.
#include <cuda_runtime.h>
#include <cxxabi.h>

#include <atomic>
#include <cstdlib>
#include <memory>

#include "common/device/array.hpp"
#include "common/device/launch.hpp"

namespace flash_steps {
namespace {

std::atomic<const char*> last_kernel = nullptr;  // mangled; only for messages

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  return status == 0 ? text.get() : name;
}

// A kernel's fault shows at a later call; so the message names the last kernel, too.
void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // or a later launch would be blamed for this one
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
  const bool failed = cudaGetDeviceCount(&count) != cudaSuccess;
  if (failed) cudaGetLastError();  // no GPU is an answer, not an error of the next call
  return !failed && count > 0;
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

DeviceMemory::DeviceMemory(std::size_t bytes) : DeviceMemory() {  // so that a throw frees it
  if (bytes == 0) return;
  const cudaError_t status = cudaMalloc(&data_, bytes);
  if (status != cudaSuccess) {
    check(status, ("cudaMalloc of " + std::to_string(bytes) + " bytes").c_str());
  }
  bytes_ = bytes;
  check(cudaMemset(data_, 0xFF, bytes), "cudaMemset");
}

DeviceMemory::~DeviceMemory() {
  cudaFree(data_);  // a failure here was reported by the call that caused it
}

void DeviceMemory::copy_from(const DeviceMemory& other) {
  if (bytes_ == 0) return;
  check(cudaMemcpyAsync(data_, other.data_, bytes_, cudaMemcpyDeviceToDevice),
        "cudaMemcpyAsync on the device");
}

void DeviceMemory::upload(const void* host, std::size_t bytes) {
  if (bytes > 0)
    check(cudaMemcpy(data_, host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy to the device");
}

void DeviceMemory::download(void* host, std::size_t bytes) const {
  if (bytes > 0)
    check(cudaMemcpy(host, data_, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy to the host");
}

void before_launch(const void* kernel, const Launch& config) {
  cudaFuncAttributes needs{};
  const char* name = nullptr;
  check(cudaFuncGetAttributes(&needs, kernel), "cudaFuncGetAttributes");
  check(cudaFuncGetName(&name, kernel), "cudaFuncGetName");
  const auto refuse_beyond = [&](const char* what, std::int64_t value, std::int64_t limit) {
    if (value <= limit) return;
    require(false, std::string(config.caller) + ": " + what + " is " + std::to_string(value) +
                       ", but must be at most " + std::to_string(limit) + " for " +
                       demangled(name));
  };
  refuse_beyond("the number of threads in a block",
                config.block.x * config.block.y * config.block.z, needs.maxThreadsPerBlock);
  const std::int64_t shared_bytes =
      static_cast<std::int64_t>(needs.sharedSizeBytes) + config.shared_bytes;
  refuse_beyond("the shared memory of a block", shared_bytes,
                attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  // More than 48 KB must be asked for, kernel by kernel and device by device: so at every
  // launch.
  constexpr std::int64_t kDefault = 48 * 1024;
  if (shared_bytes > kDefault) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(config.shared_bytes)),
          "cudaFuncSetAttribute");
  }
  last_kernel = name;
}

void after_launch() { check(cudaGetLastError(), "kernel launch"); }

}  // namespace flash_steps
