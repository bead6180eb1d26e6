/* Everything is first planned at its least; what total() then leaves goes to dense weights, logits, batches
 * and shares, in this order. Each step asks total() anew, so every part of the plan must stand in it. What a
 * run takes in addition must be in the floor too, or the limit is broken silently. */
#include "profiler/profile/work_plan.h"

#include "profiler/evaluate/sweep.h"
#include "profiler/evaluate/token_score.h"
#include "profiler/routing/router_study.h"
#include "profiler/sensitivity/gain_plan.h"
#include "profiler/sensitivity/sensitivity.h"
#include "runtime/forward/weights/model_stream.h"

#include <inttypes.h>

#define MIB(bytes) ((double)(bytes) / 1048576.0)

#define MARGIN_BYTES    ((uint64_t)12 << 20) /* stacks, tables, files, what allocators waste */
#define CHUNK_MAX_BYTES ((uint64_t)64 << 20) /* of the reference's probabilities, computed at once */
#define LOGITS_TOKENS   512u                 /* that share one decoding of the head where memory is plenty */
#define PLENTY_BYTES    ((uint64_t)1 << 30)
#define MIN_ROWS        64u /* of a chunk, and of a batch where windows are shorter */

/* Sizes that the plan is made of. */
struct sizes {
    uint64_t row_bytes; /* one hidden state */
    uint64_t kv_bytes;  /* keys and values of one token in the largest layer */
    struct {
        uint64_t record_bytes; /* one, exact */
        uint64_t layer_bytes;  /* all of a layer, exact */
        uint64_t all_bytes;    /* every variant of every one */
    } experts;
    struct {
        uint64_t bytes; /* of one model */
        uint64_t floor_bytes, head_bytes;
    } dense;
    uint64_t n_row, longest; /* of the windows */
    uint64_t sweep_row_bytes;
};

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t record_bytes(const struct moec_config *config, uint32_t dtype)
{
    return moec_record_layout_make(config, (struct moec_codec){.dtype = (uint8_t)dtype}).n_bytes;
}

/* Every expert, exact and at the usual bitwidths. */
static uint64_t all_variant_bytes(const struct moec_config *config)
{
    static const uint32_t int_bits[] = {2, 3, 4, 8};
    const uint64_t exact = record_bytes(config, config->expert_dtype),
                   wide = larger(exact, record_bytes(config, MOEC_DTYPE_BF16));
    uint64_t one = exact;
    for (size_t i = 0; i < sizeof int_bits / sizeof *int_bits; i++)
        one += wide * (int_bits[i] + 1) / 16;
    return (uint64_t)moec_config_moe_count(config) * config->n_expert * one;
}

static enum moec_status measure_dense(const struct moec_work_request *request, struct sizes *sizes,
                                      struct moec_error *err)
{
    struct moec_dense dense = {0};
    const struct moec_config *config = moec_checkpoint_config(request->checkpoint);
    MOEC_TRY(moec_checkpoint_stream_dense(
        request->checkpoint, request->evaluations.n_models > 1 ? 16 : request->evaluations.dense_bits, 0,
        &dense, err));
    sizes->dense.bytes = dense.blob_bytes;
    sizes->dense.floor_bytes = moec_model_stream_floor(config, &dense);
    for (uint32_t i = 0; i < dense.n_entries; i++)
        if (moec_role_is_of_head(config, (enum moec_role)dense.entries[i].role))
            sizes->dense.head_bytes += dense.entries[i].n_bytes;
    moec_dense_release(&dense);
    return MOEC_OK;
}

static enum moec_status measure(const struct moec_work_request *request, struct sizes *sizes,
                                struct moec_error *err)
{
    const struct moec_config *config = moec_checkpoint_config(request->checkpoint);
    const uint64_t n_moe = moec_config_moe_count(config);
    *sizes =
        (struct sizes){.row_bytes = moec_forward_stride(config) * sizeof(float),
                       .kv_bytes = moec_kv_state_row_bytes(config, 0, config->n_layer, MOEC_KV_ONE_LAYER),
                       .experts.record_bytes = record_bytes(config, config->expert_dtype)};
    sizes->experts.layer_bytes = config->n_expert * sizes->experts.record_bytes;
    sizes->experts.all_bytes = all_variant_bytes(config);
    const uint64_t k = config->top_k;
    sizes->sweep_row_bytes = (n_moe + k + 5) * sizes->row_bytes +
                             moec_kv_state_row_bytes(config, 0, config->n_layer, MOEC_KV_EACH_LAYER) +
                             moec_reference_row_bytes(config) + k * 12 + 32;
    for (uint32_t w = 0; request->windows != NULL && w < request->windows->n_window; w++) {
        sizes->longest = larger(sizes->longest, request->windows->length[w]);
        sizes->n_row += request->windows->length[w];
    }
    return measure_dense(request, sizes, err);
}

uint64_t moec_work_plan_layer_bytes(const struct moec_checkpoint *checkpoint)
{
    const struct moec_config *config = moec_checkpoint_config(checkpoint);
    const uint64_t dense =
        moec_checkpoint_weight_bytes(checkpoint) - moec_checkpoint_expert_bytes(checkpoint);
    const uint64_t n_moe = moec_config_moe_count(config);
    const uint64_t vocabulary =
        (config->head.is_tied ? 1 : 2) * (uint64_t)config->n_vocab * config->n_embd * 2;
    /* Layers without experts are the smaller ones; an even share of the dense weights is what all have. */
    const uint64_t share = dense > vocabulary ? (dense - vocabulary) / config->n_layer : 0;
    return share + (n_moe > 0 ? moec_checkpoint_expert_bytes(checkpoint) / n_moe : 0);
}

uint64_t moec_work_plan_default_bytes(const struct moec_checkpoint *checkpoint, uint64_t least_bytes,
                                      uint64_t available_bytes)
{
    const uint64_t variants = all_variant_bytes(moec_checkpoint_config(checkpoint)),
                   layer = moec_work_plan_layer_bytes(checkpoint);
    const bool is_small = variants <= least_bytes / 4;
    return is_small || least_bytes + variants + layer > available_bytes / 2 ? least_bytes
                                                                            : least_bytes + variants;
}

/* Activations of batches of n tokens: scratch, keys and values, and the trace of a layer. */
static uint64_t batch_bytes(const struct moec_work_request *request, const struct sizes *sizes, uint64_t n)
{
    const struct moec_config *config = moec_checkpoint_config(request->checkpoint);
    if (request->windows == NULL)
        return 0;
    /* Keys and values, of sources too. */
    const uint64_t n_kv = moec_config_is_encoder_decoder(config) ? 2 : 1;
    uint64_t n_bytes =
        request->evaluations.n_passes *
        (moec_forward_scratch_bytes(config, (uint32_t)n, request->n_threads) + n_kv * n * sizes->kv_bytes);
    n_bytes += request->evaluations.n_arithmetic *
               moec_forward_arithmetic_bytes(config, (uint32_t)n, request->evaluations.arithmetic);
    if (request->evaluations.traces)
        n_bytes += n * ((config->top_k + 5) * sizes->row_bytes + sizes->kv_bytes);
    return n_bytes;
}

static uint64_t buffer_bytes(const struct moec_work_request *request, uint64_t chunk_bytes,
                             uint64_t logits_bytes)
{
    const struct moec_config *config = moec_checkpoint_config(request->checkpoint);
    const uint64_t n_threads = (uint64_t)moec_pool_make(request->n_threads).n_threads;
    uint64_t n_bytes = MARGIN_BYTES + request->bytes.exchange +
                       n_threads * (moec_checkpoint_expert_scratch_bytes(request->checkpoint) + (1u << 18));
    if (request->windows == NULL)
        return n_bytes + n_threads * record_bytes(config, MOEC_DTYPE_BF16);
    return n_bytes + request->evaluations.n_passes * (logits_bytes + chunk_bytes);
}

static uint64_t total(const struct moec_work_request *request, const struct moec_work_plan *plan)
{
    return plan->fixed.base_bytes + plan->fixed.result_bytes + plan->fixed.buffer_bytes +
           request->evaluations.n_models * plan->dense_bytes + plan->activation_bytes + plan->cache_bytes +
           plan->sweep_bytes + plan->work.states_bytes +
           request->evaluations.n_reference * plan->reference_bytes;
}

/* Everything at its least. */
static void plan_floor(const struct moec_work_request *request, const struct sizes *sizes,
                       struct moec_work_plan *plan)
{
    const struct moec_config *config = moec_checkpoint_config(request->checkpoint);
    const uint64_t longest = smaller(larger(sizes->longest, MIN_ROWS), larger(sizes->n_row, 1));
    *plan = (struct moec_work_plan){
        .limit_bytes = request->bytes.work + moec_work_plan_layer_bytes(request->checkpoint),
        .fixed = {.base_bytes = request->bytes.base, .result_bytes = request->bytes.result},
        .dense_bytes = smaller(sizes->dense.bytes, sizes->dense.floor_bytes),
        .work = {.batch_tokens = (uint32_t)longest, .folder = request->folder}};
    plan->work.chunk_bytes = smaller(MIN_ROWS, larger(sizes->n_row, 1)) * moec_reference_row_bytes(config);
    plan->work.logits_bytes = moec_token_scorer_least_bytes(config);
    plan->fixed.buffer_bytes = buffer_bytes(request, plan->work.chunk_bytes, plan->work.logits_bytes);
    if (request->windows == NULL)
        return;
    plan->activation_bytes = batch_bytes(request, sizes, longest);
    plan->cache_bytes = sizes->experts.record_bytes;
    /* Of spilled states, a batch each is in memory. */
    const uint64_t resident = request->folder != NULL ? smaller(longest, sizes->n_row) : sizes->n_row;
    plan->work.states_bytes = request->evaluations.n_states * resident * sizes->row_bytes;
    /* Routing is studied before the sweep takes its memory. */
    if (request->evaluations.sweeps)
        plan->sweep_bytes = larger(
            sizes->longest * sizes->sweep_row_bytes * 8 / 7,
            moec_router_study_bytes(config, request->n_threads, request->windows->n_window, sizes->n_row, 0));
}

static enum moec_status refuse(const struct moec_work_request *request, const struct moec_work_plan *least,
                               struct moec_error *err)
{
    const uint64_t needed = total(request, least), layer = least->limit_bytes - request->bytes.work;
    return moec_fail(
        err, MOEC_ERR_BUDGET,
        "work memory of %.1f MiB is too little for this model: process %.1f + results %.1f + buffers %.1f + "
        "dense weights of a layer %.1f + activations of a window %.1f + largest expert %.1f + hidden states "
        "%.1f + sensitivity of a window %.1f MiB (%.1f MiB of the largest layer do not count as work "
        "memory); raise --work-memory to %.0f MiB or lower --seq-len",
        MIB(request->bytes.work), MIB(least->fixed.base_bytes), MIB(least->fixed.result_bytes),
        MIB(least->fixed.buffer_bytes), MIB(request->evaluations.n_models * least->dense_bytes),
        MIB(least->activation_bytes), MIB(least->cache_bytes), MIB(least->work.states_bytes),
        MIB(least->sweep_bytes), MIB(layer), MIB(needed - layer + (1u << 20) - 1));
}

/* The whole model where it is a small part of what there is, else the layer at work,
 * with the head if that is. */
static void plan_dense(const struct moec_work_request *request, const struct sizes *sizes, uint64_t left,
                       struct moec_work_plan *plan)
{
    const uint64_t share = left / 4 / request->evaluations.n_models;
    uint64_t keep = plan->dense_bytes;
    if (sizes->dense.bytes <= share)
        keep = sizes->dense.bytes;
    else if (request->windows != NULL && sizes->dense.head_bytes <= share)
        keep = larger(keep, sizes->dense.head_bytes);
    plan->dense_bytes = keep;
}

/* The longest batch that takes a fifth of what is left, where that is plenty a third: experts are encoded and
 * decoded anew for each. */
static void plan_batch(const struct moec_work_request *request, const struct sizes *sizes, uint64_t left,
                       struct moec_work_plan *plan)
{
    const uint64_t most = smaller(MOEC_SWEEP_TOKENS, larger(sizes->n_row, 1));
    const uint64_t least = plan->activation_bytes, share = left / (left > PLENTY_BYTES ? 3 : 5);
    for (uint64_t n = larger(most, plan->work.batch_tokens); n > plan->work.batch_tokens; n = n * 7 / 8) {
        const uint64_t n_bytes = batch_bytes(request, sizes, n);
        if (n_bytes - least > share)
            continue;
        plan->work.batch_tokens = (uint32_t)n;
        plan->activation_bytes = n_bytes;
        return;
    }
}

static uint64_t take(uint64_t *left, uint64_t wanted, uint64_t most)
{
    const uint64_t taken = smaller(wanted, smaller(*left, most));
    *left -= taken;
    return taken;
}

/* Variants first, a layer's at least: half of what is left, all that hidden states leave where nothing else
 * wants any, and in any case all of them where this leaves plenty. What variants do not need, the next may
 * have. */
static void plan_shares(const struct moec_work_request *request, const struct sizes *sizes, uint64_t left,
                        struct moec_work_plan *plan)
{
    const struct moec_config *config = moec_checkpoint_config(request->checkpoint);
    const uint64_t all_states = request->evaluations.n_states * sizes->n_row * sizes->row_bytes,
                   states = all_states - smaller(all_states, plan->work.states_bytes);
    const uint64_t layer = smaller(sizes->experts.layer_bytes, left - left / 4);
    const bool has_others = request->evaluations.sweeps || request->evaluations.n_reference > 0;
    const uint64_t variants = sizes->experts.all_bytes - plan->cache_bytes;
    uint64_t most = larger(layer, has_others ? left / 2 : left - smaller(left / 2, states));
    if (left >= PLENTY_BYTES / 2 && variants <= left - PLENTY_BYTES / 2)
        most = larger(most, variants);
    plan->cache_bytes += take(&left, variants, most);
    plan->work.states_bytes += take(&left, states, request->evaluations.sweeps ? left / 3 : left);
    if (request->evaluations.n_reference > 0)
        plan->reference_bytes =
            take(&left, request->evaluations.n_reference * sizes->n_row * moec_reference_row_bytes(config),
                 left) /
            request->evaluations.n_reference;
    if (request->evaluations.sweeps)
        plan->sweep_bytes += left;
}

/* A chunk of the reference's probabilities, and logits: as many tokens of both, since the head is decoded for
 * each tile of logits, and for what is left of a chunk anew. */
static void plan_logits(const struct moec_work_request *request, const struct sizes *sizes, uint64_t left,
                        struct moec_work_plan *plan)
{
    const uint64_t row = moec_reference_row_bytes(moec_checkpoint_config(request->checkpoint));
    const uint64_t all = larger(sizes->n_row, 1) * row;
    const uint64_t chunk = smaller(left / 32, smaller(all, CHUNK_MAX_BYTES));
    const uint64_t logits = smaller(left / 24, smaller(all, LOGITS_TOKENS * row));
    uint64_t *chunk_bytes = &plan->work.chunk_bytes, *logits_bytes = &plan->work.logits_bytes;
    *chunk_bytes = larger(*chunk_bytes, chunk);
    if (logits <= *logits_bytes)
        return;
    *logits_bytes = logits;
    *chunk_bytes = larger(*chunk_bytes / logits, 1) * logits;
}

enum moec_status moec_work_plan_make(const struct moec_work_request *request, struct moec_work_plan *plan,
                                     struct moec_error *err)
{
    struct sizes sizes;
    struct moec_work_plan made;
    MOEC_TRY(measure(request, &sizes, err));
    plan_floor(request, &sizes, &made);
    if (total(request, &made) > made.limit_bytes)
        return refuse(request, &made, err);
    plan_dense(request, &sizes, made.limit_bytes - total(request, &made), &made);
    if (request->windows != NULL) {
        plan_logits(request, &sizes, made.limit_bytes - total(request, &made), &made);
        made.fixed.buffer_bytes = buffer_bytes(request, made.work.chunk_bytes, made.work.logits_bytes);
        plan_batch(request, &sizes, made.limit_bytes - total(request, &made), &made);
        plan_shares(request, &sizes, made.limit_bytes - total(request, &made), &made);
    }
    *plan = made;
    return MOEC_OK;
}

/* ---- what a run fills ---- */

#define TOUCHED_BYTES ((uint64_t)4 << 20) /* of MARGIN_BYTES */

/* A forward pass over batches of the plan, at most n_row tokens at once. */
static uint64_t pass_bytes(const struct moec_work_request *request, const struct sizes *sizes,
                           const struct moec_work_plan *plan, uint64_t n_row)
{
    const struct moec_config *config = moec_checkpoint_config(request->checkpoint);
    const uint64_t n = smaller(plan->work.batch_tokens, n_row);
    return moec_forward_scratch_bytes(config, (uint32_t)n, request->n_threads) + n * sizes->kv_bytes;
}

/* Logits of at most n_row tokens at once. */
static uint64_t logits_bytes(const struct moec_work_request *request, const struct moec_work_plan *plan,
                             uint64_t n_row)
{
    const uint64_t row = moec_reference_row_bytes(moec_checkpoint_config(request->checkpoint));
    return smaller(n_row * row, plan->work.logits_bytes);
}

/* The reference's probabilities of at most n_row tokens at once. */
static uint64_t reference_bytes(const struct moec_work_request *request, const struct moec_work_plan *plan,
                                uint64_t n_row)
{
    const uint64_t row = moec_reference_row_bytes(moec_checkpoint_config(request->checkpoint));
    return smaller(n_row * row, plan->work.chunk_bytes);
}

/* Encoded experts, as long as they fit; load NULL: the original ones alone. */
static uint64_t variant_bytes(const struct moec_work_request *request, const struct sizes *sizes,
                              const struct moec_work_plan *plan, const struct moec_work_load *load)
{
    const struct moec_config *config = moec_checkpoint_config(request->checkpoint);
    uint64_t one = sizes->experts.record_bytes;
    for (uint32_t b = 0; load != NULL && b < load->n_bits; b++)
        if (load->bits[b] < 16)
            one += sizes->experts.record_bytes * (load->bits[b] + 1) / 16;
    return smaller(plan->cache_bytes, (uint64_t)moec_config_moe_count(config) * config->n_expert * one);
}

/* Single experts, on the windows of a load. */
static uint64_t single_bytes(const struct moec_work_request *request, const struct sizes *sizes,
                             const struct moec_work_plan *plan, const struct moec_work_load *load)
{
    const struct moec_config *config = moec_checkpoint_config(request->checkpoint);
    if (load->sensitivity_windows == NULL)
        return 0;
    const uint64_t n_row = moec_windows_state_count(load->sensitivity_windows),
                   batch = smaller(plan->work.batch_tokens, n_row);
    if (load->is_exact)
        return smaller(plan->sweep_bytes,
                       moec_sensitivity_bytes(config, load->sensitivity_windows, plan->sweep_bytes)) +
               pass_bytes(request, sizes, plan, n_row) + logits_bytes(request, plan, n_row);
    /* The states of perturbed models and the original; the trace of a batch and what is gathered of it; scores
     * of a chunk at a time. */
    struct moec_gain_plan gains;
    moec_gain_plan_make(config, load->sensitivity_windows, &gains);
    const uint64_t states = moec_gain_plan_rows(&gains, load->sensitivity_windows) + n_row;
    return pass_bytes(request, sizes, plan, n_row) + logits_bytes(request, plan, n_row) +
           reference_bytes(request, plan, n_row) + batch * (config->top_k + 3) * sizes->row_bytes +
           smaller(states * sizes->row_bytes, plan->work.states_bytes);
}

enum moec_status moec_work_plan_peak(const struct moec_work_request *request,
                                     const struct moec_work_plan *plan, const struct moec_work_load *load,
                                     uint64_t *n_bytes, struct moec_error *err)
{
    struct sizes sizes;
    const uint64_t n_threads = (uint64_t)moec_pool_make(request->n_threads).n_threads;
    MOEC_TRY(measure(request, &sizes, err));
    const uint64_t state =
        smaller(sizes.n_row * sizes.row_bytes, plan->work.states_bytes / request->evaluations.n_states);
    const uint64_t batch = smaller(plan->work.batch_tokens, sizes.n_row);
    const uint64_t pass = pass_bytes(request, &sizes, plan, sizes.n_row);
    const uint64_t scorer = pass + logits_bytes(request, plan, sizes.n_row) + 2 * state;
    const uint64_t routing =
        pass + state + 2 * batch * sizes.row_bytes + variant_bytes(request, &sizes, plan, NULL);
    const uint64_t later = reference_bytes(request, plan, sizes.n_row) +
                           variant_bytes(request, &sizes, plan, load) +
                           single_bytes(request, &sizes, plan, load);
    const uint64_t all = TOUCHED_BYTES + plan->fixed.base_bytes + plan->fixed.result_bytes +
                         request->bytes.exchange + request->evaluations.n_models * plan->dense_bytes +
                         n_threads * moec_checkpoint_expert_scratch_bytes(request->checkpoint) + scorer +
                         larger(routing, later);
    *n_bytes = smaller(all, plan->limit_bytes);
    return MOEC_OK;
}
