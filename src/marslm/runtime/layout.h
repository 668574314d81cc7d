// What a step is given: the model's layers and the rows. `compiled_layout.py` fills these in.

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
