// Sums of products of levels with AVX512-VNNI, and with AMX where it is.
//
// Weights are unsigned (level + 128); what the offset adds is taken off by a row's sum.

#ifdef __AMX_INT8__
#include <sys/syscall.h>
#include <unistd.h>
#endif

typedef uint8_t WeightLevel;
typedef int8_t Level;

enum { LEVEL_DEPTH = 4, LEVEL_OFFSET = 128, TILE_ROWS = 16, TILE_DEPTH = 64 };

static void quantise_row(const float *x, int64_t in, Rows to, int64_t row) {
    to.steps[row] = step_of(x, in);
    const Lanes step = every(to.steps[row]);
    Level *levels = (Level *)to.values + row * in;
    __m512i sum = _mm512_setzero_si512();
    for (int64_t i = 0; i < in; i += LANES) {
        const __m512i level = _mm512_cvtps_epi32(divide(load(x + i), step));
        sum = _mm512_add_epi32(sum, level);
        _mm_storeu_si128((__m128i *)(levels + i), _mm512_cvtsepi32_epi8(level));
    }
    to.offsets[row] = LEVEL_OFFSET * _mm512_reduce_add_epi32(sum);
}

static inline __m512i four(const int8_t *levels) {
    return _mm512_set1_epi32(*(const int32_t *)levels);
}

// One row has four sums, since each instruction waits for the one before on the same sum.
static inline void sum_one(
    const WeightLevel *w, const Level *levels, int64_t in, int32_t *sums) {
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    for (int64_t i = 0; i < in; i += 16, w += 256) {
        for (int line = 0; line < 4; line++) fetch_ahead(w + 64 * line);
        a = _mm512_dpbusd_epi32(a, _mm512_loadu_si512(w), four(levels + i));
        b = _mm512_dpbusd_epi32(b, _mm512_loadu_si512(w + 64), four(levels + i + 4));
        c = _mm512_dpbusd_epi32(c, _mm512_loadu_si512(w + 128), four(levels + i + 8));
        d = _mm512_dpbusd_epi32(d, _mm512_loadu_si512(w + 192), four(levels + i + 12));
    }
    _mm512_store_si512(sums, _mm512_add_epi32(_mm512_add_epi32(a, b), _mm512_add_epi32(c, d)));
}

SPECIAL sum_rows(
    const WeightLevel *w, const Level *levels, int64_t in, int32_t *sums, const int rows) {
    __m512i kept[ROWS];
    for (int r = 0; r < rows; r++) kept[r] = _mm512_setzero_si512();
    for (int64_t i = 0; i < in; i += 4, w += 64) {
        const __m512i weight = _mm512_loadu_si512(w);
        fetch_ahead(w);
        for (int r = 0; r < rows; r++)
            kept[r] = _mm512_dpbusd_epi32(kept[r], weight, four(levels + r * in + i));
    }
    for (int r = 0; r < rows; r++) _mm512_store_si512(sums + r * BLOCK, kept[r]);
}

#ifdef __AMX_INT8__

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} TileConfig;

// Tiles by number, which must stand in the instruction.
#define PRODUCTS 0
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
static void open_tiles(const Matrix *w, int64_t rows) {
    if (!w->steps || !has_tiles || rows == 1) return;
    const int last = w->in % TILE_DEPTH ? (int)(w->in % TILE_DEPTH) : TILE_DEPTH;
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

static void sum_tiles(
    const WeightLevel *w, const Level *levels, int64_t in, int32_t *sums) {
    int64_t i = 0;
    _tile_zero(PRODUCTS);
    for (; i + TILE_DEPTH <= in; i += TILE_DEPTH, w += TILE_DEPTH * BLOCK) {
        for (int line = 0; line < TILE_DEPTH / 4; line++) fetch_ahead(w + 64 * line);
        _tile_loadd(LEVELS, levels + i, in);
        _tile_loadd(WEIGHTS, w, 64);
        _tile_dpbsud(PRODUCTS, LEVELS, WEIGHTS);
    }
    if (i < in) {
        _tile_loadd(LAST_LEVELS, levels + i, in);
        _tile_loadd(LAST_WEIGHTS, w, 64);
        _tile_dpbsud(PRODUCTS, LAST_LEVELS, LAST_WEIGHTS);
    }
    _tile_stored(PRODUCTS, sums, 64);
}

#else

enum { has_tiles = 0 };
static void open_tiles(const Matrix *w, int64_t rows) { (void)w, (void)rows; }
static void close_tiles(void) {}
static void sum_tiles(
    const WeightLevel *w, const Level *levels, int64_t in, int32_t *sums) {
    (void)w, (void)levels, (void)in, (void)sums;
}

#endif

static int level_rows(void) { return has_tiles ? TILE_ROWS : ROWS; }

static void sum_levels(
    const WeightLevel *w, const Level *levels, int64_t in, int32_t *sums, int rows) {
    if (has_tiles && rows > 1) {
        sum_tiles(w, levels, in, sums);
    } else if (rows == 1) {
        sum_one(w, levels, in, sums);
    } else {
        WITH_ROWS(rows, sum_rows, w, levels, in, sums)
    }
}

static inline Lanes load_sums(const int32_t *sums, int32_t offset) {
    return _mm512_cvtepi32_ps(
        _mm512_sub_epi32(_mm512_load_si512(sums), _mm512_set1_epi32(offset)));
}
