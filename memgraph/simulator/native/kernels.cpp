// Kernels, which are launched and do nothing; errors; and the log.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <atomic>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "simulated.h"

static FILE* opened_log() {
  const char* path = getenv("MEMGRAPH_SIMULATED_LOG");
  FILE* opened = path && *path ? fopen(path, "a") : nullptr;
  if (opened) setvbuf(opened, nullptr, _IOLBF, 1 << 16);
  return opened;
}
static FILE*& known_log() {
  static FILE* file = opened_log();
  return file;
}
FILE* log_file() { return known_log(); }
void open_log() { known_log() = opened_log(); }
void write_log(const char* format, ...) {
  FILE* file = log_file();
  va_list given;
  va_start(given, format);
  flockfile(file);
  vfprintf(file, format, given);
  fputc('\n', file);
  funlockfile(file);
  va_end(given);
}
API void simulated_note(const char* line) { LOG("%s", line); }

// A function that answers "success" and does nothing: what it should have filled in is not.
API void simulated_not_modelled(const char* function) {
  static auto* guard = new std::mutex;
  static auto* told = new std::set<std::string>;
  if (!log_file()) return;
  std::lock_guard<std::mutex> locked(*guard);
  if (told->insert(function).second) LOG("notmodelled %s", function);
}

static thread_local cudaError_t last_error = cudaSuccess;
cudaError_t failed(cudaError_t error) { return last_error = error; }
API cudaError_t cudaGetLastError() {
  cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
API cudaError_t cudaPeekAtLastError() { return last_error; }
API const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess                 ? "no error"
         : error == cudaErrorMemoryAllocation ? "out of memory"
                                              : "an error of the simulated device";
}
API const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaSuccess                 ? "cudaSuccess"
         : error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation"
                                              : "cudaErrorSimulated";
}

static std::atomic<long> launches{0};
API long simulated_launches() { return launches; }
API void simulated_launched(void* stream, const char* what) {
  launches++;
  LOG("launch %p %s", stream, what);
}

static std::map<const void*, std::string>& names() {
  static auto* all = new std::map<const void*, std::string>;
  return *all;
}
static cudaError_t launched(const void* kernel, cudaStream_t stream) {
  launches++;
  if (log_file()) {
    auto entry = names().find(kernel);
    LOG("launch %p %s", (void*)stream, entry == names().end() ? "?" : entry->second.c_str());
  }
  return cudaSuccess;
}
struct Configuration {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};
static thread_local Configuration configuration;
API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st* stream) {
  configuration = {grid, block, shared, stream};
  return 0;
}
API cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  *(cudaStream_t*)stream = configuration.stream;
  return cudaSuccess;
}
API void** __cudaRegisterFatBinary(void*) {
  static void* handle[16];
  return handle;
}
API void __cudaRegisterFatBinaryEnd(void**) {}
API void __cudaUnregisterFatBinary(void**) {}
API void __cudaRegisterFunction(void**, const char* kernel, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                                int*) {
  if (log_file()) names()[kernel] = name;
}
API void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
API char __cudaInitModule(void**) { return 0; }
API cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = (cudaKernel_t)function;
  return cudaSuccess;
}
API cudaError_t cudaLaunchKernel(const void* f, dim3, dim3, void**, size_t, cudaStream_t s) { return launched(f, s); }
API cudaError_t __cudaLaunchKernel(cudaKernel_t f, dim3, dim3, void**, size_t, cudaStream_t s) {
  return launched((const void*)f, s);
}
API cudaError_t cudaLaunchCooperativeKernel(const void* f, dim3, dim3, void**, size_t, cudaStream_t s) {
  return launched(f, s);
}
API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* f, void**) {
  return launched(f, config->stream);
}
API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* filled, const void*) {
  memset(filled, 0, sizeof *filled);
  filled->maxThreadsPerBlock = 1024;
  filled->numRegs = 64;
  filled->binaryVersion = filled->ptxVersion = (int)(10 * card_figure("major") + card_figure("minor"));
  filled->maxDynamicSharedSizeBytes = (int)card_figure("shared_memory") - 1024;
  return cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
  *blocks = 2;
  return cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t, unsigned) {
  *blocks = 2;
  return cudaSuccess;
}
API cudaError_t cudaGetSymbolAddress(void** address, const void*) {
  static void* memory = calloc(1, 1 << 20);
  *address = memory;
  return cudaSuccess;
}
API cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) { return cudaSuccess; }
API cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void*, cudaJitOption*, void**, unsigned,
                                    cudaLibraryOption*, void**, unsigned) {
  *library = (cudaLibrary_t)calloc(1, 64);
  return cudaSuccess;
}
API cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t, const char*) {
  *kernel = (cudaKernel_t)calloc(1, 64);
  return cudaSuccess;
}

static int nothing() { return 0; }
API cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                                 cudaDriverEntryPointQueryResult* result) {
  *function = dlsym(RTLD_DEFAULT, name);
  if (!*function) {
    simulated_not_modelled(name);
    *function = (void*)nothing;
  }
  if (result) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
API cudaError_t cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long flags,
                                        cudaDriverEntryPointQueryResult* result) {
  return cudaGetDriverEntryPointByVersion(name, function, 0, flags, result);
}
