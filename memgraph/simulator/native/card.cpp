// The card that the environment names, and its answers to questions about devices.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "simulated.h"
#undef cudaGetDeviceProperties

static std::map<std::string, std::string> read_figures() {
  std::map<std::string, std::string> found;
  const char* given = getenv("MEMGRAPH_SIMULATED_CARD");
  std::string text = given ? given : "";
  for (size_t start = 0; start < text.size();) {
    size_t end = text.find(';', start);
    if (end == std::string::npos) end = text.size();
    std::string entry = text.substr(start, end - start);
    size_t sign = entry.find('=');
    if (sign != std::string::npos) found[entry.substr(0, sign)] = entry.substr(sign + 1);
    start = end + 1;
  }
  return found;
}

static std::map<std::string, std::string>& figures() {
  static auto* read = new std::map<std::string, std::string>(read_figures());
  return *read;
}

const char* card_name() {
  auto entry = figures().find("name");
  return entry == figures().end() ? "simulated card" : entry->second.c_str();
}

long long card_figure(const char* name) {
  auto entry = figures().find(name);
  if (entry == figures().end()) {
    fprintf(stderr, "memgraph.simulator: MEMGRAPH_SIMULATED_CARD does not say %s\n", name);
    abort();
  }
  return atoll(entry->second.c_str());
}

static int& known_devices() {
  static int count = (int)card_figure("devices");
  return count;
}
int devices() { return known_devices(); }

API void simulated_read_environment() {
  figures() = read_figures();
  known_devices() = (int)card_figure("devices");
  open_log();
}

int& current_device() {
  static thread_local int device = 0;
  return device;
}

API int simulated_devices() { return devices(); }
API int simulated_current_device() { return current_device(); }
API void simulated_set_device(int device) { current_device() = device; }

API int simulated_attribute(int attribute) {
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: return 1024;
    case cudaDevAttrMaxBlockDimX: return 1024;
    case cudaDevAttrMaxBlockDimY: return 1024;
    case cudaDevAttrMaxBlockDimZ: return 64;
    case cudaDevAttrMaxGridDimX: return 2147483647;
    case cudaDevAttrMaxGridDimY: return 65535;
    case cudaDevAttrMaxGridDimZ: return 65535;
    case cudaDevAttrMaxSharedMemoryPerBlock: return 49152;
    case cudaDevAttrTotalConstantMemory: return 65536;
    case cudaDevAttrWarpSize: return 32;
    case cudaDevAttrMaxRegistersPerBlock: return 65536;
    case cudaDevAttrMaxRegistersPerMultiprocessor: return 65536;
    case cudaDevAttrClockRate: return (int)card_figure("clock_khz");
    case cudaDevAttrTextureAlignment: return 512;
    case cudaDevAttrMultiProcessorCount: return (int)card_figure("multiprocessors");
    case cudaDevAttrConcurrentKernels: return 1;
    case cudaDevAttrEccEnabled: return 1;
    case cudaDevAttrAsyncEngineCount: return 3;
    case cudaDevAttrUnifiedAddressing: return 1;
    case cudaDevAttrCanMapHostMemory: return 1;
    case cudaDevAttrMemoryClockRate: return (int)card_figure("memory_clock_khz");
    case cudaDevAttrGlobalMemoryBusWidth: return (int)card_figure("bus_bits");
    case cudaDevAttrL2CacheSize: return (int)card_figure("l2_cache");
    case cudaDevAttrMaxThreadsPerMultiProcessor: return (int)card_figure("threads");
    case cudaDevAttrComputeCapabilityMajor: return (int)card_figure("major");
    case cudaDevAttrComputeCapabilityMinor: return (int)card_figure("minor");
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return (int)card_figure("shared_memory");
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return (int)card_figure("shared_memory") - 1024;
    case cudaDevAttrReservedSharedMemoryPerBlock: return 1024;
    case cudaDevAttrMaxBlocksPerMultiprocessor: return 32;
    case cudaDevAttrCooperativeLaunch: return 1;
    case cudaDevAttrMemoryPoolsSupported: return 1;
    case 102: return 1;  // CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    default: return 0;
  }
}

API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = simulated_attribute(attribute);
  return cudaSuccess;
}

API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* filled, int device) {
  if (device < 0 || device >= devices()) return cudaErrorInvalidDevice;
  memset(filled, 0, sizeof *filled);
  strncpy(filled->name, card_name(), sizeof filled->name - 1);
  filled->uuid.bytes[0] = (char)(device + 1);
  filled->pciBusID = device + 1;
  filled->major = (int)card_figure("major");
  filled->minor = (int)card_figure("minor");
  filled->totalGlobalMem = simulated_memory();
  filled->multiProcessorCount = (int)card_figure("multiprocessors");
  filled->l2CacheSize = (int)card_figure("l2_cache");
  filled->sharedMemPerBlock = 49152;
  filled->sharedMemPerMultiprocessor = (size_t)card_figure("shared_memory");
  filled->sharedMemPerBlockOptin = filled->sharedMemPerMultiprocessor - 1024;
  filled->reservedSharedMemPerBlock = 1024;
  filled->regsPerBlock = filled->regsPerMultiprocessor = 65536;
  filled->warpSize = 32;
  filled->maxThreadsPerBlock = filled->maxThreadsDim[0] = filled->maxThreadsDim[1] = 1024;
  filled->maxThreadsDim[2] = 64;
  filled->maxThreadsPerMultiProcessor = (int)card_figure("threads");
  filled->maxGridSize[0] = 2147483647;
  filled->maxGridSize[1] = filled->maxGridSize[2] = 65535;
  filled->maxBlocksPerMultiProcessor = 32;
  filled->memoryBusWidth = (int)card_figure("bus_bits");
  filled->ECCEnabled = filled->unifiedAddressing = filled->concurrentKernels = 1;
  filled->cooperativeLaunch = filled->canMapHostMemory = 1;
  filled->asyncEngineCount = 3;
  filled->textureAlignment = 512;
  return cudaSuccess;
}

API cudaError_t cudaGetDeviceCount(int* count) {
  *count = devices();
  return cudaSuccess;
}
API cudaError_t cudaGetDevice(int* device) {
  *device = current_device();
  return cudaSuccess;
}
API cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= devices()) return cudaErrorInvalidDevice;
  current_device() = device;
  return cudaSuccess;
}
API cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
API cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
  snprintf(text, (size_t)size, "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}
API cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}
