// A residual connection: y += x. CPU reference: Backend::add, backend/cpu/rows.rs.
//
// Tried or considered:
// 1. one thread an element: this, with a stride of the whole grid, so that any count fits any grid;
// 2. eight elements a thread in 16-byte loads: needs views aligned to 16 bytes, which parameters
//    are not; left until a GPU says that it matters (both are bound by memory).
// Never run on a GPU; run on the CPU under emulation.

extern "C" __global__ void add(const real* x, real* y, u64 count) {
    for (u64 i = thread_index(); i < count; i += thread_count())
        store(&y[i], load(&y[i]) + load(&x[i]));
}
