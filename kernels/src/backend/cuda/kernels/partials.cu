// The second pass of a sum over rows: adds the sums of chunks to a gradient, chunk after chunk.
// CPU references: Backend::bias_backward, layer_norm_backward.
//
// Tried or considered: one thread a column. There are at most a few hundred chunks, and all columns
// of one are read together; nothing more was needed.
// Never run on a GPU; run on the CPU under emulation.

extern "C" __global__ void add_partials(const float* partials, float* d, u64 chunks, u64 columns) {
    u64 column = thread_index();
    if (column >= columns) return;
    float sum = 0;
    for (u64 chunk = 0; chunk < chunks; chunk++) sum += partials[chunk * columns + column];
    d[column] += sum;
}
