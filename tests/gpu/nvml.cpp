// NVML beside the emulated driver: what Everstep calls of libnvidia-ml.so.1. What a GPU tells
// follows from its UUID, as driver.cpp gives it out, so that figures of another GPU are seen to be.
//
// EMULATED_NVML, as in "power=0", makes it another one:
//   power=0        the GPU does not tell what it draws
//   loaded=0       the library is there, and the driver is not

#include <cstdio>
#include <cstdlib>
#include <cstring>

typedef int Result;
enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, NOT_LOADED = 9 };

static bool is_set(const char* setting) {
    const char* settings = getenv("EMULATED_NVML");
    return settings && strstr(settings, setting);
}

// Which of CUDA's GPUs it is, from 1; NVML counts them in another order.
typedef long Device;

struct Utilization {
    unsigned gpu, memory;
};

struct Memory {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

extern "C" {

Result nvmlInit_v2() { return is_set("loaded=0") ? NOT_LOADED : SUCCESS; }

Result nvmlShutdown() { return SUCCESS; }

Result nvmlDeviceGetHandleByUUID(const char* uuid, Device* device) {
    unsigned first = 0;
    if (strlen(uuid) != 40 || sscanf(uuid, "GPU-%2x", &first) != 1) return INVALID_ARGUMENT;
    for (int at = 0, from = 4; at < 16; at++, from += 2) {
        unsigned byte = 0;
        if (uuid[from] == '-') from++;
        if (sscanf(uuid + from, "%2x", &byte) != 1 || byte != first + at) return NOT_FOUND;
    }
    *device = first / 16;
    return first % 16 == 0 && first > 0 ? SUCCESS : NOT_FOUND;
}

Result nvmlDeviceGetUtilizationRates(Device device, Utilization* told) {
    *told = {unsigned(90 + device), unsigned(40 + device)};
    return SUCCESS;
}

Result nvmlDeviceGetMemoryInfo_v2(Device device, Memory* told) {
    if (told->version != (sizeof(Memory) | 2u << 24)) return INVALID_ARGUMENT;
    told->total = 1ull << 30;
    told->used = (unsigned long long)device << 20;
    return SUCCESS;
}

Result nvmlDeviceGetPowerUsage(Device device, unsigned* milliwatts) {
    *milliwatts = unsigned(600500 + device);
    return is_set("power=0") ? NOT_SUPPORTED : SUCCESS;
}

Result nvmlDeviceGetTemperature(Device device, int sensor, unsigned* degrees) {
    *degrees = unsigned(50 + device);
    return sensor == 0 ? SUCCESS : INVALID_ARGUMENT;
}
}
