// The instructions of attention on tensor cores, written out from their definition in the PTX
// manual. Those on matrices are of a whole warp: every lane shows its operands, and takes what it
// needs of the others'. The order of a product's additions is the hardware's own there; here it is
// that of the inner index.

namespace emulation {

struct Operands {
    unsigned a[4], b[2];
    const unsigned short* row;
};

inline thread_local Operands operands[2][1024];

// What the lanes of this one's warp have shown.
inline const Operands* show(const Operands& own) {
    Fiber* self = device.running;
    unsigned turn = self->turn ^= 1;
    operands[turn][self->number] = own;
    pause(State::AtWarpBarrier);
    return &operands[turn][self->number / WARP * WARP];
}

// ldmatrix.m8n8.x4: the rows of matrix m are named by lanes 8 m and on. A lane gets two neighbours
// of a row, or with trans of a column.
inline void load_matrices(unsigned (&to)[4], const unsigned short* row, bool transposed) {
    if ((size_t)row % 16 != 0) fail("a row of a matrix is not aligned to 16 bytes", device.name);
    const Operands* warp = show({{}, {}, row});
    unsigned lane = device.running->number % WARP, g = lane / 4, t = lane % 4;
    for (int m = 0; m < 4; m++) {
        const Operands* rows = warp + 8 * m;
        unsigned low = transposed ? rows[2 * t].row[g] : rows[g].row[2 * t];
        unsigned high = transposed ? rows[2 * t + 1].row[g] : rows[g].row[2 * t + 1];
        to[m] = low | high << 16;
    }
}

// mma.m16n8k16.row.col: c += a b. In a, registers 0 and 2 are of row g, 1 and 3 of row g + 8; 2 and
// 3 are of inner indices 8 and on. In b, the column is g, and register 1 of inner indices 8 and on.
inline void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1,
                     float (*number)(unsigned short)) {
    const Operands* warp = show({{a[0], a[1], a[2], a[3]}, {b0, b1}, nullptr});
    unsigned lane = device.running->number % WARP;
    for (unsigned e = 0; e < 4; e++) {
        unsigned row = lane / 4, column = 2 * (lane % 4) + e % 2;
        for (unsigned k = 0; k < 16; k++) {
            unsigned t = k % 8 / 2, shift = k % 2 * 16, upper = k / 8;
            unsigned left = warp[4 * row + t].a[2 * upper + e / 2] >> shift;
            unsigned right = warp[4 * column + t].b[upper] >> shift;
            c[e] += number((unsigned short)left) * number((unsigned short)right);
        }
    }
}

// ex2.approx.ftz, but exact: subnormal results are zero.
inline float power_of_2(float x) {
    float power = exp2f(x);
    return power < 0x1p-126f ? 0.0f : power;
}

struct Copy {
    void* to;
    const void* from;
    unsigned bytes;
    bool inside;

    void run() const {
        if (inside)
            memcpy(to, from, bytes);
        else
            memset(to, 0, bytes);
    }
};

inline thread_local std::vector<Copy> copies[1024];

// cp.async is done at any time until its thread waits for it. Here the copies of even threads are
// done at once, and those of odd ones when they wait: both too early and too late is wrong.
inline void copy_async(void* to, const void* from, unsigned bytes, bool inside) {
    bool aligned = (size_t)to % bytes == 0 && (size_t)from % bytes == 0;
    if (!aligned) fail("a copy is not aligned to its size", device.name);
    Copy copy = {to, from, bytes, inside};
    if (device.running->number % 2 == 0)
        copy.run();
    else
        copies[device.running->number].push_back(copy);
}

// cp.async.wait_all
inline void wait_for_copies() {
    for (const Copy& copy : copies[device.running->number]) copy.run();
    copies[device.running->number].clear();
}

}  // namespace emulation
