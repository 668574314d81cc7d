// y = (x @ w.T) * steps * row_steps + bias for few rows: int8 levels, exact int32 sums (AVX512-VNNI).
//
// Levels of a row are chosen as `make_int8_linear` chooses them, and the float operations are the
// same in the same order, so both give the same bits. Weights are unsigned (level + 128), in blocks
// of 16 outputs: [out / 16][in / 4][16][4]; what the offset adds is taken off by a row's sum.

#include <immintrin.h>
#include <stdint.h>

enum { BLOCK = 16, ROWS = 8, AHEAD = 4096 };

// Weights are asked for a page ahead: with several rows there is too much arithmetic between two
// loads for the CPU to find the next ones by itself.
static inline void fetch_ahead(const uint8_t *w) {
    _mm_prefetch((const char *)w + AHEAD, _MM_HINT_T1);
}

static void quantise_row(const float *x, int in, int8_t *levels, float *step, int32_t *offset) {
    __m512 largest = _mm512_setzero_ps();
    for (int i = 0; i < in; i += 16)
        largest = _mm512_max_ps(largest, _mm512_abs_ps(_mm512_loadu_ps(x + i)));
    *step = 1e-20f + _mm512_reduce_max_ps(largest) * (float)(1.0 / 127);
    const __m512 steps = _mm512_set1_ps(*step);
    __m512i sum = _mm512_setzero_si512();
    for (int i = 0; i < in; i += 16) {
        __m512i level = _mm512_cvtps_epi32(_mm512_div_ps(_mm512_loadu_ps(x + i), steps));
        sum = _mm512_add_epi32(sum, level);
        _mm_storeu_si128((__m128i *)(levels + i), _mm512_cvtsepi32_epi8(level));
    }
    *offset = 128 * _mm512_reduce_add_epi32(sum);
}

static inline __m512i four(const int8_t *levels) {
    return _mm512_set1_epi32(*(const int32_t *)levels);
}

// One row has four sums, since each instruction waits for the one before on the same sum.
static inline void sum_one(const uint8_t *w, const int8_t *levels, int in, __m512i *sums) {
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    for (int i = 0; i < in; i += 16, w += 256) {
        for (int line = 0; line < 4; line++) fetch_ahead(w + 64 * line);
        a = _mm512_dpbusd_epi32(a, _mm512_loadu_si512(w), four(levels + i));
        b = _mm512_dpbusd_epi32(b, _mm512_loadu_si512(w + 64), four(levels + i + 4));
        c = _mm512_dpbusd_epi32(c, _mm512_loadu_si512(w + 128), four(levels + i + 8));
        d = _mm512_dpbusd_epi32(d, _mm512_loadu_si512(w + 192), four(levels + i + 12));
    }
    sums[0] = _mm512_add_epi32(_mm512_add_epi32(a, b), _mm512_add_epi32(c, d));
}

static inline __attribute__((always_inline)) void sum_rows(
    const uint8_t *w, const int8_t *levels, int in, __m512i *sums, const int rows) {
    __m512i acc[ROWS];
    for (int r = 0; r < rows; r++) acc[r] = _mm512_setzero_si512();
    for (int i = 0; i < in; i += 4, w += 64) {
        const __m512i weight = _mm512_loadu_si512(w);
        fetch_ahead(w);
        for (int r = 0; r < rows; r++)
            acc[r] = _mm512_dpbusd_epi32(acc[r], weight, four(levels + (long)r * in + i));
    }
    for (int r = 0; r < rows; r++) sums[r] = acc[r];
}

static void sum_block(const uint8_t *w, const int8_t *levels, int in, __m512i *sums, int rows) {
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

// levels, row_steps, offsets: room for `rows` rows. in and out are multiples of 16. base: what the
// result is added to, bias [out] with `base_stride` 0, or [rows][out]; it may be y.
static inline __attribute__((always_inline)) void product(
    const float *x, const uint8_t *w, const float *steps, const float *base, long base_stride,
    float *y, int8_t *levels, float *row_steps, int32_t *offsets, int rows, int in, int out,
    int threads) {
    for (int r = 0; r < rows; r++)
        quantise_row(x + (long)r * in, in, levels + (long)r * in, row_steps + r, offsets + r);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int block = 0; block < out / BLOCK; block++) {
        const uint8_t *weights = w + (long)block * BLOCK * in;
        const __m512 scale = _mm512_loadu_ps(steps + block * BLOCK);
        for (int first = 0; first < rows; first += ROWS) {
            const int count = rows - first < ROWS ? rows - first : ROWS;
            __m512i sums[ROWS];
            sum_block(weights, levels + (long)first * in, in, sums, count);
            for (int r = 0; r < count; r++) {
                const int row = first + r;
                __m512i sum = _mm512_sub_epi32(sums[r], _mm512_set1_epi32(offsets[row]));
                __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale);
                value = _mm512_mul_ps(value, _mm512_set1_ps(row_steps[row]));
                if (base) {
                    const float *added = base + row * base_stride + block * BLOCK;
                    value = _mm512_add_ps(_mm512_loadu_ps(added), value);
                }
                _mm512_storeu_ps(y + (long)row * out + block * BLOCK, value);
            }
        }
    }
}

// The rows of x as levels and steps, for a product that is made elsewhere.
void marslm_int8_rows(
    const float *x, int8_t *levels, float *row_steps, int rows, int in, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int r = 0; r < rows; r++) {
        int32_t offset;
        quantise_row(x + (long)r * in, in, levels + (long)r * in, row_steps + r, &offset);
    }
}

void marslm_int8_linear(
    const float *x, const uint8_t *w, const float *steps, const float *bias, float *y,
    int8_t *levels, float *row_steps, int32_t *offsets, int rows, int in, int out, int threads) {
    product(x, w, steps, bias, 0, y, levels, row_steps, offsets, rows, in, out, threads);
}

// y += (x @ down.T) @ up.T, each product as above. low: room for [rows][rank].
void marslm_int8_update(
    const float *x, const uint8_t *down, const float *down_steps, const uint8_t *up,
    const float *up_steps, float *y, float *low, int8_t *levels, float *row_steps,
    int32_t *offsets, int rows, int in, int rank, int out, int threads) {
    product(x, down, down_steps, 0, 0, low, levels, row_steps, offsets, rows, in, rank, threads);
    product(low, up, up_steps, y, out, y, levels, row_steps, offsets, rows, rank, out, threads);
}
