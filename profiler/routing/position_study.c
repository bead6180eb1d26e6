/* What a router says ahead is kept as lists of experts until the layer is reached. Lists from n layers before
 * share n places, by ordinal modulo n. `attention` still holds the layer before when a batch begins: it is
 * compared first and overwritten then. Sums are by window and folded in order, so ranks and batches do not
 * show. */
#include "profiler/routing/position_study.h"

#include "formats/base/memory.h"
#include "runtime/forward/context/steps.h"
#include "runtime/policy/predict/scored.h"

#include <math.h>
#include <string.h>

/* Places in enum order of what feeds a router. */
#define HERE    0 /* this layer's attention */
#define BEFORE  (MOEC_POSITION_AHEAD + 1)
#define GATE(n) (n) /* gate input of n MoE layers before */

/* Lists wait for their layer: n of the gates n layers before, and one each of the two attentions. */
#define N_GATE_LIST (MOEC_POSITION_AHEAD * (MOEC_POSITION_AHEAD + 1) / 2)
#define HERE_LIST   N_GATE_LIST
#define BEFORE_LIST (N_GATE_LIST + 1)
#define N_LIST      (N_GATE_LIST + 2)

/* Of the sampled tokens of one window in the layer at work. */
struct cosine_sums {
    double sum[MOEC_POSITION_COSINE];
    uint64_t n[MOEC_POSITION_COSINE];
};

struct moec_position_study {
    const struct moec_forward *forward;
    const struct moec_rank_windows *windows;
    struct {
        const struct moec_config *config;
        size_t stride, router_stride;
    } shape;
    uint64_t n_sample;
    struct {
        float *hidden;    /* (max_tokens, stride): before attention */
        float *attention; /* (n_sample, stride): what it reads, of the layer at work or the one before */
        float *router;    /* (E, stride), decoded */
        float *scores;    /* (threads, router_stride) */
        uint16_t *lists;  /* (N_LIST, n_sample, E): experts by falling score */
    } room;
    struct {
        uint64_t *hits; /* (MOEC_POSITION_COUNT, E) of the layer at work */
        uint64_t n_choice;
        struct cosine_sums *cosines; /* (W) */
        uint64_t multiply_adds;
    } found;
};

/* ---- life ---- */

uint64_t moec_position_study_bytes(const struct moec_config *config, int n_threads, uint64_t n_sample,
                                   uint32_t max_tokens)
{
    const uint64_t stride = moec_forward_stride(config), n_expert = config->n_expert;
    const uint64_t n_thread = (uint64_t)moec_pool_make(n_threads).n_threads;
    return (max_tokens * stride + n_sample * stride + n_expert * stride +
            n_thread * moec_lanes_padded(config->n_expert)) *
               sizeof(float) +
           N_LIST * n_sample * n_expert * sizeof(uint16_t) +
           MOEC_POSITION_COUNT * n_expert * sizeof(uint64_t);
}

enum moec_status moec_position_study_create(const struct moec_forward *forward,
                                            const struct moec_rank_windows *windows, uint64_t n_sample,
                                            uint32_t max_tokens, struct moec_position_study **out,
                                            struct moec_error *err)
{
    static const char what[] = "a study of positions";
    const struct moec_config *config = &forward->model->config;
    struct moec_position_study *study = NULL;
    MOEC_TRY(moec_alloc((void **)&study, 1, sizeof *study, what, err));
    *study = (struct moec_position_study){.forward = forward,
                                          .windows = windows,
                                          .shape = {.config = config,
                                                    .stride = moec_forward_stride(config),
                                                    .router_stride = moec_lanes_padded(config->n_expert)},
                                          .n_sample = n_sample};
    const size_t row_bytes = study->shape.stride * sizeof(float);
    enum moec_status status =
        moec_alloc_aligned((void **)&study->room.hidden, max_tokens, row_bytes, what, err);
    if (status == MOEC_OK)
        status = moec_alloc_aligned((void **)&study->room.attention, n_sample, row_bytes, what, err);
    if (status == MOEC_OK)
        status = moec_alloc_aligned((void **)&study->room.router, config->n_expert, row_bytes, what, err);
    if (status == MOEC_OK)
        status = moec_alloc_aligned((void **)&study->room.scores, (uint64_t)study->forward->pool.n_threads,
                                    study->shape.router_stride * sizeof(float), what, err);
    if (status == MOEC_OK)
        status = moec_alloc((void **)&study->room.lists, N_LIST * n_sample * config->n_expert,
                            sizeof(uint16_t), what, err);
    if (status == MOEC_OK)
        status = moec_alloc((void **)&study->found.hits, (uint64_t)MOEC_POSITION_COUNT * config->n_expert,
                            sizeof(uint64_t), what, err);
    if (status == MOEC_OK)
        status = moec_alloc((void **)&study->found.cosines, windows->n_all, sizeof *study->found.cosines,
                            what, err);
    if (status == MOEC_OK)
        *out = study;
    else
        moec_position_study_free(study);
    return status;
}

void moec_position_study_free(struct moec_position_study *study)
{
    if (study == NULL)
        return;
    free(study->room.hidden);
    free(study->room.attention);
    free(study->room.router);
    free(study->room.scores);
    free(study->room.lists);
    free(study->found.hits);
    free(study->found.cosines);
    free(study);
}

float *moec_position_study_attention(struct moec_position_study *study)
{
    return study->room.hidden;
}

/* ---- predictions ---- */

static uint16_t *list_at(const struct moec_position_study *study, uint32_t list, uint32_t sample)
{
    return study->room.lists + ((size_t)list * study->n_sample + sample) * study->shape.config->n_expert;
}

/* Where the predictions for MoE layer `ordinal` from n layers before it stand. */
static uint32_t gate_list(uint32_t ordinal, uint32_t n)
{
    return n * (n - 1) / 2 + ordinal % n;
}

/* Samples whose experts are to be listed, from rows (of the batch, or of the sample). */
struct prediction {
    struct moec_position_study *study;
    const struct moec_position_sample *samples;
    const float *rows;
    bool is_of_batch;
    uint32_t list;
};

static void list_experts(void *context, size_t item, int thread)
{
    const struct prediction *prediction = context;
    const struct moec_position_study *study = prediction->study;
    const struct moec_position_sample sample = prediction->samples[item];
    const uint32_t n_expert = study->shape.config->n_expert;
    const size_t row = prediction->is_of_batch ? sample.row : sample.sample;
    float *scores = study->room.scores + (size_t)thread * study->shape.router_stride;
    struct moec_scored_expert order[MOEC_MAX_EXPERTS];
    uint16_t *list = list_at(study, prediction->list, sample.sample);
    study->forward->kernels->dot(prediction->rows + row * study->shape.stride, study->shape.stride, 1,
                                 study->room.router, study->shape.stride, n_expert,
                                 study->shape.config->n_embd, scores, study->shape.router_stride);
    for (uint32_t e = 0; e < n_expert; e++)
        order[e] = (struct moec_scored_expert){e, scores[e]};
    moec_scored_order(order, n_expert, n_expert);
    for (uint32_t e = 0; e < n_expert; e++)
        list[e] = (uint16_t)order[e].expert;
}

/* Its rows for experts; those behind them belong to choices that give their input. */
static void load_router(struct moec_position_study *study, uint32_t ordinal)
{
    const uint32_t layer = moec_config_moe_layer(study->shape.config, ordinal);
    const struct moec_matrix *router = &study->forward->model->layers[layer].router;
    study->forward->kernels->decode_rows(router, 0, study->shape.config->n_expert, study->room.router,
                                         study->shape.stride);
}

/* By the router that is loaded. */
static void predict(struct moec_position_study *study, const struct moec_position_sample *samples, uint32_t n,
                    const float *rows, bool is_of_batch, uint32_t list)
{
    struct prediction prediction = {study, samples, rows, is_of_batch, list};
    moec_parallel_for(&study->forward->pool, n, list_experts, &prediction);
    study->found.multiply_adds += (uint64_t)n * study->shape.config->n_expert * study->shape.config->n_embd;
}

/* ---- counting ---- */

static void count_list(struct moec_position_study *study, uint32_t place, uint32_t list, uint32_t sample,
                       const uint32_t *chosen)
{
    const uint16_t *experts = list_at(study, list, sample);
    uint64_t *hits = study->found.hits + (size_t)place * study->shape.config->n_expert;
    for (uint32_t i = 0; i < study->shape.config->n_expert; i++)
        for (uint32_t rank = 0; rank < study->shape.config->top_k; rank++)
            hits[i] += experts[i] == chosen[rank];
}

static void count_token(struct moec_position_study *study, uint32_t ordinal, uint32_t sample,
                        const uint32_t *chosen)
{
    const uint32_t n_before = ordinal - moec_config_moe_range(study->shape.config, ordinal).first;
    for (uint32_t rank = 0; rank < study->shape.config->top_k; rank++)
        study->found.n_choice += chosen[rank] != UINT32_MAX;
    count_list(study, HERE, HERE_LIST, sample, chosen);
    for (uint32_t n = 1; n <= MOEC_POSITION_AHEAD && n <= n_before; n++)
        count_list(study, GATE(n), gate_list(ordinal, n), sample, chosen);
    if (n_before > 0)
        count_list(study, BEFORE, BEFORE_LIST, sample, chosen);
}

static void add_cosine(struct moec_position_study *study, uint32_t window, uint32_t which, const float *a,
                       const float *b)
{
    struct cosine_sums *sums = &study->found.cosines[window];
    float ab = 0, aa = 0, bb = 0;
    const struct moec_kernels *kernels = study->forward->kernels;
    kernels->dot(a, study->shape.stride, 1, b, study->shape.stride, 1, study->shape.config->n_embd, &ab, 1);
    kernels->dot(a, study->shape.stride, 1, a, study->shape.stride, 1, study->shape.config->n_embd, &aa, 1);
    kernels->dot(b, study->shape.stride, 1, b, study->shape.stride, 1, study->shape.config->n_embd, &bb, 1);
    study->found.multiply_adds += 3 * (uint64_t)study->shape.config->n_embd;
    const double norms = sqrt((double)aa) * sqrt((double)bb);
    if (!(norms > 0))
        return;
    sums->sum[which] += (double)ab / norms;
    sums->n[which]++;
}

/* ---- batches ---- */

void moec_position_study_batch(struct moec_position_study *study, uint32_t ordinal,
                               const struct moec_position_sample *samples, uint32_t n_sample,
                               const float *gate_input, const uint32_t *experts)
{
    const struct moec_moe_range range = moec_config_moe_range(study->shape.config, ordinal);
    const uint32_t layer = moec_config_moe_layer(study->shape.config, ordinal),
                   end = range.first + range.count;
    const float *norm = study->forward->model->layers[layer].attention_norm;
    for (uint32_t i = 0; i < n_sample; i++) {
        const float *gate = gate_input + samples[i].row * study->shape.stride;
        float *attention = study->room.attention + samples[i].sample * study->shape.stride;
        if (ordinal > range.first)
            add_cosine(study, samples[i].window, 1, attention, gate);
        moec_forward_norm(study->forward, norm, 1, study->room.hidden + samples[i].row * study->shape.stride,
                          attention);
        add_cosine(study, samples[i].window, 0, attention, gate);
    }
    load_router(study, ordinal);
    predict(study, samples, n_sample, study->room.attention, false, HERE_LIST);
    for (uint32_t i = 0; i < n_sample; i++)
        count_token(study, ordinal, samples[i].sample,
                    experts + (size_t)samples[i].row * study->shape.config->top_k);
    for (uint32_t n = 1; n <= MOEC_POSITION_AHEAD && ordinal + n < end; n++) {
        load_router(study, ordinal + n);
        predict(study, samples, n_sample, gate_input, true, gate_list(ordinal + n, n));
        if (n == 1)
            predict(study, samples, n_sample, study->room.attention, false, BEFORE_LIST);
    }
}

/* Means over the windows' sampled tokens, left alone where there are none. */
static void mean_cosines(const struct moec_position_study *study, double *cosine)
{
    struct cosine_sums all = {0};
    for (uint32_t w = 0; w < study->windows->n_all; w++)
        for (uint32_t i = 0; i < MOEC_POSITION_COSINE; i++) {
            all.sum[i] += study->found.cosines[w].sum[i];
            all.n[i] += study->found.cosines[w].n[i];
        }
    for (uint32_t i = 0; i < MOEC_POSITION_COSINE; i++)
        if (all.n[i] > 0)
            cosine[i] = all.sum[i] / (double)all.n[i];
}

enum moec_status moec_position_study_finish(struct moec_position_study *study, uint32_t ordinal,
                                            double *recall, double *cosine, struct moec_error *err)
{
    const uint32_t n_expert = study->shape.config->n_expert, n_all = study->windows->n_all;
    const uint32_t n_before = ordinal - moec_config_moe_range(study->shape.config, ordinal).first;
    struct moec_ranks *ranks = study->windows->ranks;
    MOEC_TRY(moec_ranks_sum(ranks, study->found.hits, MOEC_POSITION_COUNT * n_expert, err));
    MOEC_TRY(moec_ranks_sum(ranks, &study->found.n_choice, 1, err));
    MOEC_TRY(moec_ranks_gather(ranks, study->found.cosines, n_all, sizeof *study->found.cosines, err));
    for (uint32_t place = 0; place < MOEC_POSITION_COUNT; place++) {
        const uint32_t n_needed = place == BEFORE ? 1 : place == HERE ? 0 : place;
        uint64_t n_hit = 0;
        for (uint32_t i = 0; i < n_expert && n_needed <= n_before && study->found.n_choice > 0; i++) {
            n_hit += study->found.hits[(size_t)place * n_expert + i];
            recall[(size_t)place * n_expert + i] = (double)n_hit / (double)study->found.n_choice;
        }
    }
    mean_cosines(study, cosine);
    memset(study->found.cosines, 0, n_all * sizeof *study->found.cosines);
    memset(study->found.hits, 0, (size_t)MOEC_POSITION_COUNT * n_expert * sizeof *study->found.hits);
    study->found.n_choice = 0;
    return MOEC_OK;
}

enum moec_status moec_position_study_add(struct moec_profile *profile, const double *recall,
                                         const double *cosine, struct moec_error *err)
{
    static char places[][MOEC_STUDY_LABEL] = {"attention input",     "gate input 1 before",
                                              "gate input 2 before", "gate input 3 before",
                                              "gate input 4 before", "attention input 1 before"};
    static char cosines[][MOEC_STUDY_LABEL] = {"attention input", "attention input 1 before"};
    _Static_assert(sizeof places / sizeof *places == MOEC_POSITION_COUNT, "each has a name");
    double *widths = NULL;
    MOEC_TRY(moec_alloc((void **)&widths, profile->n_expert, sizeof *widths, "an axis of a study", err));
    for (uint32_t i = 0; i < profile->n_expert; i++)
        widths[i] = i + 1;
    const struct moec_study_axis layer = {.name = "moe_layer", .n = profile->n_moe_layer};
    const struct moec_study by_width = {
        .name = "predict/positions",
        .description =
            "recall of the activated experts among the first n that the router prefers when it is fed "
            "with an earlier vector, over a sample of tokens",
        .source = "Fate Table 1 and Fig. 4; HOBBIT 3.3, Fig. 7",
        .n_axis = 3,
        .axes = {layer,
                 {.name = "position", .n = MOEC_POSITION_COUNT, .labels = places},
                 {.name = "width", .n = profile->n_expert, .values = widths}},
        .values = (double *)(uintptr_t)recall};
    const struct moec_study similar = {
        .name = "predict/position_cosine",
        .description =
            "mean cosine similarity of what attention reads, here and in the MoE layer before, and the "
            "gate input, over a sample of tokens",
        .source = "Fate Table 1, positions 1 and 3",
        .n_axis = 2,
        .axes = {layer, {.name = "position", .n = MOEC_POSITION_COSINE, .labels = cosines}},
        .values = (double *)(uintptr_t)cosine};
    enum moec_status status = moec_profile_add_study(profile, &by_width, NULL, err);
    if (status == MOEC_OK)
        status = moec_profile_add_study(profile, &similar, NULL, err);
    free(widths);
    return status;
}

uint64_t moec_position_study_multiply_adds(const struct moec_position_study *study)
{
    return study->found.multiply_adds;
}
