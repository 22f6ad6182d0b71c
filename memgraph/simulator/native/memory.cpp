// Memory of the device and page-locked memory of the host; copies between them.
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "simulated.h"

struct Range {
  size_t bytes;
  Place place;
  int device;
  bool ours;  // to be unmapped when it is given back
};

static std::mutex& guard() {
  static auto* mutex = new std::mutex;
  return *mutex;
}
static std::map<uintptr_t, Range>& ranges() {
  static auto* all = new std::map<uintptr_t, Range>;
  return *all;
}
static std::vector<size_t>& charged() {
  static auto* bytes = new std::vector<size_t>((size_t)devices());
  return *bytes;
}
static size_t room() {  // the driver's context of this process takes its part
  static const size_t bytes = (size_t)(card_figure("memory") - card_figure("context"));
  return bytes;
}
// Larger copies move nothing: their values mean nothing, and their pages would cost host memory.
static size_t copied_bytes() {
  static const size_t bytes = (size_t)card_figure("copied_bytes");
  return bytes;
}

API size_t simulated_memory() { return (size_t)card_figure("memory"); }
API size_t simulated_free_memory(int device) {
  std::lock_guard<std::mutex> locked(guard());
  return room() - charged()[(size_t)device];
}
static bool charge(size_t bytes, int device) {
  if (charged()[(size_t)device] + bytes > room()) return false;
  charged()[(size_t)device] += bytes;
  return true;
}
API bool simulated_charge(size_t bytes, int device) {
  std::lock_guard<std::mutex> locked(guard());
  return charge(bytes, device);
}
API void simulated_discharge(size_t bytes, int device) {
  std::lock_guard<std::mutex> locked(guard());
  charged()[(size_t)device] -= bytes;
}
API void simulated_known(void* address, size_t bytes, int device, bool mapped) {
  std::lock_guard<std::mutex> locked(guard());
  if (mapped)
    ranges()[(uintptr_t)address] = {bytes, Place::device, device, false};
  else
    ranges().erase((uintptr_t)address);
  LOG("%s %p %zu %d", mapped ? "map" : "unmap", address, bytes, device);
}

void* take(size_t bytes, Place place, int device) {
  std::lock_guard<std::mutex> locked(guard());
  if (place == Place::device && !charge(bytes, device)) return nullptr;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* address = mmap(nullptr, bytes ? bytes : 1, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (address == MAP_FAILED) {
    if (place == Place::device) charged()[(size_t)device] -= bytes;
    return nullptr;
  }
  ranges()[(uintptr_t)address] = {bytes, place, device, true};
  LOG("%s %p %zu %d", place == Place::device ? "malloc" : "hostalloc", address, bytes, device);
  return address;
}

bool give_back(void* address) {
  std::lock_guard<std::mutex> locked(guard());
  auto entry = ranges().find((uintptr_t)address);
  if (entry == ranges().end() || !entry->second.ours) return false;
  Range range = entry->second;
  if (range.place == Place::device) charged()[(size_t)range.device] -= range.bytes;
  munmap(address, range.bytes ? range.bytes : 1);
  ranges().erase(entry);
  LOG("free %p", address);
  return true;
}

Found found_at(const void* address) {
  std::lock_guard<std::mutex> locked(guard());
  auto entry = ranges().upper_bound((uintptr_t)address);
  if (entry == ranges().begin()) return {Place::nowhere, -1};
  --entry;
  bool inside = (uintptr_t)address < entry->first + entry->second.bytes;
  return inside ? Found{entry->second.place, entry->second.device} : Found{Place::nowhere, -1};
}
API int simulated_place(const void* address) { return (int)found_at(address).place; }

cudaError_t failed(cudaError_t error);

static cudaError_t allocate(void** address, size_t bytes, Place place) {
  *address = take(bytes, place, current_device());
  return *address ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}
static cudaError_t release(void* address) {
  return !address || give_back(address) ? cudaSuccess : failed(cudaErrorInvalidValue);
}
API cudaError_t cudaMalloc(void** p, size_t bytes) { return allocate(p, bytes, Place::device); }
API cudaError_t cudaMallocAsync(void** p, size_t bytes, cudaStream_t) { return allocate(p, bytes, Place::device); }
API cudaError_t cudaMallocHost(void** p, size_t bytes) { return allocate(p, bytes, Place::host); }
API cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned) { return allocate(p, bytes, Place::host); }
API cudaError_t cudaFree(void* p) { return release(p); }
API cudaError_t cudaFreeAsync(void* p, cudaStream_t) { return release(p); }
API cudaError_t cudaFreeHost(void* p) { return release(p); }
API cudaError_t cudaHostRegister(void* p, size_t bytes, unsigned) {
  std::lock_guard<std::mutex> locked(guard());
  if (!ranges().emplace((uintptr_t)p, Range{bytes, Place::host, current_device(), false}).second)
    return failed(cudaErrorHostMemoryAlreadyRegistered);
  LOG("register %p %zu", p, bytes);
  return cudaSuccess;
}
API cudaError_t cudaHostUnregister(void* p) {
  std::lock_guard<std::mutex> locked(guard());
  auto entry = ranges().find((uintptr_t)p);
  if (entry == ranges().end() || entry->second.ours) return failed(cudaErrorHostMemoryNotRegistered);
  ranges().erase(entry);
  LOG("unregister %p", p);
  return cudaSuccess;
}
API cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return cudaSuccess;
}
API cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  *total = simulated_memory();
  *available = simulated_free_memory(current_device());
  return cudaSuccess;
}
API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* filled, const void* p) {
  memset(filled, 0, sizeof *filled);
  Found found = found_at(p);
  filled->type = found.place == Place::device ? cudaMemoryTypeDevice
                 : found.place == Place::host ? cudaMemoryTypeHost
                                              : cudaMemoryTypeUnregistered;
  filled->device = found.device;
  if (found.place != Place::nowhere) filled->devicePointer = (void*)p;
  if (found.place != Place::device) filled->hostPointer = (void*)p;
  return cudaSuccess;
}

static const char* way(Place to, Place from) {
  if (to == Place::device) return from == Place::device ? "d2d" : from == Place::host ? "h2d" : "h2d-pageable";
  if (from == Place::device) return to == Place::host ? "d2h" : "d2h-pageable";
  return "h2h";
}
static cudaError_t copy(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  LOG("copy %p %s %p<-%p %zu", (void*)stream, way(found_at(to).place, found_at(from).place), to, from, bytes);
  if (bytes <= copied_bytes()) memmove(to, from, bytes);
  return cudaSuccess;
}
API cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return copy(to, from, bytes, nullptr);
}
API cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return copy(to, from, bytes, stream);
}
API cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
  return copy(to, from, bytes, stream);
}
API cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                                  size_t height, cudaMemcpyKind, cudaStream_t stream) {
  LOG("copy2d %p %p<-%p %zux%zu", (void*)stream, to, from, width, height);
  for (size_t row = 0; width * height <= copied_bytes() && row < height; row++)
    memmove((char*)to + row * to_pitch, (const char*)from + row * from_pitch, width);
  return cudaSuccess;
}
static cudaError_t fill(void* p, int value, size_t bytes, cudaStream_t stream) {
  LOG("memset %p %p %zu", (void*)stream, p, bytes);
  if (bytes <= copied_bytes()) memset(p, value, bytes);
  return cudaSuccess;
}
API cudaError_t cudaMemset(void* p, int value, size_t bytes) { return fill(p, value, bytes, nullptr); }
API cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t s) { return fill(p, value, bytes, s); }
