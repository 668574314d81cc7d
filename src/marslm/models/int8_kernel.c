// One int8 product at a time, for few rows; for many, their levels.

#include "int8_product.h"

static void product(
    const float *x, const Matrix *w, Rows scratch, int rows, Target to, int threads) {
    for (int r = 0; r < rows; r++) quantise_row(x + r * w->in, w->in, scratch, r);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        open_tiles(w->in, rows);
#pragma omp for schedule(static)
        for (int64_t block = 0; block < w->out / BLOCK; block++)
            product_block(w, scratch, rows, block, to);
        close_tiles();
    }
}

// The rows of x as levels and steps, for a product that is made elsewhere.
void marslm_int8_rows(const float *x, const Rows *to, int rows, int in, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int r = 0; r < rows; r++) quantise_row(x + (int64_t)r * in, in, *to, r);
}

// y = x @ w.T + bias; `scratch` has room for whole tiles.
void marslm_int8_linear(
    const float *x, const Matrix *w, float *y, const Rows *scratch, int rows, int threads) {
    product(x, w, *scratch, rows, (Target){y, 0, 0}, threads);
}

// y += (x @ down.T) @ up.T. low: room for [rows][rank].
void marslm_int8_update(
    const float *x, const Matrix *down, const Matrix *up, float *y, float *low,
    const Rows *scratch, int rows, int threads) {
    product(x, down, *scratch, rows, (Target){low, 0, 0}, threads);
    product(low, up, *scratch, rows, (Target){y, 0, 1}, threads);
}
