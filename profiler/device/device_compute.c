/* The parts of a decoded token with every expert in memory.
 *
 * The forward pass is the runtime's own, and so is the expert cache behind it, which never waits. When the
 * router's answer came is noted, so that the time before and the time after are told apart where the runtime
 * may stall. */
#include "profiler/device/device_measure.h"

#include "formats/base/clock.h"
#include "formats/base/memory.h"
#include "profiler/common/machine.h"
#include "profiler/common/quantiles.h"
#include "profiler/common/random.h"
#include "profiler/device/device_codecs.h"
#include "profiler/device/device_experts.h"
#include "profiler/device/device_products.h"
#include "profiler/device/device_waits.h"
#include "runtime/forward/attention/kv_state.h"
#include "runtime/forward/moe/decide.h"
#include "runtime/forward/pass/session.h"
#include "runtime/moert.h"
#include "runtime/policy/decide/route_settings.h"
#include "runtime/policy/decide/route_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define POSITIONS      256u /* decoded in one pass, where the model has as many */
#define MIN_POSITIONS  8u
#define DECIDING       "cache-prior:0.1:skip:0.1"
#define PASSES         4u
#define DECODE_NS      3000000000u
#define EXPERT_SAMPLES 256u                  /* records of a bitwidth that are computed in turn, at most, */
#define EXPERT_BYTES   ((uint64_t)128 << 20) /* of so many bytes, */
#define LEAST_SAMPLES  16u                   /* but at least so many */
#define EXPERT_ROUNDS  4u
#define SHARED_ROUNDS  16u
#define CODECS_SHARE   4u /* of the time for decoding, products of codecs take one */
#define MOVES          64u
#define MOVE_BYTES     ((size_t)128 << 10)

/* Of each part: passes x positions, as far as time went. */
struct compute_samples {
    uint32_t n_positions;
    uint32_t n;
    uint32_t most;
    float *attention, *router, *mlp; /* (n_layer, most), owned */
    float *embed, *head;             /* (most), owned */
};

struct compute_job {
    const struct moec_bundle *bundle;
    const struct moec_device_options *options;
    struct moec_device *device;
    struct moec_device_experts experts;
    struct {
        struct moec_model *model;
        struct moec_forward forward;
        bool is_open;
    } pass;
    struct compute_samples samples;
    struct {
        float *scratch;        /* (n_layer x samples.most), owned */
        float *input, *output; /* (stride), owned */
    } room;
};

static float since(uint64_t begun_ns)
{
    return (float)(moec_now_ns() - begun_ns);
}

static uint64_t limit_ns(const struct compute_job *job)
{
    return job->options->compute_ns > 0 ? job->options->compute_ns : DECODE_NS;
}

static uint64_t median(struct compute_job *job, float *values, size_t n)
{
    static const double middle[] = {0.5};
    double value = 0;
    if (n == 0)
        return 0;
    moec_quantiles(values, job->room.scratch, n, middle, 1, &value);
    return (uint64_t)value;
}

/* ---- decoding ---- */

static enum moec_status allocate(struct compute_job *job, struct moec_error *err)
{
    const struct moec_config *config = &job->bundle->config;
    const uint64_t n = job->samples.most, all = n * config->n_layer;
    struct {
        float **at;
        uint64_t n;
    } arrays[] = {{&job->samples.attention, all},
                  {&job->samples.router, all},
                  {&job->samples.mlp, all},
                  {&job->samples.embed, n},
                  {&job->samples.head, n}};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        void *memory = NULL;
        MOEC_TRY(moec_alloc(&memory, arrays[i].n, sizeof(float), "measured times", err));
        *arrays[i].at = memory;
    }
    void *scratch = NULL, *input = NULL, *output = NULL;
    uint64_t most = all > EXPERT_SAMPLES * EXPERT_ROUNDS ? all : EXPERT_SAMPLES * EXPERT_ROUNDS;
    MOEC_TRY(moec_alloc(&scratch, most, sizeof(float), "measured times", err));
    job->room.scratch = scratch;
    MOEC_TRY(moec_alloc_aligned(&input, moec_forward_stride(config), sizeof(float), "activations", err));
    job->room.input = input;
    MOEC_TRY(moec_alloc_aligned(&output, moec_forward_stride(config), sizeof(float), "activations", err));
    job->room.output = output;
    memset(job->room.input, 0, moec_forward_stride(config) * sizeof(float));
    for (uint32_t i = 0; i < config->n_embd; i++)
        job->room.input[i] = i % 3 == 0 ? 1.0f : -0.5f;
    return MOEC_OK;
}

/* With `state` routers decide by it, in place of choosing by their scores alone. */
struct decoder {
    struct moec_route_state *state;
    struct moec_kv_state kv; /* of the decoder's layers, n_positions */
    float *hidden;           /* (stride) */
    float *logits;           /* (n_vocab) */
    struct moec_random random;
    struct moert_sampler sampler;
};

/* Where there is an encoder, a decoder's layer looks at a source too: one as long as the context, whose keys
 * are those that happen to be there. */
static enum moec_status cross_source(struct compute_job *job, struct decoder *d, uint32_t layer,
                                     struct moec_error *err)
{
    const struct moec_config *config = &job->bundle->config;
    if (!moec_config_is_encoder_decoder(config))
        return MOEC_OK;
    const struct moec_kv_rows rows = moec_kv_state_rows(&d->kv, layer, 0);
    const struct moec_span span = {.n_rows = 1,
                                   .n_source = job->samples.n_positions,
                                   .keys.k_prefix = rows.keys,
                                   .keys.v_prefix = rows.values};
    return moec_forward_cross(&job->pass.forward, layer, (struct moec_batch){&span, 1, 1}, d->hidden, err);
}

/* One token through all layers that decoded tokens pass; its times become sample `at`. */
static enum moec_status decode_one(struct compute_job *job, struct decoder *d, uint32_t at,
                                   struct moec_error *err)
{
    const struct moec_config *config = &job->bundle->config;
    uint32_t token = (uint32_t)moec_random_below(&d->random, config->n_vocab);
    struct moec_sequence_rows row = {.n_rows = 1, .tokens = &token, .decides.route = d->state};
    const struct moec_sequences sequences = {.spans = &row, .n_spans = 1};
    uint64_t begun = moec_now_ns();
    MOEC_TRY(moec_forward_embed(&job->pass.forward, &token, 1, d->hidden, err));
    job->samples.embed[at] = since(begun);
    for (uint32_t layer = config->n_encoder_layer; layer < config->n_layer; layer++) {
        const size_t sample = (size_t)layer * job->samples.most + at;
        const struct moec_span span = moec_kv_state_span(&d->kv, layer, 0, 1);
        begun = moec_now_ns();
        MOEC_TRY(moec_forward_attention(&job->pass.forward, layer, (struct moec_batch){&span, 1, 1},
                                        d->hidden, err));
        MOEC_TRY(cross_source(job, d, layer, err));
        const int32_t ordinal = moec_config_moe_ordinal(config, layer);
        row.decides.layer = ordinal > 0 ? (uint32_t)ordinal : 0;
        uint64_t attended = moec_now_ns();
        job->experts.answered_ns = attended;
        MOEC_TRY(moec_forward_mlp(
            &job->pass.forward, layer,
            &(struct moec_mlp_batch){.n_tok = 1, .hidden = d->hidden, .sequences = &sequences}, err));
        job->samples.mlp[sample] = since(job->experts.answered_ns);
        job->samples.router[sample] = (float)(job->experts.answered_ns - attended);
        job->samples.attention[sample] = (float)(attended - begun);
    }
    begun = moec_now_ns();
    MOEC_TRY(moec_forward_head(&job->pass.forward, 1, d->hidden, d->logits, config->n_vocab, err));
    (void)moert_sampler_next(&d->sampler, d->logits, config->n_vocab);
    job->samples.head[at] = since(begun);
    moec_kv_state_append(&d->kv, 1);
    return MOEC_OK;
}

/* Passes over the same positions, as many as time allows; the first tokens of all, which touch memory for the
 * first time, count no more than others. */
static enum moec_status decode(struct compute_job *job, struct moec_route_state *state, uint32_t most,
                               struct moec_error *err)
{
    const struct moec_config *config = &job->bundle->config;
    struct decoder d = {.state = state, .random = {1}, .sampler = moert_sampler_greedy()};
    void *hidden = NULL, *logits = NULL;
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_kv_state_create(config,
                                      (struct moec_kv_layers){config->n_encoder_layer,
                                                              config->n_layer - config->n_encoder_layer,
                                                              MOEC_KV_EACH_LAYER, job->samples.n_positions},
                                      "keys and values", &d.kv, err));
    MOEC_TRY_OUT(moec_alloc_aligned(&hidden, moec_forward_stride(config), sizeof(float), "activations", err));
    MOEC_TRY_OUT(moec_alloc(&logits, config->n_vocab, sizeof(float), "logits", err));
    d.hidden = hidden;
    d.logits = logits;
    memset(hidden, 0, moec_forward_stride(config) * sizeof(float));
    uint64_t begun = moec_now_ns();
    for (uint32_t i = 0; i < most; i++) {
        uint64_t spent = moec_now_ns() - begun;
        if (i >= MIN_POSITIONS && spent > limit_ns(job))
            break;
        MOEC_TRY_OUT(moec_progress_report(job->options->progress, "decoding", (double)i, (double)most, err));
        if (i % job->samples.n_positions == 0)
            moec_kv_state_truncate(&d.kv, 0);
        MOEC_TRY_OUT(decode_one(job, &d, i, err));
        job->samples.n = i + 1;
    }
out:
    moec_kv_state_release(&d.kv);
    free(hidden);
    free(logits);
    return status;
}

/* What attention adds for each position of the context: from the first and the last quarter of the positions,
 * all layers together, as a single layer's difference drowns in noise. */
static double attention_slope(struct compute_job *job, float *gathered)
{
    const uint32_t n_layer = job->bundle->config.n_layer;
    uint32_t reached = job->samples.n < job->samples.n_positions ? job->samples.n : job->samples.n_positions,
             quarter = reached / 4;
    double level[2] = {0, 0}, place[2] = {0, 0};
    if (quarter == 0)
        return 0;
    for (int end = 0; end < 2; end++) {
        size_t n = 0;
        double sum = 0;
        for (uint32_t layer = job->bundle->config.n_encoder_layer; layer < n_layer; layer++)
            for (uint32_t i = 0; i < job->samples.n; i++) {
                uint32_t position = i % job->samples.n_positions;
                if (end == 0 ? position < quarter : position >= reached - quarter && position < reached) {
                    gathered[n++] = job->samples.attention[(size_t)layer * job->samples.most + i];
                    sum += position;
                }
            }
        place[end] = sum / (double)n;
        level[end] = (double)median(job, gathered, n);
    }
    double slope = (level[1] - level[0]) / (place[1] - place[0]);
    return slope > 0 ? slope : 0;
}

static enum moec_status fill_layers(struct compute_job *job, struct moec_error *err)
{
    const struct moec_config *config = &job->bundle->config;
    struct moec_device *device = job->device;
    void *gathered = NULL, *layers = NULL;
    MOEC_TRY(moec_alloc(&layers, config->n_layer, sizeof *device->layers, "layers of a device", err));
    device->layers = layers;
    device->n_layer = config->n_layer;
    MOEC_TRY(moec_alloc(&gathered, (uint64_t)config->n_layer * job->samples.n, sizeof(float),
                        "measured times", err));
    double slope = attention_slope(job, gathered);
    free(gathered);
    double place = 0;
    for (uint32_t i = 0; i < job->samples.n; i++)
        place += (double)(i % job->samples.n_positions) / job->samples.n;
    for (uint32_t layer = 0; layer < config->n_layer; layer++) {
        const size_t first = (size_t)layer * job->samples.most;
        uint64_t attention = median(job, job->samples.attention + first, job->samples.n);
        uint64_t context = (uint64_t)(slope * place);
        device->layers[layer] = (struct moec_device_layer){
            .is_moe = moec_config_is_moe(config, layer),
            .attention_ns = attention > context ? attention - context : 0,
            .attention_ns_per_position = layer < config->n_encoder_layer ? 0 : slope,
            .router_ns = median(job, job->samples.router + first, job->samples.n),
            .mlp_ns = median(job, job->samples.mlp + first, job->samples.n),
        };
    }
    device->embed_ns = median(job, job->samples.embed, job->samples.n);
    device->head_ns = median(job, job->samples.head, job->samples.n);
    return MOEC_OK;
}

/* What the routers of MoE layers, or what comes after them, took longer in the last tokens than in those of
 * the description, mean over the layers; 0 if they did not. */
static uint64_t mean_more_ns(struct compute_job *job, bool of_routers)
{
    const struct moec_config *config = &job->bundle->config;
    float *samples = of_routers ? job->samples.router : job->samples.mlp;
    double more_ns = 0;
    for (uint32_t layer = 0; layer < config->n_layer; layer++) {
        const struct moec_device_layer *before = &job->device->layers[layer];
        if (moec_config_is_moe(config, layer))
            more_ns += (double)median(job, samples + (size_t)layer * job->samples.most, job->samples.n) -
                       (double)(of_routers ? before->router_ns : before->mlp_ns);
    }
    return more_ns > 0 ? (uint64_t)(more_ns / moec_config_moe_count(config)) : 0;
}

/* What routers take longer that decide by a logical cache, as moec fit's do, mean over the MoE layers: the same
 * tokens again, with a prior and a skip. */
static enum moec_status decode_deciding(struct compute_job *job, struct moec_route *route,
                                        struct moec_error *err)
{
    const struct moec_config *config = &job->bundle->config;
    const uint32_t n_moe = moec_config_moe_count(config), n_before = job->samples.n;
    struct moec_decider decider = {0};
    struct moec_route_state state = {0};
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_decider_create(config, route, 1, &decider, err));
    MOEC_TRY_OUT(moec_route_state_create(config, route, n_moe, job->samples.n_positions, &state, err));
    job->pass.forward.decider = &decider;
    status = decode(job, &state, job->samples.n_positions, err);
    job->pass.forward.decider = NULL;
    if (status == MOEC_OK)
        job->device->decide_ns = mean_more_ns(job, true);
    job->samples.n = n_before;
out:
    moec_route_state_release(&state);
    moec_decider_release(&decider);
    return status;
}

static enum moec_status measure_deciding(struct compute_job *job, struct moec_error *err)
{
    const struct moec_config *config = &job->bundle->config;
    const struct moec_decision_settings settings = {
        .route = DECIDING,
        .n_slots = config->n_expert / 2 > config->top_k ? config->n_expert / 2 : config->top_k};
    struct moec_route route = {0};
    if (moec_config_is_encoder_decoder(config) || moec_config_routes_by_token(config) || config->top_k == 1)
        return MOEC_OK; /* nothing is fitted that decides */
    MOEC_TRY(moec_route_from_settings(&settings, config, &job->bundle->paths, job->bundle->file.path, &route,
                                      err));
    return decode_deciding(job, &route, err);
}

/* What a MoE layer takes longer that predicts the next one by its router, mean over the MoE layers: the same
 * tokens once more. */
static enum moec_status measure_predicting(struct compute_job *job, struct moec_error *err)
{
    const struct moec_config *config = &job->bundle->config;
    const uint32_t n_moe = moec_config_moe_count(config), n_before = job->samples.n;
    if (n_moe < 2)
        return MOEC_OK;
    MOEC_TRY(moec_device_experts_predict(&job->experts, err));
    const enum moec_status status = decode(job, NULL, job->samples.n_positions, err);
    moec_device_experts_predict_no_more(&job->experts);
    if (status == MOEC_OK)
        job->device->predict_ns = mean_more_ns(job, false);
    job->samples.n = n_before;
    return status;
}

static enum moec_status encode_source(struct compute_job *job, struct moec_session *session,
                                      struct moec_random *random, struct moec_error *err)
{
    const struct moec_config *config = &job->bundle->config;
    uint32_t source[POSITIONS];
    for (uint32_t i = 0; i < job->samples.n_positions; i++)
        source[i] = (uint32_t)moec_random_below(random, config->n_vocab);
    if (!moec_config_is_encoder_decoder(config))
        return MOEC_OK;
    return moec_session_encode(session, source, job->samples.n_positions, err);
}

/* Whole tokens through a session, as the runtime decodes them. */
static enum moec_status measure_tokens(struct compute_job *job, struct moec_error *err)
{
    const struct moec_config *config = &job->bundle->config;
    struct moec_session *session = NULL;
    struct moec_random random = {1}, source_random = {2};
    struct moert_sampler sampler = moert_sampler_greedy();
    void *logits = NULL;
    enum moec_status status = MOEC_OK;
    uint32_t n = job->samples.n < job->samples.n_positions ? job->samples.n : job->samples.n_positions;
    MOEC_TRY_OUT(moec_session_create(&job->pass.forward, job->samples.n_positions, &session, err));
    MOEC_TRY_OUT(moec_alloc(&logits, config->n_vocab, sizeof(float), "logits", err));
    MOEC_TRY_OUT(encode_source(job, session, &source_random, err));
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t at = 0, token = (uint32_t)moec_random_below(&random, config->n_vocab);
        MOEC_TRY_OUT(moec_progress_report(job->options->progress, "tokens", i, n, err));
        uint64_t begun = moec_now_ns();
        MOEC_TRY_OUT(moec_session_step(session, &token, 1, &at, 1, logits, err));
        (void)moert_sampler_next(&sampler, logits, config->n_vocab);
        job->samples.embed[i] = since(begun);
    }
    job->device->token_ns = median(job, job->samples.embed, n);
    job->device->token_position = (n - 1) / 2;
out:
    free(logits);
    moec_session_free(session);
    return status;
}

/* ---- experts alone ---- */

static enum moec_status measure_shared(struct compute_job *job, struct moec_error *err)
{
    const struct moec_config *config = &job->bundle->config;
    for (uint32_t layer = 0; layer < config->n_layer; layer++) {
        const struct moec_layer *weights = NULL;
        if (!moec_config_is_moe(config, layer))
            continue;
        MOEC_TRY(moec_model_acquire_layer(job->pass.model, layer, &weights, err));
        for (uint32_t i = 0; weights->has_shared && i < SHARED_ROUNDS; i++) {
            uint64_t begun = moec_now_ns();
            moec_forward_shared(&job->pass.forward, weights, 1, job->room.input, job->room.output);
            job->samples.embed[i] = since(begun);
        }
        if (weights->has_shared)
            job->device->layers[layer].shared_ns = median(job, job->samples.embed, SHARED_ROUNDS);
        moec_model_release_layer(job->pass.model, layer);
    }
    return MOEC_OK;
}

/* A record of a bitwidth, and where it was loaded. */
struct specimen {
    uint32_t copy, ordinal, expert;
    uint8_t *record; /* owned */
    struct moec_mlp mlp;
};

/* A record of a bundle. */
struct record_key {
    uint32_t copy, ordinal, expert;
};

static enum moec_status load_record(const struct moec_bundle *bundle, struct record_key key, uint8_t *record,
                                    struct moec_mlp *mlp, struct moec_error *err)
{
    MOEC_TRY(moec_bundle_read_record(bundle, (struct moec_record_id){key.copy, key.ordinal, key.expert},
                                     record, err));
    moec_record_bind(moec_bundle_layout(bundle, key.copy, key.ordinal, key.expert), record, mlp);
    return MOEC_OK;
}

/* Up to EXPERT_SAMPLES records with these bits, evenly over the bundle, in memory; and their mean size. */
static enum moec_status load_specimens(struct compute_job *job, uint32_t bits, struct specimen *specimens,
                                       uint32_t *n, uint64_t *record_bytes, struct moec_error *err)
{
    const struct moec_bundle *bundle = job->bundle;
    const uint32_t n_expert = bundle->config.n_expert;
    const size_t n_all = (size_t)bundle->n_copy * moec_config_moe_count(&bundle->config) * n_expert;
    uint64_t n_bytes = 0, n_match = 0, seen = 0;
    for (size_t i = 0; i < n_all; i++)
        if (bundle->records[i].bits == bits) {
            n_bytes += bundle->records[i].n_bytes;
            n_match++;
        }
    *n = 0;
    *record_bytes = n_match > 0 ? n_bytes / n_match : 0;
    uint64_t wanted = n_match > 0 ? EXPERT_BYTES / *record_bytes : 0;
    wanted = wanted > EXPERT_SAMPLES ? EXPERT_SAMPLES : wanted < LEAST_SAMPLES ? LEAST_SAMPLES : wanted;
    wanted = wanted < n_match ? wanted : n_match;
    for (size_t i = 0; i < n_all; i++) {
        if (bundle->records[i].bits != bits || seen++ * wanted / n_match != *n || *n == wanted)
            continue;
        struct specimen *specimen = &specimens[*n];
        void *memory = NULL;
        specimen->expert = (uint32_t)(i % n_expert);
        specimen->ordinal = (uint32_t)(i / n_expert % moec_config_moe_count(&bundle->config));
        specimen->copy = (uint32_t)(i / n_expert / moec_config_moe_count(&bundle->config));
        MOEC_TRY(moec_alloc_aligned(&memory, bundle->records[i].n_bytes, 1, "an expert record", err));
        specimen->record = memory;
        ++*n;
        MOEC_TRY(load_record(job->bundle,
                             (struct record_key){specimen->copy, specimen->ordinal, specimen->expert},
                             specimen->record, &specimen->mlp, err));
    }
    return MOEC_OK;
}

/* Records take turns, so that none is computed from the processor's caches unless all fit there,
 * as while decoding. */
static enum moec_status time_specimens(struct compute_job *job, const struct specimen *specimens, uint32_t n,
                                       struct moec_device_expert *expert, struct moec_error *err)
{
    float times[EXPERT_SAMPLES * EXPERT_ROUNDS];
    uint32_t n_times = 0;
    for (uint32_t round = 0; round < EXPERT_ROUNDS; round++)
        for (uint32_t i = 0; i < n; i++) {
            uint64_t begun = moec_now_ns();
            moec_forward_expert(&job->pass.forward, &specimens[i].mlp, 1, job->room.input, job->room.output);
            times[n_times++] = since(begun);
        }
    expert->compute_ns = median(job, times, n_times);
    n_times = 0;
    for (uint32_t round = 0; round < EXPERT_ROUNDS; round++)
        for (uint32_t i = 0; i < n; i++) {
            const struct specimen *s = &specimens[i];
            uint64_t begun = moec_now_ns();
            MOEC_TRY(moec_bundle_check_record(
                job->bundle, (struct moec_record_id){s->copy, s->ordinal, s->expert}, s->record, false, err));
            times[n_times++] = since(begun);
        }
    expert->check_ns = median(job, times, n_times);
    return MOEC_OK;
}

static enum moec_status measure_experts(struct compute_job *job, struct moec_error *err)
{
    static const uint32_t widths[] = {2, 3, 4, 5, 6, 8, 16};
    const size_t n_widths = sizeof widths / sizeof *widths;
    struct moec_device *device = job->device;
    enum moec_status status = MOEC_OK;
    for (size_t w = 0; status == MOEC_OK && w < n_widths; w++) {
        struct specimen specimens[EXPERT_SAMPLES] = {0};
        struct moec_device_expert expert = {.bits = widths[w]};
        uint32_t n = 0;
        status = moec_progress_report(job->options->progress, "experts", (double)w, (double)n_widths, err);
        if (status == MOEC_OK)
            status = load_specimens(job, widths[w], specimens, &n, &expert.record_bytes, err);
        if (status == MOEC_OK && n > 0) {
            status = time_specimens(job, specimens, n, &expert, err);
            device->experts[device->n_expert_widths++] = expert;
        }
        for (uint32_t i = 0; i < n; i++)
            free(specimens[i].record);
    }
    double ns = 0, n_bytes = 0;
    for (uint32_t i = 0; i < device->n_expert_widths; i++) {
        ns += (double)device->experts[i].check_ns;
        n_bytes += (double)device->experts[i].record_bytes;
    }
    device->check_ns_per_byte = n_bytes > 0 ? ns / n_bytes : 0;
    return status;
}

/* As the arena of the expert cache does it, in a buffer that the processor's nearest caches do not hold. */
static enum moec_status measure_moves(struct compute_job *job, struct moec_error *err)
{
    float times[MOVES];
    void *memory = NULL;
    MOEC_TRY(moec_alloc_pages(&memory, MOVES * MOVE_BYTES, "a buffer", err));
    uint8_t *bytes = memory;
    memset(bytes, 1, MOVES * MOVE_BYTES);
    const size_t moved_bytes = MOVE_BYTES - MOVE_BYTES / 4;
    for (uint32_t i = 0; i < MOVES; i++) {
        uint8_t *at = bytes + i * MOVE_BYTES;
        const uint64_t begun = moec_now_ns();
        memmove(at, at + MOVE_BYTES / 4, moved_bytes);
        times[i] = since(begun);
    }
    free(memory);
    job->device->move_ns_per_byte = (double)median(job, times, MOVES) / (double)moved_bytes;
    return MOEC_OK;
}

static enum moec_status measure_codecs(struct compute_job *job, struct moec_error *err)
{
    const struct moec_device_codecs_setup setup = {.bundle = job->bundle,
                                                   .forward = &job->pass.forward,
                                                   .n_kept = job->experts.n_kept,
                                                   .limit_ns = limit_ns(job) / CODECS_SHARE};
    return moec_device_measure_codecs(&setup, job->device, err);
}

static enum moec_status measure_waits(struct compute_job *job, struct moec_error *err)
{
    const struct moec_device_waits_setup setup = {.bundle = job->bundle,
                                                  .forward = &job->pass.forward,
                                                  .resident = &job->experts.base,
                                                  .limit_ns = limit_ns(job) / MOEC_DEVICE_WAITS,
                                                  .progress = job->options->progress};
    return moec_device_measure_waits(&setup, job->device, err);
}

static void release(struct compute_job *job)
{
    float *const arrays[] = {job->samples.attention, job->samples.router, job->samples.mlp,
                             job->samples.embed,     job->samples.head,   job->room.scratch,
                             job->room.input,        job->room.output};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
    if (job->pass.is_open)
        moec_forward_release(&job->pass.forward);
    moec_model_free(job->pass.model);
    moec_device_experts_close(&job->experts);
}

enum moec_status moec_device_measure_compute(const struct moec_bundle *bundle,
                                             const struct moec_device_options *options,
                                             struct moec_device *device, struct moec_error *err)
{
    struct compute_job job = {.bundle = bundle, .options = options, .device = device};
    struct moec_dense dense = {0};
    enum moec_status status = MOEC_OK;
    job.samples.n_positions = bundle->config.n_position < POSITIONS ? bundle->config.n_position : POSITIONS;
    job.samples.most =
        PASSES * job.samples.n_positions > SHARED_ROUNDS ? PASSES * job.samples.n_positions : SHARED_ROUNDS;
    const uint64_t limit_bytes =
        options->experts_bytes > 0 ? options->experts_bytes : moec_machine_memory_bytes() / 2;
    MOEC_TRY_OUT(moec_device_experts_open(bundle, limit_bytes, options->progress, &job.experts, err));
    MOEC_TRY_OUT(moec_bundle_load_dense(bundle, &dense, err));
    MOEC_TRY_OUT(moec_model_create(&bundle->config, &dense, &job.pass.model, err));
    MOEC_TRY_OUT(moec_forward_init(&job.pass.forward, job.pass.model, options->kernels, options->n_threads,
                                   &job.experts.base, 1, err));
    job.pass.is_open = true;
    device->n_threads = (uint32_t)job.pass.forward.pool.n_threads;
    (void)snprintf(device->instruction_set, sizeof device->instruction_set, "%s", options->kernels->name);
    MOEC_TRY_OUT(allocate(&job, err));
    MOEC_TRY_OUT(decode(&job, NULL, job.samples.most, err));
    MOEC_TRY_OUT(fill_layers(&job, err));
    MOEC_TRY_OUT(measure_deciding(&job, err));
    MOEC_TRY_OUT(measure_predicting(&job, err));
    MOEC_TRY_OUT(measure_tokens(&job, err));
    const struct moec_device_products_setup products = {.dense = &job.pass.model->dense,
                                                        .forward = &job.pass.forward,
                                                        .resident = &job.experts.base,
                                                        .n_tokens = job.samples.n};
    MOEC_TRY_OUT(moec_device_measure_products(&products, &device->products_ns, err));
    MOEC_TRY_OUT(measure_shared(&job, err));
    MOEC_TRY_OUT(measure_experts(&job, err));
    MOEC_TRY_OUT(measure_codecs(&job, err));
    MOEC_TRY_OUT(measure_moves(&job, err));
    status = measure_waits(&job, err);
out:
    release(&job);
    return status;
}
