// Streams, events and capture: no work is ever pending, and time does not pass; the log has their order.
#include <cuda_runtime_api.h>

#include <cstdlib>

#include "simulated.h"

// Long, so that whoever times a kernel is content with few repetitions.
static const float ELAPSED_MS = 100;

template <typename Handle>
static cudaError_t made(Handle* handle) {
  *handle = (Handle)calloc(1, 64);
  return cudaSuccess;
}

API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned, int) { return made(s); }
API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) { return made(s); }
API cudaError_t cudaStreamCreate(cudaStream_t* s) { return made(s); }
API cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) {
  *priority = 0;
  return cudaSuccess;
}
API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) { return made(e); }
API cudaError_t cudaEventCreate(cudaEvent_t* e) { return made(e); }
API cudaError_t cudaEventDestroy(cudaEvent_t e) {
  if (!log_file()) free(e);  // a log names events by their addresses, so none is used twice
  return cudaSuccess;
}
API cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  LOG("record %p %p", (void*)s, (void*)e);
  return cudaSuccess;
}
API cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned) { return cudaEventRecord(e, s); }
API cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
  LOG("wait %p %p", (void*)s, (void*)e);
  return cudaSuccess;
}
API cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  LOG("hostwait %p", (void*)e);
  return cudaSuccess;
}
API cudaError_t cudaEventQuery(cudaEvent_t e) {
  LOG("hostwait %p", (void*)e);  // it is told that the event has come, and may rely on it
  return cudaSuccess;
}
API cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  LOG("hostsync %p", (void*)s);
  return cudaSuccess;
}
API cudaError_t cudaDeviceSynchronize() {
  LOG("devicesync");
  return cudaSuccess;
}
API cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = ELAPSED_MS;
  return cudaSuccess;
}
API cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function, void* data) {
  function(data);
  return cudaSuccess;
}

// Capture into a graph: as much as torch asks for. What is launched meanwhile stands in the log, not in the graph.
static thread_local cudaStream_t captured = nullptr;
static thread_local bool capturing = false;
static cudaStreamCaptureStatus status(cudaStream_t s) {
  return capturing && s == captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
}
API cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus* filled) {
  *filled = status(s);
  return cudaSuccess;
}
API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, cudaStreamCaptureStatus* filled, unsigned long long* id,
                                         cudaGraph_t* graph, const cudaGraphNode_t** dependencies,
                                         const cudaGraphEdgeData** edges, size_t* count) {
  static char place;
  *filled = status(s);
  if (id) *id = 1;
  if (graph) *graph = (cudaGraph_t)&place;
  if (dependencies) *dependencies = nullptr;
  if (edges) *edges = nullptr;
  if (count) *count = 0;
  return cudaSuccess;
}
API cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
  captured = s;
  capturing = true;
  LOG("capture %p", (void*)s);
  return cudaSuccess;
}
API cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* graph) {
  capturing = false;
  LOG("captured %p", (void*)s);
  return made(graph);
}
API cudaError_t cudaGraphInstantiate(cudaGraphExec_t* x, cudaGraph_t, unsigned long long) { return made(x); }
API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* x, cudaGraph_t, unsigned long long) { return made(x); }
API cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t*, size_t* count) {
  *count = 1;
  return cudaSuccess;
}
API cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t s) {
  LOG("graphlaunch %p", (void*)s);
  return cudaSuccess;
}
