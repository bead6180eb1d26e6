/* One table of columns serves both directions: path, type, axes, and the array to read from or fill. Derived
 * columns are written for people and never read. Reading takes attributes, then checks all datasets, and
 * only then allocates. The user block's SHA-256 covers every byte after it, and is checked before HDF5 sees
 * any. */
#include "formats/profile/profile_h5.h"

#include "formats/base/bytes.h"
#include "formats/base/file.h"
#include "formats/base/memory.h"
#include "formats/profile/h5.h"
#include "formats/profile/profile_h5_quantizer.h"
#include "formats/profile/profile_h5_studies.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define FORMAT_VERSION 4
/* Read as well: 3 has the trace's weights in F16, 2 texts of fixed length, 1 moreover ranks from 0 and scales
 * in /axes alone. */
#define OLDEST_VERSION      1
#define WEIGHTS_F32_VERSION 4
#define CONFIG_MAX_BYTES    ((uint64_t)1 << 20)
#define N_RECALL            3 /* among the top k, k + 1, 2k predicted */

/* ---- the schema ----
 *
 * Axes by letter: S MoE layer, E expert, B profiled bitwidth, U whole-model bitwidth, W window, P position,
 * T token, R rank of a choice, C cut of a prediction, K key of the path table, V value of a key, Y byte of
 * the config, M window with sensitivities (W where these are all). */

enum {
    AXIS_S,
    AXIS_E,
    AXIS_B,
    AXIS_U,
    AXIS_W,
    AXIS_P,
    AXIS_T,
    AXIS_R,
    AXIS_C,
    AXIS_K,
    AXIS_V,
    AXIS_Y,
    AXIS_M,
    AXIS_N,
    N_AXIS
};

static const char axis_letters[N_AXIS + 1] = "SEBUWPTRCKVYMN";

static const struct {
    const char *path, *units, *description;
} axes[N_AXIS] = {
    [AXIS_S] = {"/axes/moe_layer", "layer", "index in the model of each layer that routes to experts"},
    [AXIS_E] = {"/axes/expert", "expert", "index of a routed expert in its layer"},
    [AXIS_B] = {"/axes/bits", "bit", "bitwidth of the one expert that was measured"},
    [AXIS_U] = {"/axes/uniform_bits", "bit", "bitwidth of all experts together"},
    [AXIS_W] = {"/axes/window", "window", "windows of tokens"},
    [AXIS_P] = {"/axes/position", "token", "position in a window"},
    [AXIS_T] = {"/axes/token", "token", "tokens of the measured windows, one window after the other"},
    [AXIS_R] = {"/axes/rank", "rank", "experts of one token by falling gate weight, 1 = highest"},
    [AXIS_C] = {"/axes/cut", "expert", "number of experts predicted: k, k + 1, 2k"},
    [AXIS_K] = {"/axes/path_key", "key", "row of the path table"},
    [AXIS_V] = {"/axes/path_value", "rank", "successors of a key by falling probability, 1 = most probable"},
    [AXIS_Y] = {"/axes/config_byte", "byte", "byte of the encoded config"},
    [AXIS_M] = {"/axes/sensitivity_window", "window",
                "the first windows, on which single experts were measured"},
    [AXIS_N] = {"/axes/measured_window", "window",
                "the first windows, which were measured; the others wait for a certificate"},
};

static const char *const groups[] = {"/axes",    "/model",       "/windows", "/reference", "/baseline",
                                     "/uniform", "/sensitivity", "/routing", "/paths"};

/* Arrays that a profile holds in another form than the file, and those that are computed from it. */
struct scratch {
    uint64_t version; /* of the file that is read; 0: one is written */
    uint64_t dims[N_AXIS];
    uint64_t *index;                               /* 0, 1, 2, ... to the length of the longest axis */
    uint32_t cuts[N_RECALL];                       /* k, k + 1, 2k */
    uint8_t *config;                               /* (Y), owned */
    uint8_t *stack;                                /* (S); only written */
    double *uniform_nll, *uniform_kl;              /* (U, N) */
    double *uniform_loss, *sensitivity_loss;       /* (U), (S, E, B); only written */
    uint16_t *key_layer, *key_first, *key_second;  /* (K) */
    uint32_t *key_count;                           /* (K) */
    uint16_t *value_experts, *value_probabilities; /* (K, V) */
    uint16_t *frequency_experts, *frequency_probabilities; /* (S, E) */
};

struct column {
    const char *path;
    enum moec_h5_type type;
    bool derived;        /* written for people, never read */
    const char *letters; /* its axes */
    const char *units, *description, *source;
    void *data; /* NULL before there is memory */
};

#define MAX_COLUMNS   48
#define FIG_7A        "EdgeMoE III-B, Fig. 7(a)"
#define PATHS         "EdgeMoE III-C1, Fig. 8"
#define SOURCE_PATH   "/windows/source"
#define STACK_PATH    "/model/stack"
#define PART_PATH     "/windows/part"
#define DOCUMENT_PATH "/windows/document"
#define REPEATS_D5    "perplexity over all windows relative to the original weights, minus 1"

/* Whether sensitivities are of some windows only, which then have an axis of their own. */
static bool has_own_windows(const struct moec_profile *p)
{
    return p->n_sensitivity_window > 0 && p->n_sensitivity_window < p->n_window;
}

/* Whether windows were drawn that are not measured: those that are then have an axis of their own. */
static bool has_unmeasured(const struct moec_profile *p)
{
    return p->n_window < p->n_drawn;
}

static bool has_axis(const struct moec_profile *p, size_t axis)
{
    return axis == AXIS_M ? has_own_windows(p) : axis == AXIS_N ? has_unmeasured(p) : true;
}

static size_t list_columns(struct moec_profile *p, struct scratch *s, struct column *out)
{
    const char *measured = has_unmeasured(p) ? "N" : "W", *by_bits = has_unmeasured(p) ? "UN" : "UW";
    const char *sensitivity_axes = has_own_windows(p) ? "SEBM" : has_unmeasured(p) ? "SEBN" : "SEBW";
    const struct column columns[] = {
        {"/model/config", MOEC_H5_U8, false, "Y", "1", "the config as a bundle carries it", NULL, s->config},
        {"/windows/tokens", MOEC_H5_U32, false, "WP", "1", "token ids; 4294967295 after the end of a window",
         NULL, p->window_tokens},
        {"/windows/length", MOEC_H5_U32, false, "W", "tokens", "tokens of each window", NULL,
         p->window_length},
        {SOURCE_PATH, MOEC_H5_U32, false, "W", "tokens",
         "tokens of each window that are its source, which come first", NULL, p->window_source},
        {STACK_PATH, MOEC_H5_U8, true, "S", "1", "0: the layer is the encoder's, 1: the decoder's", NULL,
         s->stack},
        {"/windows/scored", MOEC_H5_U32, false, "W", "tokens", "scored tokens of each window", NULL,
         p->window_scored},
        {"/windows/index", MOEC_H5_U64, false, "W", "1", "which of the windows of the data this is", NULL,
         p->window_index},
        {PART_PATH, MOEC_H5_U8, false, "W", "1", "part of each window: 0 search, 1 certificate, 2 select",
         NULL, p->window_part},
        {DOCUMENT_PATH, MOEC_H5_U64, false, "W", "1", "document (row of the data) of each window", NULL,
         p->window_document},
        {"/reference/nll", MOEC_H5_F64, false, measured, "nats",
         "negative log-likelihood of the original weights, sum over scored tokens", NULL, p->reference.nll},
        {"/baseline/nll", MOEC_H5_F64, false, measured, "nats",
         "the same with all experts at the baseline bitwidth", "EdgeMoE III-B, Fig. 6", p->baseline.nll},
        {"/baseline/kl", MOEC_H5_F64, false, measured, "nats",
         "KL(original || baseline), sum over scored tokens", NULL, p->baseline.kl},
        {"/uniform/nll", MOEC_H5_F64, false, by_bits, "nats", "the same with all experts at one bitwidth",
         "EdgeMoE III-B, Fig. 6", s->uniform_nll},
        {"/uniform/kl", MOEC_H5_F64, false, by_bits, "nats", "KL(original || all experts at one bitwidth)",
         NULL, s->uniform_kl},
        {"/uniform/loss", MOEC_H5_F64, true, "U", "1", "from nll: " REPEATS_D5, "EdgeMoE III-B, Fig. 6",
         s->uniform_loss},
        {"/sensitivity/nll", MOEC_H5_F64, false, sensitivity_axes, "nats",
         "negative log-likelihood with this expert alone at this bitwidth, the others at the baseline",
         FIG_7A, p->expert_nll},
        {"/sensitivity/kl", MOEC_H5_F64, false, sensitivity_axes, "nats", "KL(original || that variant)",
         FIG_7A, p->expert_kl},
        {"/sensitivity/loss", MOEC_H5_F64, true, "SEB", "1", "from nll: " REPEATS_D5, FIG_7A,
         s->sensitivity_loss},
        {"/routing/activations", MOEC_H5_U64, false, "SE", "tokens",
         "tokens that chose the expert, original weights", PATHS, p->activations},
        {"/routing/mean_gate_weight", MOEC_H5_F64, false, "SE", "1",
         "mean gate weight over those tokens, 0 when none", NULL, p->mean_gate_weight},
        {"/routing/trace", MOEC_H5_U16, false, "TSR", "expert", "experts that each token chose", PATHS,
         p->trace_experts},
        {"/routing/trace_weights",
         s->version == 0 || s->version >= WEIGHTS_F32_VERSION ? MOEC_H5_HALF : MOEC_H5_F16, false, "TSR", "1",
         "gate weights of those choices", NULL, p->trace_weights},
        {"/paths/key_layer", MOEC_H5_U16, false, "K", "MoE layer",
         "ordinal of the MoE layer that the key predicts", PATHS, s->key_layer},
        {"/paths/key_first", MOEC_H5_U16, false, "K", "expert", "expert two MoE layers before; 65535: any",
         PATHS, s->key_first},
        {"/paths/key_second", MOEC_H5_U16, false, "K", "expert", "expert one MoE layer before", PATHS,
         s->key_second},
        {"/paths/key_count", MOEC_H5_U32, false, "K", "tokens", "tokens that had the key", PATHS,
         s->key_count},
        {"/paths/value_expert", MOEC_H5_U16, false, "KV", "expert", "most probable successors; 65535: none",
         PATHS, s->value_experts},
        {"/paths/value_probability", MOEC_H5_U16, false, "KV", "1/65535", "their probabilities", PATHS,
         s->value_probabilities},
        {"/paths/frequency_expert", MOEC_H5_U16, false, "SE", "expert",
         "experts of a layer by falling frequency", PATHS, s->frequency_experts},
        {"/paths/frequency_probability", MOEC_H5_U16, false, "SE", "1/65535", "their frequencies", PATHS,
         s->frequency_probabilities},
        {"/paths/recall", MOEC_H5_F64, false, "SC", "1",
         "recall of the activated experts, counted on windows that the table was not made from", PATHS,
         p->path_recall},
        {"/paths/frequency_recall", MOEC_H5_F64, false, "SC", "1", "the same, predicted by frequency alone",
         PATHS, p->frequency_recall},
    };
    static_assert(sizeof columns / sizeof *columns <= MAX_COLUMNS, "columns fit");
    const bool has_encoder = p->config.n_encoder_layer > 0;
    size_t n = 0;
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        const bool of_encoder =
            strcmp(columns[i].path, SOURCE_PATH) == 0 || strcmp(columns[i].path, STACK_PATH) == 0;
        const bool of_parts =
            strcmp(columns[i].path, PART_PATH) == 0 || strcmp(columns[i].path, DOCUMENT_PATH) == 0;
        if ((has_encoder || !of_encoder) && (p->n_document > 0 || !of_parts))
            out[n++] = columns[i];
    }
    return n;
}

static struct moec_h5_dataset dataset_of(const struct column *column, const uint64_t *dims)
{
    struct moec_h5_dataset dataset = {.path = column->path,
                                      .type = column->type,
                                      .rank = (uint32_t)strlen(column->letters),
                                      .units = column->units,
                                      .description = column->description,
                                      .source = column->source};
    for (uint32_t i = 0; i < dataset.rank; i++) {
        size_t axis = (size_t)(strchr(axis_letters, column->letters[i]) - axis_letters);
        dataset.dims[i] = dims[axis];
        dataset.axes[i] = axes[axis].path;
    }
    return dataset;
}

static struct moec_h5_dataset scale_of(size_t axis, enum moec_h5_type type, const uint64_t *dims)
{
    return (struct moec_h5_dataset){.path = axes[axis].path,
                                    .type = type,
                                    .rank = 1,
                                    .dims = {dims[axis]},
                                    .axes = {axes[axis].path},
                                    .units = axes[axis].units,
                                    .description = axes[axis].description};
}

/* ---- scratch ---- */

static void scratch_release(struct scratch *s)
{
    free(s->index);
    free(s->config);
    free(s->stack);
    free(s->uniform_nll);
    free(s->uniform_kl);
    free(s->uniform_loss);
    free(s->sensitivity_loss);
    free(s->key_layer);
    free(s->key_first);
    free(s->key_second);
    free(s->key_count);
    free(s->value_experts);
    free(s->value_probabilities);
    free(s->frequency_experts);
    free(s->frequency_probabilities);
}

static void set_dims(struct scratch *s, const struct moec_profile *p, uint64_t n_key, uint64_t n_config_byte)
{
    uint32_t n_value = 2 * p->top_k < p->n_expert ? 2 * p->top_k : p->n_expert;
    uint64_t dims[N_AXIS] = {
        [AXIS_S] = p->n_moe_layer,
        [AXIS_E] = p->n_expert,
        [AXIS_B] = p->n_bits,
        [AXIS_U] = p->n_uniform,
        [AXIS_W] = p->n_drawn,
        [AXIS_P] = moec_profile_window_stride(p),
        [AXIS_T] = p->n_trace_token,
        [AXIS_R] = p->top_k,
        [AXIS_C] = N_RECALL,
        [AXIS_K] = n_key,
        [AXIS_V] = n_value,
        [AXIS_Y] = n_config_byte,
        [AXIS_M] = has_own_windows(p) ? p->n_sensitivity_window : p->n_window,
        [AXIS_N] = p->n_window,
    };
    memcpy(s->dims, dims, sizeof dims);
    s->cuts[0] = p->top_k;
    s->cuts[1] = p->top_k + 1;
    s->cuts[2] = 2 * p->top_k;
}

/* Arrays that both directions need; dims are set. */
static enum moec_status scratch_allocate(struct scratch *s, struct moec_error *err)
{
    const uint64_t *d = s->dims;
    const struct {
        void **array;
        uint64_t count, item_bytes;
    } arrays[] = {
        {(void **)&s->uniform_nll, d[AXIS_U] * d[AXIS_N], sizeof(double)},
        {(void **)&s->uniform_kl, d[AXIS_U] * d[AXIS_N], sizeof(double)},
        {(void **)&s->key_layer, d[AXIS_K], sizeof(uint16_t)},
        {(void **)&s->key_first, d[AXIS_K], sizeof(uint16_t)},
        {(void **)&s->key_second, d[AXIS_K], sizeof(uint16_t)},
        {(void **)&s->key_count, d[AXIS_K], sizeof(uint32_t)},
        {(void **)&s->value_experts, d[AXIS_K] * d[AXIS_V], sizeof(uint16_t)},
        {(void **)&s->value_probabilities, d[AXIS_K] * d[AXIS_V], sizeof(uint16_t)},
        {(void **)&s->frequency_experts, d[AXIS_S] * d[AXIS_E], sizeof(uint16_t)},
        {(void **)&s->frequency_probabilities, d[AXIS_S] * d[AXIS_E], sizeof(uint16_t)},
    };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        MOEC_TRY(
            moec_alloc(arrays[i].array, arrays[i].count, arrays[i].item_bytes, "columns of a profile", err));
    return MOEC_OK;
}

static void split_values(const struct moec_path_value *values, uint64_t n, uint16_t *experts,
                         uint16_t *probabilities)
{
    for (uint64_t i = 0; i < n; i++) {
        experts[i] = values[i].expert;
        probabilities[i] = values[i].probability;
    }
}

static void join_values(const uint16_t *experts, const uint16_t *probabilities, uint64_t n,
                        struct moec_path_value *values)
{
    for (uint64_t i = 0; i < n; i++)
        values[i] = (struct moec_path_value){.expert = experts[i], .probability = probabilities[i]};
}

/* Fills the scratch from a checked profile: what the file holds in another form, and what is derived. */
static enum moec_status scratch_fill(struct scratch *s, const struct moec_profile *p, struct moec_error *err)
{
    size_t n_config_byte = 0;
    MOEC_TRY(moec_config_encode(&p->config, &s->config, &n_config_byte, err));
    set_dims(s, p, p->paths.n_key, n_config_byte);
    MOEC_TRY(scratch_allocate(s, err));
    uint64_t longest = 0, n_row = s->dims[AXIS_S] * s->dims[AXIS_E] * s->dims[AXIS_B];
    for (size_t i = 0; i < N_AXIS; i++)
        longest = s->dims[i] > longest ? s->dims[i] : longest;
    MOEC_TRY(moec_alloc((void **)&s->index, longest + 1, sizeof *s->index, "an axis of a profile", err));
    MOEC_TRY(moec_alloc((void **)&s->uniform_loss, p->n_uniform, sizeof(double), "losses of a profile", err));
    MOEC_TRY(moec_alloc((void **)&s->sensitivity_loss, n_row, sizeof(double), "losses of a profile", err));
    MOEC_TRY(moec_alloc((void **)&s->stack, p->n_moe_layer, 1, "stacks of layers", err));
    for (uint64_t i = 0; i <= longest; i++)
        s->index[i] = i;
    for (uint32_t i = 0; i < p->n_moe_layer; i++)
        s->stack[i] = moec_config_stack(&p->config, p->moe_layers[i]) == MOEC_STACK_DECODER;
    for (uint32_t u = 0; u < p->n_uniform; u++) {
        memcpy(s->uniform_nll + (size_t)u * p->n_window, p->uniform[u].nll, p->n_window * sizeof(double));
        memcpy(s->uniform_kl + (size_t)u * p->n_window, p->uniform[u].kl, p->n_window * sizeof(double));
        s->uniform_loss[u] = moec_profile_loss(p, p->uniform[u].nll);
    }
    for (uint64_t row = 0; row < n_row; row++)
        s->sensitivity_loss[row] =
            moec_profile_sensitivity_loss(p, p->expert_nll + row * p->n_sensitivity_window);
    for (uint32_t i = 0; i < p->paths.n_key; i++) {
        s->key_layer[i] = p->paths.keys[i].layer;
        s->key_first[i] = p->paths.keys[i].first;
        s->key_second[i] = p->paths.keys[i].second;
        s->key_count[i] = p->paths.keys[i].count;
    }
    split_values(p->paths.values, s->dims[AXIS_K] * s->dims[AXIS_V], s->value_experts,
                 s->value_probabilities);
    split_values(p->paths.frequency, s->dims[AXIS_S] * s->dims[AXIS_E], s->frequency_experts,
                 s->frequency_probabilities);
    return MOEC_OK;
}

/* The other way: fills the allocated profile from the scratch. */
static enum moec_status scratch_unpack(const struct scratch *s, struct moec_profile *p, const char *subject,
                                       struct moec_error *err)
{
    const uint32_t n_encoder_layer = p->config.n_encoder_layer;
    enum moec_status status = moec_config_decode(s->config, (size_t)s->dims[AXIS_Y], &p->config, err);
    if (status != MOEC_OK) {
        (void)moec_error_prefix(err, "%s", subject);
        return status;
    }
    if (p->config.n_encoder_layer != n_encoder_layer)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s: attribute 'n_encoder_layer' is %" PRIu32 ", but the config has %" PRIu32,
                         subject, n_encoder_layer, p->config.n_encoder_layer);
    for (uint32_t u = 0; u < p->n_uniform; u++) {
        memcpy(p->uniform[u].nll, s->uniform_nll + (size_t)u * p->n_window, p->n_window * sizeof(double));
        memcpy(p->uniform[u].kl, s->uniform_kl + (size_t)u * p->n_window, p->n_window * sizeof(double));
    }
    struct moec_path_table *paths = &p->paths;
    uint64_t n_value = s->dims[AXIS_K] * s->dims[AXIS_V], n_expert = s->dims[AXIS_S] * s->dims[AXIS_E];
    MOEC_TRY(moec_alloc((void **)&paths->keys, s->dims[AXIS_K], sizeof *paths->keys, "a path table", err));
    MOEC_TRY(moec_alloc((void **)&paths->values, n_value, sizeof *paths->values, "a path table", err));
    MOEC_TRY(moec_alloc((void **)&paths->frequency, n_expert, sizeof *paths->frequency, "a path table", err));
    paths->n_layer = p->n_moe_layer;
    paths->n_expert = p->n_expert;
    paths->top_k = p->top_k;
    paths->n_value = (uint32_t)s->dims[AXIS_V];
    paths->n_key = (uint32_t)s->dims[AXIS_K];
    for (uint32_t i = 0; i < paths->n_key; i++)
        paths->keys[i] = (struct moec_path_key){.layer = s->key_layer[i],
                                                .first = s->key_first[i],
                                                .second = s->key_second[i],
                                                .count = s->key_count[i]};
    join_values(s->value_experts, s->value_probabilities, n_value, paths->values);
    join_values(s->frequency_experts, s->frequency_probabilities, n_expert, paths->frequency);
    return MOEC_OK;
}

/* ---- attributes of the root ---- */

static const char *const sensitivity_names[] = {
    [MOEC_SENSITIVITY_EXACT] = "exact", [MOEC_SENSITIVITY_FAST] = "fast", [MOEC_SENSITIVITY_NONE] = "none"};

static enum moec_status write_numbers(struct moec_h5 *h5, const struct moec_profile *p,
                                      const struct scratch *s, struct moec_error *err)
{
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {
        {"format_version", FORMAT_VERSION},
        {"seq_len_tokens", p->seq_len_tokens},
        {"seed", p->seed},
        {"baseline_bits", p->baseline_bits},
        {"group", p->group},
        {"n_moe_layer", p->n_moe_layer},
        {"n_expert", p->n_expert},
        {"top_k", p->top_k},
        {"n_window", p->n_drawn},
        {"n_window_available", p->n_window_available},
        {"n_uniform", p->n_uniform},
        {"n_bits", p->n_bits},
        {"n_trace_token", p->n_trace_token},
        {"n_path_key", s->dims[AXIS_K]},
        {"n_config_byte", s->dims[AXIS_Y]},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        MOEC_TRY(moec_h5_write_u64(h5, "/", numbers[i].name, numbers[i].value, err));
    if (p->config.n_encoder_layer > 0)
        MOEC_TRY(moec_h5_write_u64(h5, "/", "n_encoder_layer", p->config.n_encoder_layer, err));
    if (has_own_windows(p))
        MOEC_TRY(moec_h5_write_u64(h5, "/", "n_sensitivity_window", p->n_sensitivity_window, err));
    if (has_unmeasured(p))
        MOEC_TRY(moec_h5_write_u64(h5, "/", "n_measured_window", p->n_window, err));
    if (p->n_document > 0) {
        MOEC_TRY(moec_h5_write_u64(h5, "/", "n_document", p->n_document, err));
        MOEC_TRY(moec_h5_write_u64(h5, "/", "parts_by_document", p->parts_by_document, err));
    }
    MOEC_TRY(moec_h5_write_f64(h5, "/", "cost_passes", p->cost_passes, err));
    return moec_h5_write_f64(h5, "/", "naive_passes", p->naive_passes, err);
}

static enum moec_status write_texts(struct moec_h5 *h5, const struct moec_profile *p, struct moec_error *err)
{
    char model[2 * MOEC_SHA256_BYTES + 1], data[2 * MOEC_SHA256_BYTES + 1];
    moec_sha256_hex(p->model_digest, model);
    moec_sha256_hex(p->data_digest, data);
    const struct {
        const char *name, *text;
    } texts[] = {
        {"title", "Profile of a Mixture-of-Experts model: what each expert loses at each bitwidth, and which "
                  "experts follow which"},
        {"moec_version", p->moec_version},
        {"arithmetic", p->arithmetic},
        {"task", p->task},
        {"metric", p->metric},
        {"data_name", p->data_name},
        {"data_sha256", data},
        {"model_sha256", model},
        {"sensitivity", sensitivity_names[p->sensitivity]},
        {"sensitivity_choice", p->sensitivity_choice},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        MOEC_TRY(moec_h5_write_text(h5, "/", texts[i].name, texts[i].text, err));
    return moec_profile_h5_write_quantizer(h5, p, err);
}

/* For people alone: reading takes the config from its dataset and computes perplexities from NLL. */
static enum moec_status write_notes(struct moec_h5 *h5, const struct moec_profile *p, struct moec_error *err)
{
    const struct moec_config *config = &p->config;
    const struct moec_layer_kind *first = moec_config_layer(config, 0);
    uint32_t n_ff_dense = 0;
    for (uint32_t i = 0; i < config->n_kind && n_ff_dense == 0; i++)
        n_ff_dense = config->kinds[i].n_ff_dense;
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {
        {"n_layer", config->n_layer},
        {"n_embd", config->n_embd},
        {"n_head", first->n_head},
        {"n_kv_head", first->n_kv_head},
        {"n_vocab", config->n_vocab},
        {"n_expert", config->n_expert},
        {"top_k", config->top_k},
        {"n_ff_expert", config->n_ff_expert},
        {"n_ff_shared", config->n_ff_shared},
        {"n_ff_dense", n_ff_dense},
    };
    MOEC_TRY(moec_h5_write_text(h5, "/model", "family", config->family, err));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        MOEC_TRY(moec_h5_write_u64(h5, "/model", numbers[i].name, numbers[i].value, err));
    MOEC_TRY(moec_h5_write_f64(h5, "/reference", "perplexity",
                               moec_profile_perplexity(p->reference.nll, p->window_scored, p->n_window),
                               err));
    if (moec_profile_is_chance(p))
        MOEC_TRY(moec_h5_write_u64(h5, "/reference", "no_better_than_chance", 1, err));
    MOEC_TRY(moec_h5_write_f64(h5, "/baseline", "perplexity",
                               moec_profile_perplexity(p->baseline.nll, p->window_scored, p->n_window), err));
    return moec_h5_write_f64(h5, "/baseline", "loss", moec_profile_loss(p, p->baseline.nll), err);
}

static enum moec_status read_u32(struct moec_h5 *h5, const char *name, uint32_t *value, const char *subject,
                                 struct moec_error *err)
{
    uint64_t wide = 0;
    MOEC_TRY(moec_h5_read_u64(h5, "/", name, &wide, err));
    if (wide > UINT32_MAX)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s: attribute '%s' is %" PRIu64 ", expected at most %u",
                         subject, name, wide, UINT32_MAX);
    *value = (uint32_t)wide;
    return MOEC_OK;
}

static enum moec_status read_numbers(struct moec_h5 *h5, struct moec_profile *p, struct scratch *s,
                                     const char *subject, struct moec_error *err)
{
    uint64_t version = 0, n_config_byte = 0, by_document = 0;
    uint32_t group = 0, n_key = 0;
    bool has_encoder = false, has_documents = false, has_windows = false, has_measured = false;
    MOEC_TRY(moec_h5_read_u64(h5, "/", "format_version", &version, err));
    if (version < OLDEST_VERSION || version > FORMAT_VERSION)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "%s has format version %" PRIu64
                         ", expected %d to %d: read it with the version of moec that wrote it",
                         subject, version, OLDEST_VERSION, FORMAT_VERSION);
    s->version = version;
    const struct {
        const char *name;
        uint32_t *value;
    } numbers[] = {
        {"seq_len_tokens", &p->seq_len_tokens},
        {"baseline_bits", &p->baseline_bits},
        {"group", &group},
        {"n_moe_layer", &p->n_moe_layer},
        {"n_expert", &p->n_expert},
        {"top_k", &p->top_k},
        {"n_window", &p->n_drawn},
        {"n_uniform", &p->n_uniform},
        {"n_bits", &p->n_bits},
        {"n_path_key", &n_key},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        MOEC_TRY(read_u32(h5, numbers[i].name, numbers[i].value, subject, err));
    MOEC_TRY(moec_h5_read_u64(h5, "/", "seed", &p->seed, err));
    MOEC_TRY(moec_h5_read_u64(h5, "/", "n_window_available", &p->n_window_available, err));
    MOEC_TRY(moec_h5_read_u64(h5, "/", "n_trace_token", &p->n_trace_token, err));
    MOEC_TRY(moec_h5_read_u64(h5, "/", "n_config_byte", &n_config_byte, err));
    MOEC_TRY(moec_h5_read_f64(h5, "/", "cost_passes", &p->cost_passes, err));
    MOEC_TRY(moec_h5_read_f64(h5, "/", "naive_passes", &p->naive_passes, err));
    if (group > UINT16_MAX || n_config_byte > CONFIG_MAX_BYTES)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s: the quantization group size (%" PRIu32
                         ", at most 65535) or the config (%" PRIu64 " bytes, at most 1 MiB) is too large",
                         subject, group, n_config_byte);
    p->group = (uint16_t)group;
    MOEC_TRY(moec_h5_has_attribute(h5, "/", "n_encoder_layer", &has_encoder, err));
    if (has_encoder)
        MOEC_TRY(read_u32(h5, "n_encoder_layer", &p->config.n_encoder_layer, subject, err));
    MOEC_TRY(moec_h5_has_attribute(h5, "/", "n_measured_window", &has_measured, err));
    p->n_window = p->n_drawn;
    if (has_measured)
        MOEC_TRY(read_u32(h5, "n_measured_window", &p->n_window, subject, err));
    MOEC_TRY(moec_h5_has_attribute(h5, "/", "n_sensitivity_window", &has_windows, err));
    p->n_sensitivity_window = p->n_window;
    if (has_windows)
        MOEC_TRY(read_u32(h5, "n_sensitivity_window", &p->n_sensitivity_window, subject, err));
    MOEC_TRY(moec_h5_has_attribute(h5, "/", "n_document", &has_documents, err));
    if (has_documents) {
        MOEC_TRY(moec_h5_read_u64(h5, "/", "n_document", &p->n_document, err));
        MOEC_TRY(moec_h5_read_u64(h5, "/", "parts_by_document", &by_document, err));
        p->parts_by_document = by_document != 0;
    }
    MOEC_TRY(moec_profile_check_dimensions(p, subject, err));
    set_dims(s, p, n_key, n_config_byte);
    return MOEC_OK;
}

static int hex_value(char digit)
{
    if (digit >= '0' && digit <= '9')
        return digit - '0';
    return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

static enum moec_status read_digest(struct moec_h5 *h5, const char *name, uint8_t *digest,
                                    const char *subject, struct moec_error *err)
{
    char text[2 * MOEC_SHA256_BYTES + 1];
    MOEC_TRY(moec_h5_read_text(h5, "/", name, text, sizeof text, err));
    for (size_t i = 0; i < MOEC_SHA256_BYTES; i++) {
        int high = hex_value(text[2 * i]), low = high < 0 ? -1 : hex_value(text[2 * i + 1]);
        if (low < 0)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "%s: attribute '%s' is '%s', expected 64 hexadecimal digits", subject, name,
                             text);
        digest[i] = (uint8_t)(high << 4 | low);
    }
    return MOEC_OK;
}

/* Profiles from before there was a choice have neither attribute and are exact. */
static enum moec_status read_sensitivity(struct moec_h5 *h5, struct moec_profile *p, const char *subject,
                                         struct moec_error *err)
{
    char mode[16];
    bool has = false;
    MOEC_TRY(moec_h5_has_attribute(h5, "/", "sensitivity", &has, err));
    if (!has)
        return MOEC_OK;
    MOEC_TRY(moec_h5_read_text(h5, "/", "sensitivity", mode, sizeof mode, err));
    if (strcmp(mode, sensitivity_names[MOEC_SENSITIVITY_FAST]) == 0)
        p->sensitivity = MOEC_SENSITIVITY_FAST;
    else if (strcmp(mode, sensitivity_names[MOEC_SENSITIVITY_NONE]) == 0)
        p->sensitivity = MOEC_SENSITIVITY_NONE;
    else if (strcmp(mode, sensitivity_names[MOEC_SENSITIVITY_EXACT]) != 0)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s: attribute 'sensitivity' is '%s', expected exact, fast or none", subject, mode);
    return moec_h5_read_text(h5, "/", "sensitivity_choice", p->sensitivity_choice,
                             sizeof p->sensitivity_choice, err);
}

static enum moec_status read_texts(struct moec_h5 *h5, struct moec_profile *p, const char *subject,
                                   struct moec_error *err)
{
    const struct {
        const char *name;
        char *text;
        size_t capacity;
    } texts[] = {
        {"moec_version", p->moec_version, sizeof p->moec_version},
        {"arithmetic", p->arithmetic, sizeof p->arithmetic},
        {"task", p->task, sizeof p->task},
        {"metric", p->metric, sizeof p->metric},
        {"data_name", p->data_name, sizeof p->data_name},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        MOEC_TRY(moec_h5_read_text(h5, "/", texts[i].name, texts[i].text, texts[i].capacity, err));
    MOEC_TRY(moec_profile_h5_read_quantizer(h5, p, subject, err));
    MOEC_TRY(read_sensitivity(h5, p, subject, err));
    MOEC_TRY(read_digest(h5, "model_sha256", p->model_digest, subject, err));
    return read_digest(h5, "data_sha256", p->data_digest, subject, err);
}

/* ---- the archive ---- */

static enum moec_status write_scales(struct moec_h5 *h5, struct moec_profile *p, struct scratch *s,
                                     struct moec_error *err)
{
    for (size_t axis = 0; axis < N_AXIS; axis++) {
        if (!has_axis(p, axis))
            continue;
        const void *values = axis == AXIS_S   ? p->moe_layers
                             : axis == AXIS_B ? p->bits
                             : axis == AXIS_U ? p->uniform_bits
                             : axis == AXIS_C ? s->cuts
                                              : NULL;
        const uint64_t *index = s->index + (axis == AXIS_R || axis == AXIS_V ? 1 : 0);
        struct moec_h5_dataset scale = scale_of(axis, values != NULL ? MOEC_H5_U32 : MOEC_H5_U64, s->dims);
        MOEC_TRY(moec_h5_write(h5, &scale, values != NULL ? values : index, err));
    }
    return MOEC_OK;
}

static enum moec_status write_archive(struct moec_h5 *h5, struct moec_profile *p, struct scratch *s,
                                      struct moec_error *err)
{
    struct column columns[MAX_COLUMNS];
    MOEC_TRY(write_texts(h5, p, err));
    MOEC_TRY(write_numbers(h5, p, s, err));
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        MOEC_TRY(moec_h5_write_group(h5, groups[i], err));
    MOEC_TRY(write_notes(h5, p, err));
    MOEC_TRY(write_scales(h5, p, s, err));
    size_t n = list_columns(p, s, columns);
    for (size_t i = 0; i < n; i++) {
        struct moec_h5_dataset dataset = dataset_of(&columns[i], s->dims);
        MOEC_TRY(moec_h5_write(h5, &dataset, columns[i].data, err));
    }
    return moec_profile_h5_write_studies(h5, p, err);
}

/* Every dataset is checked before any memory is made for it. */
static enum moec_status check_archive(struct moec_h5 *h5, struct moec_profile *p, struct scratch *s,
                                      struct moec_error *err)
{
    struct column columns[MAX_COLUMNS];
    const size_t stored_axes[] = {AXIS_S, AXIS_B, AXIS_U};
    for (size_t i = 0; i < sizeof stored_axes / sizeof *stored_axes; i++) {
        struct moec_h5_dataset scale = scale_of(stored_axes[i], MOEC_H5_U32, s->dims);
        MOEC_TRY(moec_h5_check(h5, &scale, err));
    }
    size_t n = list_columns(p, s, columns);
    for (size_t i = 0; i < n; i++) {
        struct moec_h5_dataset dataset = dataset_of(&columns[i], s->dims);
        if (!columns[i].derived)
            MOEC_TRY(moec_h5_check(h5, &dataset, err));
    }
    return MOEC_OK;
}

static enum moec_status read_archive(struct moec_h5 *h5, struct moec_profile *p, struct scratch *s,
                                     const char *subject, struct moec_error *err)
{
    struct column columns[MAX_COLUMNS];
    MOEC_TRY(read_numbers(h5, p, s, subject, err));
    MOEC_TRY(read_texts(h5, p, subject, err));
    MOEC_TRY(check_archive(h5, p, s, err));
    MOEC_TRY(moec_profile_allocate(p, err));
    MOEC_TRY(scratch_allocate(s, err));
    MOEC_TRY(moec_alloc((void **)&s->config, s->dims[AXIS_Y], 1, "a config", err));
    const struct {
        size_t axis;
        uint32_t *values;
    } scales[] = {{AXIS_S, p->moe_layers}, {AXIS_B, p->bits}, {AXIS_U, p->uniform_bits}};
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        struct moec_h5_dataset scale = scale_of(scales[i].axis, MOEC_H5_U32, s->dims);
        MOEC_TRY(moec_h5_read(h5, &scale, scales[i].values, err));
    }
    size_t n = list_columns(p, s, columns);
    for (size_t i = 0; i < n; i++) {
        struct moec_h5_dataset dataset = dataset_of(&columns[i], s->dims);
        if (!columns[i].derived)
            MOEC_TRY(moec_h5_read(h5, &dataset, columns[i].data, err));
    }
    MOEC_TRY(scratch_unpack(s, p, subject, err));
    MOEC_TRY(moec_profile_h5_read_studies(h5, p, subject, err));
    return moec_profile_check(p, subject, err);
}

/* ---- the user block ----
 *
 *     0   16   magic
 *     16  u32  version
 *     20  u32  zero
 *     24  u64  bytes that follow the block
 *     32  32   SHA-256 of them
 *     64       zeros up to 512
 *
 * Integers are little-endian. */

static const uint8_t magic[16] = {'M', 'O', 'E', 'C', ' ',  'P',  'R',  'O',
                                  'F', 'I', 'L', 'E', '\r', '\n', 0x1a, '\n'};

static void fill_user_block(uint8_t *bytes, size_t n_bytes)
{
    memset(bytes, 0, MOEC_PROFILE_USER_BLOCK_BYTES);
    memcpy(bytes, magic, sizeof magic);
    moec_put_u32(bytes + 16, FORMAT_VERSION);
    moec_put_u64(bytes + 24, n_bytes - MOEC_PROFILE_USER_BLOCK_BYTES);
    moec_sha256(bytes + MOEC_PROFILE_USER_BLOCK_BYTES, n_bytes - MOEC_PROFILE_USER_BLOCK_BYTES, bytes + 32);
}

static bool has_magic(const uint8_t *bytes, size_t n_bytes)
{
    return n_bytes >= MOEC_PROFILE_USER_BLOCK_BYTES && memcmp(bytes, magic, sizeof magic) == 0;
}

#define IF_EDITED "if you edited it yourself, pass --trust-profile; else profile again"

static enum moec_status check_user_block(const uint8_t *bytes, size_t n_bytes, const char *subject,
                                         const uint8_t digest[static MOEC_SHA256_BYTES],
                                         struct moec_error *err)
{
    if (!has_magic(bytes, n_bytes)) {
        if (moec_h5_has_signature(bytes, n_bytes))
            return moec_fail(err, MOEC_ERR_CHECKSUM,
                             "%s is an HDF5 file without a profile's checksum: " IF_EDITED, subject);
        return moec_fail(err, MOEC_ERR_FORMAT, "%s is not a profile: it does not start with 'MOEC PROFILE'",
                         subject);
    }
    uint64_t version = moec_get_u32(bytes + 16), length = moec_get_u64(bytes + 24);
    if (version < OLDEST_VERSION || version > FORMAT_VERSION)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "%s has format version %" PRIu64
                         ", expected %d to %d: read it with the version of moec that wrote it",
                         subject, version, OLDEST_VERSION, FORMAT_VERSION);
    if (length != n_bytes - MOEC_PROFILE_USER_BLOCK_BYTES)
        return moec_fail(err, MOEC_ERR_CHECKSUM,
                         "%s is damaged: it has %zu bytes after its header of 512 bytes, expected %" PRIu64
                         ": " IF_EDITED,
                         subject, n_bytes - MOEC_PROFILE_USER_BLOCK_BYTES, length);
    bool padded = moec_get_u32(bytes + 20) == 0;
    for (size_t i = 64; i < MOEC_PROFILE_USER_BLOCK_BYTES; i++)
        padded = padded && bytes[i] == 0;
    if (!padded || memcmp(bytes + 32, digest, MOEC_SHA256_BYTES) != 0)
        return moec_fail(err, MOEC_ERR_CHECKSUM,
                         "%s is damaged: its SHA-256 does not match its content: " IF_EDITED, subject);
    return MOEC_OK;
}

/* ---- public ---- */

enum moec_status moec_profile_encode(const struct moec_profile *profile, uint8_t **bytes, size_t *n_bytes,
                                     struct moec_error *err)
{
    struct scratch scratch = {0};
    struct moec_h5 *h5 = NULL;
    /* A shallow copy: the table of columns serves both directions and wants pointers to what it may fill. */
    struct moec_profile view = *profile;
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_profile_check(profile, "the profile to be written", err));
    MOEC_TRY_OUT(scratch_fill(&scratch, profile, err));
    MOEC_TRY_OUT(moec_h5_create(MOEC_PROFILE_USER_BLOCK_BYTES, &h5, err));
    MOEC_TRY_OUT(write_archive(h5, &view, &scratch, err));
    MOEC_TRY_OUT(moec_h5_take_bytes(h5, bytes, n_bytes, err));
    fill_user_block(*bytes, *n_bytes);
out:
    moec_h5_close(h5);
    scratch_release(&scratch);
    return status;
}

enum moec_status moec_profile_write(const struct moec_profile *profile, const char *path,
                                    struct moec_error *err)
{
    struct moec_output output = {.fd = -1};
    uint8_t *bytes = NULL;
    size_t n_bytes = 0;
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_profile_encode(profile, &bytes, &n_bytes, err));
    MOEC_TRY_OUT(moec_output_open(&output, path, err));
    MOEC_TRY_OUT(moec_output_append(&output, bytes, n_bytes, err));
    MOEC_TRY_OUT(moec_output_commit(&output, err));
out:
    moec_output_abort(&output);
    free(bytes);
    return status;
}

enum moec_status moec_profile_decode(uint8_t *bytes, size_t n_bytes, const char *subject, bool trust,
                                     struct moec_profile *out, uint8_t digest[static MOEC_SHA256_BYTES],
                                     struct moec_error *err)
{
    struct scratch scratch = {0};
    struct moec_h5 *h5 = NULL;
    enum moec_status status = MOEC_OK;
    memset(out, 0, sizeof *out);
    size_t start = has_magic(bytes, n_bytes) ? MOEC_PROFILE_USER_BLOCK_BYTES : 0;
    moec_sha256(bytes + start, n_bytes - start, digest);
    if (!trust)
        MOEC_TRY_OUT(check_user_block(bytes, n_bytes, subject, digest, err));
    if (!moec_h5_has_signature(bytes, n_bytes)) {
        status = moec_fail(err, MOEC_ERR_FORMAT, "%s is not a profile: it has no HDF5 signature", subject);
        goto out;
    }
    MOEC_TRY_OUT(moec_h5_open(bytes, n_bytes, subject, &h5, err));
    MOEC_TRY_OUT(read_archive(h5, out, &scratch, subject, err));
out:
    moec_h5_close(h5);
    scratch_release(&scratch);
    if (status != MOEC_OK)
        moec_profile_release(out);
    return status;
}

enum moec_status moec_profile_read(const char *path, bool trust, struct moec_profile *out,
                                   uint8_t digest[static MOEC_SHA256_BYTES], struct moec_error *err)
{
    char *bytes = NULL, *subject = NULL;
    size_t n_bytes = 0;
    memset(out, 0, sizeof *out);
    MOEC_TRY(moec_file_load(path, MOEC_ALLOC_MAX_BYTES - 1, &bytes, &n_bytes, err));
    enum moec_status status = MOEC_OK;
    if (asprintf(&subject, "profile '%s'", path) < 0) {
        subject = NULL;
        status = moec_fail(err, MOEC_ERR_MEMORY, "out of memory: no room for the path of a profile");
    }
    if (status == MOEC_OK)
        status = moec_profile_decode((uint8_t *)bytes, n_bytes, subject, trust, out, digest, err);
    free(subject);
    free(bytes);
    return status;
}
