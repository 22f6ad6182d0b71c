// libcuda: what Triton, and torch's expandable segments, ask the driver for.
#include <cuda.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "simulated.h"
#undef cuDeviceTotalMem
#undef cuMemGetInfo
#undef cuCtxGetDevice

static char contexts[64];  // one address a device

template <typename Handle>
static CUresult made(Handle* handle) {
  *handle = (Handle)calloc(1, 64);
  return CUDA_SUCCESS;
}

API CUresult cuDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}
API CUresult cuDeviceGetCount(int* count) {
  *count = simulated_devices();
  return CUDA_SUCCESS;
}
API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}
API CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  *value = simulated_attribute(attribute);
  return CUDA_SUCCESS;
}
API CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice) {
  *bytes = simulated_memory();
  return CUDA_SUCCESS;
}
API CUresult cuMemGetInfo_v2(size_t* available, size_t* total) {
  *total = simulated_memory();
  *available = simulated_free_memory(simulated_current_device());
  return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = (CUcontext)&contexts[device];
  return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}
API CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = (CUcontext)&contexts[simulated_current_device()];
  return CUDA_SUCCESS;
}
API CUresult cuCtxSetCurrent(CUcontext context) {
  if (context) simulated_set_device((int)((char*)context - contexts));
  return CUDA_SUCCESS;
}
API CUresult cuCtxGetDevice(CUdevice* device) {
  *device = simulated_current_device();
  return CUDA_SUCCESS;
}
API CUresult cuModuleLoadData(CUmodule* module, const void*) { return made(module); }
API CUresult cuModuleLoadDataEx(CUmodule* module, const void*, unsigned, CUjit_option*, void**) { return made(module); }
API CUresult cuModuleLoad(CUmodule* module, const char*) { return made(module); }
API CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  *function = (CUfunction)strdup(name);
  return CUDA_SUCCESS;
}
API CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction) {
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : attribute == CU_FUNC_ATTRIBUTE_NUM_REGS ? 64 : 0;
  return CUDA_SUCCESS;
}
API CUresult cuLaunchKernel(CUfunction f, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            CUstream stream, void**, void**) {
  simulated_launched((void*)stream, (const char*)f);
  return CUDA_SUCCESS;
}
API CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void**, void**) {
  simulated_launched((void*)config->hStream, (const char*)f);
  return CUDA_SUCCESS;
}
API CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                       unsigned, CUstream stream, void**) {
  simulated_launched((void*)stream, (const char*)f);
  return CUDA_SUCCESS;
}
API CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "an error of the simulated device";
  return CUDA_SUCCESS;
}
API CUresult cuGetErrorName(CUresult error, const char** text) {
  *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_SIMULATED";
  return CUDA_SUCCESS;
}
API CUresult cuPointerGetAttribute(void* filled, CUpointer_attribute attribute, CUdeviceptr pointer) {
  if (attribute != CU_POINTER_ATTRIBUTE_DEVICE_POINTER) return CUDA_ERROR_INVALID_VALUE;
  *(CUdeviceptr*)filled = pointer;
  return CUDA_SUCCESS;
}
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int, size_t) {
  *blocks = 2;
  return CUDA_SUCCESS;
}
API CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction, const CUlaunchConfig*) {
  *clusters = 16;
  return CUDA_SUCCESS;
}

// Virtual memory: addresses are reserved without access, and a piece of memory makes a part of them usable.
struct Piece {
  size_t bytes;
  int device;
};
static const int NORESERVE = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

API CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*,
                                           CUmemAllocationGranularity_flags) {
  *bytes = 2 << 20;
  return CUDA_SUCCESS;
}
API CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  void* reserved = mmap(nullptr, bytes, PROT_NONE, NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = (CUdeviceptr)reserved;
  return CUDA_SUCCESS;
}
API CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  munmap((void*)address, bytes);
  return CUDA_SUCCESS;
}
API CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* wanted,
                         unsigned long long) {
  int device = wanted->location.id;
  if (!simulated_charge(bytes, device)) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = (CUmemGenericAllocationHandle) new Piece{bytes, device};
  return CUDA_SUCCESS;
}
API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {  // torch has unmapped it by then
  Piece* piece = (Piece*)handle;
  simulated_discharge(piece->bytes, piece->device);
  delete piece;
  return CUDA_SUCCESS;
}
API CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t, CUmemGenericAllocationHandle handle,
                      unsigned long long) {
  mprotect((void*)address, bytes, PROT_READ | PROT_WRITE);
  simulated_known((void*)address, bytes, ((Piece*)handle)->device, true);
  return CUDA_SUCCESS;
}
API CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  mmap((void*)address, bytes, PROT_NONE, NORESERVE | MAP_FIXED, -1, 0);  // its pages go
  simulated_known((void*)address, bytes, 0, false);
  return CUDA_SUCCESS;
}
