// Attention of a step's rows over the cache, which gets their keys and values first.
//
// A row's result depends on nothing but the row and the cells it sees: spans begin at fixed places,
// each is read by itself, and they are merged in their order.

// SPAN: cells that are read together, one for each bit of a word; keys and values of a head in so
// many cells stay near the core. PIECE_ROWS: rows of a text that read a span in turn.
enum { SPAN = 64, PIECE_ROWS = 8, HEAD_CHUNK = SUMS_KEPT < 8 ? 2 : 4 };

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

// to = weights @ values, for `parts` times 16 columns. Even and odd cells have sums of their own,
// since each instruction waits for the one before on the same sum.
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

// Reads the cells of a span that are `seen`, at least one; the others add exact zeros. ahead: asks
// for the next span's.
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

static inline float *part_at(
    const Model *model, const Step *step, int64_t row, int64_t head, int64_t span) {
    const int64_t place = (row * model->heads + head) * step->spans + span;
    return step->parts + place * part_size(model);
}

// Reads a span for all rows of a piece and all heads that share the keys and values `source`.
static void read_unit(
    const Model *model, const Layer *layer, const Step *step, const Piece *piece, int64_t source,
    int64_t span) {
    const int64_t group = model->heads / model->kv_heads;
    for (int64_t row = piece->first; row < piece->first + piece->count; row++)
        for (int64_t head = source * group; head < (source + 1) * group; head++)
            read_part(
                model, layer, step, row, head, span, part_at(model, step, row, head, span));
}

// Attention of few rows: spans are read by all threads at once and merged in their order.
static void attend_by_span(const Model *model, const Layer *layer, const Step *step, Team team) {
    Piece pieces[step->rows];
    const int64_t count = cut(step, pieces);
    int64_t unit = 0;
    for (int64_t p = 0; p < count; p++)
        for (int64_t source = 0; source < model->kv_heads; source++)
            for (int64_t span = 0; span < pieces[p].spans; span++)
                if (unit++ % team.threads == team.thread)
                    read_unit(model, layer, step, pieces + p, source, span);
    meet(team);
    FOR_SHARE(result, step->rows * model->heads) {
        const int64_t row = result / model->heads, head = result % model->heads;
        float part[part_size(model)];
        begin_part(part, model->dim);
        for (int64_t span = 0; span < spans_of(step, row); span++)
            if (visible(step, row, span * SPAN))
                merge_part(part, part_at(model, step, row, head, span), model->dim);
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
