// All decoder layers of a step of few rows in one call, and the same pieces one by one for many.
//
// A row's result depends on nothing but the row and the cells it sees: every sum over a row or over
// cells is taken in an order that neither the other rows nor the threads change.

// In the order in which they use one another.
#include "product.h"
#include "elements.h"
#include "layout.h"
#include "team.h"
#include "attention.h"

// What a caller has to know of attention's room.
const int marslm_span = SPAN;

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
