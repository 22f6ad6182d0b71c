// What the simulated libraries share: the card, its memory, and the log. libcudart.so defines it, the others call it.
#pragma once
#include <cstddef>
#include <cstdio>

#define API extern "C" __attribute__((visibility("default")))

enum class Place { nowhere, host, device };

struct Found {
  Place place;
  int device;  // -1 where there is none
};

// The card: figures of the environment's MEMGRAPH_SIMULATED_CARD, "name=...;devices=2;major=9;..."
const char* card_name();
long long card_figure(const char* name);
int devices();
int& current_device();  // of this thread

// A card's memory is address space: a page costs host memory once it is touched.
void* take(size_t bytes, Place place, int device);  // nullptr: no room
bool give_back(void* address);
Found found_at(const void* address);

API int simulated_devices();
API int simulated_current_device();
API void simulated_set_device(int device);
API int simulated_attribute(int attribute);
API size_t simulated_memory();
API size_t simulated_free_memory(int device);
API int simulated_place(const void* address);  // as Place
API bool simulated_charge(size_t bytes, int device);  // false: no room
API void simulated_discharge(size_t bytes, int device);
API void simulated_known(void* address, size_t bytes, int device, bool mapped);
API void simulated_launched(void* stream, const char* what);
API long simulated_launches();
API void simulated_not_modelled(const char* function);
API void simulated_note(const char* line);
// The card and the log as the environment has them now: for a process that was forked, before it touches a device.
API void simulated_read_environment();

// The log, where MEMGRAPH_SIMULATED_LOG names a file: one operation a line, in the order of the calls.
FILE* log_file();
void open_log();
// What is logged is worked out before the log is locked: a lock that it takes may be held by who waits for the log.
void write_log(const char* format, ...) __attribute__((format(printf, 1, 2)));
#define LOG(...)                              \
  do {                                        \
    if (log_file()) write_log(__VA_ARGS__);   \
  } while (0)
