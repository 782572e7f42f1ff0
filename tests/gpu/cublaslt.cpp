// cuBLASLt beside the emulated driver: what Everstep calls of libcublasLt.so.13, held to the words
// of its documentation. Matrices lie column by column, sums are f32, and a product is enqueued: it
// is done when that driver comes to it, with the matrices as they are then.
//
// What the documentation forbids is refused, and stderr says why. An algorithm works for the shape
// that it was found for, with addresses aligned as they were said to be; it overwrites its
// workspace. It adds from the last inner index to the first, other than Everstep's own kernel. One
// that may keep partial sums in its workspace does, and adds them in one order. One that may add to
// the result in place begins elsewhere at every call.
//
// EMULATED_CUBLASLT, as in "refuses_epilogue=164,fails_after=9", makes it another one:
//   version=N           as the library counts      refuses_epilogue=N   has no algorithm for it
//   refuses_rows=N      of the result, likewise    disputes_epilogue=N  says that it is no value
//   fails_after=N       products

#include "emulation.h"
#include "real.cuh"

#include <dlfcn.h>

#include <cstdint>

typedef int Status;
enum { SUCCESS = 0, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum { R_32F = 0, R_16F = 2, R_16BF = 14, COMPUTE_32F = 68, OP_T = 1 };
// Each is a sum of what it does.
enum { PLAIN = 1, BIAS = 4, GELU = 32, D_GELU = 64, AUXILIARY = 128 };
// Of partial sums: of the type of the sums, in the workspace.
enum { COMPUTE_TYPE = 2 };

constexpr uint64_t WIDEST = 256;             // no algorithm asks for a stricter alignment
constexpr size_t WORKSPACE_BYTES = 1 << 20;  // of those that want any
constexpr uint64_t PARTS = 3;                // of a sum that is split

struct Layout {
    int type;
    uint64_t rows, columns;
    int64_t leading;

    size_t bytes() const { return type == R_32F ? 4 : 2; }
    size_t extent() const { return leading * columns * bytes(); }
};

// A piece of memory.
struct Extent {
    const char* start;
    size_t bytes;

    bool meets(Extent other) const {
        return start < other.start + other.bytes && other.start < start + bytes;
    }
};

struct Operation {
    int compute, scale, transposed[2] = {0, 0};
    uint32_t epilogue = PLAIN;
    char *bias = nullptr, *auxiliary = nullptr;
    int64_t leading = 0;  // of the auxiliary matrix
};

struct Preference {
    uint64_t workspace_bytes = 0;
    uint32_t schemes = 7, alignments[4] = {WIDEST, WIDEST, WIDEST, WIDEST};
};

// The library's own 64 bytes.
struct Algorithm {
    uint64_t shape, workspace_bytes;
    uint32_t parts, in_place;
    uint16_t alignments[6];  // of A, B, C, D, bias, auxiliary matrix
    char unused[28];
};

struct Found {
    Algorithm algorithm;
    size_t workspace_bytes;
    Status state;
    float waves;
    int reserved[4];
};

static_assert(sizeof(Algorithm) == 64 && sizeof(Found) == 96, "as in cublasLt.h");

static long setting(const char* name, long otherwise) {
    const char* settings = getenv("EMULATED_CUBLASLT");
    const char* found = settings ? strstr(settings, name) : nullptr;
    return found ? atol(found + strlen(name) + 1) : otherwise;
}

static Status refuse(const char* why) {
    fprintf(stderr, "emulated cuBLASLt: %s\n", why);
    return INVALID_VALUE;
}

template <typename T>
static Status set(T& attribute, const void* value, size_t bytes) {
    if (!value || bytes != sizeof(T)) return refuse("an attribute of another size");
    memcpy(&attribute, value, bytes);
    return SUCCESS;
}

// ---- what is allowed ----------------------------------------------------------------------------

struct Product {
    Operation operation;
    Layout a, b, c, d;

    uint64_t inner() const { return operation.transposed[0] ? a.rows : a.columns; }

    // Of all but the addresses.
    uint64_t shape() const {
        uint64_t digest = 14695981039346656037u;
        auto take = [&](uint64_t value) { digest = (digest ^ value) * 1099511628211u; };
        for (int transposed : operation.transposed) take(transposed);
        take(operation.epilogue);
        take(operation.leading);
        for (const Layout& layout : {a, b, c, d}) {
            take(layout.type);
            take(layout.rows);
            take(layout.columns);
            take(layout.leading);
        }
        return digest;
    }

    Status check() const {
        const Operation& o = operation;
        bool left = o.transposed[0], right = o.transposed[1];
        if (o.compute != COMPUTE_32F || o.scale != R_32F) return refuse("other sums than f32");
        for (const Layout& layout : {a, b, c, d})
            if (layout.leading < (int64_t)layout.rows || layout.rows * layout.columns == 0)
                return refuse("columns that overlap, or nothing at all");
        if ((left ? a.columns : a.rows) != d.rows || (right ? b.rows : b.columns) != d.columns)
            return refuse("a result of another shape");
        if (inner() != (right ? b.columns : b.rows)) return refuse("two inner sizes");
        if (c.type != d.type || c.rows != d.rows || c.columns != d.columns)
            return refuse("C unlike D");
        bool known = a.type == R_32F || a.type == R_16F || a.type == R_16BF;
        if (!known || a.type != b.type || (d.type != R_32F && d.type != a.type))
            return NOT_SUPPORTED;
        return check_epilogue();
    }

    Status check_epilogue() const {
        switch (operation.epilogue) {
            case PLAIN: return SUCCESS;
            case BIAS: break;
            case GELU | AUXILIARY | BIAS: break;
            case D_GELU | AUXILIARY: break;
            default: return NOT_SUPPORTED;
        }
        if (operation.epilogue & BIAS && !operation.bias) return refuse("a bias that is nowhere");
        if (!(operation.epilogue & AUXILIARY)) return SUCCESS;
        if (!operation.auxiliary) return refuse("an auxiliary matrix that is nowhere");
        if (operation.leading % 8 != 0 || operation.leading < (int64_t)d.rows)
            return refuse("a leading dimension that no auxiliary matrix has");
        return SUCCESS;
    }
};

static uint16_t alignment(const void* address) {
    uint64_t bits = (uint64_t)address | WIDEST;
    return uint16_t(bits & -bits);
}

// ---- the product itself -------------------------------------------------------------------------

static float get(const char* matrix, int type, uint64_t at) {
    if (type == R_32F) return ((const float*)matrix)[at];
    u16 bits = ((const u16*)matrix)[at];
    return type == R_16F ? from_fp16(bits) : from_bf16(bits);
}

static void put(char* matrix, int type, uint64_t at, float value) {
    if (type == R_32F)
        ((float*)matrix)[at] = value;
    else
        ((u16*)matrix)[at] = type == R_16F ? to_fp16(value) : to_bf16(value);
}

constexpr float SLOPE = 0.7978845608f, CUBIC = 0.044715f;  // sqrt(2 / pi)

static float gelu(float x) { return 0.5f * x * (1 + tanhf(SLOPE * (x + CUBIC * x * x * x))); }

static float d_gelu(float x) {
    float tanh = tanhf(SLOPE * (x + CUBIC * x * x * x));
    return 0.5f * (1 + tanh) + 0.5f * x * (1 - tanh * tanh) * SLOPE * (1 + 3 * CUBIC * x * x);
}

// Column by column, or row by row: so that the inner indices of a sum lie side by side.
static std::vector<float> unpack(const char* matrix, const Layout& layout, bool by_row) {
    std::vector<float> values;
    for (uint64_t n = 0; n < (by_row ? layout.rows : layout.columns); n++)
        for (uint64_t k = 0; k < (by_row ? layout.columns : layout.rows); k++)
            values.push_back(get(matrix, layout.type, by_row ? n + k * layout.leading
                                                             : k + n * layout.leading));
    return values;
}

struct Work {
    Product product;
    char *a, *b, *c, *d, *workspace;
    size_t workspace_bytes;
    float alpha, beta;
    uint64_t first;  // of the inner indices: where the sum begins
    uint32_t parts;

    void run() const {
        memset(workspace, 0xff, workspace_bytes);
        const int* transposed = product.operation.transposed;
        std::vector<float> left = unpack(a, product.a, !transposed[0]);
        std::vector<float> right = unpack(b, product.b, transposed[1]);
        uint64_t inner = product.inner(), start = first % inner;
        for (uint64_t j = 0; j < product.d.columns; j++)
            for (uint64_t i = 0; i < product.d.rows; i++) {
                const float *x = &left[i * inner], *y = &right[j * inner];
                float sum = 0;
                if (parts > 0) {
                    float* partials = (float*)workspace + (j * product.d.rows + i) * parts;
                    for (uint64_t part = 0; part < parts; part++) {
                        uint64_t from = inner * part / parts, to = inner * (part + 1) / parts;
                        partials[part] = 0;
                        add(partials[part], x, y, from, to);
                    }
                    for (uint64_t part = 0; part < parts; part++) sum += partials[part];
                } else {
                    add(sum, x, y, 0, start);
                    add(sum, x, y, start, inner);
                }
                write(i, j, sum);
            }
    }

    // The products from one inner index to another, the last ones first.
    static void add(float& sum, const float* x, const float* y, uint64_t from, uint64_t to) {
        for (uint64_t k = to; k-- > from;) sum += x[k] * y[k];
    }

    void write(uint64_t i, uint64_t j, float sum) const {
        const Operation& o = product.operation;
        uint64_t at = i + j * o.leading;
        float value = alpha * sum;
        if (beta != 0) value += beta * get(c, product.c.type, i + j * product.c.leading);
        if (o.epilogue & BIAS) value += get(o.bias, product.d.type, i);
        if (o.epilogue & GELU) {
            put(o.auxiliary, product.d.type, at, value);
            value = gelu(value);
        }
        if (o.epilogue & D_GELU) value *= d_gelu(get(o.auxiliary, product.d.type, at));
        put(d, product.d.type, i + j * product.d.leading, value);
    }
};

// The driver is loaded before any product is made, and found by its name.
static Status enqueue(void* stream, const Work& work) {
    typedef int Launch(void* stream, void (*function)(void*), void* data);
    void* driver = dlopen("libcuda.so", RTLD_NOW);
    Launch* launch = driver ? (Launch*)dlsym(driver, "cuLaunchHostFunc") : nullptr;
    if (!launch) return refuse("no driver that can be asked to call somebody");
    auto call = [](void* data) {
        std::unique_ptr<Work> work((Work*)data);
        work->run();
    };
    return launch(stream, call, new Work(work)) == 0 ? SUCCESS : EXECUTION_FAILED;
}

// ---- the library's calls ------------------------------------------------------------------------

template <typename T>
static Status create(T** place, T* made) {
    *place = made;
    return SUCCESS;
}

template <typename T>
static Status destroy(T* made) {
    delete made;
    return SUCCESS;
}

extern "C" {

size_t cublasLtGetVersion() { return size_t(setting("version", 130000)); }

Status cublasLtCreate(char** handle) { return create(handle, new char); }
Status cublasLtDestroy(char* handle) { return destroy(handle); }

Status cublasLtMatrixLayoutCreate(Layout** layout, int type, uint64_t rows, uint64_t columns,
                                  int64_t leading) {
    return create(layout, new Layout{type, rows, columns, leading});
}
Status cublasLtMatrixLayoutDestroy(Layout* layout) { return destroy(layout); }

Status cublasLtMatmulDescCreate(Operation** operation, int compute, int scale) {
    return create(operation, new Operation{compute, scale});
}
Status cublasLtMatmulDescDestroy(Operation* operation) { return destroy(operation); }

Status cublasLtMatmulDescSetAttribute(Operation* operation, int attribute, const void* value,
                                      size_t bytes) {
    switch (attribute) {
        case 3: return set(operation->transposed[0], value, bytes);
        case 4: return set(operation->transposed[1], value, bytes);
        case 7: return set(operation->epilogue, value, bytes);
        case 8: return set(operation->bias, value, bytes);
        case 11: return set(operation->auxiliary, value, bytes);
        case 12: return set(operation->leading, value, bytes);
        default: return refuse("an attribute of a product that is not emulated");
    }
}

Status cublasLtMatmulPreferenceCreate(Preference** preference) {
    return create(preference, new Preference);
}
Status cublasLtMatmulPreferenceDestroy(Preference* preference) { return destroy(preference); }

Status cublasLtMatmulPreferenceSetAttribute(Preference* preference, int attribute,
                                            const void* value, size_t bytes) {
    switch (attribute) {
        case 1: return set(preference->workspace_bytes, value, bytes);
        case 3: return set(preference->schemes, value, bytes);
        case 5: case 6: case 7: case 8:
            return set(preference->alignments[attribute - 5], value, bytes);
        default: return refuse("an attribute of a preference that is not emulated");
    }
}

// It looks at the addresses of a bias and of an auxiliary matrix for their alignment, and no more.
Status cublasLtMatmulAlgoGetHeuristic(char* handle, const Operation* operation, const Layout* a,
                                      const Layout* b, const Layout* c, const Layout* d,
                                      const Preference* preference, int asked, Found* found,
                                      int* count) {
    *count = 0;
    if (!handle || asked < 1) return refuse("nothing is asked");
    Product product{*operation, *a, *b, *c, *d};
    if (Status status = product.check()) return status;
    if (setting("disputes_epilogue", 0) == long(operation->epilogue)) return refuse("the epilogue");
    bool refused = setting("refuses_epilogue", 0) == long(operation->epilogue) ||
                   setting("refuses_rows", 0) == long(d->rows);
    if (refused) return NOT_SUPPORTED;
    Algorithm algorithm = {product.shape()};
    bool wants_workspace = preference->workspace_bytes >= WORKSPACE_BYTES;
    algorithm.workspace_bytes = wants_workspace ? WORKSPACE_BYTES : 0;
    algorithm.in_place = (preference->schemes & ~COMPUTE_TYPE) != 0;
    size_t partial_bytes = d->rows * d->columns * PARTS * sizeof(float);
    if (preference->schemes & COMPUTE_TYPE && partial_bytes <= preference->workspace_bytes) {
        algorithm.parts = PARTS;
        if (partial_bytes > algorithm.workspace_bytes) algorithm.workspace_bytes = partial_bytes;
    }
    for (int n = 0; n < 4; n++) {
        algorithm.alignments[n] = uint16_t(preference->alignments[n]);
        size_t element = (n < 2 ? a : d)->bytes();
        if (preference->alignments[n] % element != 0) return refuse("elements that are split");
    }
    algorithm.alignments[4] = alignment(operation->bias);
    algorithm.alignments[5] = alignment(operation->auxiliary);
    *found = {algorithm, algorithm.workspace_bytes, SUCCESS, 1, {}};
    *count = 1;
    return SUCCESS;
}

Status cublasLtMatmul(char* handle, const Operation* operation, const float* alpha, char* a,
                      const Layout* a_layout, char* b, const Layout* b_layout, const float* beta,
                      char* c, const Layout* c_layout, char* d, const Layout* d_layout,
                      const Algorithm* algorithm, char* workspace, size_t workspace_bytes,
                      void* stream) {
    static long products = 0;
    if (++products > setting("fails_after", 1L << 40)) return EXECUTION_FAILED;
    if (!handle || !a || !b || !c || !d || !algorithm) return refuse("something is nowhere");
    Product product{*operation, *a_layout, *b_layout, *c_layout, *d_layout};
    if (Status status = product.check()) return status;
    if (algorithm->shape != product.shape()) return refuse("an algorithm for another shape");
    if (c == d && c_layout->leading != d_layout->leading) return refuse("C and D overlap");
    const char* addresses[] = {a, b, c, d, operation->bias, operation->auxiliary};
    for (int n = 0; n < 6; n++)
        if (alignment(addresses[n]) < algorithm->alignments[n])
            return refuse("an address that is less aligned than was said");
    if (workspace_bytes < algorithm->workspace_bytes || alignment(workspace) < WIDEST)
        return refuse("a workspace that is too small or not aligned");
    Extent result{d, d_layout->extent()}, auxiliary{operation->auxiliary, d_layout->extent()};
    bool writes = operation->epilogue & GELU;
    for (Extent factor : {Extent{a, a_layout->extent()}, Extent{b, b_layout->extent()}})
        if (result.meets(factor) || (writes && auxiliary.meets(factor)))
            return refuse("a result that overlaps a factor");
    if (operation->auxiliary && result.meets(auxiliary))
        return refuse("a result that overlaps the auxiliary matrix");
    uint64_t first = algorithm->in_place ? uint64_t(products) : 0;
    uint32_t parts = algorithm->in_place ? 0 : algorithm->parts;
    return enqueue(stream, {product, a, b, c, d, workspace, algorithm->workspace_bytes, *alpha,
                            *beta, first, parts});
}
}
