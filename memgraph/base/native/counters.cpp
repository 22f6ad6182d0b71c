// Three counters of the allocator of a kind of devices, read at each launch of a graph: Python has them in a dictionary of
// some 250, which takes as long to make as all else that is done when a launch begins.
#include <c10/core/CachingDeviceAllocator.h>

// Returns 0, or 1 where they cannot be had. kind: a DeviceType. into: allocated, allocated at its highest, requested; bytes.
extern "C" int memgraph_counters(int kind, int device, int64_t* into) {
  try {
    auto* allocator = c10::getDeviceAllocator(static_cast<c10::DeviceType>(kind));
    const auto found = allocator->getDeviceStats(static_cast<c10::DeviceIndex>(device));
    constexpr auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    into[0] = found.allocated_bytes[all].current;
    into[1] = found.allocated_bytes[all].peak;
    into[2] = found.requested_bytes[all].current;
    return 0;
  } catch (...) {  // an allocator of the user's own, say
    return 1;
  }
}
