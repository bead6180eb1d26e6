/* Each token's answer is built as the runtime builds it while decoding, and the runtime's predictors rank it.
 * Counts are kept by layer and by window, guesses and hits apart: a predictor may name fewer experts than the
 * width. The gain is a paired difference on the same windows. */
#include "profiler/routing/predictor_study.h"

#include "formats/base/memory.h"
#include "profiler/routing/layer_pairs.h"
#include "runtime/forward/context/learned_predictor.h"
#include "runtime/forward/moe/router.h"
#include "runtime/policy/predict/scored.h"

#include <math.h>
#include <string.h>

#define N_PREDICTOR MOEC_STUDY_PREDICTORS
#define N_WIDTH     MOEC_STUDY_WIDTHS
#define N_COUNT     (N_PREDICTOR * N_WIDTH)

static const struct moec_predict_ops *const studied[N_PREDICTOR] = {
    [MOEC_STUDIED_FREQUENCY] = &moec_predict_frequency, [MOEC_STUDIED_PATH] = &moec_predict_path,
    [MOEC_STUDIED_GATE] = &moec_predict_gate,           [MOEC_STUDIED_PATH_GATE] = &moec_predict_path_gate,
    [MOEC_STUDIED_LEARNED] = &moec_predict_learned,
};

/* Counts of one layer or one window: experts that were chosen, and of each predictor at each width guesses
 * and those of them that were chosen. */
struct counts {
    double n_chosen;
    double n_prefetch[N_COUNT], n_hit[N_COUNT];
};

struct studying {
    const struct moec_predictor_study_job *job;
    const struct moec_progress *progress;
    const struct moec_config *config;
    struct moec_predictor_study *study;
    struct moec_windows windows; /* that were run */
    struct moec_predict *predictors[N_PREDICTOR];
    struct moec_learned_predictor *learned_predictor;
    struct moec_scored_expert *gate, *ranking; /* (E) */
    float *probabilities;                      /* (padded choices of a router) */
    bool *is_chosen;                           /* (E) */
    struct counts *by_layer, *by_window;       /* (S), (W) */
};

/* ---- one token ---- */

static void count(struct studying *studying, uint32_t predictor, const struct moec_scored_expert *ranking,
                  uint32_t n, struct counts *layer, struct counts *window)
{
    for (uint32_t c = 0; c < N_WIDTH; c++) {
        const uint32_t width = studying->study->widths[c], at = predictor * N_WIDTH + c;
        const uint32_t n_prefetch = n < width ? n : width;
        uint32_t n_hit = 0;
        for (uint32_t i = 0; i < n_prefetch; i++)
            n_hit += studying->is_chosen[ranking[i].expert];
        layer->n_prefetch[at] += n_prefetch;
        window->n_prefetch[at] += n_prefetch;
        layer->n_hit[at] += n_hit;
        window->n_hit[at] += n_hit;
    }
}

static uint32_t mark_chosen(struct studying *studying, const struct moec_layer_side *to, uint32_t token,
                            bool value)
{
    const uint32_t k = studying->config->top_k;
    uint32_t n = 0;
    for (size_t i = (size_t)token * k; i < ((size_t)token + 1) * k; i++) {
        if (!moec_layer_side_chose(to, i, studying->config->n_expert))
            continue;
        studying->is_chosen[to->experts[i]] = value;
        n++;
    }
    return n;
}

/* What the runtime would tell a predictor of this token. */
static enum moec_status answer_of(struct studying *studying, const struct moec_layer_pair *pair,
                                  uint32_t token, struct moec_router_answer *answer, struct moec_error *err)
{
    const struct moec_config *config = studying->config;
    const struct moec_layer_side *from = pair->from;
    const size_t first = (size_t)token * config->top_k;
    const float *input = from->inputs + token * pair->stride;
    const uint32_t n = 2 * config->top_k < config->n_expert ? 2 * config->top_k : config->n_expert;
    *answer = (struct moec_router_answer){
        .layer = moec_config_moe_layer(config, from->ordinal),
        .n_tok = 1,
        .choices = {.experts = from->experts + first, .weights = from->weights + first}};
    if (pair->before != NULL) {
        answer->last.experts = pair->before->experts + first;
        answer->last.weights = pair->before->weights + first;
    }
    MOEC_TRY(moec_router_preview(pair->forward, moec_config_moe_layer(config, pair->to->ordinal), 1, input,
                                 (struct moec_router_preview){.sums = studying->probabilities}, err));
    for (uint32_t e = 0; e < config->n_expert; e++)
        studying->gate[e] = (struct moec_scored_expert){e, studying->probabilities[e]};
    moec_scored_order(studying->gate, config->n_expert, n);
    answer->next.gate.experts = studying->gate;
    answer->next.gate.n = n;
    if (studying->learned_predictor != NULL &&
        moec_learned_predictor_batch(
            studying->learned_predictor, studying->job->kernels, from->ordinal,
            &(struct moec_predictor_batch){1, input, pair->stride, answer->choices.experts, config->top_k},
            n)) {
        answer->next.learned.experts = studying->learned_predictor->list;
        answer->next.learned.n = n;
    }
    return MOEC_OK;
}

static enum moec_status take_token(struct studying *studying, const struct moec_layer_pair *pair,
                                   uint32_t token, uint32_t window, struct moec_error *err)
{
    struct counts *layer = &studying->by_layer[pair->to->ordinal], *counts = &studying->by_window[window];
    struct moec_router_answer answer;
    MOEC_TRY(answer_of(studying, pair, token, &answer, err));
    const uint32_t n_chosen = mark_chosen(studying, pair->to, token, true);
    layer->n_chosen += n_chosen;
    counts->n_chosen += n_chosen;
    for (uint32_t p = 0; p < N_PREDICTOR; p++) {
        struct moec_predict *predict = studying->predictors[p];
        if (predict == NULL)
            continue;
        const uint32_t n = predict->ops->rank(predict, &answer, pair->to->ordinal, studying->ranking);
        count(studying, p, studying->ranking, n, layer, counts);
    }
    (void)mark_chosen(studying, pair->to, token, false);
    return MOEC_OK;
}

/* ---- one layer ---- */

static double cosine_of(const float *a, const float *b, uint32_t n)
{
    double product = 0, aa = 0, bb = 0;
    for (uint32_t i = 0; i < n; i++) {
        product += (double)a[i] * (double)b[i];
        aa += (double)a[i] * (double)a[i];
        bb += (double)b[i] * (double)b[i];
    }
    return aa > 0 && bb > 0 ? product / sqrt(aa * bb) : 0;
}

static void take_cosine(struct studying *studying, const struct moec_layer_pair *pair)
{
    double sum = 0;
    for (size_t t = 0; t < pair->to->n_token; t++)
        sum += cosine_of(pair->from->inputs + t * pair->stride, pair->to->inputs + t * pair->stride,
                         studying->config->n_embd);
    if (pair->to->n_token > 0)
        studying->study->cosine[pair->to->ordinal] = sum / pair->to->n_token;
}

/* Windows that were run are known from the first pair on. */
static enum moec_status keep_windows(struct studying *studying, const struct moec_windows *windows,
                                     struct moec_error *err)
{
    if (studying->by_window != NULL)
        return MOEC_OK;
    MOEC_TRY(moec_windows_first(windows, windows->n_window, &studying->windows, err));
    return moec_alloc((void **)&studying->by_window, windows->n_window, sizeof *studying->by_window,
                      "counts of predictions", err);
}

static enum moec_status take_pair(void *context, const struct moec_layer_pair *pair, struct moec_error *err)
{
    struct studying *studying = context;
    const enum moec_stack stack =
        moec_config_stack(studying->config, moec_config_moe_layer(studying->config, pair->to->ordinal));
    uint32_t token = 0;
    MOEC_TRY(keep_windows(studying, pair->windows, err));
    take_cosine(studying, pair);
    for (uint32_t w = 0; w < pair->windows->n_window; w++)
        for (uint32_t i = 0; i < moec_windows_read(pair->windows, stack, w); i++)
            MOEC_TRY(take_token(studying, pair, token++, w, err));
    return MOEC_OK;
}

static enum moec_status worked(void *context, double share, struct moec_error *err)
{
    const struct studying *studying = context;
    return moec_progress_report(studying->progress, "judging", share, 1, err);
}

/* ---- results ---- */

/* Counts of each window, of which a share is found: (windows) each. */
struct shared_counts {
    double *parts, *wholes; /* owned */
};

static enum moec_status find_share(struct studying *studying, uint32_t at, bool is_precision,
                                   const struct shared_counts *room, struct moec_study_share *out,
                                   struct moec_error *err)
{
    const struct moec_windows *windows = &studying->windows;
    for (uint32_t w = 0; w < windows->n_window; w++) {
        const struct counts *counts = &studying->by_window[w];
        room->parts[w] = counts->n_hit[at];
        room->wholes[w] = is_precision ? counts->n_prefetch[at] : counts->n_chosen;
    }
    return moec_study_share_make(windows, room->parts, room->wholes, out, err);
}

static void find_layers(struct studying *studying, uint32_t p)
{
    struct moec_studied_predictor *predictor = &studying->study->predictors[p];
    for (uint32_t s = 0; s < studying->study->n_layer; s++) {
        const struct counts *counts = &studying->by_layer[s];
        for (uint32_t c = 0; c < N_WIDTH; c++) {
            const uint32_t at = p * N_WIDTH + c;
            predictor->layer_recall[s * N_WIDTH + c] = counts->n_hit[at] / counts->n_chosen; /* NaN of none */
            predictor->layer_precision[s * N_WIDTH + c] = counts->n_hit[at] / counts->n_prefetch[at];
        }
    }
}

static enum moec_status find_gain(struct studying *studying, const struct shared_counts *room,
                                  struct moec_error *err)
{
    const struct moec_windows *windows = &studying->windows;
    for (uint32_t c = 0; c < N_WIDTH; c++) {
        studying->study->gain[c] = (struct moec_study_share){NAN, NAN, NAN};
        if (studying->predictors[MOEC_STUDIED_LEARNED] == NULL)
            continue;
        for (uint32_t w = 0; w < windows->n_window; w++) {
            const struct counts *counts = &studying->by_window[w];
            room->parts[w] = counts->n_hit[MOEC_STUDIED_LEARNED * N_WIDTH + c] -
                             counts->n_hit[MOEC_STUDIED_GATE * N_WIDTH + c];
            room->wholes[w] = counts->n_chosen;
        }
        MOEC_TRY(moec_study_share_make(windows, room->parts, room->wholes, &studying->study->gain[c], err));
    }
    return MOEC_OK;
}

static enum moec_status find_results(struct studying *studying, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_windows *windows = &studying->windows;
    struct shared_counts room = {0};
    studying->study->n_window = windows->n_window;
    studying->study->n_token = moec_windows_token_count(windows);
    MOEC_TRY_OUT(
        moec_alloc((void **)&room.parts, windows->n_window, sizeof(double), "counts of predictions", err));
    MOEC_TRY_OUT(
        moec_alloc((void **)&room.wholes, windows->n_window, sizeof(double), "counts of predictions", err));
    for (uint32_t p = 0; p < N_PREDICTOR; p++) {
        struct moec_studied_predictor *predictor = &studying->study->predictors[p];
        if (studying->predictors[p] == NULL)
            continue;
        find_layers(studying, p);
        for (uint32_t c = 0; c < N_WIDTH; c++) {
            const uint32_t at = p * N_WIDTH + c;
            MOEC_TRY_OUT(find_share(studying, at, false, &room, &predictor->recall[c], err));
            MOEC_TRY_OUT(find_share(studying, at, true, &room, &predictor->precision[c], err));
        }
    }
    status = find_gain(studying, &room, err);
out:
    free(room.parts);
    free(room.wholes);
    return status;
}

/* ---- life ---- */

static bool is_possible(const struct moec_predictor_study_job *job, const struct moec_predict_ops *ops)
{
    return (!ops->needs_paths || job->paths->n_layer > 0) &&
           (!ops->needs_learned || job->predictor->n_layer > 0);
}

static enum moec_status create_predictors(struct studying *studying, struct moec_error *err)
{
    const struct moec_config *config = studying->config;
    const struct moec_predict_setup setup = {.n_layer = moec_config_moe_count(config),
                                             .n_encoder = moec_config_moe_encoder_count(config),
                                             .n_expert = config->n_expert,
                                             .top_k = config->top_k,
                                             .paths = studying->job->paths};
    for (uint32_t p = 0; p < N_PREDICTOR; p++) {
        struct moec_studied_predictor *out = &studying->study->predictors[p];
        if (!is_possible(studying->job, studied[p]))
            continue;
        out->ops = studied[p];
        MOEC_TRY(studied[p]->create(&setup, &studying->predictors[p], err));
        MOEC_TRY(moec_alloc((void **)&out->layer_recall, setup.n_layer, N_WIDTH * sizeof(double),
                            "recall of layers", err));
        MOEC_TRY(moec_alloc((void **)&out->layer_precision, setup.n_layer, N_WIDTH * sizeof(double),
                            "precision of layers", err));
    }
    return studying->job->predictor->n_layer > 0
               ? moec_learned_predictor_create(studying->job->predictor, &studying->learned_predictor, err)
               : MOEC_OK;
}

static enum moec_status prepare(struct studying *studying, struct moec_error *err)
{
    static const char what[] = "a study of predictors";
    const struct moec_config *config = studying->config;
    struct moec_predictor_study *study = studying->study;
    const uint32_t k = config->top_k, widths[N_WIDTH] = {k, k + 1, 2 * k};
    study->n_layer = moec_config_moe_count(config);
    study->top_k = k;
    memcpy(study->widths, widths, sizeof widths);
    MOEC_TRY(moec_alloc((void **)&study->cosine, study->n_layer, sizeof *study->cosine, what, err));
    for (uint32_t s = 0; s < study->n_layer; s++)
        study->cosine[s] = NAN;
    MOEC_TRY(moec_alloc((void **)&studying->by_layer, study->n_layer, sizeof *studying->by_layer, what, err));
    MOEC_TRY(moec_alloc((void **)&studying->gate, config->n_expert, sizeof *studying->gate, what, err));
    MOEC_TRY(moec_alloc((void **)&studying->ranking, config->n_expert, sizeof *studying->ranking, what, err));
    MOEC_TRY(moec_alloc((void **)&studying->is_chosen, config->n_expert, sizeof(bool), what, err));
    MOEC_TRY(moec_alloc((void **)&studying->probabilities, moec_lanes_padded(moec_config_choices(config)),
                        sizeof(float), what, err));
    return create_predictors(studying, err);
}

enum moec_status moec_predictor_study_run(const struct moec_predictor_study_job *job,
                                          const struct moec_progress *progress,
                                          struct moec_predictor_study *out, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct studying studying = {
        .job = job, .progress = progress, .config = &job->model->config, .study = out};
    const struct moec_layer_pairs_job pairs = {
        .of = {.model = job->model, .experts = job->experts, .windows = job->windows},
        .kernels = job->kernels,
        .n_threads = job->n_threads,
        .work_bytes = job->work_bytes,
        .hooks = {.pair = take_pair, .worked = worked, .context = &studying}};
    *out = (struct moec_predictor_study){0};
    MOEC_TRY_OUT(prepare(&studying, err));
    MOEC_TRY_OUT(moec_layer_pairs_run(&pairs, err));
    status = find_results(&studying, err);
out:
    for (uint32_t p = 0; p < N_PREDICTOR; p++)
        if (studying.predictors[p] != NULL)
            studied[p]->destroy(studying.predictors[p]);
    free(studying.learned_predictor);
    free(studying.gate);
    free(studying.ranking);
    free(studying.is_chosen);
    free(studying.probabilities);
    free(studying.by_layer);
    free(studying.by_window);
    moec_windows_release(&studying.windows);
    return status;
}

void moec_predictor_study_release(struct moec_predictor_study *study)
{
    for (uint32_t p = 0; p < N_PREDICTOR; p++) {
        free(study->predictors[p].layer_recall);
        free(study->predictors[p].layer_precision);
    }
    free(study->cosine);
    *study = (struct moec_predictor_study){0};
}
