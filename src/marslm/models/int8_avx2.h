// Sums of products of levels with AVX2: levels are widened to 16 bits, and pairs of products are
// added in 32, which is exact.

typedef int8_t WeightLevel;
typedef int16_t Level;

enum { LEVEL_DEPTH = 2, LEVEL_OFFSET = 0, TILE_ROWS = ROWS };

static int level_rows(void) { return ROWS; }
static void open_tiles(const Matrix *w, int64_t rows) { (void)w, (void)rows; }
static void close_tiles(void) {}

static void quantise_row(const float *x, int64_t in, Rows to, int64_t row) {
    to.steps[row] = step_of(x, in);
    const Lanes step = every(to.steps[row]);
    Level *levels = (Level *)to.values + row * in;
    for (int64_t i = 0; i < in; i += LANES) store_shorts(levels + i, divide(load(x + i), step));
}

static inline __m256i two(const Level *levels) {
    int32_t both;
    memcpy(&both, levels, sizeof both);
    return _mm256_set1_epi32(both);
}

static inline __m256i widen(const WeightLevel *w) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)w));
}

static inline __m256i add_pairs(__m256i sum, __m256i weight, __m256i level) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(weight, level));
}

SPECIAL sum_rows(
    const WeightLevel *w, const Level *levels, int64_t in, int32_t *sums, const int rows) {
    __m256i low[ROWS], high[ROWS];
    for (int r = 0; r < rows; r++) low[r] = high[r] = _mm256_setzero_si256();
    for (int64_t i = 0; i < in; i += LEVEL_DEPTH, w += LEVEL_DEPTH * BLOCK) {
        const __m256i first = widen(w), second = widen(w + BLOCK);
        fetch_ahead(w);
        for (int r = 0; r < rows; r++) {
            const __m256i level = two(levels + r * in + i);
            low[r] = add_pairs(low[r], first, level);
            high[r] = add_pairs(high[r], second, level);
        }
    }
    for (int r = 0; r < rows; r++) {
        _mm256_store_si256((__m256i *)(sums + r * BLOCK), low[r]);
        _mm256_store_si256((__m256i *)(sums + r * BLOCK + 8), high[r]);
    }
}

static void sum_levels(
    const WeightLevel *w, const Level *levels, int64_t in, int32_t *sums, int rows) {
    WITH_ROWS(rows, sum_rows, w, levels, in, sums)
}

static inline Lanes load_sums(const int32_t *sums, int32_t offset) {
    (void)offset;
    return load_ints(sums);
}
