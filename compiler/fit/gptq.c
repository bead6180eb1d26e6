/* H is a lower triangle in bands of LANES, padded with zeros, in F64. Exact sums add tokens one by one; quick
 * ones add F32 sums of 64 tokens. The factor is a Cholesky factorisation from the last input up, so H = R R'
 * needs no inverse. Each element is subtracted from in one order, whatever the block or thread: results are
 * the same bits. */
#include "compiler/fit/gptq_internal.h"

#include "formats/base/memory.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define CHUNK_TOKENS  64u /* that wait to be added together */
#define ROWS          4u  /* of H that share a look at the inputs */
#define QUICK_ROWS    64u /* the same for quick sums, of so many columns at a time */
#define QUICK_COLUMNS 128u

/* Rows of the factor that are finished together, copied so that a tile of TILE columns is one run of memory. */
#define PANEL_ROWS 64u
#define TILE       8u

_Static_assert(CHUNK_TOKENS <= MOEC_SUM_CHUNK, "a chunk of tokens is one sum");

uint64_t moec_gptq_bytes(uint32_t n_input)
{
    return row_offset(padded(n_input)) * sizeof(double) +
           (uint64_t)CHUNK_TOKENS * padded(n_input) * sizeof(double) + n_input * sizeof(uint32_t);
}

static uint64_t panel_values(uint32_t n)
{
    return (uint64_t)padded(n) * PANEL_ROWS;
}

uint64_t moec_gptq_factor_bytes(uint32_t n_input)
{
    const uint64_t square = (uint64_t)n_input * row_stride(n_input) * sizeof(float);
    const uint64_t triangle = row_offset(padded(n_input)) * sizeof(double);
    const uint64_t factorising = triangle + panel_values(n_input) * sizeof(double);
    const uint64_t forms = square + (square > triangle ? square : triangle);
    return n_input * sizeof(double) + (forms > factorising ? forms : factorising);
}

uint64_t moec_gptq_encode_bytes(uint32_t n_row, uint32_t columns, bool by_input, int n_threads)
{
    const uint64_t n_weight = (uint64_t)n_row * columns, n_input = by_input ? n_row : columns;
    const uint64_t tile =
        moec_gptq_tile_bytes((uint32_t)n_input, by_input ? GROUP_MOST : moec_gptq_width(n_row, n_threads));
    const uint64_t tiles = (uint64_t)n_threads * tile;
    const uint64_t paths = moec_gptq_trellis_bytes(n_row, columns, by_input, n_threads);
    return n_weight + n_weight / LANES * (sizeof(float) + 1) + (tiles > paths ? tiles : paths);
}

enum moec_status moec_gptq_create(uint32_t n_input, enum moec_gptq_sums sums, struct moec_gptq **out,
                                  struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_gptq *gptq = NULL;
    const char *what = "products of inputs";
    if (n_input == 0 || n_input > MOEC_GPTQ_MAX_INPUTS)
        return moec_fail(err, MOEC_ERR_LIMIT, "a matrix has %" PRIu32 " inputs, expected 1 to %u", n_input,
                         MOEC_GPTQ_MAX_INPUTS);
    MOEC_TRY(moec_alloc((void **)&gptq, 1, sizeof *gptq, what, err));
    gptq->n = n_input;
    gptq->n_part = 1;
    MOEC_TRY_OUT(moec_alloc((void **)&gptq->h, row_offset(padded(n_input)), sizeof(double), what, err));
    void **inputs = sums == MOEC_GPTQ_QUICK ? (void **)&gptq->waiting : (void **)&gptq->inputs;
    MOEC_TRY_OUT(
        moec_alloc_aligned(inputs, (uint64_t)CHUNK_TOKENS * padded(n_input), sizeof(double), what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&gptq->order, n_input, sizeof(uint32_t), what, err));
    *out = gptq;
    gptq = NULL;
out:
    moec_gptq_free(gptq);
    return status;
}

static void forget_factor(struct moec_gptq *gptq)
{
    free(gptq->factor);
    free(gptq->unit);
    free(gptq->costs);
    free(gptq->square);
    gptq->factor = NULL;
    gptq->unit = NULL;
    gptq->costs = NULL;
    gptq->square = NULL;
}

void moec_gptq_free(struct moec_gptq *gptq)
{
    if (gptq == NULL)
        return;
    free(gptq->h);
    forget_factor(gptq);
    free(gptq->inputs);
    free(gptq->waiting);
    free(gptq->order);
    free(gptq);
}

/* ---- counted work ---- */

struct region {
    moec_parallel_body *body;
    void *context;
    uint64_t n_item, multiply_adds;
};

static void run_item(void *context, size_t item, int thread)
{
    const struct region *region = context;
    const uint64_t begun_ns = moec_work_begin(MOEC_WORK_FITTING),
                   each = region->multiply_adds / region->n_item;
    region->body(region->context, item, thread);
    moec_work_end(MOEC_WORK_FITTING, begun_ns,
                  item > 0 ? each : region->multiply_adds - each * (region->n_item - 1));
}

void moec_gptq_for(const struct moec_pool *pool, size_t n_item, moec_parallel_body *body, void *context,
                   uint64_t multiply_adds)
{
    struct region region = {body, context, n_item, multiply_adds};
    moec_parallel_for(pool, n_item, run_item, &region);
}

/* ---- products of inputs ---- */

/* Inputs wait by blocks of LANES: input i of token t stands at ((i / LANES) * CHUNK_TOKENS + t) * LANES + i %
 * LANES, so that a band of H reads two short runs of memory. */
static size_t input_at(uint32_t t, uint32_t i)
{
    return ((size_t)(i / LANES) * CHUNK_TOKENS + t) * LANES + i % LANES;
}

struct adding {
    struct moec_gptq *gptq;
    const struct moec_kernels *kernels;
    uint32_t n_tok;
};

static uint32_t band_rows(const struct moec_gptq *gptq)
{
    return gptq->waiting != NULL ? QUICK_ROWS : LANES;
}

uint32_t moec_gptq_bands(const struct moec_gptq *gptq)
{
    return (padded(gptq->n) + band_rows(gptq) - 1) / band_rows(gptq);
}

/* The item-th of the bands that are summed up. */
static uint32_t band_of(const struct moec_gptq *gptq, size_t item)
{
    return gptq->part + (uint32_t)item * gptq->n_part;
}

/* LANES rows of H, ROWS at a time: tokens are added in their order. Rows past the last input stay 0. */
GPTQ_CLONES static void add_exact(void *context, size_t item, int thread)
{
    (void)thread;
    const struct adding *adding = context;
    const struct moec_gptq *gptq = adding->gptq;
    const uint32_t first = band_of(gptq, item) * LANES;
    const size_t length = first + LANES; /* of each row of the band */
    for (uint32_t i = first; i < first + LANES; i += ROWS) {
        double *row = gptq->h + row_offset(i);
        for (uint32_t j = 0; j < length; j += LANES) {
            const double *left = gptq->inputs + input_at(0, i), *x = gptq->inputs + input_at(0, j);
            double sums[ROWS][LANES];
            for (uint32_t r = 0; r < ROWS; r++)
                memcpy(sums[r], row + r * length + j, sizeof sums[r]);
            for (uint32_t t = 0; t < adding->n_tok; t++, left += LANES, x += LANES)
                for (uint32_t r = 0; r < ROWS; r++)
                    for (uint32_t lane = 0; lane < LANES; lane++)
                        sums[r][lane] += left[r] * x[lane];
            for (uint32_t r = 0; r < ROWS; r++)
                memcpy(row + r * length + j, sums[r], sizeof sums[r]);
        }
    }
}

/* Adds sums of a chunk in F32. */
GPTQ_CLONES static void add_sums(const float *sums, uint32_t n, double *row)
{
    for (uint32_t j = 0; j < n; j += LANES)
        for (uint32_t lane = 0; lane < LANES; lane++)
            row[j + lane] += (double)sums[j + lane];
}

/* The same for QUICK_ROWS rows, with sums in F32 over the chunk. */
static void add_quickly(void *context, size_t item, int thread)
{
    (void)thread;
    const struct adding *adding = context;
    const struct moec_gptq *gptq = adding->gptq;
    const uint32_t width = padded(gptq->n), first = band_of(gptq, item) * QUICK_ROWS;
    const uint32_t n_row = width - first < QUICK_ROWS ? width - first : QUICK_ROWS, end = first + n_row;
    const float *rows = gptq->waiting + (size_t)CHUNK_TOKENS * width + (size_t)first * CHUNK_TOKENS;
    float sums[QUICK_ROWS * QUICK_COLUMNS];
    for (uint32_t from = 0; from < end; from += QUICK_COLUMNS) {
        const uint32_t n = end - from < QUICK_COLUMNS ? end - from : QUICK_COLUMNS;
        adding->kernels->sum_chunk(rows, CHUNK_TOKENS, n_row, gptq->waiting + from, width, adding->n_tok, n,
                                   sums, QUICK_COLUMNS);
        for (uint32_t r = 0; r < n_row; r++) {
            const uint32_t length = padded(first + r + 1), left = length > from ? length - from : 0;
            add_sums(sums + (size_t)r * QUICK_COLUMNS, left < n ? left : n,
                     gptq->h + row_offset(first + r) + from);
        }
    }
}

/* Adds what waits. */
static void flush(struct moec_gptq *gptq, const struct moec_pool *pool)
{
    struct adding adding = {gptq, moec_kernels_best(), gptq->n_waiting};
    const uint32_t n_band = moec_gptq_bands(gptq),
                   n = n_band > gptq->part ? (n_band - gptq->part - 1) / gptq->n_part + 1 : 0;
    if (gptq->n_waiting > 0 && n > 0)
        moec_gptq_for(pool, n, gptq->waiting != NULL ? add_quickly : add_exact, &adding,
                      adding.n_tok * (row_offset(padded(gptq->n)) / gptq->n_part));
    gptq->n_waiting = 0;
}

static void wait_exactly(struct moec_gptq *gptq, const float *x, float factor)
{
    for (uint32_t i = 0; i < padded(gptq->n); i++)
        gptq->inputs[input_at(gptq->n_waiting, i)] = (double)factor * (double)x[i];
}

static void wait_quickly(struct moec_gptq *gptq, const float *x, float factor)
{
    const uint32_t width = padded(gptq->n);
    float *token = gptq->waiting + (size_t)gptq->n_waiting * width;
    float *inputs = gptq->waiting + (size_t)CHUNK_TOKENS * width + gptq->n_waiting;
    for (uint32_t i = 0; i < width; i++)
        token[i] = inputs[(size_t)i * CHUNK_TOKENS] = factor * x[i];
}

void moec_gptq_add(struct moec_gptq *gptq, const struct moec_pool *pool, const float *x, size_t stride,
                   const float *factors, uint32_t n_tok)
{
    for (uint32_t t = 0; t < n_tok; t++, x += stride) {
        (gptq->waiting != NULL ? wait_quickly : wait_exactly)(gptq, x, factors != NULL ? factors[t] : 1);
        if (++gptq->n_waiting == CHUNK_TOKENS)
            flush(gptq, pool);
    }
    gptq->n_token += n_tok;
}

void moec_gptq_take_part(struct moec_gptq *gptq, uint32_t part, uint32_t n_part)
{
    gptq->part = part;
    gptq->n_part = n_part;
}

double *moec_gptq_band(struct moec_gptq *gptq, const struct moec_pool *pool, uint32_t band, uint64_t *n_value)
{
    const uint32_t rows = band_rows(gptq), first = band * rows, left = padded(gptq->n) - first;
    flush(gptq, pool);
    *n_value = row_offset(first + (left < rows ? left : rows)) - row_offset(first);
    return gptq->h + row_offset(first);
}

double moec_gptq_token_count(const struct moec_gptq *gptq)
{
    return gptq->n_token;
}

void moec_gptq_mix(struct moec_gptq *gptq, struct moec_gptq *other, double weight)
{
    const struct moec_pool alone = {1};
    const uint64_t n = row_offset(padded(gptq->n));
    flush(gptq, &alone);
    flush(other, &alone);
    for (uint64_t i = 0; i < n; i++)
        gptq->h[i] += weight * other->h[i];
    gptq->n_token += weight * other->n_token;
}

/* ---- order and factor ---- */

/* Largest H_ii first, ties to the lower index. */
static int compare_inputs(const void *a, const void *b, void *context)
{
    const struct moec_gptq *gptq = context;
    const uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    const double left = gptq->h[row_offset(i) + i], right = gptq->h[row_offset(j) + j];
    if (left != right)
        return left > right ? -1 : 1;
    return i < j ? -1 : 1;
}

static double h_at(const struct moec_gptq *gptq, uint32_t i, uint32_t j)
{
    return i > j ? gptq->h[row_offset(i) + j] : gptq->h[row_offset(j) + i];
}

/* A run of the order's inputs, first .. first + n - 1, and the sum of their H_ii. */
struct run {
    uint32_t first, n;
    double sum;
};

static int compare_runs(const void *a, const void *b)
{
    const struct run *left = a, *right = b;
    if (left->sum != right->sum)
        return left->sum > right->sum ? -1 : 1;
    return left->first < right->first ? -1 : 1;
}

/* Writes the order of inputs first .. first + n - 1: runs of `length` with the largest sums first, each of
 * them by halves in the same way. Runs of LANES, the shortest groups, are in the order of H_ii. */
static void order_runs(struct moec_gptq *gptq, uint32_t first, uint32_t n, uint32_t length, uint32_t *order)
{
    struct run runs[MOEC_GPTQ_MAX_INPUTS / GROUP_MOST];
    uint32_t n_run = 0;
    if (length < LANES) {
        for (uint32_t i = 0; i < n; i++)
            order[i] = first + i;
        qsort_r(order, n, sizeof *order, compare_inputs, gptq);
        return;
    }
    for (uint32_t from = first; from < first + n; from += length) {
        struct run *run = &runs[n_run++];
        *run = (struct run){from, first + n - from < length ? first + n - from : length, 0};
        for (uint32_t i = from; i < from + run->n; i++)
            run->sum += gptq->h[row_offset(i) + i];
    }
    qsort(runs, n_run, sizeof *runs, compare_runs);
    for (uint32_t r = 0; r < n_run; r++, order += runs[r - 1].n)
        order_runs(gptq, runs[r].first, runs[r].n, length / 2, order);
}

/* The share of the mean of H_ii that is added to each. */
static double damping_share(const struct moec_gptq *gptq, enum moec_gptq_order order)
{
    return order == MOEC_GPTQ_BY_INPUT ? MOEC_GPTQ_DAMPING
                                       : MOEC_GPTQ_FIT_DAMPING + MOEC_GPTQ_FIT_TOKENS / gptq->n_token;
}

double moec_gptq_noise(const struct moec_gptq *gptq, const struct moec_gptq_matrix *matrix,
                       const float *decoded)
{
    double sum = 0, trace = 0;
    if (gptq == NULL || gptq->unit == NULL)
        return 0;
    for (uint32_t i = 0; i < gptq->n; i++)
        trace += gptq->h[row_offset(i) + i];
    const double added = damping_share(gptq, gptq->factored) * trace / gptq->n;
    for (uint32_t r = 0; r < matrix->n_row; r++) {
        const size_t at = (size_t)r * matrix->columns;
        for (uint32_t c = 0; c < matrix->columns; c++) {
            const double off = (double)matrix->weights[at + c] - (double)decoded[at + c];
            const uint32_t input = matrix->by_input ? r : c;
            sum += off * off * (added + gptq->h[row_offset(input) + input]);
        }
    }
    return sum;
}

/* Copies H in order, with damping, into `factor`. */
static enum moec_status copy_ordered(struct moec_gptq *gptq, enum moec_gptq_order order, double *damping,
                                     struct moec_error *err)
{
    double sum = 0;
    for (uint32_t i = 0; i < gptq->n; i++) {
        const double square = gptq->h[row_offset(i) + i];
        if (!isfinite(square))
            return moec_fail(err, MOEC_ERR_FORMAT, "input %" PRIu32 " of the matrix is not finite", i);
        gptq->order[i] = i;
        sum += square;
    }
    *damping = damping_share(gptq, order) * sum / gptq->n;
    if (order == MOEC_GPTQ_BY_GROUP)
        order_runs(gptq, 0, gptq->n, GROUP_MOST, gptq->order);
    else if (order == MOEC_GPTQ_BY_INPUT)
        qsort_r(gptq->order, gptq->n, sizeof *gptq->order, compare_inputs, gptq);
    for (uint32_t i = 0; i < gptq->n; i++) {
        double *row = gptq->factor + row_offset(i);
        for (uint32_t j = 0; j <= i; j++)
            row[j] = h_at(gptq, gptq->order[i], gptq->order[j]);
        row[i] += *damping;
    }
    return MOEC_OK;
}

/* Half of a tile's row: one register of AVX2. */
typedef double quad __attribute__((vector_size(TILE / 2 * sizeof(double))));

struct panel {
    double *factor;
    double *values;      /* (K padded / TILE, PANEL_ROWS, TILE): row m at m - begin */
    uint32_t begin, end; /* rows that are finished */
};

/* TILE columns from j on of rows i .. i + ROWS - 1, of one band, less sum over the panel's rows m, last first, of
 * their values at i times their values. Named variables stay in registers; GCC keeps arrays of vectors in memory. */
static inline __attribute__((always_inline)) void subtract_tile(const struct panel *panel, uint32_t i,
                                                                uint32_t j)
{
    const size_t length = (i / LANES + 1) * LANES;
    const double *left = panel->values + (size_t)(i / TILE) * PANEL_ROWS * TILE + i % TILE;
    const quad *right = (const quad *)(panel->values + (size_t)(j / TILE) * PANEL_ROWS * TILE);
    double *row = panel->factor + row_offset(i) + j;
    quad *first = (quad *)row, *second = (quad *)(row + length), *third = (quad *)(row + 2 * length),
         *fourth = (quad *)(row + 3 * length);
    quad a = first[0], b = first[1], c = second[0], d = second[1];
    quad e = third[0], f = third[1], g = fourth[0], h = fourth[1];
    for (uint32_t m = panel->end - panel->begin; m-- > 0;) {
        const double *at = left + (size_t)m * TILE;
        const quad low = right[2 * m], high = right[2 * m + 1];
        a -= at[0] * low;
        b -= at[0] * high;
        c -= at[1] * low;
        d -= at[1] * high;
        e -= at[2] * low;
        f -= at[2] * high;
        g -= at[3] * low;
        h -= at[3] * high;
    }
    first[0] = a;
    first[1] = b;
    second[0] = c;
    second[1] = d;
    third[0] = e;
    third[1] = f;
    fourth[0] = g;
    fourth[1] = h;
}
_Static_assert(ROWS == 4 && LANES % TILE == 0, "subtract_tile has four rows, and bands have whole tiles");

GPTQ_CLONES static void subtract_band(void *context, size_t item, int thread)
{
    (void)thread;
    const struct panel *panel = context;
    const uint32_t first = (uint32_t)item * LANES;
    for (uint32_t j = 0; j < first + LANES; j += TILE)
        for (uint32_t i = first; i < first + LANES; i += ROWS)
            subtract_tile(panel, i, j);
}

/* Row i less row m times its value at i. */
GPTQ_CLONES static void subtract_row(double *factor, uint32_t i, uint32_t m)
{
    double *row = factor + row_offset(i);
    const double *finished = factor + row_offset(m), value = finished[i];
    for (uint32_t j = 0; j <= i; j += LANES)
        for (uint32_t lane = 0; lane < LANES; lane++)
            row[j + lane] -= value * finished[j + lane];
}

/* The panel's rows, each less what the rows below it in the panel make of it, over R_ii; then copies them. */
static enum moec_status finish_panel(const struct panel *panel, uint32_t n, struct moec_error *err)
{
    for (uint32_t m = panel->end; m-- > panel->begin;) {
        double *row = panel->factor + row_offset(m);
        if (!(row[m] > 0))
            return moec_fail(
                err, MOEC_ERR_FORMAT,
                "the matrix of input products is not positive definite at row %" PRIu32 " of %" PRIu32, m, n);
        const double root = sqrt(row[m]);
        for (uint32_t j = 0; j <= m; j++)
            row[j] /= root;
        for (uint32_t i = panel->begin; i < m; i++)
            subtract_row(panel->factor, i, m);
    }
    for (uint32_t m = panel->begin; m < panel->end; m++) {
        const double *row = panel->factor + row_offset(m);
        for (uint32_t j = 0; j < panel->begin; j += TILE)
            memcpy(panel->values + ((size_t)(j / TILE) * PANEL_ROWS + m - panel->begin) * TILE, row + j,
                   TILE * sizeof *row);
    }
    return MOEC_OK;
}

/* Rows become those of R': from the last one up, H_ij less what the rows below make of it, over R_ii. */
static enum moec_status factorise(struct moec_gptq *gptq, const struct moec_pool *pool,
                                  struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct panel panel = {gptq->factor, NULL, padded(gptq->n), gptq->n};
    MOEC_TRY(moec_alloc_aligned((void **)&panel.values, panel_values(gptq->n), sizeof(double),
                                "a panel of the factor", err));
    for (; panel.end > 0; panel.end = panel.begin) {
        const uint32_t left = (panel.end + LANES - 1) / LANES * LANES;
        panel.begin = left > PANEL_ROWS ? left - PANEL_ROWS : 0;
        const uint64_t begun_ns = moec_work_begin(MOEC_WORK_FITTING), n_row = panel.end - panel.begin;
        MOEC_TRY_OUT(finish_panel(&panel, gptq->n, err));
        moec_work_end(MOEC_WORK_FITTING, begun_ns, n_row * n_row / 2 * panel.end);
        moec_gptq_for(pool, panel.begin / LANES, subtract_band, &panel, n_row * row_offset(panel.begin));
    }
out:
    free(panel.values);
    return status;
}

/* H with damping, a square of both triangles. */
static enum moec_status make_square(struct moec_gptq *gptq, double damping, struct moec_error *err)
{
    const size_t n = gptq->n, stride = row_stride(gptq->n);
    MOEC_TRY(moec_alloc_aligned((void **)&gptq->square, n, stride * sizeof *gptq->square,
                                "the inputs' products in order", err));
    memset(gptq->square, 0, n * stride * sizeof *gptq->square);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j <= i; j++) {
            const double value = h_at(gptq, gptq->order[i], gptq->order[j]) + (i == j ? damping : 0);
            gptq->square[i * stride + j] = gptq->square[j * stride + i] = (float)value;
        }
    return MOEC_OK;
}

/* `factor` over its diagonal, in the forms in which it is used. */
static enum moec_status make_unit(struct moec_gptq *gptq, struct moec_error *err)
{
    const size_t n = gptq->n, stride = row_stride(gptq->n);
    const char *what = "the factor of the inputs' products";
    MOEC_TRY(moec_alloc_aligned((void **)&gptq->unit, n, stride * sizeof *gptq->unit, what, err));
    MOEC_TRY(moec_alloc((void **)&gptq->costs, n, sizeof *gptq->costs, what, err));
    memset(gptq->unit, 0, n * stride * sizeof *gptq->unit);
    for (uint32_t i = 0; i < n; i++) {
        double *row = gptq->factor + row_offset(i);
        for (uint32_t j = 0; j < i; j++) {
            row[j] /= row[i];
            gptq->unit[i * stride + j] = (float)row[j];
        }
        gptq->unit[i * stride + i] = 1;
        gptq->costs[i] = row[i] * row[i];
    }
    return MOEC_OK;
}

static enum moec_status make_factor(struct moec_gptq *gptq, enum moec_gptq_order order,
                                    const struct moec_pool *pool, struct moec_error *err)
{
    double damping = 0;
    gptq->factored = order;
    MOEC_TRY(moec_alloc_aligned((void **)&gptq->factor, row_offset(padded(gptq->n)), sizeof(double),
                                "the factor of the inputs' products", err));
    memset(gptq->factor, 0, row_offset(padded(gptq->n)) * sizeof(double));
    MOEC_TRY(copy_ordered(gptq, order, &damping, err));
    MOEC_TRY(factorise(gptq, pool, err));
    MOEC_TRY(make_unit(gptq, err));
    if (order == MOEC_GPTQ_BY_INPUT)
        return MOEC_OK;
    free(gptq->factor);
    gptq->factor = NULL;
    return order == MOEC_GPTQ_BY_GROUP ? make_square(gptq, damping, err) : MOEC_OK;
}

enum moec_status moec_gptq_factor(struct moec_gptq *gptq, enum moec_gptq_order order,
                                  const struct moec_pool *pool, struct moec_error *err)
{
    double most = 0;
    flush(gptq, pool);
    for (uint32_t i = 0; i < gptq->n; i++)
        most = gptq->h[row_offset(i) + i] > most ? gptq->h[row_offset(i) + i] : most;
    if (gptq->n_token == 0 || (most == 0 && !isnan(gptq->h[0])))
        return MOEC_OK;
    forget_factor(gptq);
    const enum moec_status status = make_factor(gptq, order, pool, err);
    if (status != MOEC_OK)
        forget_factor(gptq);
    return status;
}

/* ---- codes ---- */

/* The linear quantizer's row, for its scales, and where there is no factor to stay. */
static void encode_linear(void *context, size_t item, int thread)
{
    const struct encoding *e = context;
    uint8_t *row = e->out.rows + item * e->shape.row_bytes;
    if (e->room.errors[thread].status != MOEC_OK)
        return;
    if (moec_codec_encode_row(e->codec, e->weights + item * e->shape.columns, e->shape.columns, row,
                              &e->room.errors[thread]) != MOEC_OK)
        return;
    moec_codec_row_scales(e->codec, row, e->shape.columns, e->out.scales + item * e->shape.groups,
                          e->out.zeros + item * e->shape.groups);
}

static uint8_t round_code(double u, float scale, uint8_t zero, double highest, double *decoded)
{
    if (highest == 1) { /* signs */
        const uint8_t sign = u < 0 && scale != 0 ? 0 : 2;
        *decoded = (sign - zero) * (double)scale;
        return sign;
    }
    if (scale == 0) {
        *decoded = 0;
        return zero;
    }
    double code = nearbyint(u / (double)scale) + zero;
    code = code < 0 ? 0 : code;
    code = code > highest ? highest : code;
    *decoded = (code - zero) * (double)scale;
    return (uint8_t)code;
}

/* What compensates input i, from `room` (K) where it is kept in F32 alone. */
static const double *factors_of(const struct moec_gptq *gptq, uint32_t i, double *room)
{
    if (gptq->factor != NULL)
        return gptq->factor + row_offset(i);
    for (uint32_t j = 0; j < i; j++)
        room[j] = (double)unit_row(gptq, i)[j];
    return room;
}

/* LANES outputs, or what is left of them: an output that is not there has weights of zero. */
GPTQ_CLONES static void encode_outputs(void *context, size_t item, int thread)
{
    const struct encoding *e = context;
    const struct moec_gptq *gptq = e->gptq;
    const uint32_t first = (uint32_t)item * LANES;
    const uint32_t n = e->shape.n_output - first < LANES ? e->shape.n_output - first : LANES;
    const double highest = (double)((1u << moec_codec_bits(e->codec)) - 1);
    double *weights = e->room.scratch + (size_t)thread * gptq->n * (2 * LANES + 1);
    double *errors = weights + gptq->n * LANES, *room = errors + gptq->n * LANES;
    for (uint32_t i = 0; i < gptq->n; i++)
        for (uint32_t lane = 0; lane < LANES; lane++)
            weights[i * LANES + lane] =
                lane < n ? (double)e->weights[place_of(e, gptq->order[i], first + lane).weight] : 0;
    for (uint32_t i = 0; i < gptq->n; i++) {
        const double *w = weights + i * LANES;
        double u[LANES];
        compensate(factors_of(gptq, i, room), i, errors, LANES, w, u);
        for (uint32_t lane = 0; lane < LANES; lane++) {
            double decoded = 0;
            if (lane < n) {
                const struct place place = place_of(e, gptq->order[i], first + lane);
                e->out.codes[place.weight] = round_code(u[lane], e->out.scales[place.group],
                                                        e->out.zeros[place.group], highest, &decoded);
            }
            errors[i * LANES + lane] = w[lane] - decoded;
        }
    }
}

static void pack(void *context, size_t item, int thread)
{
    (void)thread;
    const struct encoding *e = context;
    moec_codec_replace_codes(e->codec, e->out.codes + item * e->shape.columns, e->shape.columns,
                             e->out.rows + item * e->shape.row_bytes);
}

/* Rows as the codec alone would have them: for their scales, and where there is no factor to stay. */
static enum moec_status encode_rows(struct encoding *e, const struct moec_pool *pool, struct moec_error *err)
{
    moec_parallel_for(pool, e->shape.n_row, encode_linear, e);
    for (int i = 0; i < pool->n_threads; i++)
        if (e->room.errors[i].status != MOEC_OK)
            return moec_fail(err, e->room.errors[i].status, "%s", e->room.errors[i].message);
    return MOEC_OK;
}

static enum moec_status encode_plain(struct encoding *e, const struct moec_pool *pool, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_alloc_aligned((void **)&e->room.scratch, (size_t)pool->n_threads * e->gptq->n,
                                (2 * LANES + 1) * sizeof(double), "weights in order", err));
    moec_gptq_for(pool, (e->shape.n_output + LANES - 1) / LANES, encode_outputs, e,
                  (uint64_t)e->shape.n_output * e->gptq->n * e->gptq->n / 2);
    moec_parallel_for(pool, e->shape.n_row, pack, e);
    free(e->room.scratch);
    return status;
}

enum moec_status moec_gptq_encode(const struct moec_gptq *gptq, const struct moec_pool *pool,
                                  const struct moec_gptq_matrix *matrix, struct moec_codec codec,
                                  uint8_t *rows, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const char *what = "codes of a matrix";
    struct encoding e = {.gptq = gptq,
                         .kernels = moec_kernels_best(),
                         .codec = codec,
                         .by_input = matrix->by_input,
                         .weights = matrix->weights,
                         .shape = {.n_row = matrix->n_row,
                                   .columns = matrix->columns,
                                   .n_output = matrix->by_input ? matrix->columns : matrix->n_row,
                                   .groups = moec_codec_row_groups(codec, matrix->columns),
                                   .row_bytes = moec_codec_row_bytes(codec, matrix->columns)},
                         .out.rows = rows};
    const uint64_t n_group = (uint64_t)e.shape.n_row * e.shape.groups, n_threads = (uint64_t)pool->n_threads;
    const uint32_t n_input = e.by_input ? e.shape.n_row : e.shape.columns;
    const bool is_sign = codec.dtype == MOEC_DTYPE_INT1; /* has no range to search */
    const bool is_fitted = codec.quantizer == MOEC_QUANTIZER_GPTQ && !is_sign,
               has_factor = gptq->unit != NULL;
    const bool is_path = moec_codec_traits(codec)->is_path;
    if (is_path && codec.scheme != MOEC_SCHEME_SHIFT)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "moec cannot fit codes of scheme %s to data, expected scheme shift",
                         moec_scheme_name((enum moec_scheme)codec.scheme));
    if (n_input != gptq->n)
        return moec_fail(err, MOEC_ERR_MISMATCH, "a matrix has %" PRIu32 " inputs, expected %" PRIu32,
                         n_input, gptq->n);
    if (is_path && has_factor && !e.by_input && gptq->factored != MOEC_GPTQ_BY_COLUMN)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "trellis and shift codes need the input products in column order, found another order");
    if (is_fitted && !is_path && has_factor && gptq->square == NULL)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "the input products are in the order of single inputs, expected the order of groups");
    if (has_factor || !is_fitted)
        e.codec.quantizer = MOEC_QUANTIZER_LINEAR;
    MOEC_TRY_OUT(moec_alloc((void **)&e.room.errors, n_threads, sizeof *e.room.errors, what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&e.out.scales, n_group, sizeof *e.out.scales, what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&e.out.zeros, n_group, 1, what, err));
    if (!has_factor || !is_path)
        MOEC_TRY_OUT(encode_rows(&e, pool, err));
    if (!has_factor)
        goto out;
    MOEC_TRY_OUT(moec_alloc((void **)&e.out.codes, (uint64_t)e.shape.n_row * e.shape.columns, 1, what, err));
    MOEC_TRY_OUT(is_path     ? moec_gptq_encode_trellis(&e, pool, err)
                 : is_fitted ? moec_gptq_encode_fitted(&e, pool, err)
                             : encode_plain(&e, pool, err));
out:
    free(e.room.errors);
    free(e.out.scales);
    free(e.out.zeros);
    free(e.out.codes);
    return status;
}
