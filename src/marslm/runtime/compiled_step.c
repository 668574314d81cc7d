// All decoder layers of a step of few rows in one call, and the same pieces one by one for many.
//
// A row's result depends on nothing but the row and the cells it sees: every sum over a row or over
// cells is taken in an order that neither the other rows nor the threads change.

#include "int8_product.h"

#include <limits.h>
#include <math.h>
#include <omp.h>
#include <sched.h>
#include <stdatomic.h>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

enum { SPAN = 128, HEAD_CHUNK = 4, SPINS = 2000 };

// A linear layer, and what a mask-only adapter adds at rows of masks; down.levels is 0 without one.
typedef struct {
    Matrix base, down, up;
} Projection;

// query_norm and key_norm are 0 in models without them. cells: [slots, 2 * kv_heads, cells, dim].
typedef struct {
    const float *attention_norm, *query_norm, *key_norm, *mlp_norm;
    Projection query_key_value, output, gate_up, down;
    float *cells;
} Layer;

// cos, sin: [positions, dim], the first half of the sines negated.
typedef struct {
    const Layer *layers;
    const float *cos, *sin;
    int64_t count, hidden, inner, heads, kv_heads, dim, cells;
    float epsilon;
} Model;

// Rows and where they stand. seen, bits: a row sees the first `seen` cells of its slot, and of those
// after them cell j if bit j is set. masks: which rows get the adapter's update.
// x: [rows, hidden], in and out. The rest is room: wide [rows, widest projection], narrow
// [rows, widest input], low [masks, widest rank].
typedef struct {
    const int32_t *slots, *positions, *cells, *seen, *masks;
    const uint64_t *bits;
    float *x, *wide, *narrow, *low;
    Rows inputs, mask_inputs;
    int64_t rows, mask_rows;
} Step;

typedef struct {
    atomic_int arrived, round, asleep;
} Meeting;

typedef struct {
    int thread, threads;
    Meeting *meeting;
} Team;

static Team team_at(Meeting *meeting) {
    return (Team){omp_get_thread_num(), omp_get_num_threads(), meeting};
}

static void sleep_while(atomic_int *round, int now) {
#ifdef __linux__
    syscall(SYS_futex, round, FUTEX_WAIT_PRIVATE, now, (void *)0, (void *)0, 0);
#else
    (void)round, (void)now;
    sched_yield();
#endif
}

static void wake_all(atomic_int *round) {
#ifdef __linux__
    syscall(SYS_futex, round, FUTEX_WAKE_PRIVATE, INT_MAX, (void *)0, (void *)0, 0);
#else
    (void)round;
#endif
}

// Waits for all threads. OpenMP's own barrier spins for milliseconds; on a machine with other work
// the thread that is waited for may need this very core, and a step then takes many times as long.
// So a thread spins for some tens of microseconds, enough on an idle machine, and then sleeps.
static void meet(Team team) {
    if (team.threads == 1) return;
    Meeting *meeting = team.meeting;
    const int round = atomic_load(&meeting->round);
    if (atomic_fetch_add(&meeting->arrived, 1) + 1 == team.threads) {
        atomic_store(&meeting->arrived, 0);
        atomic_store(&meeting->round, round + 1);
        if (atomic_load(&meeting->asleep)) wake_all(&meeting->round);
        return;
    }
    for (int spin = 0; spin < SPINS; spin++) {
        if (atomic_load_explicit(&meeting->round, memory_order_acquire) != round) return;
        _mm_pause();
    }
    atomic_fetch_add(&meeting->asleep, 1);
    while (atomic_load(&meeting->round) == round) sleep_while(&meeting->round, round);
    atomic_fetch_sub(&meeting->asleep, 1);
}

// `for` over this thread's share of `count` things, in one piece.
#define FOR_SHARE(i, count) \
    for (int64_t i = (count) * team.thread / team.threads, \
                 i##_end = (count) * (team.thread + 1) / team.threads; \
         i < i##_end; i++)

// e^x to about one unit in the last place; 0 below -87, where it would not be a normal number.
static inline __m512 exponential(__m512 x) {
    const __m512 n = _mm512_roundscale_ps(
        _mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
    // ln 2 in two parts, so that n times it loses nothing.
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    static const float series[] = {
        1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
    __m512 y = _mm512_set1_ps(1.0f / 5040);
    for (int i = 0; i < 7; i++) y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(series[i]));
    const __mmask16 normal = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_GE_OQ);
    return _mm512_maskz_scalef_ps(normal, y, n);
}

// to = x / sqrt(mean(x^2) + epsilon) * weight; `to` may be x.
static void norm_row(const float *x, const float *weight, int64_t size, float epsilon, float *to) {
    __m512 squares = _mm512_setzero_ps();
    for (int64_t i = 0; i < size; i += 16) {
        const __m512 part = _mm512_loadu_ps(x + i);
        squares = _mm512_fmadd_ps(part, part, squares);
    }
    const float mean = _mm512_reduce_add_ps(squares) / (float)size;
    const __m512 scale = _mm512_set1_ps(1.0f / sqrtf(mean + epsilon));
    for (int64_t i = 0; i < size; i += 16) {
        const __m512 part = _mm512_mul_ps(_mm512_loadu_ps(x + i), scale);
        _mm512_storeu_ps(to + i, _mm512_mul_ps(part, _mm512_loadu_ps(weight + i)));
    }
}

static void add_row(float *x, const float *y, int64_t size) {
    for (int64_t i = 0; i < size; i++) x[i] += y[i];
}

// to = silu(gate) * up; gate and up lie side by side.
static void activate_row(const float *gate, int64_t inner, float *to) {
    const __m512 one = _mm512_set1_ps(1.0f);
    for (int64_t i = 0; i < inner; i += 16) {
        const __m512 x = _mm512_loadu_ps(gate + i);
        const __m512 below = _mm512_add_ps(one, exponential(_mm512_sub_ps(_mm512_setzero_ps(), x)));
        const __m512 silu = _mm512_div_ps(x, below);
        _mm512_storeu_ps(to + i, _mm512_mul_ps(silu, _mm512_loadu_ps(gate + inner + i)));
    }
}

static void turn(
    const float *head, const float *cos, const float *sin, int64_t dim, float scale, float *to) {
    const int64_t half = dim / 2;
    for (int64_t i = 0; i < half; i++) {
        const float a = head[i], b = head[i + half];
        to[i] = (a * cos[i] + b * sin[i]) * scale;
        to[i + half] = (b * cos[i + half] + a * sin[i + half]) * scale;
    }
}

static inline float *cell_of(
    const Model *model, const Layer *layer, int64_t slot, int64_t head, int64_t cell) {
    const int64_t heads = 2 * model->kv_heads;
    return layer->cells + ((slot * heads + head) * model->cells + cell) * model->dim;
}

// One head of one row's query, key or value: norm, rotation, and keys and values to the cache. A
// query stays where it is, scaled for the scores.
static void place_head(const Model *model, const Layer *layer, const Step *step, int64_t unit) {
    const int64_t dim = model->dim, heads = model->heads + 2 * model->kv_heads;
    const int64_t row = unit / heads, index = unit % heads, after = index - model->heads;
    float *head = step->wide + unit * dim;
    const float *cos = model->cos + step->positions[row] * dim;
    const float *sin = model->sin + step->positions[row] * dim;
    if (after < 0) {
        if (layer->query_norm) norm_row(head, layer->query_norm, dim, model->epsilon, head);
        turn(head, cos, sin, dim, 1.0f / sqrtf((float)dim), head);
        return;
    }
    float *cell = cell_of(model, layer, step->slots[row], after, step->cells[row]);
    if (after < model->kv_heads) {
        if (layer->key_norm) norm_row(head, layer->key_norm, dim, model->epsilon, head);
        turn(head, cos, sin, dim, 1.0f, cell);
    } else {
        for (int64_t i = 0; i < dim; i++) cell[i] = head[i];
    }
}

// The 16 sums of 16 vectors. Halves are added while pairs, fours and so on are interleaved.
static inline __m512 sums_of(const __m512 *a) {
    __m512 pairs[8], fours[4], halves[2];
    for (int i = 0; i < 8; i++) {
        const __m512 x = a[2 * i], y = a[2 * i + 1];
        pairs[i] = _mm512_add_ps(_mm512_unpacklo_ps(x, y), _mm512_unpackhi_ps(x, y));
    }
    for (int i = 0; i < 4; i++) {
        const __m512d x = _mm512_castps_pd(pairs[2 * i]), y = _mm512_castps_pd(pairs[2 * i + 1]);
        fours[i] = _mm512_add_ps(
            _mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    }
    for (int i = 0; i < 2; i++) {
        const __m512 x = fours[2 * i], y = fours[2 * i + 1];
        halves[i] = _mm512_add_ps(
            _mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
    }
    return _mm512_add_ps(
        _mm512_shuffle_f32x4(halves[0], halves[1], 0x88),
        _mm512_shuffle_f32x4(halves[0], halves[1], 0xdd));
}

// A query's products with 16 keys.
static inline __m512 scores_of(const float *query, const float *keys, int64_t dim) {
    __m512 sums[16];
    for (int cell = 0; cell < 16; cell++) sums[cell] = _mm512_setzero_ps();
    for (int64_t i = 0; i < dim; i += 16) {
        const __m512 part = _mm512_loadu_ps(query + i);
        for (int cell = 0; cell < 16; cell++)
            sums[cell] = _mm512_fmadd_ps(part, _mm512_loadu_ps(keys + cell * dim + i), sums[cell]);
    }
    return sums_of(sums);
}

// Which of the 16 cells from `cell` on a row sees.
static inline __mmask16 visible(int64_t seen, uint64_t bits, int64_t cell) {
    const int64_t before = seen - cell;
    if (before >= 16) return 0xffff;
    if (before > 0) return (__mmask16)(((1u << before) - 1) | bits << before);
    return before > -64 ? (__mmask16)(bits >> -before) : 0;
}

// out = out * keep + weights @ values, for `parts` times 16 columns. Even and odd cells have sums of
// their own, since each instruction waits for the one before on the same sum.
static inline __attribute__((always_inline)) void mix(
    const float *weights, const float *values, int count, int64_t dim, float keep, float *out,
    const int parts) {
    __m512 even[HEAD_CHUNK], odd[HEAD_CHUNK];
    for (int p = 0; p < parts; p++) {
        even[p] = _mm512_mul_ps(_mm512_loadu_ps(out + 16 * p), _mm512_set1_ps(keep));
        odd[p] = _mm512_setzero_ps();
    }
    for (int cell = 0; cell < count; cell += 2, values += 2 * dim) {
        const __m512 first = _mm512_set1_ps(weights[cell]);
        const __m512 second = _mm512_set1_ps(weights[cell + 1]);
        for (int p = 0; p < parts; p++) {
            even[p] = _mm512_fmadd_ps(first, _mm512_loadu_ps(values + 16 * p), even[p]);
            odd[p] = _mm512_fmadd_ps(second, _mm512_loadu_ps(values + dim + 16 * p), odd[p]);
        }
    }
    for (int p = 0; p < parts; p++) _mm512_storeu_ps(out + 16 * p, _mm512_add_ps(even[p], odd[p]));
}

// Attention of one head of one row. Cells are taken in spans that begin at fixed places, and what is
// not seen adds exact zeros; so the result does not depend on how much of the cache is filled.
static void attend(
    const float *query, const float *keys, const float *values, int64_t seen, uint64_t bits,
    int64_t dim, float *out) {
    const int64_t end = seen + (bits ? 64 - __builtin_clzll(bits) : 0);
    const __m512 nothing = _mm512_set1_ps(-INFINITY);
    float largest = -INFINITY;
    __m512 total = _mm512_setzero_ps();
    for (int64_t i = 0; i < dim; i++) out[i] = 0;
    for (int64_t first = 0; first < end; first += SPAN) {
        const int count = end - first < SPAN ? (int)((end - first + 15) / 16 * 16) : SPAN;
        float weights[SPAN];
        __m512 top = nothing;
        for (int i = 0; i < count; i += 16) {
            const __m512 scores = _mm512_mask_mov_ps(
                nothing, visible(seen, bits, first + i),
                scores_of(query, keys + (first + i) * dim, dim));
            _mm512_storeu_ps(weights + i, scores);
            top = _mm512_max_ps(top, scores);
        }
        const float now = fmaxf(largest, _mm512_reduce_max_ps(top));
        const float keep =
            _mm512_cvtss_f32(exponential(_mm512_set1_ps(largest - now)));
        total = _mm512_mul_ps(total, _mm512_set1_ps(keep));
        for (int i = 0; i < count; i += 16) {
            const __m512 scores = _mm512_loadu_ps(weights + i);
            const __m512 weight = exponential(_mm512_sub_ps(scores, _mm512_set1_ps(now)));
            total = _mm512_add_ps(total, weight);
            _mm512_storeu_ps(weights + i, weight);
        }
        const float *from = values + first * dim;
        int64_t i = 0;
        for (; i + 16 * HEAD_CHUNK <= dim; i += 16 * HEAD_CHUNK)
            mix(weights, from + i, count, dim, keep, out + i, HEAD_CHUNK);
        for (; i < dim; i += 16) mix(weights, from + i, count, dim, keep, out + i, 1);
        largest = now;
    }
    const float sum = _mm512_reduce_add_ps(total);
    for (int64_t i = 0; i < dim; i++) out[i] /= sum;
}

static void attend_head(const Model *model, const Layer *layer, const Step *step, int64_t unit) {
    const int64_t dim = model->dim, row = unit % step->rows, head = unit / step->rows;
    const int64_t source = head / (model->heads / model->kv_heads), slot = step->slots[row];
    const float *query = step->wide + (row * (model->heads + 2 * model->kv_heads) + head) * dim;
    attend(
        query, cell_of(model, layer, slot, source, 0),
        cell_of(model, layer, slot, source + model->kv_heads, 0), step->seen[row], step->bits[row],
        dim, step->narrow + (row * model->heads + head) * dim);
}

// Keys and values are all stored before any row reads them. Units go head by head: threads then have
// as many late rows, which see more, as early ones, and rows share what they read.
static void attention(const Model *model, const Layer *layer, const Step *step, Team team) {
    FOR_SHARE(unit, step->rows * (model->heads + 2 * model->kv_heads))
        place_head(model, layer, step, unit);
    meet(team);
    FOR_SHARE(unit, step->rows * model->heads) attend_head(model, layer, step, unit);
    meet(team);
}

// A row of the next product's input; the adapter's products read rows of masks, which lie together.
static void give_row(const Step *step, const float *x, int64_t in, int64_t row) {
    const Rows *from = &step->inputs, *to = &step->mask_inputs;
    quantise_row(x, in, *from, (int)row);
    for (int64_t mask = 0; mask < step->mask_rows; mask++) {
        if (step->masks[mask] != row) continue;
        __builtin_memcpy(to->levels + mask * in, from->levels + row * in, (size_t)in);
        to->steps[mask] = from->steps[row];
        to->offsets[mask] = from->offsets[row];
    }
}

static void multiply(const Matrix *w, Rows x, int64_t rows, Target to, Team team) {
    open_tiles(w->in, (int)rows);
    FOR_SHARE(block, w->out / BLOCK) product_block(w, x, (int)rows, block, to);
}

// wide at rows of masks += low @ up.T. Each thread quantises all of low for itself, which is little,
// and adds where it wrote the base's product: so nobody waits.
static void update(const Matrix *up, const Step *step, Team team) {
    const int64_t rank = up->in, masks = step->mask_rows;
    const int64_t room = (masks + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    int8_t levels[room * rank];
    float steps[masks];
    int32_t offsets[masks];
    const Rows low = {levels, steps, offsets};
    for (int64_t mask = 0; mask < masks; mask++)
        quantise_row(step->low + mask * rank, rank, low, (int)mask);
    multiply(up, low, masks, (Target){step->wide, step->masks, 1}, team);
}

// wide = projection of the rows in `inputs`.
static void project(const Projection *projection, const Step *step, Team team) {
    const Matrix *down = &projection->down;
    const int updates = step->mask_rows > 0 && down->levels;
    if (updates)
        multiply(down, step->mask_inputs, step->mask_rows, (Target){step->low, 0, 0}, team);
    multiply(&projection->base, step->inputs, step->rows, (Target){step->wide, 0, 0}, team);
    meet(team);
    if (updates) {
        update(&projection->up, step, team);
        meet(team);
    }
}

// x += what the projection before wrote; then x, normed, is the next one's input.
static void norm_inputs(
    const Model *model, const float *weight, const Step *step, int first, Team team) {
    const int64_t size = model->hidden;
    FOR_SHARE(row, step->rows) {
        float *x = step->x + row * size, *normed = step->narrow + row * size;
        if (!first) add_row(x, step->wide + row * size, size);
        norm_row(x, weight, size, model->epsilon, normed);
        give_row(step, normed, size, row);
    }
    meet(team);
}

static void run_layer(const Model *model, const Layer *layer, const Step *step, Team team) {
    const int64_t mixed = model->heads * model->dim, inner = model->inner;
    norm_inputs(model, layer->attention_norm, step, layer == model->layers, team);
    project(&layer->query_key_value, step, team);
    attention(model, layer, step, team);
    FOR_SHARE(row, step->rows) give_row(step, step->narrow + row * mixed, mixed, row);
    meet(team);
    project(&layer->output, step, team);
    norm_inputs(model, layer->mlp_norm, step, 0, team);
    project(&layer->gate_up, step, team);
    FOR_SHARE(row, step->rows) {
        float *active = step->narrow + row * inner;
        activate_row(step->wide + row * 2 * inner, inner, active);
        give_row(step, active, inner, row);
    }
    meet(team);
    project(&layer->down, step, team);
}

// All layers; threads that meet take a tenth of what starting a team for each product would.
void marslm_step(const Model *model, const Step *step, int threads) {
    Meeting meeting = {0, 0, 0};
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const Team team = team_at(&meeting);
        for (int64_t i = 0; i < model->count; i++) run_layer(model, model->layers + i, step, team);
        FOR_SHARE(row, step->rows)
            add_row(step->x + row * model->hidden, step->wide + row * model->hidden, model->hidden);
        close_tiles();
    }
}

// The pieces between products, for steps whose products are left to others.

// narrow = x, normed.
void marslm_norm(const Model *model, const Step *step, const float *weight, int threads) {
    const int64_t size = model->hidden;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < step->rows; row++)
        norm_row(step->x + row * size, weight, size, model->epsilon, step->narrow + row * size);
}

// narrow = attention over queries, keys and values in wide.
void marslm_attention(const Model *model, const Step *step, int index, int threads) {
    Meeting meeting = {0, 0, 0};
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const Team team = team_at(&meeting);
        attention(model, model->layers + index, step, team);
    }
}

// narrow = silu(gate) * up for gates and ups in wide.
void marslm_activate(const Model *model, const Step *step, int threads) {
    const int64_t inner = model->inner;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < step->rows; row++)
        activate_row(step->wide + row * 2 * inner, inner, step->narrow + row * inner);
}
