// All decoder layers of a step of few rows in one call, and the same pieces one by one for many.
//
// A row's result depends on nothing but the row and the cells it sees: every sum over a row or over
// cells is taken in an order that neither the other rows nor the threads change.

#include "product.h"

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

enum { SPAN = 128, HEAD_CHUNK = SUMS_KEPT < 8 ? 2 : 4, SPINS = 2000 };

// A linear layer, and what a mask-only adapter adds at rows of masks; no parts without one.
typedef struct {
    Matrix base;
    Update update;
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
// [rows, widest input], low [masks, ranks of the widest update].
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
static inline Lanes exponential(Lanes x) {
    const Lanes n = round_lanes(multiply(x, every(1.44269504f)));
    // ln 2 in two parts, so that n times it loses nothing.
    Lanes r = take_product(x, n, every(0.693359375f));
    r = take_product(r, n, every(-2.12194440e-4f));
    static const float series[] = {
        1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
    Lanes y = every(1.0f / 5040);
    for (int i = 0; i < 7; i++) y = multiply_add(y, r, every(series[i]));
    return scale_by(y, n, x, -87.0f);
}

// to = x / sqrt(mean(x^2) + epsilon) * weight; `to` may be x.
static void norm_row(const float *x, const float *weight, int64_t size, float epsilon, float *to) {
    Lanes squares = every(0);
    for (int64_t i = 0; i < size; i += LANES) {
        const Lanes part = load(x + i);
        squares = multiply_add(part, part, squares);
    }
    const Lanes scale = every(1.0f / sqrtf(sum(squares) / (float)size + epsilon));
    for (int64_t i = 0; i < size; i += LANES)
        store(to + i, multiply(multiply(load(x + i), scale), load(weight + i)));
}

static void add_row(float *x, const float *y, int64_t size) {
    for (int64_t i = 0; i < size; i++) x[i] += y[i];
}

// to = silu(gate) * up; gate and up lie side by side.
static void activate_row(const float *gate, int64_t inner, float *to) {
    for (int64_t i = 0; i < inner; i += LANES) {
        const Lanes x = load(gate + i);
        const Lanes below = add(every(1), exponential(subtract(every(0), x)));
        store(to + i, multiply(divide(x, below), load(gate + inner + i)));
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

// Which of the 16 cells from `cell` on a row sees.
static inline uint16_t visible(int64_t seen, uint64_t bits, int64_t cell) {
    const int64_t before = seen - cell;
    if (before >= 16) return 0xffff;
    if (before > 0) return (uint16_t)(((1u << before) - 1) | bits << before);
    return before > -64 ? (uint16_t)(bits >> -before) : 0;
}

// out = out * keep + weights @ values, for `parts` times 16 columns. Even and odd cells have sums of
// their own, since each instruction waits for the one before on the same sum.
SPECIAL mix(
    const float *weights, const float *values, int count, int64_t dim, float keep, float *out,
    const int parts) {
    Lanes even[HEAD_CHUNK], odd[HEAD_CHUNK];
    for (int p = 0; p < parts; p++) {
        even[p] = multiply(load(out + LANES * p), every(keep));
        odd[p] = every(0);
    }
    for (int cell = 0; cell < count; cell += 2, values += 2 * dim) {
        const Lanes first = every(weights[cell]), second = every(weights[cell + 1]);
        for (int p = 0; p < parts; p++) {
            even[p] = multiply_add(first, load(values + LANES * p), even[p]);
            odd[p] = multiply_add(second, load(values + dim + LANES * p), odd[p]);
        }
    }
    for (int p = 0; p < parts; p++) store(out + LANES * p, add(even[p], odd[p]));
}

// Attention of one head of one row. Cells are taken in spans that begin at fixed places, and what is
// not seen adds exact zeros; so the result does not depend on how much of the cache is filled.
static void attend(
    const float *query, const float *keys, const float *values, int64_t seen, uint64_t bits,
    int64_t dim, float *out) {
    const int64_t end = seen + (bits ? 64 - __builtin_clzll(bits) : 0);
    const Lanes nothing = every(-INFINITY);
    float most = -INFINITY;
    Lanes total = every(0);
    for (int64_t i = 0; i < dim; i++) out[i] = 0;
    for (int64_t first = 0; first < end; first += SPAN) {
        const int count = end - first < SPAN ? (int)((end - first + 15) / 16 * 16) : SPAN;
        float weights[SPAN];
        Lanes top = nothing;
        for (int i = 0; i < count; i += LANES) {
            const Lanes scores = where(
                visible(seen, bits, first + i), products(query, keys + (first + i) * dim, dim),
                nothing);
            store(weights + i, scores);
            top = larger(top, scores);
        }
        const float now = fmaxf(most, largest(top));
        const float keep = first_of(exponential(every(most - now)));
        total = multiply(total, every(keep));
        for (int i = 0; i < count; i += LANES) {
            const Lanes weight = exponential(subtract(load(weights + i), every(now)));
            total = add(total, weight);
            store(weights + i, weight);
        }
        const float *from = values + first * dim;
        int64_t i = 0;
        for (; i + LANES * HEAD_CHUNK <= dim; i += LANES * HEAD_CHUNK)
            mix(weights, from + i, count, dim, keep, out + i, HEAD_CHUNK);
        for (; i < dim; i += LANES) mix(weights, from + i, count, dim, keep, out + i, 1);
        most = now;
    }
    const float all = sum(total);
    for (int64_t i = 0; i < dim; i++) out[i] /= all;
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

// A row of what `w` multiplies next; the adapter's products read rows of masks, which lie together.
static void give_row(const Matrix *w, const Step *step, const float *x, int64_t row) {
    prepare_row(w, x, step->inputs, row);
    for (int64_t mask = 0; mask < step->mask_rows; mask++)
        if (step->masks[mask] == row) copy_row(w, step->inputs, row, step->mask_inputs, mask);
}

static void share_product(const Matrix *w, Rows x, int64_t rows, Target to, Team team) {
    open_tiles(w, rows);
    FOR_SHARE(block, w->out / BLOCK) product_block(w, x, rows, block, to);
}

// wide at rows of masks += low @ up.T. Each thread prepares all of low for itself, which is little,
// and adds where it wrote the base's product: so nobody waits.
static void add_update(const Update *update, const Step *step, Team team) {
    const Matrix *up = &update->up;
    const int64_t ranks = update->parts * up->in, masks = step->mask_rows;
    const int64_t rows = (masks + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    float values[rows * ranks], steps[rows * update->parts];
    int32_t offsets[rows * update->parts];
    const Rows room = {values, steps, offsets};
    for (int64_t mask = 0; mask < masks; mask++)
        prepare_low(update, step->low + mask * ranks, room, rows, mask);
    open_tiles(up, masks);
    FOR_SHARE(block, up->out / BLOCK)
        update_block(update, room, rows, masks, block, (Target){step->wide, step->masks, 1});
}

// wide = projection of the rows in `inputs`.
static void project(const Projection *projection, const Step *step, Team team) {
    const Update *update = &projection->update;
    const int updates = step->mask_rows > 0 && update->parts;
    if (updates) {
        const Target low = {step->low, 0, 0};
        share_product(&update->down, step->mask_inputs, step->mask_rows, low, team);
    }
    share_product(&projection->base, step->inputs, step->rows, (Target){step->wide, 0, 0}, team);
    meet(team);
    if (updates) {
        add_update(update, step, team);
        meet(team);
    }
}

// x += what the projection before wrote; then x, normed, is what `next` multiplies.
static void norm_inputs(
    const Model *model, const float *weight, const Projection *next, const Step *step, int first,
    Team team) {
    const int64_t size = model->hidden;
    FOR_SHARE(row, step->rows) {
        float *x = step->x + row * size, *normed = step->narrow + row * size;
        if (!first) add_row(x, step->wide + row * size, size);
        norm_row(x, weight, size, model->epsilon, normed);
        give_row(&next->base, step, normed, row);
    }
    meet(team);
}

static void run_layer(const Model *model, const Layer *layer, const Step *step, Team team) {
    const int64_t mixed = model->heads * model->dim, inner = model->inner;
    const int first = layer == model->layers;
    norm_inputs(model, layer->attention_norm, &layer->query_key_value, step, first, team);
    project(&layer->query_key_value, step, team);
    attention(model, layer, step, team);
    FOR_SHARE(row, step->rows)
        give_row(&layer->output.base, step, step->narrow + row * mixed, row);
    meet(team);
    project(&layer->output, step, team);
    norm_inputs(model, layer->mlp_norm, &layer->gate_up, step, 0, team);
    project(&layer->gate_up, step, team);
    FOR_SHARE(row, step->rows) {
        float *active = step->narrow + row * inner;
        activate_row(step->wide + row * 2 * inner, inner, active);
        give_row(&layer->down.base, step, active, row);
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
