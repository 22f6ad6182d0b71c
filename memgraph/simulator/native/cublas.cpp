// cuBLAS: handles that remember what they are told, and products that do nothing.
#include <cstdlib>

#include "simulated.h"

struct Handle {
  void* stream;
  int pointers, math;
};

API int cublasCreate_v2(Handle** handle) {
  *handle = (Handle*)calloc(1, sizeof(Handle));
  return 0;
}
API int cublasDestroy_v2(Handle* handle) {
  free(handle);
  return 0;
}
API int cublasSetStream_v2(Handle* handle, void* stream) {
  handle->stream = stream;
  return 0;
}
API int cublasGetStream_v2(Handle* handle, void** stream) {
  *stream = handle->stream;
  return 0;
}
API int cublasSetPointerMode_v2(Handle* handle, int mode) {
  handle->pointers = mode;
  return 0;
}
API int cublasGetPointerMode_v2(Handle* handle, int* mode) {
  *mode = handle->pointers;
  return 0;
}
API int cublasSetMathMode(Handle* handle, int mode) {
  handle->math = mode;
  return 0;
}
API int cublasGetMathMode(Handle* handle, int* mode) {
  *mode = handle->math;
  return 0;
}
#define PRODUCT(name)                            \
  API int name(Handle* handle) {                 \
    simulated_launched(handle->stream, #name);   \
    return 0;                                    \
  }
PRODUCT(cublasGemmEx)
PRODUCT(cublasGemmStridedBatchedEx)
PRODUCT(cublasGemmBatchedEx)
PRODUCT(cublasSgemmEx)
PRODUCT(cublasSgemm_v2)
PRODUCT(cublasDgemm_v2)
PRODUCT(cublasSgemmStridedBatched)
PRODUCT(cublasDgemmStridedBatched)
PRODUCT(cublasSgemv_v2)
PRODUCT(cublasDgemv_v2)
