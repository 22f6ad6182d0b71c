// NCCL: communicators that know their rank, and collectives that take a place in their stream and bring no values of
// others. Ranks never wait for each other here. A gather repeats what this rank sends, so that ranks that compare what
// they have (DDP compares shapes) find it equal; a group of broadcasts, one from each rank, is a gather too (torch 2.15).
#define __CUDA_FP16_H__  // nccl.h includes headers that want a part of CUDA which is not installed, and needs none
#define __CUDA_BF16_H__
#define __CUDA_FP8_H__
#include <nccl.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "simulated.h"

struct ncclComm {
  int rank, ranks, device;
};
struct Awaited {
  void* to;
  size_t bytes;
  cudaStream_t stream;
};
static thread_local int groups = 0;
static thread_local const void* sent = nullptr;  // by this rank's own broadcast in the group
static thread_local size_t sent_bytes = 0;
static thread_local std::vector<Awaited> awaited;  // of other ranks' broadcasts in the group

static ncclResult_t made(ncclComm_t* communicator, int rank, int ranks, int device) {
  *communicator = new ncclComm{rank, ranks, device};
  return ncclSuccess;
}
static ncclResult_t gone(ncclComm_t communicator) {
  delete communicator;
  return ncclSuccess;
}
static size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt64: case ncclUint64: case ncclFloat64: return 8;
    case ncclInt32: case ncclUint32: case ncclFloat32: return 4;
    case ncclFloat16: case ncclBfloat16: return 2;
    default: return 1;
  }
}
static ncclResult_t done(cudaStream_t stream, const char* what) {
  simulated_launched((void*)stream, what);
  return ncclSuccess;
}
static ncclResult_t copied(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  if (to == from) return ncclSuccess;
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream) == cudaSuccess ? ncclSuccess
                                                                                          : ncclUnhandledCudaError;
}

API ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
API ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  memset(id, 1, sizeof *id);
  return ncclSuccess;
}
API const char* ncclGetErrorString(ncclResult_t) { return "an answer of the simulated NCCL"; }
API const char* ncclGetLastError(ncclComm_t) { return ""; }

API ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId, int rank, ncclConfig_t*) {
  return made(comm, rank, ranks, simulated_current_device());
}
API ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId, int rank) {
  return made(comm, rank, ranks, simulated_current_device());
}
API ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int ranks, int rank, int, ncclUniqueId*, ncclConfig_t*) {
  return made(comm, rank, ranks, simulated_current_device());
}
API ncclResult_t ncclCommInitAll(ncclComm_t* comms, int count, const int* devices) {
  for (int rank = 0; rank < count; rank++) made(comms + rank, rank, count, devices ? devices[rank] : rank);
  return ncclSuccess;
}
API ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int, ncclComm_t* part, ncclConfig_t*) {
  *part = nullptr;  // others' colours are not known here: all of them are taken for this rank's
  return color == NCCL_SPLIT_NOCOLOR ? ncclSuccess : made(part, comm->rank, comm->ranks, comm->device);
}
API ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
API ncclResult_t ncclCommDestroy(ncclComm_t comm) { return gone(comm); }
API ncclResult_t ncclCommAbort(ncclComm_t comm) { return gone(comm); }
API ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
  *error = ncclSuccess;
  return ncclSuccess;
}
API ncclResult_t ncclCommCount(ncclComm_t comm, int* ranks) {
  *ranks = comm->ranks;
  return ncclSuccess;
}
API ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}
API ncclResult_t ncclCommCuDevice(ncclComm_t comm, int* device) {
  *device = comm->device;
  return ncclSuccess;
}
API ncclResult_t ncclCommRegister(ncclComm_t, void*, size_t, void** handle) {
  *handle = nullptr;
  return ncclSuccess;
}
API ncclResult_t ncclMemAlloc(void** address, size_t bytes) {
  return cudaMalloc(address, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
API ncclResult_t ncclMemFree(void* address) {
  return cudaFree(address) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
API ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void*, ncclDataType_t, ncclScalarResidence_t, ncclComm_t) {
  *op = ncclSum;
  return ncclSuccess;
}

API ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t, ncclComm_t,
                               cudaStream_t stream) {
  done(stream, "ncclAllReduce");
  return copied(to, from, count * bytes_of(type), stream);
}
API ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm,
                               cudaStream_t stream) {
  size_t bytes = count * bytes_of(type);
  done(stream, "ncclAllGather");
  for (int rank = 0; rank < comm->ranks; rank++)
    if (ncclResult_t error = copied((char*)to + rank * bytes, from, bytes, stream)) return error;
  return ncclSuccess;
}
API ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t,
                                   ncclComm_t comm, cudaStream_t stream) {
  size_t bytes = count * bytes_of(type);
  done(stream, "ncclReduceScatter");
  return copied(to, (const char*)from + comm->rank * bytes, bytes, stream);
}
API ncclResult_t ncclReduce(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t,
                            cudaStream_t stream) {
  return done(stream, "ncclReduce");
}
API ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                               cudaStream_t stream) {
  size_t bytes = count * bytes_of(type);
  done(stream, "ncclBroadcast");
  if (groups && root != comm->rank) {
    awaited.push_back({to, bytes, stream});
    return ncclSuccess;
  }
  if (groups) sent = from, sent_bytes = bytes;
  return copied(to, from, bytes, stream);
}
API ncclResult_t ncclGroupStart() {
  groups++;
  return ncclSuccess;
}
API ncclResult_t ncclGroupEnd() {
  if (--groups) return ncclSuccess;
  ncclResult_t result = ncclSuccess;
  for (const Awaited& one : awaited)
    if (sent && one.bytes == sent_bytes && result == ncclSuccess) result = copied(one.to, sent, one.bytes, one.stream);
  awaited.clear();
  sent = nullptr;
  return result;
}
API ncclResult_t ncclBcast(void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t stream) {
  return done(stream, "ncclBcast");
}
API ncclResult_t ncclSend(const void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t stream) {
  return done(stream, "ncclSend");
}
API ncclResult_t ncclRecv(void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t stream) {
  return done(stream, "ncclRecv");
}
