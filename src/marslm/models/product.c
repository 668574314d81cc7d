// One product at a time, for few rows or for many in pieces; and rows of levels by themselves.

#include "product.h"

// Rows that are prepared together: they and a block of weights stay near the core.
enum { PIECE = 64 };

// What a caller has to know: how levels are packed, and how much room there must be.
const int marslm_level_depth = LEVEL_DEPTH, marslm_level_offset = LEVEL_OFFSET;
const int marslm_piece = PIECE, marslm_most_parts = MOST_PARTS;

static void product(
    const float *x, const Matrix *w, Rows scratch, int rows, Target to, int threads) {
#pragma omp parallel num_threads(threads) if (threads > 1)
    for (int first = 0; first < rows; first += PIECE) {
        const int count = rows - first < PIECE ? rows - first : PIECE;
        const Target piece = {to.y + first * w->out, to.place, to.add};
#pragma omp for schedule(static)
        for (int row = 0; row < count; row++)
            prepare_row(w, x + (first + row) * w->in, scratch, row);
        open_tiles(w, count);
#pragma omp for schedule(static)
        for (int64_t block = 0; block < w->out / BLOCK; block++)
            product_block(w, scratch, count, block, piece);
        close_tiles();
    }
}

// The rows of x as levels and steps, for a product that is made elsewhere.
void marslm_level_rows(const float *x, const Rows *to, int rows, int in, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int row = 0; row < rows; row++) quantise_row(x + (int64_t)row * in, in, *to, row);
}

// y = x @ w.T + bias; `scratch` has room for a piece.
void marslm_linear(
    const float *x, const Matrix *w, float *y, const Rows *scratch, int rows, int threads) {
    product(x, w, *scratch, rows, (Target){y, 0, 0}, threads);
}

// y += the update of x. low: room for [rows, parts * rank].
void marslm_update(
    const float *x, const Update *update, float *y, float *low, const Rows *scratch, int rows,
    int threads) {
    const Matrix *up = &update->up;
    const int64_t ranks = update->parts * up->in;
    product(x, &update->down, *scratch, rows, (Target){low, 0, 0}, threads);
#pragma omp parallel num_threads(threads) if (threads > 1)
    for (int first = 0; first < rows; first += PIECE) {
        const int count = rows - first < PIECE ? rows - first : PIECE;
        const Target piece = {y + first * up->out, 0, 1};
#pragma omp for schedule(static)
        for (int row = 0; row < count; row++)
            prepare_low(update, low + (first + row) * ranks, *scratch, PIECE, row);
        open_tiles(up, count);
#pragma omp for schedule(static)
        for (int64_t block = 0; block < up->out / BLOCK; block++)
            update_block(update, *scratch, PIECE, count, block, piece);
        close_tiles();
    }
}
