// libnvidia-ml: what torch asks it for. No links between cards, no fabric, no other processes.
#include <cstdio>
#include <cstdlib>

#include "simulated.h"

static const int NOT_SUPPORTED = 3;

API int nvmlInit(void) { return 0; }
API int nvmlInit_v2(void) { return 0; }
API int nvmlShutdown(void) { return 0; }
API const char* nvmlErrorString(int) { return "an answer of the simulated device"; }
API int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = (unsigned)simulated_devices();
  return 0;
}
API int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13000;
  return 0;
}
static int handle_of(long device, void** handle) {
  *handle = (void*)(device + 1);
  return 0;
}
API int nvmlDeviceGetHandleByIndex_v2(unsigned device, void** handle) { return handle_of((long)device, handle); }
API int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, void** handle) {  // "0000:01:00.0"
  return handle_of(strtol(bus + 5, nullptr, 16) - 1, handle);
}
API int nvmlDeviceGetUUID(void* handle, char* text, unsigned size) {
  snprintf(text, size, "GPU-%08lx-0000-0000-0000-000000000000", (long)handle << 24);
  return 0;
}
API int nvmlDeviceGetGpuFabricInfoV(void*, void*) { return 0; }  // all zero: not supported
API int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, int*) { return NOT_SUPPORTED; }
API int nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned, void*) { return NOT_SUPPORTED; }
API int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, void*) {
  *count = 0;
  return 0;
}
