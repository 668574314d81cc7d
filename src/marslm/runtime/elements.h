// What a decoder layer does between its products and its attention, on one row or one head.

#include <math.h>

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
