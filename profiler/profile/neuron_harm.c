/* The first run sums squares by neuron, the second counts bytes in bins of the score. A chunk of neurons
 * belongs to one thread, which adds tokens in their order; bins are a thread's own and are integers. So
 * threads do not show. Experts with few tokens lean on their layer as if it had given MOEC_THRESHOLD_TOKENS
 * more. A threshold for all layers is bisected over powers of two. */
#include "profiler/profile/neuron_harm.h"

#include "formats/base/half.h"
#include "formats/base/memory.h"
#include "profiler/profile/thresholds.h"
#include "runtime/forward/context/activation.h"

#include <math.h>
#include <string.h>

#define BIN_SHIFT   16 /* a bin is what F32 magnitudes share but for their last bits */
#define N_BIN       ((uint32_t)1 << (31 - BIN_SHIFT))
#define TILE_TOKENS 128

struct moec_neuron_harm {
    struct {
        const struct moec_config *config;
        const struct moec_kernels *kernels;
        struct moec_pool pool;
        size_t stride; /* of rows of n_embd */
    } of;
    struct {
        enum moec_sparsity_by by;
        bool at_gate;
        float *costs; /* (S, E, n_ff), or (S, E): scores are these times |up . x|, and by neuron times w */
    } scores;
    uint64_t *bytes; /* (S, N_BIN): gate and down rows of neurons whose score is in a bin */
    struct {
        uint32_t ordinal;
        double *products, *ups, *norms; /* (E, n_ff): sums of (w h)^2 and (w u)^2; |down row|^2 */
        double *weights;                /* (E): sums of w^2 */
        uint64_t *n_pair, *pair_bytes;  /* (E) */
        uint64_t *counts;               /* (threads, N_BIN) */
    } layer;                            /* at work */
    struct {
        float *x, *h;   /* (TILE_TOKENS, stride), (TILE_TOKENS, n_ff) */
        float *scratch; /* (threads, MOEC_SUM_CHUNK * (stride + TILE_TOKENS)) */
        float w[TILE_TOKENS];
    } room;
};

static size_t cost_count(const struct moec_neuron_harm *harm)
{
    return harm->scores.by == MOEC_SPARSITY_BY_NEURON ? harm->of.config->n_ff_expert : 1;
}

static size_t scratch_floats(const struct moec_neuron_harm *harm)
{
    return MOEC_SUM_CHUNK * (harm->of.stride + TILE_TOKENS);
}

enum moec_status moec_neuron_harm_create(const struct moec_config *config,
                                         const struct moec_neuron_harm_options *options,
                                         struct moec_neuron_harm **out, struct moec_error *err)
{
    static const char what[] = "the harm of neurons";
    enum moec_status status = MOEC_OK;
    struct moec_neuron_harm *harm = NULL;
    const uint64_t n_layer = moec_config_moe_count(config), n_expert = config->n_expert;
    const uint64_t n_neuron = n_expert * config->n_ff_expert;
    MOEC_TRY(moec_alloc((void **)&harm, 1, sizeof *harm, what, err));
    *harm = (struct moec_neuron_harm){.of = {.config = config,
                                             .kernels = options->kernels,
                                             .pool = moec_pool_make(options->n_threads),
                                             .stride = moec_forward_stride(config)},
                                      .scores = {.by = options->by, .at_gate = options->at_gate}};
    const uint64_t n_thread = (uint64_t)harm->of.pool.n_threads;
    MOEC_TRY_OUT(moec_alloc((void **)&harm->scores.costs, n_layer * n_expert * cost_count(harm),
                            sizeof(float), what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&harm->bytes, n_layer, N_BIN * sizeof(uint64_t), what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&harm->layer.products, n_neuron, sizeof(double), what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&harm->layer.ups, n_neuron, sizeof(double), what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&harm->layer.norms, n_neuron, sizeof(double), what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&harm->layer.weights, n_expert, sizeof(double), what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&harm->layer.n_pair, n_expert, sizeof(uint64_t), what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&harm->layer.pair_bytes, n_expert, sizeof(uint64_t), what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&harm->layer.counts, n_thread, N_BIN * sizeof(uint64_t), what, err));
    MOEC_TRY_OUT(
        moec_alloc_aligned((void **)&harm->room.x, TILE_TOKENS, harm->of.stride * sizeof(float), what, err));
    MOEC_TRY_OUT(
        moec_alloc((void **)&harm->room.h, TILE_TOKENS, config->n_ff_expert * sizeof(float), what, err));
    MOEC_TRY_OUT(moec_alloc_aligned((void **)&harm->room.scratch, n_thread,
                                    scratch_floats(harm) * sizeof(float), what, err));
    *out = harm;
    harm = NULL;
out:
    moec_neuron_harm_free(harm);
    return status;
}

void moec_neuron_harm_free(struct moec_neuron_harm *harm)
{
    if (harm == NULL)
        return;
    free(harm->scores.costs);
    free(harm->bytes);
    free(harm->layer.products);
    free(harm->layer.ups);
    free(harm->layer.norms);
    free(harm->layer.weights);
    free(harm->layer.n_pair);
    free(harm->layer.pair_bytes);
    free(harm->layer.counts);
    free(harm->room.x);
    free(harm->room.h);
    free(harm->room.scratch);
    free(harm);
}

/* ---- what both runs look at ---- */

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Some tokens in one expert. */
struct tile {
    struct moec_neuron_harm *harm;
    const struct moec_mlp *mlp;
    uint32_t expert, n_tok;
};

/* A chunk of its neurons, and where a thread works on it. */
struct piece {
    uint32_t first, n;
    float *weights; /* (MOEC_SUM_CHUNK, stride) */
    float *up;      /* (n_tok, n) */
};

/* The products of a chunk that are compared: of up, or activated ones of the gate. */
static struct piece make_piece(const struct tile *tile, size_t item, int thread)
{
    const struct moec_neuron_harm *harm = tile->harm;
    float *scratch = harm->room.scratch + (size_t)thread * scratch_floats(harm);
    struct piece piece = {.first = (uint32_t)item * MOEC_SUM_CHUNK,
                          .weights = scratch,
                          .up = scratch + MOEC_SUM_CHUNK * harm->of.stride};
    const struct moec_matrix *matrix = harm->scores.at_gate ? &tile->mlp->gate : &tile->mlp->up;
    piece.n = least(MOEC_SUM_CHUNK, tile->mlp->up.rows - piece.first);
    harm->of.kernels->decode_rows(matrix, piece.first, piece.n, piece.weights, harm->of.stride);
    harm->of.kernels->dot(harm->room.x, harm->of.stride, tile->n_tok, piece.weights, harm->of.stride, piece.n,
                          matrix->columns, piece.up, piece.n);
    for (uint32_t t = 0; harm->scores.at_gate && t < tile->n_tok; t++) {
        static const float none[MOEC_SUM_CHUNK];
        float product[MOEC_SUM_CHUNK];
        moec_mlp_factors(harm->of.kernels, tile->mlp->activation, piece.n, piece.up + (size_t)t * piece.n,
                         none, product);
    }
    return piece;
}

static void take_tiles(struct moec_neuron_harm *harm, const struct moec_expert_inputs *in, bool with_products,
                       moec_parallel_body *run_chunk)
{
    const size_t n_chunk = (harm->of.config->n_ff_expert + MOEC_SUM_CHUNK - 1) / MOEC_SUM_CHUNK;
    for (uint32_t first = 0; first < in->rows.n_pair; first += TILE_TOKENS) {
        struct tile tile = {harm, in->mlp, in->expert, least(TILE_TOKENS, in->rows.n_pair - first)};
        for (uint32_t t = 0; t < tile.n_tok; t++) {
            const uint32_t pair = in->rows.pairs[first + t];
            memcpy(harm->room.x + t * harm->of.stride,
                   in->rows.normed + pair / in->rows.top_k * harm->of.stride,
                   harm->of.stride * sizeof(float));
            harm->room.w[t] = in->rows.weights[pair];
        }
        if (with_products)
            moec_forward_activations(in->forward, in->mlp, tile.n_tok, harm->room.x, harm->room.h,
                                     harm->of.config->n_ff_expert);
        moec_parallel_for(&harm->of.pool, n_chunk, run_chunk, &tile);
        for (uint32_t t = 0; t < tile.n_tok; t++)
            harm->layer.weights[in->expert] += (double)harm->room.w[t] * harm->room.w[t];
        harm->layer.n_pair[in->expert] += tile.n_tok;
    }
}

static double square_sum(const float *row, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)row[i] * row[i];
    return sum;
}

/* Bytes of the two rows that a neuron which is left out does not read. */
static uint64_t rest_bytes(const struct moec_neuron_harm *harm, const struct moec_mlp *mlp)
{
    const struct moec_matrix *other = harm->scores.at_gate ? &mlp->up : &mlp->gate;
    return moec_codec_row_bytes(other->codec, other->columns) +
           moec_codec_row_bytes(mlp->down.codec, mlp->down.columns);
}

/* ---- the first run ---- */

static void sum_chunk(void *context, size_t item, int thread)
{
    const struct tile *tile = context;
    struct moec_neuron_harm *harm = tile->harm;
    const struct piece piece = make_piece(tile, item, thread);
    const size_t n_ff = harm->of.config->n_ff_expert, at = tile->expert * n_ff + piece.first;
    for (uint32_t t = 0; t < tile->n_tok; t++) {
        for (uint32_t i = 0; i < piece.n; i++) {
            const double u = (double)harm->room.w[t] * piece.up[t * piece.n + i];
            const double h = (double)harm->room.w[t] * harm->room.h[t * n_ff + piece.first + i];
            harm->layer.products[at + i] += h * h;
            harm->layer.ups[at + i] += u * u;
        }
    }
    if (harm->layer.n_pair[tile->expert] > 0)
        return;
    harm->of.kernels->decode_rows(&tile->mlp->down, piece.first, piece.n, piece.weights, harm->of.stride);
    for (uint32_t i = 0; i < piece.n; i++)
        harm->layer.norms[at + i] = square_sum(piece.weights + i * harm->of.stride, tile->mlp->down.columns);
}

static void take_sums(void *context, const struct moec_expert_inputs *in)
{
    struct moec_neuron_harm *harm = context;
    if (in->expert == MOEC_EXPERT_ALL || in->rows.n_pair == 0)
        return;
    harm->layer.pair_bytes[in->expert] = rest_bytes(harm, in->mlp);
    take_tiles(harm, in, true, sum_chunk);
}

static double total(const double *values, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += values[i];
    return sum;
}

/* What the layer's neurons have in common: means over its pairs, for experts that were given few. */
struct layer_means {
    double ratio;  /* of (w h)^2 to (w u)^2 */
    double up;     /* (w u)^2 of a neuron */
    double norm;   /* |d|^2 of a neuron */
    double weight; /* w^2 */
    double bytes;  /* of a pair of rows */
};

static struct layer_means means_of(const struct moec_neuron_harm *harm)
{
    const size_t n_expert = harm->of.config->n_expert, n_neuron = n_expert * harm->of.config->n_ff_expert;
    double n_pair = 0, n_known = 0, bytes = 0;
    for (size_t e = 0; e < n_expert; e++) {
        n_pair += (double)harm->layer.n_pair[e];
        n_known += harm->layer.n_pair[e] > 0;
        bytes += (double)harm->layer.pair_bytes[e];
    }
    const double up = total(harm->layer.ups, n_neuron), n_ff = harm->of.config->n_ff_expert;
    if (!(n_pair > 0) || !(up > 0))
        return (struct layer_means){1, 1, 1, 1, 1};
    return (struct layer_means){.ratio = total(harm->layer.products, n_neuron) / up,
                                .up = up / (n_pair * n_ff),
                                .norm = total(harm->layer.norms, n_neuron) / (n_known * n_ff),
                                .weight = total(harm->layer.weights, n_expert) / n_pair,
                                .bytes = bytes / n_known};
}

/* From the layer's sums to its costs. */
static void find_costs(struct moec_neuron_harm *harm)
{
    const size_t n_expert = harm->of.config->n_expert, n_ff = harm->of.config->n_ff_expert;
    const struct layer_means means = means_of(harm);
    const double lean = MOEC_THRESHOLD_TOKENS;
    float *costs = harm->scores.costs + harm->layer.ordinal * n_expert * cost_count(harm);
    for (size_t e = 0; e < n_expert; e++) {
        const double n_pair = (double)harm->layer.n_pair[e];
        const double bytes = n_pair > 0 ? (double)harm->layer.pair_bytes[e] : means.bytes;
        const double weight = (harm->layer.weights[e] + lean * means.weight) / (n_pair + lean);
        double sum = 0;
        for (size_t i = 0; i < n_ff; i++) {
            const size_t at = e * n_ff + i;
            const double ratio = (harm->layer.products[at] + lean * means.up * means.ratio) /
                                 (harm->layer.ups[at] + lean * means.up);
            const double square = ratio * (n_pair > 0 ? harm->layer.norms[at] : means.norm) / bytes;
            sum += square;
            if (harm->scores.by == MOEC_SPARSITY_BY_NEURON)
                costs[at] = (float)sqrt(square);
        }
        if (harm->scores.by == MOEC_SPARSITY_BY_EXPERT)
            costs[e] = (float)sqrt(weight * sum / (double)n_ff);
    }
}

static void begin_layer(struct moec_neuron_harm *harm)
{
    const size_t n_expert = harm->of.config->n_expert, n_neuron = n_expert * harm->of.config->n_ff_expert;
    memset(harm->layer.products, 0, n_neuron * sizeof(double));
    memset(harm->layer.ups, 0, n_neuron * sizeof(double));
    memset(harm->layer.weights, 0, n_expert * sizeof(double));
    memset(harm->layer.n_pair, 0, n_expert * sizeof(uint64_t));
    memset(harm->layer.pair_bytes, 0, n_expert * sizeof(uint64_t));
    memset(harm->layer.counts, 0, (size_t)harm->of.pool.n_threads * N_BIN * sizeof(uint64_t));
}

static bool has_experts(const struct moec_neuron_harm *harm, uint32_t layer)
{
    return harm->layer.ordinal < moec_config_moe_count(harm->of.config) &&
           moec_config_moe_layer(harm->of.config, harm->layer.ordinal) == layer;
}

static enum moec_status end_sums(void *context, uint32_t layer, struct moec_error *err)
{
    struct moec_neuron_harm *harm = context;
    (void)err;
    if (!has_experts(harm, layer))
        return MOEC_OK;
    find_costs(harm);
    begin_layer(harm);
    harm->layer.ordinal++;
    return MOEC_OK;
}

struct moec_scorer_watch moec_neuron_harm_measure(struct moec_neuron_harm *harm)
{
    harm->layer.ordinal = 0;
    begin_layer(harm);
    return (struct moec_scorer_watch){
        .inputs = {.take_expert = take_sums, .context = harm}, .layer_done = end_sums, .context = harm};
}

/* ---- the second run ---- */

static uint32_t bin_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (bits & 0x7fffffffu) >> BIN_SHIFT;
}

static void count_chunk(void *context, size_t item, int thread)
{
    const struct tile *tile = context;
    const struct moec_neuron_harm *harm = tile->harm;
    const struct piece piece = make_piece(tile, item, thread);
    const size_t n_cost = cost_count(harm);
    const bool is_by_neuron = harm->scores.by == MOEC_SPARSITY_BY_NEURON;
    const float *costs =
        harm->scores.costs + (harm->layer.ordinal * harm->of.config->n_expert + tile->expert) * n_cost;
    uint64_t *counts = harm->layer.counts + (size_t)thread * N_BIN;
    for (uint32_t t = 0; t < tile->n_tok; t++) {
        for (uint32_t i = 0; i < piece.n; i++) {
            const float cost = is_by_neuron ? costs[piece.first + i] * harm->room.w[t] : costs[0];
            counts[bin_of(piece.up[t * piece.n + i] * cost)] += harm->layer.pair_bytes[tile->expert];
        }
    }
}

static void take_counts(void *context, const struct moec_expert_inputs *in)
{
    struct moec_neuron_harm *harm = context;
    if (in->expert == MOEC_EXPERT_ALL || in->rows.n_pair == 0)
        return;
    harm->layer.pair_bytes[in->expert] = rest_bytes(harm, in->mlp);
    take_tiles(harm, in, false, count_chunk);
}

static enum moec_status end_counts(void *context, uint32_t layer, struct moec_error *err)
{
    struct moec_neuron_harm *harm = context;
    (void)err;
    if (!has_experts(harm, layer))
        return MOEC_OK;
    uint64_t *bytes = harm->bytes + (size_t)harm->layer.ordinal * N_BIN;
    for (size_t i = 0; i < (size_t)harm->of.pool.n_threads * N_BIN; i++)
        bytes[i % N_BIN] += harm->layer.counts[i];
    begin_layer(harm);
    harm->layer.ordinal++;
    return MOEC_OK;
}

struct moec_scorer_watch moec_neuron_harm_count(struct moec_neuron_harm *harm)
{
    harm->layer.ordinal = 0;
    begin_layer(harm);
    memset(harm->bytes, 0, (size_t)moec_config_moe_count(harm->of.config) * N_BIN * sizeof(uint64_t));
    return (struct moec_scorer_watch){
        .inputs = {.take_expert = take_counts, .context = harm}, .layer_done = end_counts, .context = harm};
}

/* ---- thresholds ---- */

/* The least magnitude of a bin. */
static double start_of(uint32_t bin)
{
    const uint32_t bits = bin << BIN_SHIFT;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint64_t bytes_of(const struct moec_neuron_harm *harm, uint32_t ordinal)
{
    const uint64_t *bytes = harm->bytes + (size_t)ordinal * N_BIN;
    uint64_t sum = 0;
    for (uint32_t bin = 0; bin < N_BIN; bin++)
        sum += bytes[bin];
    return sum;
}

/* Bytes of a layer whose score is under a threshold, to within a bin. */
static uint64_t bytes_under(const struct moec_neuron_harm *harm, uint32_t ordinal, double threshold)
{
    const uint64_t *bytes = harm->bytes + (size_t)ordinal * N_BIN;
    uint64_t sum = 0;
    for (uint32_t bin = 0; bin + 1 < N_BIN && start_of(bin + 1) <= threshold; bin++)
        sum += bytes[bin];
    return sum;
}

double moec_neuron_harm_layer_threshold(const struct moec_neuron_harm *harm, uint32_t ordinal, double share)
{
    const uint64_t *bytes = harm->bytes + (size_t)ordinal * N_BIN;
    const double wanted = share * (double)bytes_of(harm, ordinal);
    double sum = 0;
    uint32_t bin = 0;
    for (; bin + 1 < N_BIN && sum + (double)bytes[bin] <= wanted; bin++)
        sum += (double)bytes[bin];
    return start_of(bin);
}

double moec_neuron_harm_layer_error(const struct moec_neuron_harm *harm, uint32_t ordinal, double threshold)
{
    const uint64_t *bytes = harm->bytes + (size_t)ordinal * N_BIN;
    double sum = 0;
    for (uint32_t bin = 0; bin + 1 < N_BIN && start_of(bin + 1) <= threshold; bin++) {
        const double middle = (start_of(bin) + start_of(bin + 1)) / 2;
        sum += (double)bytes[bin] * middle * middle;
    }
    return sum;
}

double moec_neuron_harm_threshold(const struct moec_neuron_harm *harm, const double *factors, double share)
{
    const uint32_t n_layer = moec_config_moe_count(harm->of.config);
    double all = 0, low = -150, high = 150; /* powers of two around every F32 magnitude */
    for (uint32_t l = 0; l < n_layer; l++)
        all += (double)bytes_of(harm, l);
    for (int turn = 0; turn < 40; turn++) {
        const double middle = (low + high) / 2;
        double under = 0;
        for (uint32_t l = 0; l < n_layer; l++)
            under += (double)bytes_under(harm, l, exp2(middle) / factors[l]);
        if (under <= share * all)
            low = middle;
        else
            high = middle;
    }
    return exp2(low);
}

/* Rounded, within what BF16 holds. */
static uint16_t scale_of(double value)
{
    const uint16_t scale = moec_f32_to_bf16((float)fmin(value, 1e38));
    return scale < MOEC_SPARSITY_KEEP ? scale : MOEC_SPARSITY_KEEP;
}

enum moec_status moec_neuron_harm_plan_create(const struct moec_neuron_harm *harm,
                                              struct moec_sparsity_plan *plan, struct moec_error *err)
{
    MOEC_TRY(moec_sparsity_plan_create(harm->of.config, harm->scores.by, plan, err));
    plan->is_at_gate = harm->scores.at_gate;
    return MOEC_OK;
}

void moec_neuron_harm_plan(const struct moec_neuron_harm *harm, const double *factors, double threshold,
                           struct moec_sparsity_plan *plan)
{
    const size_t n = plan->n_expert * cost_count(harm);
    /* In units of the threshold, so that F32 and BF16 hold it. */
    plan->threshold = 1;
    for (uint32_t l = 0; l < plan->n_layer; l++)
        for (size_t i = 0; i < n; i++)
            plan->scales[l * n + i] = factors[l] < 0
                                          ? MOEC_SPARSITY_KEEP
                                          : scale_of(harm->scores.costs[l * n + i] * factors[l] / threshold);
}
