/* A row of an input is rounded once a step, whoever reads it. Callers mark rows first, then all marked rows
 * are filled at once on all threads. Carving with no base counts the bytes, so the count cannot differ from
 * what is used. */
#include "runtime/forward/context/rounded.h"

#include "formats/base/memory.h"
#include "runtime/forward/context/steps.h"

#include <string.h>

/* Activations of the longest row that enters a product with weights. */
static size_t longest_row(const struct moec_config *config)
{
    uint32_t longest = config->n_embd;
    for (struct moec_dense_walk at = {0}; moec_dense_next_matrix(config, &at);)
        longest = at.columns > longest ? at.columns : longest;
    return longest;
}

/* One walk decides the layout, as in scratch.c: without a base it counts. */
static uint64_t carve(struct moec_rounded *rounded, uint8_t *base)
{
    uint64_t used = (sizeof *rounded + 63) / 64 * 64;
    const uint64_t rows = rounded->max_rows;
    for (int i = 0; i < MOEC_ROUNDED_INPUTS; i++) {
        rounded->spans[i] = base == NULL ? NULL : (struct moec_int8_span *)(void *)(base + used);
        used += rows * rounded->row_spans * sizeof *rounded->spans[i];
        rounded->marks[i] = base == NULL ? NULL : base + used;
        used += (rows + 63) / 64 * 64;
    }
    rounded->tiles = base == NULL ? NULL : (struct moec_int8_tile *)(void *)(base + used);
    used += moec_int8_tiles(rounded->max_rows, rounded->row_spans) * sizeof *rounded->tiles;
    rounded->list = base == NULL ? NULL : (uint32_t *)(void *)(base + used);
    return used + MOEC_ROUNDED_INPUTS * rows * sizeof *rounded->list;
}

static struct moec_rounded sizes_of(const struct moec_config *config, uint32_t max_rows)
{
    return (struct moec_rounded){.max_rows = max_rows, .row_spans = moec_int8_spans(longest_row(config))};
}

uint64_t moec_rounded_bytes(const struct moec_config *config, uint32_t max_rows)
{
    struct moec_rounded sizes = sizes_of(config, max_rows);
    return carve(&sizes, NULL);
}

enum moec_status moec_rounded_create(const struct moec_config *config, uint32_t max_rows,
                                     const struct moec_kernels *kernels, struct moec_rounded **out,
                                     struct moec_error *err)
{
    void *memory = NULL;
    MOEC_TRY(moec_alloc_aligned(&memory, moec_rounded_bytes(config, max_rows), 1,
                                "rounded activations of the forward pass", err));
    struct moec_rounded sizes = sizes_of(config, max_rows);
    sizes.kernels = moec_int8_kernels_of(kernels);
    (void)carve(&sizes, memory);
    *out = memory;
    **out = sizes;
    return MOEC_OK;
}

/* ---- rounding ---- */

struct rounding {
    const struct moec_rounded *rounded;
    size_t stride, k;
    uint32_t n;         /* entries of the list: input * max_rows + row */
    bool is_transposed; /* the list's rows stand side by side too */
};

/* Rows of the list that are rounded together. */
#define ROWS_OF_ITEM 16u
_Static_assert(ROWS_OF_ITEM == MOEC_LANES, "an item's rows are a tile");

static void round_item(void *context, size_t item, int thread)
{
    (void)thread;
    const struct rounding *rounding = context;
    const struct moec_rounded *rounded = rounding->rounded;
    const struct moec_int8_span *rows[ROWS_OF_ITEM];
    const uint32_t first = (uint32_t)item * ROWS_OF_ITEM, n = moec_min_u32(ROWS_OF_ITEM, rounding->n - first);
    const size_t n_spans = moec_int8_spans(rounding->k);
    for (uint32_t i = first; i < first + n; i++) {
        const uint32_t input = rounded->list[i] / rounded->max_rows,
                       row = rounded->list[i] % rounded->max_rows;
        struct moec_int8_span *spans = rounded->spans[input] + row * rounded->row_spans;
        rounded->kernels->round(rounded->inputs[input] + row * rounding->stride, rounding->k, spans);
        rows[i - first] = spans;
    }
    if (rounding->is_transposed)
        moec_int8_lay(rows, n, n_spans, rounded->tiles + item * n_spans);
}

static void round_list(const struct moec_forward *forward, size_t stride, size_t k, uint32_t n,
                       bool is_transposed)
{
    struct rounding rounding = {forward->rounded, stride, k, n, is_transposed};
    /* A value is rounded in about the time of some multiply-adds. */
    const uint64_t work = 4 * (uint64_t)n * k;
    moec_forward_run(forward, (n + ROWS_OF_ITEM - 1) / ROWS_OF_ITEM, work, round_item, &rounding);
}

void moec_rounded_fill(const struct moec_forward *forward, const float *x, size_t stride, uint32_t n,
                       size_t k)
{
    struct moec_rounded *rounded = forward->rounded;
    rounded->inputs[0] = x;
    rounded->inputs[1] = NULL;
    for (uint32_t i = 0; i < n; i++)
        rounded->list[i] = i;
    round_list(forward, stride, k, n, n >= rounded->kernels->many_tokens);
}

void moec_rounded_begin(const struct moec_forward *forward)
{
    struct moec_rounded *rounded = forward->rounded;
    for (int i = 0; i < MOEC_ROUNDED_INPUTS; i++) {
        rounded->inputs[i] = NULL;
        memset(rounded->marks[i], 0, rounded->max_rows);
    }
}

/* The place of an input; a step has no more of them than places. */
static uint32_t place_of(const struct moec_rounded *rounded, const float *input)
{
    uint32_t place = 0;
    while (place + 1 < MOEC_ROUNDED_INPUTS && rounded->inputs[place] != input &&
           rounded->inputs[place] != NULL)
        place++;
    return place;
}

void moec_rounded_mark(const struct moec_forward *forward, const float *input, uint32_t row)
{
    struct moec_rounded *rounded = forward->rounded;
    const uint32_t place = place_of(rounded, input);
    rounded->inputs[place] = input;
    rounded->marks[place][row] = 1;
}

void moec_rounded_fill_marked(const struct moec_forward *forward, size_t stride, size_t k)
{
    const struct moec_rounded *rounded = forward->rounded;
    uint32_t n = 0;
    for (uint32_t i = 0; i < MOEC_ROUNDED_INPUTS; i++)
        for (uint32_t row = 0; rounded->inputs[i] != NULL && row < rounded->max_rows; row++)
            if (rounded->marks[i][row])
                rounded->list[n++] = i * rounded->max_rows + row;
    round_list(forward, stride, k, n, false);
}

const struct moec_int8_span *moec_rounded_row(const struct moec_forward *forward, const float *input,
                                              uint32_t row)
{
    const struct moec_rounded *rounded = forward->rounded;
    return rounded->spans[place_of(rounded, input)] + row * rounded->row_spans;
}
