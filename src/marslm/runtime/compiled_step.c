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

// SPAN: cells that are read together, one for each bit of a word; keys and values of a head in so many
// cells stay near the core. PIECE_ROWS: rows of a text that read a span in turn.
enum { SPAN = 64, PIECE_ROWS = 8, HEAD_CHUNK = SUMS_KEPT < 8 ? 2 : 4, SPINS = 2000 };

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
// after them cell j if bit j is set. masks: which rows get the adapter's update. parts: room for what
// each row's heads read in each of `spans` spans, 0 if there are too many rows for that.
// x: [rows, hidden], in and out. The rest is room: wide [rows, widest projection], narrow
// [rows, widest input], low [masks, ranks of the widest update].
typedef struct {
    const int32_t *slots, *positions, *cells, *seen, *masks;
    const uint64_t *bits;
    float *x, *wide, *narrow, *low, *parts;
    Rows inputs, mask_inputs;
    int64_t rows, mask_rows, spans;
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

// to = weights @ values, for `parts` times 16 columns. Even and odd cells have sums of their own, since
// each instruction waits for the one before on the same sum.
SPECIAL mix(
    const float *weights, const float *values, int count, int64_t dim, float *to, const int parts) {
    Lanes even[HEAD_CHUNK], odd[HEAD_CHUNK];
    for (int p = 0; p < parts; p++) even[p] = odd[p] = every(0);
    for (int cell = 0; cell < count; cell += 2, values += 2 * dim) {
        const Lanes first = every(weights[cell]), second = every(weights[cell + 1]);
        for (int p = 0; p < parts; p++) {
            even[p] = multiply_add(first, load(values + LANES * p), even[p]);
            odd[p] = multiply_add(second, load(values + dim + LANES * p), odd[p]);
        }
    }
    for (int p = 0; p < parts; p++) store(to + LANES * p, add(even[p], odd[p]));
}

static inline float exponential_of(float x) { return first_of(exponential(every(x))); }

// Which of the cells from `first` on a row sees, cell first + j as bit j.
static inline uint64_t visible(const Step *step, int64_t row, int64_t first) {
    const int64_t before = step->seen[row] - first;
    const uint64_t bits = step->bits[row];
    if (before >= SPAN) return ~UINT64_C(0);
    if (before > 0) return ((UINT64_C(1) << before) - 1) | bits << before;
    return before > -SPAN ? bits >> -before : 0;
}

// How many spans hold what a row sees.
static inline int64_t spans_of(const Step *step, int64_t row) {
    const uint64_t bits = step->bits[row];
    const int64_t end = step->seen[row] + (bits ? 64 - __builtin_clzll(bits) : 0);
    return (end + SPAN - 1) / SPAN;
}

// What one head of a row reads in one span or in several is a part: [dim] values, weighted with
// e^(score - most), then `most`, the largest score, then the sum of the weights.
static inline int64_t part_size(const Model *model) { return model->dim + LANES; }

// Asks for 16 cells of the next span, while there is arithmetic to do with this one.
static inline void fetch_cells(const float *cells, int64_t dim) {
    for (int64_t i = 0; i < LANES * dim; i += LANES)
        _mm_prefetch((const char *)(cells + SPAN * dim + i), _MM_HINT_T1);
}

// Reads the cells of a span that are `seen`, at least one; the others add exact zeros. ahead: asks for
// the next span's.
static void read_span(
    const float *query, const float *keys, const float *values, uint64_t seen, int64_t dim,
    int ahead, float *part) {
    const int count = (64 - __builtin_clzll(seen) + LANES - 1) / LANES * LANES;
    float weights[SPAN];
    Lanes top = every(-INFINITY), total = every(0);
    for (int i = 0; i < count; i += LANES) {
        if (ahead) fetch_cells(keys + i * dim, dim);
        const Lanes scores = where(
            (uint16_t)(seen >> i), products(query, keys + i * dim, dim), every(-INFINITY));
        store(weights + i, scores);
        top = larger(top, scores);
    }
    const float most = largest(top);
    for (int i = 0; i < count; i += LANES) {
        if (ahead) fetch_cells(values + i * dim, dim);
        const Lanes weight = exponential(subtract(load(weights + i), every(most)));
        total = add(total, weight);
        store(weights + i, weight);
    }
    int64_t i = 0;
    for (; i + LANES * HEAD_CHUNK <= dim; i += LANES * HEAD_CHUNK)
        mix(weights, values + i, count, dim, part + i, HEAD_CHUNK);
    for (; i < dim; i += LANES) mix(weights, values + i, count, dim, part + i, 1);
    part[dim] = most;
    part[dim + 1] = sum(total);
}

// Reads what one head of a row sees of a span; returns whether there is any.
static int read_part(
    const Model *model, const Layer *layer, const Step *step, int64_t row, int64_t head,
    int64_t span, float *part) {
    const uint64_t seen = visible(step, row, span * SPAN);
    if (!seen) return 0;
    const int64_t dim = model->dim, source = head / (model->heads / model->kv_heads);
    const int64_t slot = step->slots[row], first = span * SPAN;
    const float *query = step->wide + (row * (model->heads + 2 * model->kv_heads) + head) * dim;
    read_span(
        query, cell_of(model, layer, slot, source, first),
        cell_of(model, layer, slot, source + model->kv_heads, first), seen, dim,
        head % (model->heads / model->kv_heads) == 0, part);
    return 1;
}

static void begin_part(float *part, int64_t dim) {
    for (int64_t i = 0; i < dim; i++) part[i] = 0;
    part[dim] = -INFINITY;
    part[dim + 1] = 0;
}

// Puts the next span's part to those before it.
static void merge_part(float *to, const float *next, int64_t dim) {
    const float most = fmaxf(to[dim], next[dim]);
    const float keep = exponential_of(to[dim] - most), take = exponential_of(next[dim] - most);
    for (int64_t i = 0; i < dim; i += LANES) {
        const Lanes kept = multiply(load(to + i), every(keep));
        store(to + i, multiply_add(load(next + i), every(take), kept));
    }
    to[dim] = most;
    to[dim + 1] = to[dim + 1] * keep + next[dim + 1] * take;
}

// narrow = the weighted mean.
static void end_part(
    const Model *model, const Step *step, int64_t row, int64_t head, const float *part) {
    float *to = step->narrow + (row * model->heads + head) * model->dim;
    for (int64_t i = 0; i < model->dim; i++) to[i] = part[i] / part[model->dim + 1];
}

// Neighbouring rows of one text: cells that several rows and heads read come to the core once.
typedef struct {
    int64_t first, count, spans;
} Piece;

static Piece piece_at(const Step *step, int64_t first) {
    Piece piece = {first, 0, 0};
    while (piece.count < PIECE_ROWS && first + piece.count < step->rows &&
           step->slots[first + piece.count] == step->slots[first]) {
        const int64_t spans = spans_of(step, first + piece.count++);
        if (spans > piece.spans) piece.spans = spans;
    }
    return piece;
}

static int64_t cut(const Step *step, Piece *pieces) {
    int64_t count = 0;
    for (int64_t row = 0; row < step->rows; row += pieces[count++].count)
        pieces[count] = piece_at(step, row);
    return count;
}

// Attention of few rows: spans are read by all threads at once and merged in their order.
static void attend_by_span(const Model *model, const Layer *layer, const Step *step, Team team) {
    const int64_t heads = model->heads, group = heads / model->kv_heads, size = part_size(model);
    Piece pieces[step->rows];
    const int64_t count = cut(step, pieces);
    int64_t unit = 0;
    for (int64_t p = 0; p < count; p++)
        for (int64_t source = 0; source < model->kv_heads; source++)
            for (int64_t span = 0; span < pieces[p].spans; span++, unit++) {
                if (unit % team.threads != team.thread) continue;
                for (int64_t i = 0; i < pieces[p].count * group; i++) {
                    const int64_t row = pieces[p].first + i / group, head = source * group + i % group;
                    float *part = step->parts + ((row * heads + head) * step->spans + span) * size;
                    read_part(model, layer, step, row, head, span, part);
                }
            }
    meet(team);
    FOR_SHARE(unit_of_all, step->rows * heads) {
        const int64_t row = unit_of_all / heads, head = unit_of_all % heads;
        float part[size];
        begin_part(part, model->dim);
        for (int64_t span = 0; span < spans_of(step, row); span++)
            if (visible(step, row, span * SPAN))
                merge_part(part, step->parts + (unit_of_all * step->spans + span) * size, model->dim);
        end_part(model, step, row, head, part);
    }
}

// Attention of many rows: threads share pieces, which merge spans as they read them.
static void attend_by_piece(const Model *model, const Layer *layer, const Step *step, Team team) {
    const int64_t group = model->heads / model->kv_heads, size = part_size(model);
    Piece pieces[step->rows];
    const int64_t count = cut(step, pieces);
    float parts[PIECE_ROWS * group * size], next[size];
    FOR_SHARE(unit, count * model->kv_heads) {
        const Piece piece = pieces[unit % count];
        const int64_t first_head = unit / count * group, readers = piece.count * group;
        for (int64_t i = 0; i < readers; i++) begin_part(parts + i * size, model->dim);
        for (int64_t span = 0; span < piece.spans; span++)
            for (int64_t i = 0; i < readers; i++)
                if (read_part(
                        model, layer, step, piece.first + i / group, first_head + i % group, span,
                        next))
                    merge_part(parts + i * size, next, model->dim);
        for (int64_t i = 0; i < readers; i++)
            end_part(
                model, step, piece.first + i / group, first_head + i % group, parts + i * size);
    }
}

// Keys and values are all stored before any row reads them. Both ways give the same bits.
static void attention(const Model *model, const Layer *layer, const Step *step, Team team) {
    FOR_SHARE(unit, step->rows * (model->heads + 2 * model->kv_heads))
        place_head(model, layer, step, unit);
    meet(team);
    (step->parts ? attend_by_span : attend_by_piece)(model, layer, step, team);
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
