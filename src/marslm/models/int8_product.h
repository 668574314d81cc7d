// The int8 product of few rows: int8 levels, exact int32 sums (AVX512-VNNI, and AMX where it is).
//
// Levels of a row are chosen as `quantize.Int8Linear` chooses them, and the float operations are the
// same in the same order, so both give the same bits. Weights are unsigned (level + 128), in blocks
// of 16 outputs: [out / 16][in / 4][16][4]; what the offset adds is taken off by a row's sum.

#include <immintrin.h>
#include <stdint.h>

#ifdef __AMX_INT8__
#include <sys/syscall.h>
#include <unistd.h>
#endif

enum { BLOCK = 16, ROWS = 8, TILE_ROWS = 16, TILE_DEPTH = 64, AHEAD = 4096 };

// A weight [out, in], both multiples of 16. steps, bias: [out]; bias may be 0.
typedef struct {
    const uint8_t *levels;
    const float *steps, *bias;
    int64_t in, out;
} Matrix;

// Rows as the products read them. levels: [rows, in]. offsets: 128 times the sum of a row's levels.
typedef struct {
    int8_t *levels;
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
static inline void fetch_ahead(const uint8_t *w) {
    _mm_prefetch((const char *)w + AHEAD, _MM_HINT_T1);
}

static void quantise_row(const float *x, int64_t in, Rows to, int row) {
    __m512 largest = _mm512_setzero_ps();
    for (int64_t i = 0; i < in; i += 16)
        largest = _mm512_max_ps(largest, _mm512_abs_ps(_mm512_loadu_ps(x + i)));
    to.steps[row] = 1e-20f + _mm512_reduce_max_ps(largest) * (float)(1.0 / 127);
    const __m512 step = _mm512_set1_ps(to.steps[row]);
    int8_t *levels = to.levels + row * in;
    __m512i sum = _mm512_setzero_si512();
    for (int64_t i = 0; i < in; i += 16) {
        __m512i level = _mm512_cvtps_epi32(_mm512_div_ps(_mm512_loadu_ps(x + i), step));
        sum = _mm512_add_epi32(sum, level);
        _mm_storeu_si128((__m128i *)(levels + i), _mm512_cvtsepi32_epi8(level));
    }
    to.offsets[row] = 128 * _mm512_reduce_add_epi32(sum);
}

static inline __m512i four(const int8_t *levels) {
    return _mm512_set1_epi32(*(const int32_t *)levels);
}

// One row has four sums, since each instruction waits for the one before on the same sum.
static inline void sum_one(const uint8_t *w, const int8_t *levels, int64_t in, __m512i *sums) {
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    for (int64_t i = 0; i < in; i += 16, w += 256) {
        for (int line = 0; line < 4; line++) fetch_ahead(w + 64 * line);
        a = _mm512_dpbusd_epi32(a, _mm512_loadu_si512(w), four(levels + i));
        b = _mm512_dpbusd_epi32(b, _mm512_loadu_si512(w + 64), four(levels + i + 4));
        c = _mm512_dpbusd_epi32(c, _mm512_loadu_si512(w + 128), four(levels + i + 8));
        d = _mm512_dpbusd_epi32(d, _mm512_loadu_si512(w + 192), four(levels + i + 12));
    }
    sums[0] = _mm512_add_epi32(_mm512_add_epi32(a, b), _mm512_add_epi32(c, d));
}

static inline __attribute__((always_inline)) void sum_rows(
    const uint8_t *w, const int8_t *levels, int64_t in, __m512i *sums, const int rows) {
    __m512i acc[ROWS];
    for (int r = 0; r < rows; r++) acc[r] = _mm512_setzero_si512();
    for (int64_t i = 0; i < in; i += 4, w += 64) {
        const __m512i weight = _mm512_loadu_si512(w);
        fetch_ahead(w);
        for (int r = 0; r < rows; r++)
            acc[r] = _mm512_dpbusd_epi32(acc[r], weight, four(levels + r * in + i));
    }
    for (int r = 0; r < rows; r++) sums[r] = acc[r];
}

#ifdef __AMX_INT8__

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} TileConfig;

// Tiles by number, which must stand in the instruction.
#define SUMS 0
#define LEVELS 1
#define WEIGHTS 2
#define LAST_LEVELS 3
#define LAST_WEIGHTS 4

static int has_tiles;

// Linux asks a process to ask before it uses tiles.
__attribute__((constructor)) static void ask_for_tiles(void) {
    enum { REQUEST_FEATURE = 0x1023, TILE_DATA = 18 };
    has_tiles = syscall(SYS_arch_prctl, REQUEST_FEATURE, TILE_DATA) == 0;
}

// A thread's tiles for a product of depth `in`. There are always 16 rows: those that are not used
// cost nothing, as tiles do 16 rows faster than the memory delivers weights.
static void open_tiles(int64_t in, int rows) {
    if (!has_tiles || rows == 1) return;
    const int last = in % TILE_DEPTH ? (int)(in % TILE_DEPTH) : TILE_DEPTH;
    const TileConfig config = {
        .palette = 1,
        .row_bytes = {64, TILE_DEPTH, 64, (uint16_t)last, 64},
        .rows = {TILE_ROWS, TILE_ROWS, TILE_DEPTH / 4, TILE_ROWS, (uint8_t)(last / 4)},
    };
    _tile_loadconfig(&config);
}

static void close_tiles(void) {
    if (has_tiles) _tile_release();
}

static void sum_tiles(const uint8_t *w, const int8_t *levels, int64_t in, __m512i *sums) {
    int64_t i = 0;
    _tile_zero(SUMS);
    for (; i + TILE_DEPTH <= in; i += TILE_DEPTH, w += TILE_DEPTH * BLOCK) {
        for (int line = 0; line < TILE_DEPTH / 4; line++) fetch_ahead(w + 64 * line);
        _tile_loadd(LEVELS, levels + i, in);
        _tile_loadd(WEIGHTS, w, 64);
        _tile_dpbsud(SUMS, LEVELS, WEIGHTS);
    }
    if (i < in) {
        _tile_loadd(LAST_LEVELS, levels + i, in);
        _tile_loadd(LAST_WEIGHTS, w, 64);
        _tile_dpbsud(SUMS, LAST_LEVELS, LAST_WEIGHTS);
    }
    _tile_stored(SUMS, sums, 64);
}

#else

enum { has_tiles = 0 };
static void open_tiles(int64_t in, int rows) { (void)in, (void)rows; }
static void close_tiles(void) {}
static void sum_tiles(const uint8_t *w, const int8_t *levels, int64_t in, __m512i *sums) {
    (void)w, (void)levels, (void)in, (void)sums;
}

#endif

static void sum_block(
    const uint8_t *w, const int8_t *levels, int64_t in, __m512i *sums, int rows) {
    if (has_tiles && rows > 1) {
        sum_tiles(w, levels, in, sums);
        return;
    }
    switch (rows) {
        case 1: sum_one(w, levels, in, sums); break;
        case 2: sum_rows(w, levels, in, sums, 2); break;
        case 3: sum_rows(w, levels, in, sums, 3); break;
        case 4: sum_rows(w, levels, in, sums, 4); break;
        case 5: sum_rows(w, levels, in, sums, 5); break;
        case 6: sum_rows(w, levels, in, sums, 6); break;
        case 7: sum_rows(w, levels, in, sums, 7); break;
        default: sum_rows(w, levels, in, sums, 8); break;
    }
}

// y = (x @ w.T) * steps * row_steps + bias for one block of 16 outputs, between `open_tiles` and
// `close_tiles`. x has room for whole tiles.
static void product_block(const Matrix *w, Rows x, int rows, int64_t block, Target to) {
    const uint8_t *weights = w->levels + block * BLOCK * w->in;
    const __m512 scale = _mm512_loadu_ps(w->steps + block * BLOCK);
    const int most = has_tiles ? TILE_ROWS : ROWS;
    for (int first = 0; first < rows; first += most) {
        const int count = rows - first < most ? rows - first : most;
        __m512i sums[TILE_ROWS];
        sum_block(weights, x.levels + first * w->in, w->in, sums, count);
        for (int r = 0; r < count; r++) {
            const int row = first + r;
            float *y = to.y + (to.place ? to.place[row] : row) * w->out + block * BLOCK;
            __m512i sum = _mm512_sub_epi32(sums[r], _mm512_set1_epi32(x.offsets[row]));
            __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale);
            value = _mm512_mul_ps(value, _mm512_set1_ps(x.steps[row]));
            if (w->bias) value = _mm512_add_ps(_mm512_loadu_ps(w->bias + block * BLOCK), value);
            if (to.add) value = _mm512_add_ps(_mm512_loadu_ps(y), value);
            _mm512_storeu_ps(y, value);
        }
    }
}
