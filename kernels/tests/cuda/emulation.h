// Runs CUDA kernels on the CPU: blocks, threads, barriers, shuffles, shared memory.
//
// Blocks run one after the other. A CUDA thread is a fiber of the calling thread, so that blocks
// may be as large as on a GPU, and a run is the same every time. Between two barriers of a block,
// warps run one after the other, and between two of a warp lanes do, in the order of their index
// or, in turn, in the opposite one: what relies on more gives wrong numbers. A barrier that not all
// reach ends the process, as do arguments of the wrong types. It does not know: memory that is not
// coherent, races within an instruction, occupancy.

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
// Of one block at a time, and so of the calling thread.
#define __shared__ static thread_local
#define threadIdx (emulation::device.running->thread)
#define blockIdx (emulation::device.block)
#define blockDim (emulation::device.threads)
#define gridDim (emulation::device.blocks)

namespace emulation {

constexpr unsigned WARP = 32;
constexpr size_t STACK_BYTES = 128 << 10;

struct Index {
    unsigned x, y, z;
    unsigned count() const { return x * y * z; }
};

enum class State { Running, AtBarrier, AtWarpBarrier, Done };

struct Fiber {
    std::unique_ptr<char[]> stack;
    jmp_buf paused;
    State state = State::Done;
    bool started = false;
    Index thread;
    unsigned number;
    // What it shows to its warp, of two shuffles in turn: before one is written, all have read it.
    float shown[2];
    unsigned turn = 0;
};

[[noreturn]] inline void fail(const char* what, const char* detail) {
    fprintf(stderr, "emulation: %s: %s\n", what, detail);
    abort();
}

// Of each thread of the host, so that tests run side by side.
struct Device {
    Index blocks, threads, block;
    Fiber* running;
    void (*kernel)(void**);
    void** arguments;
    const char* name;
    jmp_buf scheduler;
    std::vector<std::unique_ptr<Fiber>> fibers;
};

inline thread_local Device device;

// Gives the host's thread back; returns when the fiber is resumed.
inline void pause(State state) {
    Fiber* self = device.running;
    self->state = state;
    if (_setjmp(self->paused) == 0) _longjmp(device.scheduler, 1);
}

// A fiber outlives its block: the next one that needs it finds it here.
inline void fiber() {
    for (;;) {
        device.kernel(device.arguments);
        pause(State::Done);
    }
}

__attribute__((noinline)) inline void resume(Fiber* fiber) {
    device.running = fiber;
    if (_setjmp(device.scheduler) != 0) return;
    if (fiber->started) _longjmp(fiber->paused, 1);
    fiber->started = true;
    fiber->stack.reset(new char[STACK_BYTES]);
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = fiber->stack.get();
    context.uc_stack.ss_size = STACK_BYTES;
    context.uc_link = nullptr;
    makecontext(&context, emulation::fiber, 0);
    setcontext(&context);
}

inline bool all(unsigned first, unsigned end, State state) {
    while (first < end && device.fibers[first]->state == state) first++;
    return first == end;
}

inline bool release(unsigned first, unsigned end, State barrier) {
    if (!all(first, end, barrier)) return false;
    for (unsigned n = first; n < end; n++) device.fibers[n]->state = State::Running;
    return true;
}

// A warp runs as far as it can: to a barrier of the block, or to its end.
inline void run_warp(unsigned first, bool forward) {
    do {
        for (unsigned n = 0; n < WARP; n++) {
            Fiber* fiber = device.fibers[first + (forward ? n : WARP - 1 - n)].get();
            if (fiber->state == State::Running) resume(fiber);
        }
    } while (release(first, first + WARP, State::AtWarpBarrier));
}

inline void run_block(unsigned count) {
    for (unsigned n = 0; n < count; n++) device.fibers[n]->state = State::Running;
    for (bool forward = true;; forward = !forward) {
        for (unsigned n = 0; n < count; n += WARP)
            run_warp(forward ? n : count - WARP - n, forward);
        if (all(0, count, State::Done)) return;
        if (!release(0, count, State::AtBarrier)) fail("a barrier that some pass by", device.name);
    }
}

inline Index at(unsigned n, Index sizes) {
    return {n % sizes.x, n / sizes.x % sizes.y, n / sizes.x / sizes.y};
}

inline void launch(const unsigned* shape) {
    device.blocks = {shape[0], shape[1], shape[2]};
    device.threads = {shape[3], shape[4], shape[5]};
    unsigned count = device.threads.count();
    bool allowed = count > 0 && count <= 1024 && shape[1] <= 65535 && shape[2] <= 65535;
    if (!allowed || count % WARP > 0 || device.blocks.count() == 0) fail("shape", device.name);
    while (device.fibers.size() < count) device.fibers.emplace_back(new Fiber);
    for (unsigned n = 0; n < count; n++) {
        device.fibers[n]->number = n;
        device.fibers[n]->thread = at(n, device.threads);
    }
    for (unsigned n = 0; n < device.blocks.count(); n++) {
        device.block = at(n, device.blocks);
        run_block(count);
    }
}

// The kind of a parameter, as the driver names that of an argument.
template <typename T>
constexpr char kind() {
    if (std::is_pointer<T>::value) return 'p';
    return std::is_same<T, float>::value ? 'f' : sizeof(T) == 8 ? 'l' : 'i';
}

template <auto KERNEL, typename... P, size_t... N>
void call(void** arguments, void (*)(P...), std::index_sequence<N...>) {
    KERNEL(*(P*)arguments[N]...);
}

template <auto KERNEL, typename... P>
void launch(void (*)(P...), const char* name, const unsigned* shape, void** arguments,
            const char* kinds) {
    const char expected[] = {kind<P>()..., 0};
    if (strcmp(expected, kinds) != 0) fail("arguments of other types", name);
    device.kernel = [](void** arguments) {
        call<KERNEL>(arguments, KERNEL, std::index_sequence_for<P...>());
    };
    device.arguments = arguments;
    device.name = name;
    launch(shape);
}

}  // namespace emulation

// A function of the library for a kernel: grid and block, pointers to the arguments, their kinds.
#define EMULATE(space, kernel)                                                                 \
    extern "C" void emulate_##kernel(const unsigned* shape, void** args, const char* kinds) {   \
        emulation::launch<space::kernel>(space::kernel, #kernel, shape, args, kinds);           \
    }

inline void __syncthreads() { emulation::pause(emulation::State::AtBarrier); }
inline void __syncwarp() { emulation::pause(emulation::State::AtWarpBarrier); }
inline float __shfl_xor_sync(unsigned, float value, int apart) {
    emulation::Fiber* self = emulation::device.running;
    unsigned turn = self->turn ^= 1;
    self->shown[turn] = value;
    emulation::pause(emulation::State::AtWarpBarrier);
    return emulation::device.fibers[self->number ^ apart]->shown[turn];
}

inline float __uint_as_float(unsigned bits) { return __builtin_bit_cast(float, bits); }
inline unsigned __float_as_uint(float value) { return __builtin_bit_cast(unsigned, value); }
