// y = x @ w.T + bias for few rows: float32, or int8 levels with exact int32 sums.
//
// A row's result depends on nothing but the row: its sums are taken in one order, however many rows
// there are. Weights lie in blocks of 16 outputs, [out / 16][in / depth][16][depth]; the depth is 1
// for floats and what the CPU's instructions add up at once for levels.

#include <string.h>

#include "lanes.h"

// ROWS: so many rows are multiplied while their sums stay in registers.
enum { BLOCK = LANES, ROWS = SUMS_KEPT, AHEAD = 4096 };

// A weight [out, in], both multiples of 16: floats, or levels if there are steps. steps, bias: [out];
// bias may be 0.
typedef struct {
    const void *weights;
    const float *steps, *bias;
    int64_t in, out;
} Matrix;

// Rows as the products read them, with room for whole tiles. values: [rows, in], floats or levels.
// steps, offsets: of levels.
typedef struct {
    void *values;
    float *steps;
    int32_t *offsets;
} Rows;

// Where results go. place: for each row its row of y, 0 if they are in order. add: to what is there.
typedef struct {
    float *y;
    const int32_t *place;
    int add;
} Target;

// Weights are asked for a page ahead: with several rows there is too much arithmetic between two
// loads for the CPU to find the next ones by itself.
static inline void fetch_ahead(const void *weights) {
    _mm_prefetch((const char *)weights + AHEAD, _MM_HINT_T1);
}

// Runs `call(rows, ...)` with `rows` known to the compiler, which can then keep sums in registers.
#define WITH_ROWS(rows, call, ...) \
    switch (rows) { \
        case 1: call(__VA_ARGS__, 1); break; \
        case 2: call(__VA_ARGS__, 2); break; \
        case 3: call(__VA_ARGS__, 3); break; \
        case 4: call(__VA_ARGS__, 4); break; \
        case 5: call(__VA_ARGS__, 5); break; \
        case 6: call(__VA_ARGS__, 6); break; \
        case 7: call(__VA_ARGS__, ROWS < 7 ? ROWS : 7); break; \
        default: call(__VA_ARGS__, ROWS); break; \
    }

#define SPECIAL static inline __attribute__((always_inline)) void

// The step between a row's levels: the largest value gets 127.
static float step_of(const float *x, int64_t in) {
    Lanes most = every(0);
    for (int64_t i = 0; i < in; i += LANES) most = larger(most, size_of(load(x + i)));
    return 1e-20f + largest(most) * (float)(1.0 / 127);
}

#ifdef __AVX512VNNI__
#include "int8_vnni.h"
#else
#include "int8_avx2.h"
#endif

static inline size_t value_size(const Matrix *w) {
    return w->steps ? sizeof(Level) : sizeof(float);
}

// A row as a product with `w` reads it.
static void prepare_row(const Matrix *w, const float *x, Rows to, int64_t row) {
    if (w->steps) {
        quantise_row(x, w->in, to, row);
    } else {
        memcpy((float *)to.values + row * w->in, x, (size_t)w->in * sizeof(float));
    }
}

static inline void copy_row(const Matrix *w, Rows from, int64_t row, Rows to, int64_t place) {
    const size_t size = (size_t)w->in * value_size(w);
    memcpy((char *)to.values + place * size, (const char *)from.values + row * size, size);
    to.steps[place] = from.steps[row];
    to.offsets[place] = from.offsets[row];
}

SPECIAL sum_floats(const float *w, const float *x, int64_t in, Lanes *sums, const int rows) {
    Lanes kept[ROWS];
    for (int r = 0; r < rows; r++) kept[r] = every(0);
    for (int64_t i = 0; i < in; i++, w += BLOCK) {
        const Lanes weight = load(w);
        fetch_ahead(w);
        for (int r = 0; r < rows; r++)
            kept[r] = multiply_add(every(x[r * in + i]), weight, kept[r]);
    }
    for (int r = 0; r < rows; r++) sums[r] = kept[r];
}

static void write_block(const Matrix *w, int64_t block, Lanes value, int64_t row, Target to) {
    float *y = to.y + (to.place ? to.place[row] : row) * w->out + block * BLOCK;
    if (w->bias) value = add(load(w->bias + block * BLOCK), value);
    if (to.add) value = add(load(y), value);
    store(y, value);
}

static void float_block(const Matrix *w, Rows x, int64_t rows, int64_t block, Target to) {
    const float *weights = (const float *)w->weights + block * BLOCK * w->in;
    for (int64_t first = 0; first < rows; first += ROWS) {
        const int count = rows - first < ROWS ? (int)(rows - first) : ROWS;
        const float *values = (const float *)x.values + first * w->in;
        Lanes sums[ROWS];
        WITH_ROWS(count, sum_floats, weights, values, w->in, sums)
        for (int r = 0; r < count; r++) write_block(w, block, sums[r], first + r, to);
    }
}

static void level_block(const Matrix *w, Rows x, int64_t rows, int64_t block, Target to) {
    const WeightLevel *weights = (const WeightLevel *)w->weights + block * BLOCK * w->in;
    const Lanes steps = load(w->steps + block * BLOCK);
    const int most = level_rows();
    for (int64_t first = 0; first < rows; first += most) {
        const int count = rows - first < most ? (int)(rows - first) : most;
        int32_t sums[TILE_ROWS * BLOCK] __attribute__((aligned(64)));
        sum_levels(weights, (const Level *)x.values + first * w->in, w->in, sums, count);
        for (int r = 0; r < count; r++) {
            Lanes value = load_sums(sums + r * BLOCK, x.offsets[first + r]);
            value = multiply(multiply(value, steps), every(x.steps[first + r]));
            write_block(w, block, value, first + r, to);
        }
    }
}

// One block of 16 outputs, between `open_tiles` and `close_tiles`.
static void product_block(const Matrix *w, Rows x, int64_t rows, int64_t block, Target to) {
    (w->steps ? level_block : float_block)(w, x, rows, block, to);
}

enum { MOST_PARTS = 4 };

// What a low-rank adapter adds to a product of fused matrices. down: [parts * rank, in]; up:
// [out, rank]. The outputs from edges[p] on read the p-th `rank` columns of x @ down.T.
typedef struct {
    Matrix down, up;
    int64_t parts, edges[MOST_PARTS];
} Update;

// Room for a part's rows of x @ down.T within room for all of them, each `rows` high.
static Rows part_of(Rows room, int64_t part, int64_t rank, int64_t rows) {
    return (Rows){
        (float *)room.values + part * rank * rows, room.steps + part * rows,
        room.offsets + part * rows};
}

// A row of x @ down.T as `up` reads it.
static inline void prepare_low(
    const Update *update, const float *low, Rows room, int64_t rows, int64_t row) {
    const int64_t rank = update->up.in;
    for (int64_t part = 0; part < update->parts; part++)
        prepare_row(&update->up, low + part * rank, part_of(room, part, rank, rows), row);
}

// y += low @ up.T for one block of outputs.
static inline void update_block(
    const Update *update, Rows room, int64_t room_rows, int64_t rows, int64_t block, Target to) {
    int64_t part = update->parts - 1;
    while (update->edges[part] > block * BLOCK) part--;
    const Rows low = part_of(room, part, update->up.in, room_rows);
    product_block(&update->up, low, rows, block, (Target){to.y, to.place, 1});
}
