/* Logits are computed by tiles and scored in place. The product with p is one kernel for the reference's
 * logits and for a variant's. Equal logits therefore give a KL of exactly 0. Rows of p are padded with zeros.
 * Four rows are summed together, each still in its own order. */
#include "profiler/evaluate/token_score.h"

#include "formats/base/memory.h"

#include <string.h>

/* Logits that a tile holds where memory is scarce: enough to share one decoding of the head among some
 * tokens, and to stay in a shared cache until they are scored. */
#define TILE_BYTES      ((uint64_t)8 << 20)
#define TILE_MIN_TOKENS 32u

uint64_t moec_reference_row_bytes(const struct moec_config *config)
{
    return moec_lanes_padded(config->n_vocab) * sizeof(float) + 3 * sizeof(double);
}

enum moec_status moec_reference_create(const struct moec_config *config, uint32_t n_row,
                                       struct moec_reference *reference, struct moec_error *err)
{
    *reference = (struct moec_reference){.n_row = n_row, .stride = moec_lanes_padded(config->n_vocab)};
    const char *what = "the original's probabilities";
    enum moec_status status =
        moec_alloc_aligned((void **)&reference->p, n_row, reference->stride * sizeof(float), what, err);
    if (status == MOEC_OK)
        status = moec_alloc((void **)&reference->mass, n_row, sizeof(double), what, err);
    if (status == MOEC_OK)
        status = moec_alloc((void **)&reference->product, n_row, sizeof(double), what, err);
    if (status == MOEC_OK)
        status = moec_alloc((void **)&reference->lse, n_row, sizeof(double), what, err);
    if (status != MOEC_OK)
        moec_reference_release(reference);
    return status;
}

void moec_reference_release(struct moec_reference *reference)
{
    free(reference->p);
    free(reference->mass);
    free(reference->product);
    free(reference->lse);
    *reference = (struct moec_reference){0};
}

uint64_t moec_token_scorer_least_bytes(const struct moec_config *config)
{
    const uint64_t least = TILE_MIN_TOKENS * moec_lanes_padded(config->n_vocab) * sizeof(float);
    return least > TILE_BYTES ? least : TILE_BYTES;
}

enum moec_status moec_token_scorer_create(const struct moec_config *config, uint32_t max_tokens,
                                          const struct moec_work_memory *work,
                                          struct moec_token_scorer *scorer, struct moec_error *err)
{
    *scorer = (struct moec_token_scorer){.stride = moec_lanes_padded(config->n_vocab)};
    const uint64_t least = moec_token_scorer_least_bytes(config);
    const uint64_t n_bytes = work != NULL && work->logits_bytes > least ? work->logits_bytes : least;
    const uint64_t n_row = n_bytes / (scorer->stride * sizeof(float));
    scorer->n_row = n_row < max_tokens ? (uint32_t)n_row : max_tokens;
    MOEC_TRY(moec_alloc_aligned((void **)&scorer->logits, scorer->n_row, scorer->stride * sizeof(float),
                                "logits of a tile", err));
    /* The padding is part of dot products and stays zero. */
    memset(scorer->logits, 0, scorer->n_row * scorer->stride * sizeof(float));
    return MOEC_OK;
}

void moec_token_scorer_release(struct moec_token_scorer *scorer)
{
    free(scorer->logits);
    *scorer = (struct moec_token_scorer){0};
}

#define REFERRED 4 /* rows of a reference that are filled together */

/* A tile of logits being scored: item i is row i, or REFERRED rows of a reference. */
struct tile {
    const struct moec_forward *forward;
    float *logits;
    size_t stride;
    /* filling a reference */
    struct {
        struct moec_reference *reference;
        uint32_t first, n; /* of its rows */
    } filled;
    struct moec_scored_tokens scored;
};

/* Loops over whole blocks have a constant trip count, so that the compiler takes vectors for them. */
#define BLOCK 16

/* y = x - max(x) in place. */
static void subtract_max(const struct moec_kernels *kernels, float *x, size_t n)
{
    const float max = kernels->max(x, n);
    size_t at = 0;
    for (; at + BLOCK <= n; at += BLOCK)
        for (size_t i = 0; i < BLOCK; i++)
            x[at + i] -= max;
    for (; at < n; at++)
        x[at] -= max;
}

static double product(const struct moec_kernels *kernels, const float *p, const float *y, uint32_t n,
                      size_t stride)
{
    float sum = 0;
    kernels->dot(y, stride, 1, p, stride, 1, n, &sum, 1);
    return sum;
}

static void divide(float *x, size_t n, float by)
{
    size_t at = 0;
    for (; at + BLOCK <= n; at += BLOCK)
        for (size_t i = 0; i < BLOCK; i++)
            x[at + i] /= by;
    for (; at < n; at++)
        x[at] /= by;
}

/* Sums of REFERRED rows, each in the order of its numbers: they wait for their additions together. */
static void add_rows(const float *const rows[static REFERRED], size_t n, double sums[static REFERRED])
{
    double sum[REFERRED] = {0};
    for (size_t i = 0; i < n; i++)
        for (int r = 0; r < REFERRED; r++)
            sum[r] += rows[r][i];
    memcpy(sums, sum, sizeof sum);
}

static void refer_rows(void *context, size_t item, int thread)
{
    (void)thread;
    const struct tile *tile = context;
    const struct moec_kernels *kernels = tile->forward->kernels;
    const uint32_t n_vocab = tile->forward->model->config.n_vocab;
    struct moec_reference *reference = tile->filled.reference;
    const uint32_t first = (uint32_t)item * REFERRED, left = tile->filled.n - first,
                   n = left < REFERRED ? left : REFERRED;
    const float *rows[REFERRED];
    double masses[REFERRED];
    for (uint32_t r = 0; r < n; r++) {
        const size_t row = tile->filled.first + first + r;
        float *y = tile->logits + (first + r) * tile->stride, *p = reference->p + row * reference->stride;
        subtract_max(kernels, y, n_vocab);
        const float sum = kernels->exp_sum(y, 0, n_vocab, p);
        divide(p, n_vocab, sum);
        memset(p + n_vocab, 0, (reference->stride - n_vocab) * sizeof(float));
        reference->lse[row] = moec_log_f64(sum);
        reference->product[row] = product(kernels, p, y, n_vocab, tile->stride);
        rows[r] = p;
    }
    for (uint32_t r = n; r < REFERRED; r++)
        rows[r] = rows[0];
    add_rows(rows, n_vocab, masses);
    memcpy(reference->mass + tile->filled.first + first, masses, n * sizeof *masses);
}

double moec_token_nll(const struct moec_kernels *kernels, float *logits, uint32_t n_vocab, uint32_t target)
{
    subtract_max(kernels, logits, n_vocab);
    const double y = logits[target];
    return moec_log_f64(kernels->exp_sum(logits, 0, n_vocab, logits)) - y;
}

static void score_row(void *context, size_t item, int thread)
{
    (void)thread;
    const struct tile *tile = context;
    const struct moec_kernels *kernels = tile->forward->kernels;
    const uint32_t n_vocab = tile->forward->model->config.n_vocab;
    float *y = tile->logits + item * tile->stride;
    subtract_max(kernels, y, n_vocab);
    const double target = y[tile->scored.targets[item]];
    double q = 0;
    const struct moec_reference *reference = tile->scored.reference;
    size_t row = 0;
    if (reference != NULL) {
        row = tile->scored.reference_rows[item];
        q = product(kernels, reference->p + row * reference->stride, y, n_vocab, tile->stride);
    }
    const double lse = moec_log_f64(kernels->exp_sum(y, 0, n_vocab, y));
    tile->scored.nll[item] = lse - target;
    tile->scored.kl[item] = 0;
    if (reference != NULL)
        tile->scored.kl[item] =
            (reference->product[row] - q) + reference->mass[row] * (lse - reference->lse[row]);
}

enum moec_status moec_token_scorer_refer(struct moec_token_scorer *scorer, const struct moec_forward *forward,
                                         const struct moec_final_states *states,
                                         struct moec_reference *reference, uint32_t first,
                                         struct moec_error *err)
{
    const size_t stride = moec_forward_stride(&forward->model->config);
    struct tile tile = {.forward = forward,
                        .logits = scorer->logits,
                        .stride = scorer->stride,
                        .filled.reference = reference};
    for (uint32_t done = 0; done < states->n;) {
        uint32_t rows = states->n - done < scorer->n_row ? states->n - done : scorer->n_row;
        MOEC_TRY(moec_forward_head(forward, rows, states->rows + done * stride, scorer->logits,
                                   scorer->stride, err));
        tile.filled.first = first + done;
        tile.filled.n = rows;
        moec_parallel_for(&forward->pool, (rows + REFERRED - 1) / REFERRED, refer_rows, &tile);
        done += rows;
    }
    return MOEC_OK;
}

enum moec_status moec_token_scorer_run(struct moec_token_scorer *scorer, const struct moec_forward *forward,
                                       const struct moec_final_states *states,
                                       const struct moec_scored_tokens *tokens, struct moec_error *err)
{
    const size_t stride = moec_forward_stride(&forward->model->config);
    struct tile tile = {.forward = forward, .logits = scorer->logits, .stride = scorer->stride};
    for (uint32_t done = 0; done < states->n;) {
        uint32_t rows = states->n - done < scorer->n_row ? states->n - done : scorer->n_row;
        MOEC_TRY(moec_forward_head(forward, rows, states->rows + done * stride, scorer->logits,
                                   scorer->stride, err));
        tile.scored = (struct moec_scored_tokens){
            .targets = tokens->targets + done,
            .reference = tokens->reference,
            .reference_rows = tokens->reference != NULL ? tokens->reference_rows + done : NULL,
            .nll = tokens->nll + done,
            .kl = tokens->kl + done,
        };
        moec_parallel_for(&forward->pool, rows, score_row, &tile);
        done += rows;
    }
    return MOEC_OK;
}
