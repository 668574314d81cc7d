// Sixteen floats at a time: one register with AVX-512, two with AVX2.
//
// Knows nothing about what the floats mean. No operation is contracted with its neighbour unless it
// says so, so that a row's bits follow from the order written here.

#include <immintrin.h>
#include <stdint.h>

enum { LANES = 16 };

#ifdef __AVX512F__

typedef __m512 Lanes;

// So many sums stay in registers beside what they are made from.
enum { SUMS_KEPT = 8 };

static inline Lanes load(const float *x) { return _mm512_loadu_ps(x); }
static inline void store(float *to, Lanes x) { _mm512_storeu_ps(to, x); }
static inline Lanes every(float x) { return _mm512_set1_ps(x); }
static inline Lanes add(Lanes x, Lanes y) { return _mm512_add_ps(x, y); }
static inline Lanes subtract(Lanes x, Lanes y) { return _mm512_sub_ps(x, y); }
static inline Lanes multiply(Lanes x, Lanes y) { return _mm512_mul_ps(x, y); }
static inline Lanes divide(Lanes x, Lanes y) { return _mm512_div_ps(x, y); }
static inline Lanes larger(Lanes x, Lanes y) { return _mm512_max_ps(x, y); }
static inline Lanes size_of(Lanes x) { return _mm512_abs_ps(x); }

// x * y + z and z - x * y, rounded once.
static inline Lanes multiply_add(Lanes x, Lanes y, Lanes z) { return _mm512_fmadd_ps(x, y, z); }
static inline Lanes take_product(Lanes z, Lanes x, Lanes y) { return _mm512_fnmadd_ps(x, y, z); }

static inline float sum(Lanes x) { return _mm512_reduce_add_ps(x); }
static inline float largest(Lanes x) { return _mm512_reduce_max_ps(x); }
static inline float first_of(Lanes x) { return _mm512_cvtss_f32(x); }

// To the next whole number, half to even.
static inline Lanes round_lanes(Lanes x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT);
}

// x * 2^n; 0 where `exponent` is below `least`.
static inline Lanes scale_by(Lanes x, Lanes n, Lanes exponent, float least) {
    return _mm512_maskz_scalef_ps(
        _mm512_cmp_ps_mask(exponent, every(least), _CMP_GE_OQ), x, n);
}

// x where the lane's bit is set, `other` elsewhere.
static inline Lanes where(uint16_t bits, Lanes x, Lanes other) {
    return _mm512_mask_mov_ps(other, bits, x);
}

static inline Lanes load_ints(const int32_t *x) { return _mm512_cvtepi32_ps(_mm512_loadu_si512(x)); }

// Sixteen whole numbers to 16 bits.
static inline void store_shorts(int16_t *to, Lanes x) {
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(x)));
}

// The sixteen sums of sixteen vectors. Halves are added while pairs, fours and so on are interleaved.
static inline Lanes sums_of(const Lanes *a) {
    Lanes pairs[8], fours[4], halves[2];
    for (int i = 0; i < 8; i++) {
        const Lanes x = a[2 * i], y = a[2 * i + 1];
        pairs[i] = add(_mm512_unpacklo_ps(x, y), _mm512_unpackhi_ps(x, y));
    }
    for (int i = 0; i < 4; i++) {
        const __m512d x = _mm512_castps_pd(pairs[2 * i]), y = _mm512_castps_pd(pairs[2 * i + 1]);
        fours[i] = add(
            _mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    }
    for (int i = 0; i < 2; i++) {
        const Lanes x = fours[2 * i], y = fours[2 * i + 1];
        halves[i] = add(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
    }
    return add(
        _mm512_shuffle_f32x4(halves[0], halves[1], 0x88),
        _mm512_shuffle_f32x4(halves[0], halves[1], 0xdd));
}

// The products of a vector with sixteen others that lie one behind the other.
static inline Lanes products(const float *vector, const float *others, int64_t size) {
    Lanes found[LANES];
    for (int other = 0; other < LANES; other++) found[other] = _mm512_setzero_ps();
    for (int64_t i = 0; i < size; i += LANES) {
        const Lanes part = load(vector + i);
        for (int other = 0; other < LANES; other++)
            found[other] = multiply_add(part, load(others + other * size + i), found[other]);
    }
    return sums_of(found);
}

#else

typedef struct {
    __m256 low, high;
} Lanes;

enum { SUMS_KEPT = 6 };

#define EACH(f, x, y) ((Lanes){f((x).low, (y).low), f((x).high, (y).high)})
#define EACH_OF_THREE(f, x, y, z) \
    ((Lanes){f((x).low, (y).low, (z).low), f((x).high, (y).high, (z).high)})

static inline Lanes load(const float *x) {
    return (Lanes){_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)};
}
static inline void store(float *to, Lanes x) {
    _mm256_storeu_ps(to, x.low);
    _mm256_storeu_ps(to + 8, x.high);
}
static inline Lanes every(float x) { return (Lanes){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline Lanes add(Lanes x, Lanes y) { return EACH(_mm256_add_ps, x, y); }
static inline Lanes subtract(Lanes x, Lanes y) { return EACH(_mm256_sub_ps, x, y); }
static inline Lanes multiply(Lanes x, Lanes y) { return EACH(_mm256_mul_ps, x, y); }
static inline Lanes divide(Lanes x, Lanes y) { return EACH(_mm256_div_ps, x, y); }
static inline Lanes larger(Lanes x, Lanes y) { return EACH(_mm256_max_ps, x, y); }
static inline Lanes size_of(Lanes x) {
    const Lanes sign = every(-0.0f);
    return EACH(_mm256_andnot_ps, sign, x);
}
static inline Lanes multiply_add(Lanes x, Lanes y, Lanes z) {
    return EACH_OF_THREE(_mm256_fmadd_ps, x, y, z);
}
static inline Lanes take_product(Lanes z, Lanes x, Lanes y) {
    return EACH_OF_THREE(_mm256_fnmadd_ps, x, y, z);
}

static inline float sum(Lanes x) {
    const __m256 eight = _mm256_add_ps(x.low, x.high);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
static inline float largest(Lanes x) {
    const __m256 eight = _mm256_max_ps(x.low, x.high);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

static inline float first_of(Lanes x) { return _mm256_cvtss_f32(x.low); }

static inline __m256 round_half(__m256 x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline Lanes round_lanes(Lanes x) { return (Lanes){round_half(x.low), round_half(x.high)}; }

// 2^n is made of its bits; beyond the largest float it is infinite.
static inline __m256 scale_half(__m256 x, __m256 n, __m256 exponent, __m256 least) {
    const __m256i whole = _mm256_cvtps_epi32(_mm256_min_ps(n, _mm256_set1_ps(128.0f)));
    const __m256i bits = _mm256_slli_epi32(_mm256_add_epi32(whole, _mm256_set1_epi32(127)), 23);
    const __m256 scaled = _mm256_mul_ps(x, _mm256_castsi256_ps(bits));
    return _mm256_and_ps(scaled, _mm256_cmp_ps(exponent, least, _CMP_GE_OQ));
}
static inline Lanes scale_by(Lanes x, Lanes n, Lanes exponent, float least) {
    const __m256 limit = _mm256_set1_ps(least);
    return (Lanes){
        scale_half(x.low, n.low, exponent.low, limit),
        scale_half(x.high, n.high, exponent.high, limit)};
}

static inline __m256 where_half(int bits, __m256 x, __m256 other) {
    const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i set = _mm256_and_si256(_mm256_set1_epi32(bits), each);
    return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, each)));
}
static inline Lanes where(uint16_t bits, Lanes x, Lanes other) {
    return (Lanes){where_half(bits, x.low, other.low), where_half(bits >> 8, x.high, other.high)};
}

static inline __m256 load_half(const int32_t *x) {
    return _mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i *)x));
}
static inline Lanes load_ints(const int32_t *x) { return (Lanes){load_half(x), load_half(x + 8)}; }

static inline void store_shorts(int16_t *to, Lanes x) {
    const __m256i low = _mm256_cvtps_epi32(x.low), high = _mm256_cvtps_epi32(x.high);
    const __m256i packed = _mm256_packs_epi32(low, high);
    _mm256_storeu_si256((__m256i *)to, _mm256_permute4x64_epi64(packed, 0xd8));
}

static inline __m256 eight_products(const float *vector, const float *others, int64_t size) {
    __m256 found[8];
    for (int other = 0; other < 8; other++) found[other] = _mm256_setzero_ps();
    for (int64_t i = 0; i < size; i += 8) {
        const __m256 part = _mm256_loadu_ps(vector + i);
        for (int other = 0; other < 8; other++)
            found[other] =
                _mm256_fmadd_ps(part, _mm256_loadu_ps(others + other * size + i), found[other]);
    }
    // Neighbours are added until each half of a register has a sum of four of each vector.
    __m256 pairs[4], fours[2];
    for (int i = 0; i < 4; i++) pairs[i] = _mm256_hadd_ps(found[2 * i], found[2 * i + 1]);
    for (int i = 0; i < 2; i++) fours[i] = _mm256_hadd_ps(pairs[2 * i], pairs[2 * i + 1]);
    return _mm256_add_ps(
        _mm256_permute2f128_ps(fours[0], fours[1], 0x20),
        _mm256_permute2f128_ps(fours[0], fours[1], 0x31));
}
static inline Lanes products(const float *vector, const float *others, int64_t size) {
    return (Lanes){
        eight_products(vector, others, size), eight_products(vector, others + 8 * size, size)};
}

#endif
