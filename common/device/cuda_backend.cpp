// The device is a GPU: arrays and limits through the CUDA runtime. Every failed call becomes a
// DeviceError that names the call, the last kernel launched and CUDA's own words.
#include <cuda_runtime.h>
#include <cxxabi.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

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

int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

DeviceLimits limits_of(int device) {
  const auto attribute = [device](cudaDeviceAttr which) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
    return value;
  };
  return {.threads_per_block = attribute(cudaDevAttrMaxThreadsPerBlock),
          .shared_bytes_per_block = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin),
          .grid_x = attribute(cudaDevAttrMaxGridDimX),
          .grid_y = attribute(cudaDevAttrMaxGridDimY),
          .grid_z = attribute(cudaDevAttrMaxGridDimZ),
          .multiprocessors = attribute(cudaDevAttrMultiProcessorCount)};
}

// What a launch must know of its kernel, on one device.
struct Kernel {
  const char* name = nullptr;  // mangled
  std::int64_t threads = 0;    // the most in a block, by its registers
  std::int64_t shared_bytes = 0;
  std::int64_t opted_in = 48 * 1024;  // shared memory that it may have, all together
};

Kernel look_up(const void* kernel) {
  cudaFuncAttributes needs{};
  Kernel found;
  const cudaError_t status = cudaFuncGetAttributes(&needs, kernel);
  if (status == cudaErrorNoKernelImageForDevice) {
    cudaGetLastError();
    throw DeviceError("this build has no code for the GPU " + device_name() +
                      ": configure it there, or with -DCMAKE_CUDA_ARCHITECTURES=native");
  }
  check(status, "cudaFuncGetAttributes");
  check(cudaFuncGetName(&found.name, kernel), "cudaFuncGetName");
  found.threads = needs.maxThreadsPerBlock;
  found.shared_bytes = static_cast<std::int64_t>(needs.sharedSizeBytes);
  return found;
}

// Neither changes, and asking the driver at every launch would take longer than a small kernel.
std::mutex cache_mutex;
std::map<int, DeviceLimits> limits_cache;                    // by device
std::map<std::pair<int, const void*>, Kernel> kernel_cache;  // by device and kernel

}  // namespace

const char* device_kind() { return "cuda"; }

bool device_available() {
  int count = 0;
  const bool failed = cudaGetDeviceCount(&count) != cudaSuccess;
  if (failed) cudaGetLastError();  // no GPU is an answer, not an error of the next call
  return !failed && count > 0;
}

std::string device_name() {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, current_device()), "cudaGetDeviceProperties");
  return properties.name;
}

DeviceLimits device_limits() {
  const int device = current_device();
  const std::lock_guard lock(cache_mutex);
  const auto known = limits_cache.find(device);
  if (known != limits_cache.end()) return known->second;
  return limits_cache[device] = limits_of(device);
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

void before_launch(const void* function, const Launch& config) {
  const int device = current_device();
  const std::int64_t shared_limit = device_limits().shared_bytes_per_block;
  const std::lock_guard lock(cache_mutex);
  Kernel& kernel = kernel_cache[{device, function}];
  if (!kernel.name) kernel = look_up(function);

  const auto refuse_beyond = [&](const char* what, std::int64_t value, std::int64_t limit) {
    if (value <= limit) return;
    require(false, std::string(config.caller) + ": " + what + " is " + std::to_string(value) +
                       ", but must be at most " + std::to_string(limit) + " for " +
                       demangled(kernel.name));
  };
  const std::int64_t shared_bytes = kernel.shared_bytes + config.shared_bytes;
  refuse_beyond("the number of threads in a block",
                config.block.x * config.block.y * config.block.z, kernel.threads);
  refuse_beyond("the shared memory of a block", shared_bytes, shared_limit);

  // More than 48 KB must be asked for, kernel by kernel and device by device.
  if (shared_bytes > kernel.opted_in) {
    check(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(config.shared_bytes)),
          "cudaFuncSetAttribute");
    kernel.opted_in = shared_bytes;
  }
  last_kernel = kernel.name;
}

void after_launch() { check(cudaGetLastError(), "kernel launch"); }

}  // namespace flash_steps
