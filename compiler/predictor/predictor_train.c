/* For each layer the same examples are fitted with no hidden units and with the two largest numbers that the
 * bytes allow. More units win only by WORTH of recall on the windows kept apart. The rows of choices lie
 * behind the hidden state in the same input, as ones among zeros. Fits run on different threads but share
 * nothing that they write. */
#include "compiler/predictor/predictor_train.h"

#include "compiler/predictor/predictor_fit.h"
#include "formats/base/memory.h"
#include "profiler/routing/layer_pairs.h"

#include <inttypes.h>
#include <string.h>

#define APART     8u    /* one window in so many is kept apart */
#define MIN_TRAIN 512u  /* tokens */
#define WORTH     0.002 /* of recall, that hidden units must add */
#define N_FIT     3u

/* Hidden units that are tried: none, and the two largest of these that the bytes allow. */
static const uint32_t hidden_units[] = {8, 16, 32, 64, 128, 256};
#define N_HIDDEN (sizeof hidden_units / sizeof *hidden_units)

struct training {
    const struct moec_predictor_job *job;
    const struct moec_progress *progress;
    const struct moec_config *config;
    struct moec_predictor_fit *fits; /* (S): of layers that are done */
    uint32_t units[N_FIT], n_fit;    /* of each fit of a layer */
    uint32_t n_known, n_done;        /* layers with a predictor */
    float *router;                   /* (E, stride) */
    uint32_t *wanted;                /* (T, k) */
    uint64_t n_learned;
    double swept;
};

/* ---- one layer ---- */

struct fits {
    const struct training *training;
    struct moec_predictor_examples examples;
    struct moec_predictor_fit made[N_FIT];
    enum moec_status status[N_FIT];
    struct moec_error errors[N_FIT];
};

static void fit_one(void *context, size_t item, int thread)
{
    struct fits *fits = context;
    const struct training *training = fits->training;
    (void)thread;
    fits->status[item] =
        moec_predictor_fit_make(&fits->examples, training->job->kernels, training->units[item],
                                training->job->seed, &fits->made[item], &fits->errors[item]);
}

/* The smallest that no larger one beats by what hidden units must add. */
static uint32_t choose(const struct fits *fits)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < fits->training->n_fit; i++)
        if (fits->made[i].recall > fits->made[best].recall + WORTH)
            best = i;
    return best;
}

/* Inputs behind the hidden state: which experts were chosen. */
static void mark_choices(const struct moec_config *config, const struct moec_layer_pair *pair)
{
    const struct moec_layer_side *side = pair->from;
    for (size_t i = 0; i < (size_t)side->n_token * config->top_k; i++)
        if (moec_layer_side_chose(side, i, config->n_expert))
            side->inputs[i / config->top_k * pair->stride + config->n_embd + side->experts[i]] = 1;
}

static enum moec_status make_room(struct training *training, const struct moec_layer_pair *pair,
                                  struct moec_error *err)
{
    static const char what[] = "examples for a predictor";
    const struct moec_config *config = training->config;
    if (training->router == NULL)
        MOEC_TRY(moec_alloc_aligned((void **)&training->router, config->n_expert,
                                    pair->stride * sizeof(float), what, err));
    if (training->wanted == NULL)
        MOEC_TRY(moec_alloc((void **)&training->wanted, moec_windows_token_count(pair->windows),
                            config->top_k * sizeof(uint32_t), what, err));
    return MOEC_OK;
}

static void set_examples(struct training *training, const struct moec_layer_pair *pair,
                         struct moec_predictor_examples *examples)
{
    const struct moec_config *config = training->config;
    const struct moec_layer_side *to = pair->to;
    const uint32_t layer = moec_config_moe_layer(config, to->ordinal);
    const uint32_t n_window = pair->windows->n_window;
    mark_choices(config, pair);
    for (size_t i = 0; i < (size_t)to->n_token * config->top_k; i++)
        training->wanted[i] =
            moec_layer_side_chose(to, i, config->n_expert) ? to->experts[i] : MOEC_PREDICTOR_NO_EXPERT;
    memset(training->router, 0, config->n_expert * pair->stride * sizeof *training->router);
    training->job->kernels->decode_rows(&training->job->model->layers[layer].router, 0, config->n_expert,
                                        training->router, pair->stride);
    *examples = (struct moec_predictor_examples){
        .n_token = to->n_token,
        .shape = {.n_input = moec_predictor_inputs(config->n_embd, config->n_expert),
                  .n_expert = config->n_expert,
                  .top_k = config->top_k},
        .n_train = moec_layer_pairs_tokens(pair->windows, moec_config_stack(config, layer), 0,
                                           n_window - (n_window + APART - 1) / APART),
        .stride = pair->stride,
        .inputs = pair->from->inputs,
        .wanted = training->wanted,
        .router = training->router};
}

static enum moec_status take_fits(struct training *training, uint32_t ordinal, struct fits *fits,
                                  struct moec_error *err)
{
    for (uint32_t i = 0; i < training->n_fit; i++)
        if (fits->status[i] != MOEC_OK)
            return moec_fail(err, fits->status[i], "%s", fits->errors[i].message);
    const uint32_t best = choose(fits);
    training->fits[ordinal] = fits->made[best];
    fits->made[best] = (struct moec_predictor_fit){0};
    training->n_learned = fits->examples.n_train;
    training->n_done++;
    moec_progress_note(training->progress,
                       "MoE layer %" PRIu32 ": a predictor with %" PRIu32
                       " hidden units finds %.1f%% of the next layer's experts",
                       ordinal, training->fits[ordinal].n_hidden, 100 * training->fits[ordinal].recall);
    return MOEC_OK;
}

static enum moec_status report(struct training *training, struct moec_error *err)
{
    const double learned = (double)training->n_done / training->n_known;
    return moec_progress_report(training->progress, "learning", 0.1 * training->swept + 0.9 * learned, 1,
                                err);
}

static enum moec_status fit_layer(void *context, const struct moec_layer_pair *pair, struct moec_error *err)
{
    struct training *training = context;
    struct fits fits = {.training = training};
    MOEC_TRY(make_room(training, pair, err));
    set_examples(training, pair, &fits.examples);
    if (fits.examples.n_train < MIN_TRAIN || fits.examples.n_train == fits.examples.n_token)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "the text has %" PRIu32 " tokens to learn "
                         "from, expected at least %u: give more text",
                         fits.examples.n_train, MIN_TRAIN);
    const struct moec_pool pool = moec_pool_make(training->job->n_threads);
    moec_parallel_for(&pool, training->n_fit, fit_one, &fits);
    const enum moec_status status = take_fits(training, pair->from->ordinal, &fits, err);
    for (uint32_t i = 0; i < training->n_fit; i++)
        moec_predictor_fit_release(&fits.made[i]);
    MOEC_TRY(status);
    return report(training, err);
}

static enum moec_status worked(void *context, double share, struct moec_error *err)
{
    struct training *training = context;
    training->swept = share;
    return report(training, err);
}

/* ---- sizes ---- */

static void choose_units(struct training *training)
{
    const struct moec_config *config = training->config;
    for (uint32_t s = 0; s < moec_config_moe_count(config); s++) {
        const struct moec_moe_range range = moec_config_moe_range(config, s);
        training->n_known += s + 1 < range.first + range.count;
    }
    training->n_fit = 1;
    for (size_t i = 0; i < N_HIDDEN && training->n_known > 0; i++) {
        const uint64_t most = training->job->most_bytes / training->n_known;
        if (moec_predictor_layer_bytes(config, hidden_units[i]) > most)
            break;
        if (training->n_fit == N_FIT) {
            training->units[1] = training->units[2];
            training->n_fit = 2;
        }
        training->units[training->n_fit++] = hidden_units[i];
    }
}

/* ---- the result ---- */

static enum moec_status encode_rows(const struct moec_expert_predictor *out, const struct moec_matrix *matrix,
                                    const float *rows, size_t stride, struct moec_error *err)
{
    for (uint32_t r = 0; r < matrix->rows; r++)
        MOEC_TRY(moec_codec_encode_row(matrix->codec, rows + r * stride, matrix->columns,
                                       moec_predictor_row(out, matrix, r), err));
    return MOEC_OK;
}

static enum moec_status write_layers(const struct training *training, struct moec_expert_predictor *out,
                                     struct moec_error *err)
{
    bool is_known[MOEC_MAX_LAYERS];
    uint32_t n_hidden[MOEC_MAX_LAYERS];
    const uint32_t n_layer = moec_config_moe_count(training->config);
    const size_t stride =
        moec_lanes_padded(moec_predictor_inputs(training->config->n_embd, training->config->n_expert));
    for (uint32_t s = 0; s < n_layer; s++) {
        is_known[s] = training->fits[s].weights != NULL;
        n_hidden[s] = training->fits[s].n_hidden;
    }
    MOEC_TRY(moec_expert_predictor_create(training->config, is_known, n_hidden, out, err));
    out->n_token = training->n_learned;
    for (uint32_t s = 0; s < n_layer; s++) {
        const struct moec_predictor_fit *fit = &training->fits[s];
        const struct moec_predictor_layer *layer = &out->layers[s];
        if (!is_known[s])
            continue;
        MOEC_TRY(encode_rows(out, &layer->direct, fit->direct, stride, err));
        MOEC_TRY(encode_rows(out, &layer->hidden, fit->hidden, stride, err));
        MOEC_TRY(encode_rows(out, &layer->out, fit->out, moec_lanes_padded(fit->n_hidden), err));
        memcpy(layer->bias, fit->bias, out->n_expert * sizeof *layer->bias);
        memcpy(layer->hidden_bias, fit->hidden_bias, fit->n_hidden * sizeof *layer->hidden_bias);
    }
    return MOEC_OK;
}

enum moec_status moec_predictor_train(const struct moec_predictor_job *job,
                                      const struct moec_progress *progress, struct moec_expert_predictor *out,
                                      struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_config *config = &job->model->config;
    const uint32_t n_layer = moec_config_moe_count(config);
    struct training training = {.job = job, .progress = progress, .config = config};
    const struct moec_layer_pairs_job pairs = {
        .of = {.model = job->model, .experts = job->experts, .windows = job->windows},
        .kernels = job->kernels,
        .n_threads = job->n_threads,
        .n_spare = config->n_expert,
        .work_bytes = job->work_bytes,
        .hooks = {.pair = fit_layer, .worked = worked, .context = &training}};
    *out = (struct moec_expert_predictor){0};
    choose_units(&training);
    MOEC_TRY(moec_alloc((void **)&training.fits, n_layer, sizeof *training.fits, "fits of a predictor", err));
    MOEC_TRY_OUT(moec_layer_pairs_run(&pairs, err));
    MOEC_TRY_OUT(write_layers(&training, out, err));
out:
    if (status != MOEC_OK)
        moec_expert_predictor_release(out);
    for (uint32_t s = 0; s < n_layer; s++)
        moec_predictor_fit_release(&training.fits[s]);
    free(training.fits);
    free(training.router);
    free(training.wanted);
    return status;
}
