/* Each MoE layer's MLP runs a second time with a trace. A variant replaces one expert's output in it and
 * sums the ranks again. Rows that come out equal bit for bit start no span; one begins at the first row
 * that differs. It is the whole window where experts can be full or layers keep a state. Variants finish
 * in order, so that a journal holds a prefix of them. What was planned and turned out not to be needed
 * counts as done. */
#include "profiler/sensitivity/sensitivity_internal.h"

#include "formats/base/memory.h"
#include "profiler/evaluate/cost.h"

#include <inttypes.h>
#include <string.h>

#define DEFAULT_WORK_BYTES ((uint64_t)1 << 30)
#define BATCH_MAX_ROWS     65536u /* rows that share a sweep over the later layers at most */
#define PHASE              "sensitivity"
#define UNIT_PARTS         4 /* a unit of variants is at least this part of a pass */

/* ---- progress and cost ---- */

enum moec_status moec_sensitivity_worked(void *context, uint64_t multiply_adds, struct moec_error *err)
{
    struct sensitivity *job = context;
    job->progress.done += multiply_adds;
    const double pass = (double)job->progress.pass;
    return moec_progress_report(job->options->progress, PHASE,
                                (double)(job->progress.done + job->passes.batch.scores.skipped) / pass,
                                (double)job->progress.planned / pass, err);
}

/* What one variant of this layer costs after its expert when it changes the whole window. */
static uint64_t full_cost(const struct sensitivity *job, uint32_t layer, uint32_t w)
{
    const struct moec_windows *windows = job->passes.windows;
    return moec_cost_after_layer(job->model.config, layer, moec_windows_source(windows, w), 0,
                                 windows->scored[w]);
}

uint64_t moec_sensitivity_window_cost(const struct sensitivity *job, uint32_t w)
{
    const struct moec_windows *windows = job->passes.windows;
    return moec_cost_from_layer(job->model.config, 0, moec_windows_source(windows, w), 0, windows->scored[w]);
}

/* Of this rank's windows, as progress is. */
static void plan(struct sensitivity *job)
{
    const struct moec_windows *windows = job->passes.windows;
    const uint64_t n_variant = (uint64_t)job->model.config->n_expert * job->options->of.n_bits;
    job->progress.pass = moec_cost_pass(job->model.config, windows);
    job->progress.planned = job->progress.pass;
    for (uint32_t w = 0; w < windows->n_window; w++) {
        for (uint32_t s = 0; s < job->model.n_moe; s++)
            job->progress.planned +=
                n_variant * full_cost(job, moec_config_moe_layer(job->model.config, s), w);
    }
}

/* What was found counts as in the run that did it, so that progress goes on where that stood. */
static void plan_kept(struct sensitivity *job)
{
    const struct moec_windows *windows = job->passes.windows;
    job->progress.planned += job->kept.extra;
    job->progress.done += job->kept.extra;
    for (uint32_t w = 0; w < moec_rank_windows_count(&job->passes.shared, job->passes.shared.n_all); w++) {
        const uint32_t n = windows->scored[w], number = moec_rank_windows_number(&job->passes.shared, w);
        if (job->kept.baseline[number]) {
            job->progress.planned += moec_cost_head(job->model.config, n);
            job->progress.done += moec_sensitivity_window_cost(job, w) + moec_cost_head(job->model.config, n);
        }
        for (uint32_t s = 0; s < job->model.n_moe; s++)
            job->progress.done += *moec_sensitivity_units_variants(&job->kept, number, s) *
                                  full_cost(job, moec_config_moe_layer(job->model.config, s), w);
    }
}

/* ---- memory ---- */

/* Keys and values of one token in the layers that keep them: those that are not an encoder's. */
static uint64_t kv_row_bytes(const struct sensitivity *job)
{
    const struct moec_config *config = job->model.config;
    return moec_kv_state_row_bytes(config, config->n_encoder_layer, config->n_layer - config->n_encoder_layer,
                                   MOEC_KV_EACH_LAYER);
}

static uint64_t row_bytes(const struct sensitivity *job)
{
    const struct moec_config *config = job->model.config;
    const uint64_t k = config->top_k;
    const uint64_t n_moe = job->model.n_moe - moec_config_moe_encoder_count(config);
    const uint64_t rows = n_moe + 1 /* final */ + (k + 3) /* trace */ + 1 /* changed */;
    return rows * job->model.stride * sizeof(float) + kv_row_bytes(job) + moec_reference_row_bytes(config) +
           k * (2 * sizeof(uint32_t) + sizeof(float)) + 2 * sizeof(uint32_t) + 2 * sizeof(double);
}

/* The same of a source's token. */
static uint64_t source_row_bytes(const struct sensitivity *job)
{
    const uint64_t k = job->model.config->top_k;
    const uint64_t rows = moec_config_moe_encoder_count(job->model.config) + 1 + (k + 3) + 1;
    return rows * job->model.stride * sizeof(float) + kv_row_bytes(job) +
           k * (2 * sizeof(uint32_t) + sizeof(float));
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Rows of a group: all when they fit into so many bytes, else as even groups as whole windows allow. */
static void choose_group(struct sensitivity *job, uint64_t fit_bytes)
{
    const struct moec_windows *windows = job->options->of.windows;
    const uint64_t n_row = moec_windows_scored_count(windows), n_source = moec_windows_source_count(windows);
    const uint64_t row = row_bytes(job), source_row = source_row_bytes(job), most = UINT32_MAX >> 8;
    const uint64_t all = n_row * row + n_source * source_row;
    uint64_t longest = 1, longest_source = 0;
    for (uint32_t w = 0; w < windows->n_window; w++) {
        longest = larger(windows->scored[w], longest);
        longest_source = larger(moec_windows_source(windows, w), longest_source);
    }
    job->group.capacity = n_row;
    job->group.source_capacity = n_source;
    if (all > fit_bytes) {
        const uint64_t n_group = (all + fit_bytes) / (fit_bytes + 1);
        const double share = (double)fit_bytes / (double)all;
        job->group.capacity = smaller(n_row / n_group + longest, (uint64_t)((double)n_row * share));
        job->group.source_capacity =
            smaller(n_source / n_group + longest_source, (uint64_t)((double)n_source * share));
    }
    job->group.capacity = larger(smaller(job->group.capacity, most), longest);
    job->group.source_capacity = larger(smaller(job->group.source_capacity, most), longest_source);
}

static void choose_capacity(struct sensitivity *job, uint32_t *batch_rows)
{
    const uint64_t work = job->options->work_bytes > 0 ? job->options->work_bytes : DEFAULT_WORK_BYTES;
    const uint64_t n_all = moec_windows_state_count(job->options->of.windows);
    uint64_t rows = work / 8 / moec_variant_batch_row_bytes(job->model.config);
    rows = rows > BATCH_MAX_ROWS ? BATCH_MAX_ROWS : rows;
    /* Variants are finished, and kept, when their batch has run: no later than after two passes or so. */
    const uint64_t soon = 2 * n_all > MOEC_SWEEP_TOKENS ? 2 * n_all : MOEC_SWEEP_TOKENS;
    rows = rows > soon ? soon : rows;
    *batch_rows = rows < job->passes.forward.max_tokens ? job->passes.forward.max_tokens : (uint32_t)rows;
    choose_group(job, work / 8 * 7);
}

uint64_t moec_sensitivity_bytes(const struct moec_config *config, const struct moec_windows *windows,
                                uint64_t work_bytes)
{
    const struct moec_sensitivity_options options = {.of.windows = windows, .work_bytes = work_bytes};
    struct sensitivity job = {.options = &options,
                              .model = {.config = config,
                                        .stride = moec_forward_stride(config),
                                        .n_moe = moec_config_moe_count(config)}};
    uint32_t batch_rows = 0;
    job.passes.forward.max_tokens = moec_sweep_max_tokens(windows);
    choose_capacity(&job, &batch_rows);
    return job.group.capacity * row_bytes(&job) + job.group.source_capacity * source_row_bytes(&job) +
           batch_rows * moec_variant_batch_row_bytes(config);
}

static enum moec_status allocate_trace(struct sensitivity *job, struct moec_error *err)
{
    const uint64_t n = larger(job->group.capacity, job->group.source_capacity), k = job->model.config->top_k;
    const uint64_t row = job->model.stride * sizeof(float);
    struct layer_trace *trace = &job->layer.trace;
    const char *what = "the trace of a layer";
    MOEC_TRY(moec_alloc((void **)&trace->experts, n * k, sizeof(uint32_t), what, err));
    MOEC_TRY(moec_alloc((void **)&trace->weights, n * k, sizeof(float), what, err));
    MOEC_TRY(moec_alloc((void **)&trace->choices, n * k, sizeof(uint32_t), what, err));
    MOEC_TRY(moec_alloc((void **)&trace->start, (uint64_t)job->model.config->n_expert + 1, sizeof(uint32_t),
                        what, err));
    MOEC_TRY(moec_alloc_aligned((void **)&trace->input, n, row, what, err));
    MOEC_TRY(moec_alloc_aligned((void **)&trace->rank_outputs, n * k, row, what, err));
    MOEC_TRY(moec_alloc_aligned((void **)&trace->shared_output, n, row, what, err));
    MOEC_TRY(moec_alloc_aligned((void **)&trace->out, n, row, what, err));
    MOEC_TRY(moec_alloc_aligned((void **)&job->layer.changed, n, row, what, err));
    MOEC_TRY(
        moec_alloc_aligned((void **)&job->layer.gathered, job->passes.forward.max_tokens, row, what, err));
    return moec_alloc_aligned((void **)&job->layer.row, 1, row, what, err);
}

static enum moec_status allocate_units(struct sensitivity *job, struct moec_error *err)
{
    const uint64_t n_variant = (uint64_t)job->model.config->n_expert * job->options->of.n_bits;
    const char *what = "costs of variants";
    MOEC_TRY(moec_alloc((void **)&job->layer.costs, n_variant, sizeof *job->layer.costs, what, err));
    MOEC_TRY(moec_alloc((void **)&job->layer.reached, job->model.config->n_expert, sizeof *job->layer.reached,
                        what, err));
    job->kept = (struct moec_sensitivity_units){
        .units = job->options->units,
        .name = job->options->unit_name != NULL ? job->options->unit_name : PHASE,
        .ranks = job->options->by.ranks,
        .n_window = job->options->of.windows->n_window,
        .n_moe = job->model.n_moe,
        .n_expert = job->model.config->n_expert,
        .n_bits = job->options->of.n_bits};
    return moec_sensitivity_units_restore(&job->kept, job->result, err);
}

static void release(struct sensitivity *job)
{
    struct layer_trace *trace = &job->layer.trace;
    moec_sensitivity_units_release(&job->kept);
    moec_rank_windows_release(&job->passes.shared);
    moec_variant_batch_release(&job->passes.batch);
    moec_token_scorer_release(&job->passes.tokens);
    moec_sweep_release(&job->passes.sweep);
    moec_forward_release(&job->passes.forward);
    moec_sensitivity_baseline_release(job);
    void *const owned[] = {
        trace->experts,      trace->weights,     trace->input,   trace->rank_outputs, trace->shared_output,
        trace->out,          trace->start,       trace->choices, job->layer.costs,    job->layer.reached,
        job->layer.gathered, job->layer.changed, job->layer.row,
    };
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
}

/* Rows of the group in the stack of MoE layer s: where each window's begin, and what entered its MLP. */
static const uint64_t *stack_start(const struct sensitivity *job, uint32_t s)
{
    return s < moec_config_moe_encoder_count(job->model.config) ? job->group.source_start
                                                                : job->group.row_start;
}

static const float *mlp_input(const struct sensitivity *job, uint32_t s)
{
    const struct moec_baseline *baseline = &job->passes.baseline;
    return baseline->states.attention_out +
           moec_stacked_rows(s, moec_config_moe_encoder_count(job->model.config), baseline->group.n_source,
                             baseline->group.n_row) *
               job->model.stride;
}

/* Which choices each expert got; those that reach no expert are nobody's. */
static void group_choices(struct sensitivity *job, uint32_t n_row)
{
    struct layer_trace *trace = &job->layer.trace;
    const uint32_t n_choice = n_row * job->model.config->top_k, n_expert = job->model.config->n_expert;
    memset(trace->start, 0, ((size_t)n_expert + 1) * sizeof *trace->start);
    for (uint32_t c = 0; c < n_choice; c++)
        if (!moec_choice_is_passed(job->model.config, trace->weights[c]))
            trace->start[trace->experts[c] + 1]++;
    for (uint32_t e = 0; e < n_expert; e++)
        trace->start[e + 1] += trace->start[e];
    for (uint32_t c = 0; c < n_choice; c++)
        if (!moec_choice_is_passed(job->model.config, trace->weights[c]))
            trace->choices[trace->start[trace->experts[c]]++] = c;
    memmove(trace->start + 1, trace->start, n_expert * sizeof *trace->start);
    trace->start[0] = 0;
    for (uint32_t e = 0; e < n_expert; e++)
        job->layer.reached[e] = trace->start[e + 1] - trace->start[e];
}

/* Runs the MLP of MoE layer s on the group again and keeps what the variants of its experts need. */
static enum moec_status trace_layer(struct sensitivity *job, uint32_t s, struct moec_error *err)
{
    struct layer_trace *trace = &job->layer.trace;
    const uint32_t layer = moec_config_moe_layer(job->model.config, s), k = job->model.config->top_k;
    const uint32_t n_window = job->passes.baseline.group.n_window;
    const struct moec_windows *windows = job->passes.baseline.group.windows;
    const uint64_t *start = stack_start(job, s), n_row = start[n_window];
    const size_t stride = job->model.stride;
    memcpy(trace->out, mlp_input(job, s), n_row * stride * sizeof(float));
    job->layer.trace_cost = 0;
    for (uint32_t w = 0; w < n_window;) {
        const uint64_t row = start[w];
        moec_batch_sequences_clear(&job->passes.sweep.sequences);
        for (; w < n_window && start[w + 1] - row <= job->passes.forward.max_tokens; w++)
            moec_batch_sequences_add(
                &job->passes.sweep.sequences,
                moec_windows_target(windows, job->passes.baseline.group.first_window + w),
                (uint32_t)(start[w + 1] - start[w]), 0);
        const uint32_t n = (uint32_t)(start[w] - row);
        const struct moec_mlp_trace part = {.experts = trace->experts + row * k,
                                            .weights = trace->weights + row * k,
                                            .input = trace->input + row * stride,
                                            .rank_outputs = trace->rank_outputs + row * k * stride,
                                            .shared_output = trace->shared_output + row * stride};
        MOEC_TRY(moec_forward_mlp(
            &job->passes.forward, layer,
            &(struct moec_mlp_batch){.n_tok = n,
                                     .hidden = trace->out + row * stride,
                                     .sequences = moec_batch_sequences_batch(&job->passes.sweep.sequences),
                                     .trace = &part},
            err));
        const uint64_t cost = moec_cost_mlp(job->model.config, layer, n);
        job->progress.planned += cost;
        job->layer.trace_cost += cost;
        MOEC_TRY(moec_sensitivity_worked(job, cost, err));
    }
    group_choices(job, (uint32_t)n_row);
    return MOEC_OK;
}

/* ---- variants ---- */

/* The choices that are an expert's in the traced layer. */
static const uint32_t *choices_of(const struct sensitivity *job, uint32_t expert, uint32_t *n)
{
    const struct layer_trace *trace = &job->layer.trace;
    *n = trace->start[expert + 1] - trace->start[expert];
    return trace->choices + trace->start[expert];
}

/* changed[i] = output of the expert's variant for choice i of the expert. */
static enum moec_status run_expert(struct sensitivity *job, uint32_t layer, uint32_t expert,
                                   uint64_t *multiply_adds, struct moec_error *err)
{
    uint32_t n_choice = 0;
    const uint32_t *choices = choices_of(job, expert, &n_choice), k = job->model.config->top_k;
    const size_t stride = job->model.stride;
    for (uint32_t done = 0; done < n_choice;) {
        const uint32_t left = n_choice - done, most = job->passes.forward.max_tokens,
                       n = left < most ? left : most;
        for (uint32_t i = 0; i < n; i++)
            memcpy(job->layer.gathered + i * stride, job->layer.trace.input + choices[done + i] / k * stride,
                   stride * sizeof(float));
        MOEC_TRY(moec_forward_routed(&job->passes.forward, moec_expert_request_of(layer, expert), n,
                                     job->layer.gathered, job->layer.changed + done * stride, err));
        const uint64_t cost = moec_cost_expert(job->model.config, n);
        *multiply_adds += cost;
        job->progress.planned += cost;
        MOEC_TRY(moec_sensitivity_worked(job, cost, err));
        done += n;
    }
    return MOEC_OK;
}

/* job->row = what leaves layer s for the token of this choice, with the expert's output replaced. */
static void recombine(struct sensitivity *job, uint32_t s, uint32_t choice, const float *replaced)
{
    const uint32_t k = job->model.config->top_k, layer = moec_config_moe_layer(job->model.config, s);
    const size_t stride = job->model.stride, row = choice / k;
    const struct layer_trace *trace = &job->layer.trace;
    const float *outputs[MOEC_MAX_TOP_K];
    for (uint32_t rank = 0; rank < k; rank++)
        outputs[rank] = trace->rank_outputs + (row * k + rank) * stride;
    outputs[choice % k] = replaced;
    const bool has_shared = job->passes.forward.model->layers[layer].has_shared;
    memcpy(job->layer.row, mlp_input(job, s) + row * stride, stride * sizeof(float));
    moec_forward_combine(&job->passes.forward, layer, outputs, trace->weights + row * k,
                         has_shared ? trace->shared_output + row * stride : NULL, job->layer.row);
}

/* Sets which rows a variant has in a window where `row` of its layer is the first that changes. */
static void open_span(const struct sensitivity *job, uint32_t s, uint64_t row, struct moec_variant_span *span)
{
    const struct moec_baseline *baseline = &job->passes.baseline;
    const uint64_t *rows = baseline->group.row_start + span->window;
    const uint32_t n_row = (uint32_t)(rows[1] - rows[0]), limit = job->model.config->router.expert_capacity;
    const bool begins_anew = (limit > 0 && n_row > limit) || moec_config_is_running(job->model.config);
    if (s < moec_config_moe_encoder_count(job->model.config)) {
        const uint64_t *sources = baseline->group.source_start + span->window;
        span->n_source = (uint32_t)(sources[1] - sources[0]);
    } else if (!begins_anew) {
        span->first_position = (uint32_t)(row - rows[0]);
    }
    /* Where experts can be full, whether they are is counted from the first position on; running layers keep
     * no state of the middle of a window. */
    span->n_rows = n_row - span->first_position;
}

/* Choices first .. end - 1 of an expert. */
struct choice_range {
    uint32_t first, end;
};

/* One window of one variant, in which these choices of the variant's expert lie. */
static enum moec_status add_window(struct sensitivity *job, uint32_t s, uint32_t variant,
                                   struct moec_variant_span *span, struct choice_range lying,
                                   struct moec_error *err)
{
    uint32_t n_choice = 0;
    const uint32_t *choices = choices_of(job, variant % job->model.config->n_expert, &n_choice);
    const struct moec_baseline *baseline = &job->passes.baseline;
    const uint32_t k = job->model.config->top_k, layer = moec_config_moe_layer(job->model.config, s);
    const uint32_t w = baseline->group.first_window + span->window;
    const size_t stride = job->model.stride;
    const uint64_t full = full_cost(job, layer, w);
    uint64_t rows_first = stack_start(job, s)[span->window]; /* the row of the layer that rows[0] is */
    float *rows = NULL;
    for (uint32_t c = lying.first; c < lying.end; c++) {
        const uint64_t row = choices[c] / k;
        recombine(job, s, choices[c], job->layer.changed + c * stride);
        if (memcmp(job->layer.row, job->layer.trace.out + row * stride, stride * sizeof(float)) == 0)
            continue;
        if (rows == NULL) {
            open_span(job, s, row, span);
            if (!moec_variant_batch_fits(&job->passes.batch, span->n_source, span->n_rows)) {
                MOEC_TRY(moec_variant_batch_run(&job->passes.batch, baseline, layer, err));
                job->layer.n_finished = variant;
            }
            rows = moec_variant_batch_add(&job->passes.batch, span);
            rows_first += span->first_position;
            memcpy(rows, job->layer.trace.out + rows_first * stride,
                   (span->n_source > 0 ? span->n_source : span->n_rows) * stride * sizeof(float));
        }
        memcpy(rows + (row - rows_first) * stride, job->layer.row, stride * sizeof(float));
    }
    /* What the plan counted and nobody needs to do. */
    uint64_t rest = 0;
    if (rows != NULL)
        rest =
            moec_cost_after_layer(job->model.config, layer, moec_windows_source(baseline->group.windows, w),
                                  span->first_position, span->n_rows);
    job->progress.done += full - rest;
    return MOEC_OK;
}

static enum moec_status run_variant(struct sensitivity *job, uint32_t s, uint32_t e, uint32_t b,
                                    struct moec_error *err)
{
    const struct moec_baseline *baseline = &job->passes.baseline;
    const uint32_t layer = moec_config_moe_layer(job->model.config, s), bits = job->options->of.bits[b];
    uint32_t n_choice = 0;
    const uint32_t *choices = choices_of(job, e, &n_choice), k = job->model.config->top_k;
    const uint32_t variant = b * job->model.config->n_expert + e;
    const uint64_t *start = stack_start(job, s);
    struct variant_cost *cost = &job->layer.costs[variant];
    *cost = (struct variant_cost){0};
    if (n_choice > 0) {
        MOEC_TRY(moec_variants_assign_one(job->options->of.variants, layer, e, bits, err));
        MOEC_TRY(run_expert(job, layer, e, &cost->expert, err));
        MOEC_TRY(moec_variants_assign_one(job->options->of.variants, layer, e, job->options->of.baseline_bits,
                                          err));
    }
    uint32_t next = 0;
    for (uint32_t i = 0; i < baseline->group.n_window; i++) {
        const uint32_t first = next,
                       w = moec_rank_windows_number(&job->passes.shared, baseline->group.first_window + i);
        while (next < n_choice && choices[next] / k < start[i + 1])
            next++;
        struct moec_variant_span span = {.nll = sensitivity_cell(job, job->result->expert_nll, s, e, b, w),
                                         .kl = sensitivity_cell(job, job->result->expert_kl, s, e, b, w),
                                         .multiply_adds = &cost->later,
                                         .window = i};
        MOEC_TRY(add_window(job, s, variant, &span, (struct choice_range){first, next}, err));
    }
    return MOEC_OK;
}

/* Together: what each rank measured of layer s on its windows of the group, to all. */
static enum moec_status exchange(struct sensitivity *job, uint32_t s, struct moec_error *err)
{
    struct moec_sensitivity *result = job->result;
    struct moec_ranks *ranks = job->passes.shared.ranks;
    const uint32_t n_bits = job->options->of.n_bits, n_cell = job->model.config->n_expert * n_bits;
    const uint32_t lead =
        job->group.first_window % moec_ranks_count(ranks); /* so that owners are those of windows */
    double *items = NULL;
    if (ranks == NULL)
        return MOEC_OK;
    MOEC_TRY(moec_alloc((void **)&items, (uint64_t)lead + job->group.n_window, 2 * n_cell * sizeof *items,
                        "measures of ranks", err));
    enum moec_status status = MOEC_OK;
    for (int back = 0; back < 2 && status == MOEC_OK; back++) {
        for (uint32_t i = 0; i < job->group.n_window; i++)
            for (uint32_t c = 0; c < n_cell; c++) {
                const uint32_t e = c / n_bits, b = c % n_bits, w = job->group.first_window + i;
                double *item = items + ((size_t)lead + i) * 2 * n_cell + 2 * (size_t)c;
                double *nll = sensitivity_cell(job, result->expert_nll, s, e, b, w),
                       *kl = sensitivity_cell(job, result->expert_kl, s, e, b, w);
                *(back ? nll : &item[0]) = *(back ? &item[0] : nll);
                *(back ? kl : &item[1]) = *(back ? &item[1] : kl);
            }
        if (!back)
            status = moec_ranks_gather(ranks, items, (uint64_t)lead + job->group.n_window,
                                       2 * n_cell * sizeof *items, err);
    }
    free(items);
    return status;
}

/* Keeps the finished variants of layer s on the group when they make a unit; all of them at the layer's end,
 * when ranks meet. */
static enum moec_status keep_variants(struct sensitivity *job, uint32_t s, bool is_end,
                                      struct moec_error *err)
{
    const uint32_t n_expert = job->model.config->n_expert;
    const uint32_t first = *moec_sensitivity_units_variants(&job->kept, job->group.first_window, s);
    struct moec_sensitivity_range range = {.s = s,
                                           .first_window = job->group.first_window,
                                           .n_window = job->group.n_window,
                                           .first_variant = first,
                                           .n_variant = job->layer.n_finished - first,
                                           .extra = first == 0 ? job->layer.trace_cost : 0};
    uint64_t later = 0;
    if (!is_end && job->passes.shared.ranks != NULL)
        return MOEC_OK;
    for (uint32_t v = first; v < job->layer.n_finished; v++) {
        range.extra += job->layer.costs[v].expert;
        later += job->layer.costs[v].later;
    }
    range.multiply_adds = range.extra + later;
    if (range.n_variant == 0 || (!is_end && range.multiply_adds < job->progress.pass / UNIT_PARTS))
        return MOEC_OK;
    MOEC_TRY(exchange(job, s, err));
    MOEC_TRY(moec_ranks_sum(job->passes.shared.ranks, &range.extra, 1, err));
    MOEC_TRY(moec_ranks_sum(job->passes.shared.ranks, &range.multiply_adds, 1, err));
    MOEC_TRY(moec_ranks_sum(job->passes.shared.ranks, job->layer.reached, n_expert, err));
    for (uint32_t e = 0; e < n_expert && job->result->reached != NULL && first == 0; e++)
        job->result->reached[(size_t)s * n_expert + e] += job->layer.reached[e];
    job->result->multiply_adds += range.multiply_adds;
    return moec_sensitivity_units_keep(&job->kept, job->result, &range, job->layer.reached, err);
}

/* The layer's variants from `first` on, on this rank's windows of the group. */
static enum moec_status run_variants(struct sensitivity *job, uint32_t s, uint32_t first,
                                     struct moec_error *err)
{
    const uint32_t layer = moec_config_moe_layer(job->model.config, s),
                   n_expert = job->model.config->n_expert;
    const uint32_t n_variant = n_expert * job->options->of.n_bits;
    MOEC_TRY(trace_layer(job, s, err));
    for (uint32_t v = first; v < n_variant; v++) {
        const uint32_t b = v / n_expert, e = v % n_expert;
        if (v == first || e == 0)
            MOEC_TRY(moec_variants_prepare(job->options->of.variants, layer, job->options->of.bits[b], err));
        MOEC_TRY(run_variant(job, s, e, b, err));
        MOEC_TRY(keep_variants(job, s, false, err));
    }
    return moec_variant_batch_run(&job->passes.batch, &job->passes.baseline, layer, err);
}

static enum moec_status run_layer(struct sensitivity *job, uint32_t s, struct moec_error *err)
{
    const uint32_t n_variant = job->model.config->n_expert * job->options->of.n_bits;
    const uint32_t first = *moec_sensitivity_units_variants(&job->kept, job->group.first_window, s);
    if (first == n_variant)
        return MOEC_OK;
    job->layer.n_finished = first;
    job->layer.trace_cost = 0;
    memset(job->layer.costs, 0, n_variant * sizeof *job->layer.costs);
    memset(job->layer.reached, 0, job->model.config->n_expert * sizeof *job->layer.reached);
    if (job->passes.baseline.group.n_window > 0)
        MOEC_TRY(run_variants(job, s, first, err));
    job->layer.n_finished = n_variant;
    return keep_variants(job, s, true, err);
}

static enum moec_status run_group(struct sensitivity *job, uint32_t first, uint32_t n, struct moec_error *err)
{
    const uint32_t n_before = moec_rank_windows_count(&job->passes.shared, first),
                   n_own = moec_rank_windows_count(&job->passes.shared, first + n) - n_before;
    if (moec_sensitivity_units_complete(&job->kept, first))
        return MOEC_OK;
    job->group.first_window = first;
    job->group.n_window = n;
    job->passes.baseline.group.n_window = 0;
    if (n_own > 0)
        moec_sensitivity_baseline_open(job, n_before, n_own);
    MOEC_TRY(moec_sensitivity_baseline_share(job, err));
    for (uint32_t s = 0; s < job->model.n_moe; s++)
        MOEC_TRY(run_layer(job, s, err));
    return MOEC_OK;
}

/* Whether the windows first .. first + n - 1 of any rank are too many for its group. */
static bool is_over(const struct sensitivity *job, uint32_t first, uint32_t n)
{
    const struct moec_windows *windows = job->options->of.windows;
    const uint32_t count = moec_ranks_count(job->passes.shared.ranks);
    for (uint32_t rank = 0; rank < count && rank < n; rank++) {
        uint64_t n_row = 0, n_source = 0;
        for (uint32_t w = first + rank; w < first + n; w += count) {
            n_row += windows->scored[w];
            n_source += moec_windows_source(windows, w);
        }
        if (n_row > job->group.capacity || n_source > job->group.source_capacity)
            return true;
    }
    return false;
}

/* Groups are windows of which the same is done, as many as all ranks have room for. */
static enum moec_status run_groups(struct sensitivity *job, struct moec_error *err)
{
    const struct moec_windows *windows = job->options->of.windows;
    for (uint32_t first = 0; first < windows->n_window;) {
        uint32_t n = 0;
        while (first + n < windows->n_window && !is_over(job, first, n + 1) &&
               moec_sensitivity_units_alike(&job->kept, first, first + n))
            n++;
        MOEC_TRY(run_group(job, first, n, err));
        first += n;
    }
    return MOEC_OK;
}

/* Together: the room that all ranks have, so that their groups are the same. */
static enum moec_status agree(struct sensitivity *job, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_ranks *ranks = job->passes.shared.ranks;
    const uint32_t count = moec_ranks_count(ranks), own = moec_ranks_own(ranks);
    struct room {
        uint64_t rows, sources;
    } *rooms = NULL;
    MOEC_TRY(moec_alloc((void **)&rooms, count, sizeof *rooms, "the room of ranks", err));
    rooms[own] = (struct room){job->group.capacity, job->group.source_capacity};
    MOEC_TRY_OUT(moec_ranks_gather(ranks, rooms, count, sizeof *rooms, err));
    for (uint32_t r = 0; r < count; r++) {
        job->group.capacity = smaller(job->group.capacity, rooms[r].rows);
        job->group.source_capacity = smaller(job->group.source_capacity, rooms[r].sources);
    }
out:
    free(rooms);
    return status;
}

static enum moec_status check_options(const struct moec_sensitivity_options *options, struct moec_error *err)
{
    if (options->of.n_bits == 0)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "no bitwidth to measure was given besides the baseline of %" PRIu32 " bits",
                         options->of.baseline_bits);
    for (uint32_t b = 0; b < options->of.n_bits; b++) {
        if (options->of.bits[b] == options->of.baseline_bits)
            return moec_fail(err, MOEC_ERR_USAGE,
                             "%" PRIu32 " bits are the baseline's bitwidth: give other bitwidths to measure",
                             options->of.bits[b]);
        if (moec_variants_record_bytes(options->of.variants, options->of.bits[b]) == 0)
            return moec_fail(err, MOEC_ERR_USAGE,
                             "the bitwidth %" PRIu32 " is not supported, expected 1, 2, 3, 4, 5, 6, 8 or 16",
                             options->of.bits[b]);
    }
    return MOEC_OK;
}

enum moec_status moec_sensitivity_run(const struct moec_sensitivity_options *options,
                                      struct moec_sensitivity *result, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    uint32_t batch_rows = 0;
    struct sensitivity job = {.options = options,
                              .result = result,
                              .model = {.config = &options->of.model->config,
                                        .stride = moec_forward_stride(&options->of.model->config),
                                        .n_moe = moec_config_moe_count(&options->of.model->config)}};
    result->multiply_adds = 0;
    if (result->reached != NULL)
        memset(result->reached, 0,
               (size_t)job.model.n_moe * job.model.config->n_expert * sizeof *result->reached);
    MOEC_TRY(check_options(options, err));
    MOEC_TRY(moec_variants_assign_all(options->of.variants, options->of.baseline_bits, err));
    MOEC_TRY(moec_rank_windows_make(options->by.ranks, options->of.windows, &job.passes.shared, err));
    job.passes.windows = &job.passes.shared.own;
    const uint32_t max_tokens = moec_sweep_max_tokens(job.passes.windows);
    MOEC_TRY_OUT(moec_forward_init(&job.passes.forward, options->of.model, options->by.kernels,
                                   options->by.n_threads, moec_variants_experts(options->of.variants),
                                   max_tokens, err));
    job.passes.canonical = job.passes.forward;
    MOEC_TRY_OUT(moec_forward_use_arithmetic(&job.passes.forward, options->by.arithmetic, err));
    MOEC_TRY_OUT(moec_sweep_create(&job.passes.forward, job.passes.windows, false, &job.passes.sweep, err));
    MOEC_TRY_OUT(moec_token_scorer_create(job.model.config, max_tokens, options->of.windows->work,
                                          &job.passes.tokens, err));
    choose_capacity(&job, &batch_rows);
    MOEC_TRY_OUT(agree(&job, err));
    MOEC_TRY_OUT(moec_variant_batch_create(&job.passes.batch, &job.passes.forward, batch_rows, err));
    job.passes.batch.tokens = &job.passes.tokens;
    job.passes.batch.worked = moec_sensitivity_worked;
    job.passes.batch.context = &job;
    MOEC_TRY_OUT(moec_sensitivity_baseline_create(&job, err));
    MOEC_TRY_OUT(allocate_trace(&job, err));
    MOEC_TRY_OUT(allocate_units(&job, err));
    plan(&job);
    plan_kept(&job);
    status = run_groups(&job, err);
out:
    release(&job);
    return status;
}
