// A CUDA driver whose GPU is the CPU: what Everstep calls of libcuda.so.1, above the emulation that
// runs its kernels. `KERNELS`, of which each has a name and binds its arguments, is made before.
//
// It is as asynchronous as a driver may be. Whatever is enqueued is done at the last moment, when
// somebody waits for it: so bytes that are read too early, or overwritten too early, are wrong in
// every run.
//
// EMULATED_CUDA, as in "version=12040,free_mib=16", makes it another machine:
//   version=N      of the driver        devices=N      how many GPUs there are
//   taken=1        somebody else has the GPU for himself
//   free_mib=N     of memory            fails_after=N  launches; from then on everything fails
//   full=1         nothing is free at all               capability=N   80 for 8.0
//   name=WORDS     of every GPU, up to the next comma

#include <cstdint>
#include <functional>
#include <map>
#include <string>

typedef int Result;
enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    DEVICE_UNAVAILABLE = 46,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    NOT_FOUND = 500,
    ILLEGAL_ADDRESS = 700,
};

static long setting(const char* name, long otherwise) {
    const char* settings = getenv("EMULATED_CUDA");
    const char* found = settings ? strstr(settings, name) : nullptr;
    return found ? atol(found + strlen(name) + 1) : otherwise;
}

static std::string words(const char* name, const char* otherwise) {
    const char* settings = getenv("EMULATED_CUDA");
    const char* found = settings ? strstr(settings, name) : nullptr;
    if (!found) return otherwise;
    found += strlen(name) + 1;
    return std::string(found, strcspn(found, ","));
}

static long total_bytes() { return setting("free_mib", 1024) << 20; }

static size_t allocated = 0;
static std::map<uint64_t, size_t> allocations;
static long launches = 0;
static bool broken = false;

// Work in order; `done` of it has been done.
struct Stream {
    std::vector<std::function<void()>> work;
    size_t done = 0;

    void until(size_t count) {
        while (done < count) {
            std::function<void()> next = std::move(work[done]);
            done++;
            if (!broken) next();
        }
    }
};

struct Event {
    Stream* stream = nullptr;
    size_t after = 0;

    void wait() const {
        if (stream) stream->until(after);
    }
};

static std::vector<Stream*> streams;

static Result finish() {
    for (Stream* stream : streams) stream->until(stream->work.size());
    return broken ? ILLEGAL_ADDRESS : SUCCESS;
}

static Result enqueue(Stream* stream, std::function<void()> work) {
    if (!stream) emulation::fail("enqueued", "on the default stream, which Everstep does not use");
    if (broken) return ILLEGAL_ADDRESS;
    stream->work.push_back(std::move(work));
    return SUCCESS;
}

// The calls so far that enqueue copies, or concern events.
static long calls = 0;

static void* memory(uint64_t address) { return reinterpret_cast<void*>(address); }

extern "C" {

// For tests, which count them.
long calls_so_far() { return calls; }

Result cuDriverGetVersion(int* version) {
    *version = int(setting("version", 13000));
    return SUCCESS;
}

Result cuInit(unsigned) { return setting("devices", 1) > 0 ? SUCCESS : NO_DEVICE; }

Result cuGetErrorString(Result error, const char** words) {
    if (error != ILLEGAL_ADDRESS) return INVALID_VALUE;
    *words = "an illegal memory access was encountered";
    return SUCCESS;
}

Result cuDeviceGetCount(int* count) {
    *count = int(setting("devices", 1));
    return SUCCESS;
}

Result cuDeviceGet(int* device, int ordinal) {
    *device = ordinal;
    return ordinal < setting("devices", 1) ? SUCCESS : INVALID_DEVICE;
}

Result cuDeviceGetName(char* name, int length, int device) {
    if (device == setting("sick", -1)) return DEVICE_UNAVAILABLE;
    snprintf(name, size_t(length), "%s", words("name", "Emulated GPU").c_str());
    return SUCCESS;
}

// The same in every process: nvml.cpp knows it, too.
Result cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
    for (int at = 0; at < 16; at++) uuid[at] = (unsigned char)(16 * (device + 1) + at);
    return SUCCESS;
}

Result cuDeviceTotalMem_v2(size_t* bytes, int) {
    *bytes = size_t(total_bytes());
    return SUCCESS;
}

Result cuDeviceGetAttribute(int* value, int attribute, int) {
    switch (attribute) {
        case 75: *value = int(setting("capability", 90) / 10); break;  // its major part
        case 76: *value = int(setting("capability", 90) % 10); break;  // and its minor one
        case 16: *value = 1; break;   // multiprocessors
        default: *value = 0;          // nothing else is supported
    }
    return SUCCESS;
}

static int context;
static thread_local void* current = nullptr;

Result cuDevicePrimaryCtxRetain(void** retained, int) {
    *retained = &context;
    if (setting("full", 0)) return OUT_OF_MEMORY;
    return setting("taken", 0) ? DEVICE_UNAVAILABLE : SUCCESS;
}

Result cuDevicePrimaryCtxRelease_v2(int) { return finish(); }

Result cuCtxGetCurrent(void** got) {
    *got = current;
    return SUCCESS;
}

Result cuCtxSetCurrent(void* set) {
    current = set;
    return SUCCESS;
}

Result cuCtxSetFlags(unsigned) { return SUCCESS; }

Result cuCtxSynchronize() { return finish(); }

Result cuStreamCreate(Stream** stream, unsigned) {
    streams.push_back(*stream = new Stream);
    return SUCCESS;
}

Result cuStreamDestroy_v2(Stream*) { return finish(); }

Result cuStreamSynchronize(Stream* stream) {
    stream->until(stream->work.size());
    return broken ? ILLEGAL_ADDRESS : SUCCESS;
}

Result cuStreamWaitEvent(Stream* stream, Event* event, unsigned) {
    calls++;
    Event then = *event;  // later records do not count
    return enqueue(stream, [then] { then.wait(); });
}

Result cuEventCreate(Event** event, unsigned) {
    calls++;
    *event = new Event;
    return SUCCESS;
}

Result cuEventRecord(Event* event, Stream* stream) {
    calls++;
    if (broken) return ILLEGAL_ADDRESS;
    *event = Event{stream, stream->work.size()};
    return SUCCESS;
}

Result cuEventSynchronize(Event* event) {
    calls++;
    event->wait();
    return broken ? ILLEGAL_ADDRESS : SUCCESS;
}

Result cuEventQuery(Event* event) {
    // Not before it has been asked twice: who does not wait must not count on the first answer.
    static bool ask_again = false;
    if (event->stream && event->stream->done < event->after && (ask_again = !ask_again)) return 600;
    return cuEventSynchronize(event);
}

Result cuEventDestroy_v2(Event* event) {
    calls++;
    delete event;
    return SUCCESS;
}

Result cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
    *total = size_t(total_bytes());
    *free_bytes = *total - allocated;
    return SUCCESS;
}

Result cuMemAlloc_v2(uint64_t* address, size_t bytes) {
    if (allocated + bytes > size_t(total_bytes())) return OUT_OF_MEMORY;
    allocated += bytes;
    // As on a GPU, there is something in it.
    void* got = aligned_alloc(256, (bytes + 255) / 256 * 256);
    memset(got, 0xff, bytes);
    *address = reinterpret_cast<uint64_t>(got);
    allocations[*address] = bytes;
    return SUCCESS;
}

Result cuMemFree_v2(uint64_t address) {
    Result outcome = finish();
    allocated -= allocations[address];
    allocations.erase(address);
    free(memory(address));
    return outcome;
}

Result cuMemHostAlloc(void** got, size_t bytes, unsigned) {
    static size_t pinned = 0;
    if ((pinned += bytes) > size_t(setting("pinnable_mib", 1L << 30)) << 20) return OUT_OF_MEMORY;
    *got = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return SUCCESS;
}

Result cuMemFreeHost(void* pointer) {
    free(pointer);
    return SUCCESS;
}

Result cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, Stream* stream) {
    return enqueue(stream, [=] { memset(memory(to), value, bytes); });
}

Result cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, Stream* stream) {
    calls++;
    return enqueue(stream, [=] { memcpy(memory(to), from, bytes); });
}

Result cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, Stream* stream) {
    return enqueue(stream, [=] { memcpy(to, memory(from), bytes); });
}

Result cuModuleLoadData(void** module, const void* image) {
    *module = &context;
    return memcmp(image, "\177ELF", 4) == 0 ? SUCCESS : INVALID_VALUE;
}

Result cuModuleUnload(void*) { return SUCCESS; }

Result cuModuleGetFunction(const Kernel** function, void*, const char* name) {
    for (const Kernel& kernel : KERNELS) {
        *function = &kernel;
        if (strcmp(kernel.name, name) == 0) return SUCCESS;
    }
    return NOT_FOUND;
}

Result cuLaunchKernel(const Kernel* kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                      unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                      Stream* stream, void** arguments, void**) {
    if (shared_bytes != 0) return INVALID_VALUE;
    std::vector<unsigned> shape = {grid_x, grid_y, grid_z, block_x, block_y, block_z};
    std::function<void(const unsigned*)> bound = kernel->bind(arguments);
    return enqueue(stream, [=] {
        broken = ++launches > setting("fails_after", 1L << 40);
        if (!broken) bound(shape.data());
    });
}

// By which other libraries enqueue their work.
Result cuLaunchHostFunc(Stream* stream, void (*function)(void*), void* data) {
    return enqueue(stream, [=] { function(data); });
}
}
