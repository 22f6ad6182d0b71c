// cuBLASLt: one algorithm, without a workspace of its own wish; torch brings the workspace anyway.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "simulated.h"

struct Heuristic {  // cublasLtMatmulHeuristicResult_t
  uint64_t algorithm[8];
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
typedef void* Opaque;
static int made(Opaque* handle, size_t bytes) {
  *handle = calloc(1, bytes);
  return 0;
}
static int gone(Opaque handle) {
  free(handle);
  return 0;
}

API size_t cublasLtGetVersion(void) { return 130100; }
API int cublasLtCreate(Opaque* handle) { return made(handle, 64); }
API int cublasLtDestroy(Opaque handle) { return gone(handle); }
API int cublasLtMatmulDescCreate(Opaque* handle, int, int) { return made(handle, 512); }
API int cublasLtMatmulDescDestroy(Opaque handle) { return gone(handle); }
API int cublasLtMatrixLayoutCreate(Opaque* handle, int, uint64_t, uint64_t, int64_t) { return made(handle, 512); }
API int cublasLtMatrixLayoutDestroy(Opaque handle) { return gone(handle); }
API int cublasLtMatmulPreferenceCreate(Opaque* handle) { return made(handle, 512); }
API int cublasLtMatmulPreferenceDestroy(Opaque handle) { return gone(handle); }
API int cublasLtMatmulAlgoGetHeuristic(Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, int, Heuristic* filled,
                                       int* count) {
  memset(filled, 0, sizeof *filled);
  *count = 1;
  return 0;
}
API int cublasLtMatmul(Opaque, Opaque, const void*, const void*, Opaque, const void*, Opaque, const void*, const void*,
                       Opaque, void*, Opaque, const void*, void*, size_t, void* stream) {
  simulated_launched(stream, "cublasLtMatmul");
  return 0;
}
