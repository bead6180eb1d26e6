/* Windows stand between layers: `hidden` enters a layer, `ahead` leaves it, and both swap when all batches
 * are done. Each batch starts from an unchanged copy of `hidden`. The layer's own moments are summed in the
 * first batch alone. Gate and up are factored in one order of inputs, then in the other, from the same mixed
 * moments. Ranks encode different experts but exchange them in the order of their indexes. */
#include "compiler/fit/expert_fit_internal.h"

#include "formats/base/memory.h"
#include "profiler/evaluate/sweep.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- moments ---- */

/* Of all pairs of a batch: each token counts the sum of its squared weights. */
static void take_layer(struct moec_expert_fit *fit, const struct moec_expert_inputs *in)
{
    const size_t stride = moec_forward_stride(fit->of.config);
    const uint32_t n_tok = in->rows.n_pair / in->rows.top_k;
    for (uint32_t first = 0; first < n_tok && fit->work.layer.gptq != NULL && fit->work.layer.takes_pairs;
         first += GATHER_TOKENS) {
        const uint32_t n = n_tok - first < GATHER_TOKENS ? n_tok - first : GATHER_TOKENS;
        for (uint32_t t = 0; t < n; t++) {
            float sum = 0;
            for (uint32_t k = 0; k < in->rows.top_k; k++) {
                const float weight = in->rows.weights[(size_t)(first + t) * in->rows.top_k + k];
                sum += weight * weight;
            }
            fit->work.room.factors[t] = sqrtf(sum);
        }
        moec_gptq_add(fit->work.layer.gptq, &fit->of.pool, in->rows.normed + first * stride, stride,
                      fit->work.room.factors, n);
    }
}

static void take_expert(void *context, const struct moec_expert_inputs *in)
{
    struct moec_expert_fit *fit = context;
    const size_t stride = moec_forward_stride(fit->of.config);
    if (in->expert == MOEC_EXPERT_ALL) {
        take_layer(fit, in);
        return;
    }
    if (in->expert < fit->work.layer.first_expert ||
        in->expert - fit->work.layer.first_expert >= fit->work.layer.n_batch)
        return;
    struct moments *moments = &fit->work.layer.moments[in->expert - fit->work.layer.first_expert];
    moments->n_pair += in->rows.n_pair;
    if (moments->input == NULL && moments->activation == NULL)
        return;
    for (uint32_t first = 0; first < in->rows.n_pair; first += GATHER_TOKENS) {
        const uint32_t n = in->rows.n_pair - first < GATHER_TOKENS ? in->rows.n_pair - first : GATHER_TOKENS;
        for (uint32_t t = 0; t < n; t++) {
            const uint32_t pair = in->rows.pairs[first + t];
            memcpy(fit->work.room.rows + t * stride, in->rows.normed + pair / in->rows.top_k * stride,
                   stride * sizeof(float));
            fit->work.room.factors[t] = in->rows.weights[pair];
        }
        if (moments->input != NULL)
            moec_gptq_add(moments->input, &fit->of.pool, fit->work.room.rows, stride, fit->work.room.factors,
                          n);
        if (moments->activation == NULL)
            continue;
        moec_forward_activations(in->forward, in->mlp, n, fit->work.room.rows, fit->work.room.activations,
                                 fit->work.room.activation_stride);
        moec_gptq_add(moments->activation, &fit->of.pool, fit->work.room.activations,
                      fit->work.room.activation_stride, fit->work.room.factors, n);
    }
}

static enum moec_status report(struct moec_expert_fit *fit, struct moec_error *err)
{
    return moec_progress_report(fit->work.sweep.progress, "fitting experts", (double)fit->work.sweep.n_done,
                                (double)fit->work.sweep.n_total, err);
}

/* The evaluation's own amounts are not shown: a layer takes as long to encode. */
static enum moec_status report_evaluation(void *context, const char *phase, double done, double total)
{
    (void)phase;
    (void)done;
    (void)total;
    return report(context, NULL);
}

static enum moec_status create_moments(uint32_t n_input, struct moec_gptq **out, struct moec_error *err)
{
    *out = NULL;
    return n_input <= MOEC_GPTQ_MAX_INPUTS ? moec_gptq_create(n_input, MOEC_GPTQ_QUICK, out, err) : MOEC_OK;
}

static void copy_states(const struct moec_states *from, const struct moec_states *to, uint64_t first_row,
                        uint64_t n_row)
{
    for (uint64_t row = first_row, end = first_row + n_row; row < end; row += MOEC_SWEEP_TOKENS) {
        const uint64_t left = end - row, n = left < MOEC_SWEEP_TOKENS ? left : MOEC_SWEEP_TOKENS;
        memcpy(to->rows + row * from->stride, from->rows + row * from->stride,
               n * from->stride * sizeof(float));
        moec_states_leave(from, row, n);
        moec_states_leave(to, row, n);
    }
}

static void take_dense(void *context, const struct moec_dense_entry *const *entries, uint32_t n_entries,
                       const float *x, size_t stride, uint32_t n_tok)
{
    const struct moec_expert_fit *fit = context;
    fit->work.sweep.also->inputs.take(fit->work.sweep.also->inputs.context, entries, n_entries, x, stride,
                                      n_tok);
}

static float *room_dense(void *context, uint32_t n_tok, size_t stride)
{
    const struct moec_expert_fit *fit = context;
    return fit->work.sweep.also->inputs.room(fit->work.sweep.also->inputs.context, n_tok, stride);
}

/* Without ranks a layer is run once for each batch of experts; its dense products are looked at once. */
static struct moec_inputs_hook hook_of(struct moec_expert_fit *fit, bool with_experts)
{
    struct moec_inputs_hook hook = {.take_expert = with_experts ? take_expert : NULL, .context = fit};
    if (fit->work.sweep.also_waits) {
        hook.take = take_dense;
        hook.room = room_dense;
    }
    fit->work.sweep.also_waits = false;
    return hook;
}

/* Room for the moments of the batch's experts that this rank is to encode. */
static enum moec_status make_moments(struct moec_expert_fit *fit, uint32_t layer, struct moec_error *err)
{
    memset(fit->work.told.shown, 0, fit->of.config->n_expert * sizeof *fit->work.told.shown);
    for (uint32_t b = 0; b < fit->work.layer.n_batch; b++) {
        const size_t index = expert_index(fit, layer, fit->work.layer.first_expert + b);
        if (!is_left(fit, index) || !moec_ranks_has(fit->work.sweep.ranks, index))
            continue;
        fit->work.told.shown[fit->work.layer.first_expert + b] = true;
        MOEC_TRY(create_moments(fit->of.config->n_embd, &fit->work.layer.moments[b].input, err));
        MOEC_TRY(create_moments(fit->of.config->n_ff_expert, &fit->work.layer.moments[b].activation, err));
    }
    return MOEC_OK;
}

/* Takes the windows through the layer, from `hidden` to `ahead`, and sums up the batch's moments. */
static enum moec_status watch_layer(struct moec_expert_fit *fit, struct moec_scorer *scorer, uint32_t layer,
                                    struct moec_error *err)
{
    const struct moec_inputs_hook hook = hook_of(fit, true);
    const struct moec_progress progress = {.report = report_evaluation, .context = fit};
    copy_states(&fit->work.states.hidden, &fit->work.states.ahead, 0, fit->work.states.hidden.n_row);
    return moec_scorer_layer_watched(scorer, layer, &hook, &fit->work.states.ahead, NULL, &progress, err);
}

/* Takes the own windows through the layer; `entered` (may be NULL) receives what enters its MLP. */
static enum moec_status cross_layer(struct moec_expert_fit *fit, struct moec_scorer *scorer, uint32_t layer,
                                    float *entered, struct moec_error *err)
{
    const struct moec_progress progress = {.report = report_evaluation, .context = fit};
    const struct moec_inputs_hook hook = hook_of(fit, false);
    return moec_scorer_layer_watched(scorer, layer, hook.take != NULL ? &hook : NULL,
                                     &fit->work.states.hidden, entered, &progress, err);
}

/* The same, and then every rank has what enters the MLP, of all windows. */
static enum moec_status enter_layer(struct moec_expert_fit *fit, struct moec_scorer *scorer, uint32_t layer,
                                    struct moec_error *err)
{
    const enum moec_stack stack = moec_config_stack(fit->of.config, layer);
    struct moec_states *entered = &fit->work.states.entered;
    uint64_t first = 0;
    const uint64_t n =
        moec_rank_block_rows(fit->work.sweep.block, stack, moec_ranks_own(fit->work.sweep.ranks), &first);
    MOEC_TRY(cross_layer(fit, scorer, layer, n > 0 ? entered->rows + first * entered->stride : NULL, err));
    return moec_rank_block_gather(fit->work.sweep.block, stack, entered, err);
}

/* Sums up the moments of the batch's experts that are this rank's, and its share of the layer's. */
static enum moec_status share_layer(struct moec_expert_fit *fit, struct moec_scorer *scorer, uint32_t layer,
                                    struct moec_error *err)
{
    const struct moec_progress progress = {.report = report_evaluation, .context = fit};
    const struct moec_inputs_hook hook = {
        .take_expert = take_expert, .only_shown = fit->work.told.shown, .context = fit};
    MOEC_TRY(moec_scorer_show(scorer, layer, &hook, &fit->work.states.entered, &progress, err));
    if (fit->work.layer.gptq == NULL || !fit->work.layer.takes_pairs)
        return MOEC_OK;
    const uint32_t n_band = moec_gptq_bands(fit->work.layer.gptq);
    MOEC_TRY(moec_grow((void **)&fit->work.told.parts, &fit->work.told.n_room, n_band,
                       sizeof *fit->work.told.parts, "moments of a layer", err));
    for (uint32_t band = 0; band < n_band; band++) {
        uint64_t n_value = 0;
        double *values = moec_gptq_band(fit->work.layer.gptq, &fit->of.pool, band, &n_value);
        fit->work.told.parts[band] = (struct moec_ranks_part){moec_ranks_owner(fit->work.sweep.ranks, band),
                                                              values, n_value * sizeof *values};
    }
    return moec_ranks_spread_parts(fit->work.sweep.ranks, fit->work.told.parts, n_band, err);
}

/* ---- encoding ---- */

/* Whether this codec takes the inputs of a projection in the order of columns. */
static bool is_by_column(const struct moec_expert_fit *fit, uint32_t c, uint32_t p)
{
    return moec_codec_traits(fit->codes.codecs[c].codec)->is_path && p != MOEC_PROJECTION_DOWN;
}

/* Whether some of what is left of gate and up takes inputs in the order of columns, or in that of groups. */
static bool takes_inputs(const struct moec_expert_fit *fit, size_t expert, bool by_column)
{
    bool any = false;
    for (uint32_t p = 0; p < MOEC_PROJECTION_DOWN; p++)
        for (uint32_t c = 0; c < fit->codes.n_codec; c++)
            any |= is_by_column(fit, c, p) == by_column && has_bit(fit->work.layer.left, expert, p, c);
    return any;
}

static void mix_layer(struct moec_expert_fit *fit, const struct moments *moments)
{
    const double n_pair =
        moments->input != NULL ? moec_gptq_token_count(fit->work.layer.gptq) * fit->of.config->top_k : 0;
    if (n_pair > 0)
        moec_gptq_mix(moments->input, fit->work.layer.gptq, MOEC_EXPERT_FIT_TOKENS / n_pair);
}

/* The error of `decoded` (NULL: zeros) on the moments; without any, that of the weights themselves. */
static enum moec_status measure(struct moec_expert_fit *fit, const struct moec_gptq *gptq,
                                const struct moec_gptq_matrix *matrix, const float *decoded, double *error,
                                struct moec_error *err)
{
    const size_t n = (size_t)matrix->n_row * matrix->columns;
    if (gptq != NULL)
        return moec_gptq_error(gptq, &fit->of.pool, matrix, decoded, error, err);
    *error = 0;
    for (size_t i = 0; i < n; i++) {
        const double off = (double)matrix->weights[i] - (decoded != NULL ? (double)decoded[i] : 0);
        *error += off * off;
    }
    return MOEC_OK;
}

static enum moec_status encode_matrix(struct moec_expert_fit *fit, const struct moec_gptq *gptq,
                                      const struct moec_gptq_matrix *matrix, struct moec_codec codec,
                                      uint8_t *rows, struct moec_error *err)
{
    const size_t row_bytes = moec_codec_row_bytes(codec, matrix->columns);
    if (gptq != NULL && codec.quantizer == MOEC_QUANTIZER_GPTQ)
        return moec_gptq_encode(gptq, &fit->of.pool, matrix, codec, rows, err);
    for (uint32_t r = 0; r < matrix->n_row; r++)
        MOEC_TRY(moec_codec_encode_row(codec, matrix->weights + (size_t)r * matrix->columns, matrix->columns,
                                       rows + r * row_bytes, err));
    return MOEC_OK;
}

static enum moec_status measure_noise(struct moec_expert_fit *fit, const struct moec_gptq *gptq,
                                      const struct moec_gptq_matrix *matrix, double *noise,
                                      struct moec_error *err)
{
    const uint32_t n = matrix->columns;
    for (uint32_t r = 0; r < matrix->n_row && fit->codes.plain.dtype != MOEC_DTYPE_F32; r++) {
        MOEC_TRY(moec_codec_encode_row(fit->codes.plain, matrix->weights + (size_t)r * n, n,
                                       fit->work.room.encoded, err));
        moec_codec_decode_row(fit->codes.plain, fit->work.room.encoded, n,
                              fit->work.room.decoded + (size_t)r * n);
    }
    *noise =
        fit->codes.plain.dtype != MOEC_DTYPE_F32 ? moec_gptq_noise(gptq, matrix, fit->work.room.decoded) : 0;
    return MOEC_OK;
}

/* With the codecs that take inputs in the order of columns, or with the others. */
static enum moec_status encode_projection(struct moec_expert_fit *fit, const struct moec_gptq *gptq,
                                          size_t expert, uint32_t p, bool by_column, struct moec_error *err)
{
    const uint32_t n_ff = fit->of.config->n_ff_expert, n_embd = fit->of.config->n_embd;
    const struct moec_gptq_matrix matrix = {fit->work.room.weights[p], n_ff, n_embd,
                                            p == MOEC_PROJECTION_DOWN};
    const size_t at = expert * MOEC_PROJECTION_COUNT + p;
    double *facts = facts_of(fit, expert, p);
    for (uint32_t c = 0; c < fit->codes.n_codec; c++) {
        const struct moec_codec codec = fit->codes.codecs[c].codec;
        const size_t row_bytes = moec_codec_row_bytes(codec, n_embd);
        uint8_t *rows = is_kept(fit, c, p) ? rows_of(fit, expert, p, c) : fit->work.room.encoded;
        if (!has_bit(fit->work.layer.left, expert, p, c) || is_by_column(fit, c, p) != by_column)
            continue;
        if (facts[FACT_ENERGY] == 0) {
            MOEC_TRY(measure(fit, gptq, &matrix, NULL, &facts[FACT_ENERGY], err));
            MOEC_TRY(measure_noise(fit, gptq, &matrix, &facts[FACT_NOISE], err));
        }
        MOEC_TRY(encode_matrix(fit, gptq, &matrix, codec, rows, err));
        for (uint32_t r = 0; r < n_ff; r++)
            moec_codec_decode_row(codec, rows + r * row_bytes, n_embd,
                                  fit->work.room.decoded + (size_t)r * n_embd);
        MOEC_TRY(measure(fit, gptq, &matrix, fit->work.room.decoded,
                         &fit->found.errors[at * fit->codes.n_codec + c], err));
    }
    return MOEC_OK;
}

/* Gate and up with the codecs of one order of inputs. */
static enum moec_status encode_inner(struct moec_expert_fit *fit, const struct moments *moments,
                                     size_t expert, bool by_column, struct moec_error *err)
{
    if (!takes_inputs(fit, expert, by_column))
        return MOEC_OK;
    if (moments->input != NULL)
        MOEC_TRY(moec_gptq_factor(moments->input, by_column ? MOEC_GPTQ_BY_COLUMN : MOEC_GPTQ_BY_GROUP,
                                  &fit->of.pool, err));
    for (uint32_t p = 0; p < MOEC_PROJECTION_DOWN; p++)
        if (has_projection(fit, p))
            MOEC_TRY(encode_projection(fit, moments->input, expert, p, by_column, err));
    return MOEC_OK;
}

static enum moec_status encode_projections(struct moec_expert_fit *fit, const struct moments *moments,
                                           size_t expert, struct moec_error *err)
{
    mix_layer(fit, moments);
    MOEC_TRY(encode_inner(fit, moments, expert, false, err));
    MOEC_TRY(encode_inner(fit, moments, expert, true, err));
    if (fit->work.layer.left[expert * MOEC_PROJECTION_COUNT + MOEC_PROJECTION_DOWN] == 0)
        return MOEC_OK;
    if (moments->activation != NULL)
        MOEC_TRY(moec_gptq_factor(moments->activation, MOEC_GPTQ_BY_GROUP, &fit->of.pool, err));
    return encode_projection(fit, moments->activation, expert, MOEC_PROJECTION_DOWN, false, err);
}

/* The weights of an expert, neurons as rows. */
static enum moec_status load_weights(struct moec_expert_fit *fit, uint32_t layer, uint32_t expert,
                                     struct moec_error *err)
{
    const uint32_t n_ff = fit->of.config->n_ff_expert, n_embd = fit->of.config->n_embd;
    const size_t row_bytes = n_embd * sizeof(float);
    MOEC_TRY(moec_checkpoint_load_expert(
        fit->of.checkpoint, layer, expert,
        (struct moec_expert_floats){fit->work.room.weights[MOEC_PROJECTION_GATE],
                                    fit->work.room.weights[MOEC_PROJECTION_UP], fit->work.room.down},
        err));
    moec_transpose_to_f32((struct moec_float_matrix){MOEC_DTYPE_F32, fit->work.room.down, n_embd, n_ff}, 0,
                          n_ff, fit->work.room.weights[MOEC_PROJECTION_DOWN]);
    for (uint32_t p = 0; p < MOEC_PROJECTION_COUNT && fit->of.order != NULL; p++) {
        const uint32_t ordinal = (uint32_t)moec_config_moe_ordinal(fit->of.config, layer);
        memcpy(fit->work.room.decoded, fit->work.room.weights[p], n_ff * row_bytes);
        moec_rows_reorder(moec_neuron_order_of(fit->of.order, ordinal, expert), n_ff, row_bytes, row_bytes,
                          fit->work.room.decoded, fit->work.room.weights[p]);
    }
    return MOEC_OK;
}

static enum moec_status encode_expert(struct moec_expert_fit *fit, const struct moments *moments,
                                      uint32_t layer, uint32_t expert, struct moec_error *err)
{
    const size_t index = expert_index(fit, layer, expert);
    struct moec_error problem = {0};
    MOEC_TRY(load_weights(fit, layer, expert, err));
    const enum moec_status status = encode_projections(fit, moments, index, &problem);
    if (status != MOEC_OK)
        return moec_fail(err, status, "expert %" PRIu32 " of layer %" PRIu32 ": %s", expert, layer,
                         problem.message);
    return MOEC_OK;
}

static void forget_moments(struct moec_expert_fit *fit, uint32_t b)
{
    moec_gptq_free(fit->work.layer.moments[b].input);
    moec_gptq_free(fit->work.layer.moments[b].activation);
    fit->work.layer.moments[b] = (struct moments){0};
}

/* Whether some of n experts of the layer are still to be encoded. */
static bool has_work(const struct moec_expert_fit *fit, uint32_t layer, uint32_t first, uint32_t n)
{
    for (uint32_t e = first; e < first + n; e++)
        if (is_left(fit, expert_index(fit, layer, e)))
            return true;
    return false;
}

/* Experts first .. end - 1 of the batch, which the ranks have encoded, to all of them, and into the journal. */
static enum moec_status exchange(struct moec_expert_fit *fit, uint32_t layer, uint32_t first, uint32_t end,
                                 struct moec_error *err)
{
    for (uint32_t b = first; b < end; b++) {
        const size_t index = expert_index(fit, layer, fit->work.layer.first_expert + b);
        for (uint32_t p = 0; p < MOEC_PROJECTION_COUNT; p++)
            if (fit->work.layer.left[index * MOEC_PROJECTION_COUNT + p] != 0)
                facts_of(fit, index, p)[FACT_TOKENS] = (double)fit->work.layer.moments[b].n_pair;
        forget_moments(fit, b);
    }
    return moec_expert_fit_share(fit, expert_index(fit, layer, fit->work.layer.first_expert + first),
                                 end - first, err);
}

/* As many experts as there are ranks at once. */
static enum moec_status encode_batch(struct moec_expert_fit *fit, uint32_t layer, struct moec_error *err)
{
    const uint32_t count = moec_ranks_count(fit->work.sweep.ranks);
    uint32_t first = 0;
    for (uint32_t b = 0; b < fit->work.layer.n_batch; b++) {
        const size_t index = expert_index(fit, layer, fit->work.layer.first_expert + b);
        MOEC_TRY(report(fit, err));
        if (is_left(fit, index) && moec_ranks_has(fit->work.sweep.ranks, index))
            MOEC_TRY(encode_expert(fit, &fit->work.layer.moments[b], layer, fit->work.layer.first_expert + b,
                                   err));
        if ((index + 1) % count == 0 || b + 1 == fit->work.layer.n_batch) {
            MOEC_TRY(exchange(fit, layer, first, b + 1, err));
            first = b + 1;
        }
    }
    return MOEC_OK;
}

/* All experts of a layer, batch by batch; `hidden` is then what leaves it. */
static enum moec_status fit_layer(struct moec_expert_fit *fit, struct moec_scorer *scorer, uint32_t layer,
                                  uint32_t batch, struct moec_error *err)
{
    const uint32_t n_expert = fit->of.config->n_expert;
    moec_gptq_free(fit->work.layer.gptq);
    fit->work.layer.gptq = NULL;
    MOEC_TRY(create_moments(fit->of.config->n_embd, &fit->work.layer.gptq, err));
    fit->work.layer.takes_pairs = true;
    if (fit->work.layer.gptq != NULL)
        moec_gptq_take_part(fit->work.layer.gptq, moec_ranks_own(fit->work.sweep.ranks),
                            moec_ranks_count(fit->work.sweep.ranks));
    if (fit->work.sweep.block != NULL)
        MOEC_TRY(enter_layer(fit, scorer, layer, err));
    for (fit->work.layer.first_expert = 0; fit->work.layer.first_expert < n_expert;
         fit->work.layer.first_expert += batch) {
        const uint32_t left = n_expert - fit->work.layer.first_expert;
        fit->work.layer.n_batch = left < batch ? left : batch;
        if (!has_work(fit, layer, fit->work.layer.first_expert, fit->work.layer.n_batch))
            continue;
        MOEC_TRY(make_moments(fit, layer, err));
        MOEC_TRY((fit->work.sweep.block != NULL ? share_layer : watch_layer)(fit, scorer, layer, err));
        fit->work.layer.takes_pairs = false;
        MOEC_TRY(encode_batch(fit, layer, err));
    }
    if (fit->work.sweep.block != NULL)
        return MOEC_OK;
    const struct moec_states left_behind = fit->work.states.hidden;
    fit->work.states.hidden = fit->work.states.ahead;
    fit->work.states.ahead = left_behind;
    return MOEC_OK;
}

/* ---- records ---- */

/* The codec of the request that an expert's projection has here, or n_codec. */
static uint32_t find_codec(const struct moec_expert_fit *fit, size_t expert, struct moec_codec codec,
                           uint32_t p)
{
    for (uint32_t c = 0; c < fit->codes.n_codec; c++)
        if (is_kept(fit, c, p) && has_bit(fit->codes.wanted, expert, p, c) &&
            codec.quantizer == MOEC_QUANTIZER_GPTQ && moec_codec_equal(codec, fit->codes.codecs[c].codec))
            return c;
    return fit->codes.n_codec;
}

/* Puts a projection's rows in their places in a record. */
static void place_rows(const struct moec_record_layout *layout, uint32_t p, const uint8_t *rows,
                       uint8_t *record)
{
    const bool is_up = p == MOEC_PROJECTION_UP;
    const size_t row_bytes = layout->row_bytes[p], step = is_up ? row_bytes : layout->pair_stride_bytes;
    record += is_up ? 0 : layout->up_bytes;
    record += p == MOEC_PROJECTION_DOWN ? layout->row_bytes[MOEC_PROJECTION_GATE] : 0;
    for (uint32_t r = 0; r < layout->n_ff; r++)
        memcpy(record + r * step, rows + r * row_bytes, row_bytes);
}

static enum moec_status encode(const struct moec_expert_encoder *self, const struct moec_expert_record *made,
                               void *scratch, uint8_t *record, struct moec_error *err)
{
    const struct moec_expert_fit *fit = (const struct moec_expert_fit *)self;
    const struct moec_record_layout *layout = made->layout;
    struct moec_record_layout rest = *layout;
    const struct moec_expert_record others = {made->layer, made->expert, &rest};
    const size_t index = expert_index(fit, made->layer, made->expert);
    uint32_t found[MOEC_PROJECTION_COUNT], n_found = 0;
    for (uint32_t p = 0; p < MOEC_PROJECTION_COUNT; p++) {
        found[p] = has_projection(fit, p) ? find_codec(fit, index, layout->codecs[p], p) : fit->codes.n_codec;
        if (found[p] == fit->codes.n_codec)
            continue;
        rest.codecs[p].quantizer = MOEC_QUANTIZER_LINEAR; /* quickly written, and overwritten below */
        n_found++;
    }
    if (n_found < layout->n_matrix)
        MOEC_TRY(fit->others.encoder->encode(fit->others.encoder, &others, scratch, record, err));
    for (uint32_t p = 0; p < MOEC_PROJECTION_COUNT; p++)
        if (found[p] < fit->codes.n_codec)
            place_rows(layout, p, rows_of(fit, index, p, found[p]), record);
    leave_rows(fit, index);
    return MOEC_OK;
}

/* ---- life ---- */

static uint64_t gptq_bytes(uint32_t n_input)
{
    return n_input <= MOEC_GPTQ_MAX_INPUTS ? moec_gptq_bytes(n_input) : 0;
}

static uint64_t factor_bytes(uint32_t n_input)
{
    return n_input <= MOEC_GPTQ_MAX_INPUTS ? moec_gptq_factor_bytes(n_input) : 0;
}

/* Bytes of an expert's moments. */
static uint64_t moments_bytes(const struct moec_config *config)
{
    return gptq_bytes(config->n_embd) + gptq_bytes(config->n_ff_expert) + sizeof(struct moments);
}

/* Bytes of all that is there once: the layer's moments, an expert's factors, its weights. */
static uint64_t fixed_bytes(const struct moec_config *config, int n_threads)
{
    const uint32_t n_embd = config->n_embd, n_ff = config->n_ff_expert;
    const uint64_t n_weight = (uint64_t)n_embd * n_ff;
    const uint64_t gathered = GATHER_TOKENS * ((uint64_t)n_embd + n_ff + 2 * MOEC_LANES) * sizeof(float);
    return gptq_bytes(n_embd) + factor_bytes(n_embd) + factor_bytes(n_ff) + gathered +
           moec_gptq_encode_bytes(n_ff, n_embd, true, n_threads) +
           moec_gptq_encode_bytes(n_ff, n_embd, false, n_threads) + 7 * n_weight * sizeof(float);
}

struct moec_expert_fit_memory moec_expert_fit_bytes(const struct moec_config *config, int n_threads)
{
    const uint64_t fixed = fixed_bytes(config, moec_pool_make(n_threads).n_threads);
    return (struct moec_expert_fit_memory){fixed + moments_bytes(config),
                                           fixed + config->n_expert * moments_bytes(config)};
}

static uint32_t batch_of(const struct moec_expert_fit *fit, uint64_t memory_bytes)
{
    const uint64_t fixed = fixed_bytes(fit->of.config, fit->of.pool.n_threads),
                   each = moments_bytes(fit->of.config);
    const uint64_t n = memory_bytes > fixed ? (memory_bytes - fixed) / each : 0;
    const uint64_t all =
        (n == 0 ? 1 : n) * moec_ranks_count(fit->work.sweep.ranks); /* of which this rank has moments of n */
    return all < fit->of.config->n_expert ? (uint32_t)all : fit->of.config->n_expert;
}

/* What is wanted of each projection: what the request says of those that it has codecs for. */
static enum moec_status list_wanted(struct moec_expert_fit *fit, const uint8_t *wanted,
                                    struct moec_error *err)
{
    const uint64_t n = fit->work.sweep.n_total * MOEC_PROJECTION_COUNT;
    MOEC_TRY(moec_alloc((void **)&fit->codes.wanted, n, 1, "what is wanted of experts", err));
    MOEC_TRY(moec_alloc((void **)&fit->work.layer.left, n, 1, "what is wanted of experts", err));
    for (size_t at = 0; at < n; at++) {
        const uint32_t p = (uint32_t)(at % MOEC_PROJECTION_COUNT);
        for (uint32_t c = 0; c < fit->codes.n_codec && has_projection(fit, p); c++) {
            if (((unsigned)fit->codes.codecs[c].projections >> p & 1u) == 0)
                continue;
            if (wanted == NULL || has_bit(wanted, at / MOEC_PROJECTION_COUNT, p, c))
                fit->codes.wanted[at] = (uint8_t)(fit->codes.wanted[at] | 1u << c);
            else
                fit->found.errors[at * fit->codes.n_codec + c] = -1;
        }
        fit->codes.n_matrix += (uint64_t)__builtin_popcount(fit->codes.wanted[at]);
    }
    memcpy(fit->work.layer.left, fit->codes.wanted, n);
    return MOEC_OK;
}

/* Where each expert's rows stand. */
static enum moec_status make_store(struct moec_expert_fit *fit, struct moec_work_memory *work,
                                   struct moec_error *err)
{
    MOEC_TRY(moec_alloc((void **)&fit->found.firsts, fit->work.sweep.n_total + 1, sizeof *fit->found.firsts,
                        "places of encoded experts", err));
    for (size_t expert = 0; expert < fit->work.sweep.n_total; expert++)
        fit->found.firsts[expert + 1] =
            fit->found.firsts[expert] + bytes_before(fit, expert, 0, fit->codes.n_codec);
    return moec_fit_store_create(work, fit->found.firsts[fit->work.sweep.n_total], "encoded experts",
                                 &fit->found.store, err);
}

static enum moec_status make_states(struct moec_expert_fit *fit, const struct moec_windows *windows,
                                    struct moec_error *err)
{
    const char *what = "hidden states of the windows";
    const size_t stride = moec_forward_stride(fit->of.config);
    const uint64_t n_all = moec_windows_state_count(windows), n_source = moec_windows_source_count(windows),
                   n_row = fit->work.sweep.block != NULL
                               ? moec_windows_state_count(&fit->work.sweep.block->own)
                               : n_all;
    MOEC_TRY(moec_states_create(windows->work, n_row, stride, what, &fit->work.states.hidden, err));
    if (fit->work.sweep.block == NULL)
        return moec_states_create(windows->work, n_row, stride, what, &fit->work.states.ahead, err);
    const uint64_t n_entered = n_source > n_all - n_source ? n_source : n_all - n_source;
    return moec_states_create(windows->work, n_entered, stride, "what enters the experts of a layer",
                              &fit->work.states.entered, err);
}

/* What only making needs. */
static enum moec_status make_room(struct moec_expert_fit *fit, const struct moec_windows *windows,
                                  uint32_t batch, struct moec_error *err)
{
    const char *what = "an expert to encode";
    const size_t n_weight = (size_t)fit->of.config->n_ff_expert * fit->of.config->n_embd;
    const size_t stride = moec_forward_stride(fit->of.config);
    size_t n_bytes = fit->codes.plain.dtype != MOEC_DTYPE_F32
                         ? moec_codec_row_bytes(fit->codes.plain, fit->of.config->n_embd)
                         : 0;
    for (uint32_t c = 0; c < fit->codes.n_codec; c++) {
        const size_t n = matrix_bytes(fit, fit->codes.codecs[c].codec);
        n_bytes = n > n_bytes ? n : n_bytes;
    }
    fit->work.room.activation_stride = moec_lanes_padded(fit->of.config->n_ff_expert);
    MOEC_TRY(
        moec_alloc((void **)&fit->work.layer.moments, batch, sizeof *fit->work.layer.moments, what, err));
    MOEC_TRY(
        moec_alloc_aligned((void **)&fit->work.room.rows, GATHER_TOKENS, stride * sizeof(float), what, err));
    MOEC_TRY(moec_alloc_aligned((void **)&fit->work.room.activations, GATHER_TOKENS,
                                fit->work.room.activation_stride * sizeof(float), what, err));
    memset(fit->work.room.activations, 0, GATHER_TOKENS * fit->work.room.activation_stride * sizeof(float));
    for (uint32_t p = 0; p < MOEC_PROJECTION_COUNT; p++)
        MOEC_TRY(moec_alloc_aligned((void **)&fit->work.room.weights[p], n_weight, sizeof(float), what, err));
    MOEC_TRY(moec_alloc_aligned((void **)&fit->work.room.down, n_weight, sizeof(float), what, err));
    MOEC_TRY(moec_alloc_aligned((void **)&fit->work.room.decoded, n_weight, sizeof(float), what, err));
    MOEC_TRY(moec_alloc_aligned((void **)&fit->work.room.encoded, n_bytes, 1, what, err));
    MOEC_TRY(moec_alloc((void **)&fit->work.told.shown, fit->of.config->n_expert,
                        sizeof *fit->work.told.shown, what, err));
    return make_states(fit, windows, err);
}

static void release_room(struct moec_expert_fit *fit)
{
    for (uint32_t b = 0; b < fit->work.layer.n_batch && fit->work.layer.moments != NULL; b++)
        forget_moments(fit, b);
    moec_gptq_free(fit->work.layer.gptq);
    free(fit->work.layer.moments);
    free(fit->work.room.rows);
    free(fit->work.room.activations);
    for (uint32_t p = 0; p < MOEC_PROJECTION_COUNT; p++)
        free(fit->work.room.weights[p]);
    free(fit->work.room.down);
    free(fit->work.room.decoded);
    free(fit->work.room.encoded);
    free(fit->work.told.shown);
    free(fit->work.told.parts);
    moec_states_release(&fit->work.states.hidden);
    moec_states_release(&fit->work.states.ahead);
    moec_states_release(&fit->work.states.entered);
    fit->work.layer.moments = NULL;
    fit->work.layer.gptq = NULL;
    fit->work.room.rows = fit->work.room.activations = fit->work.room.down = fit->work.room.decoded = NULL;
    fit->work.room.encoded = NULL;
    fit->work.told.shown = NULL;
    fit->work.told.parts = NULL;
    memset(fit->work.room.weights, 0, sizeof fit->work.room.weights);
}

/* Layers up to the last with work left. */
static uint32_t count_layers(const struct moec_expert_fit *fit)
{
    uint32_t n_layer = fit->work.sweep.also != NULL ? fit->of.config->n_layer : 0;
    for (uint32_t layer = n_layer; layer < fit->of.config->n_layer; layer++)
        if (moec_config_is_moe(fit->of.config, layer) && has_work(fit, layer, 0, fit->of.config->n_expert))
            n_layer = layer + 1;
    return n_layer;
}

static enum moec_status fit_layers(struct moec_expert_fit *fit, const struct moec_expert_fit_request *request,
                                   uint32_t batch, struct moec_error *err)
{
    const struct moec_progress progress = {.report = report_evaluation, .context = fit};
    struct moec_scorer *scorer = request->of.scorer;
    const uint32_t n_layer = count_layers(fit);
    if (n_layer > 0)
        MOEC_TRY(moec_scorer_embed(scorer, &fit->work.states.hidden, err));
    for (uint32_t layer = 0; layer < n_layer; layer++) {
        fit->work.sweep.also_waits = fit->work.sweep.also != NULL;
        if (moec_config_is_moe(fit->of.config, layer) && has_work(fit, layer, 0, fit->of.config->n_expert)) {
            MOEC_TRY(fit_layer(fit, scorer, layer, batch, err));
        } else {
            MOEC_TRY(cross_layer(fit, scorer, layer, NULL, err));
        }
        if (fit->work.sweep.also != NULL)
            MOEC_TRY(fit->work.sweep.also->layer_done(fit->work.sweep.also->context, layer, err));
    }
    if (fit->work.sweep.also != NULL) {
        const struct moec_scorer_variation rest = {
            .first_layer = n_layer, .hidden = &fit->work.states.hidden, .watch = fit->work.sweep.also};
        MOEC_TRY(moec_scorer_run_varied(scorer, &rest, request->also.measure, &progress, err));
    }
    return report(fit, err);
}

enum moec_status moec_expert_fit_create(const struct moec_expert_fit_request *request,
                                        struct moec_expert_fit **out, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_expert_fit *fit = NULL;
    const char *what = "quantised experts";
    MOEC_TRY(moec_alloc((void **)&fit, 1, sizeof *fit, what, err));
    fit->encoder =
        (struct moec_expert_encoder){.encode = encode, .reorders = request->of.order != NULL, .copies = true};
    fit->of.checkpoint = request->of.checkpoint;
    fit->of.order = request->of.order;
    fit->others.own = moec_checkpoint_encoder_make(request->of.checkpoint);
    fit->others.ordered = moec_ordered_encoder_make(request->of.checkpoint, request->of.order);
    fit->others.encoder = request->codes.base != NULL ? request->codes.base
                          : request->of.order != NULL ? &fit->others.ordered.encoder
                                                      : &fit->others.own.encoder;
    fit->of.config = moec_checkpoint_config(request->of.checkpoint);
    fit->codes.n_codec = request->codes.n_codec;
    fit->codes.plain = request->codes.plain;
    fit->of.pool = moec_pool_make(request->n_threads);
    fit->work.sweep.progress = request->progress;
    fit->work.sweep.n_total = (uint64_t)moec_config_moe_count(fit->of.config) * fit->of.config->n_expert;
    fit->work.sweep.block = request->block;
    fit->work.sweep.ranks = fit->work.sweep.block != NULL ? fit->work.sweep.block->ranks : NULL;
    const uint32_t batch =
        request->memory_bytes == 0 ? fit->of.config->n_expert : batch_of(fit, request->memory_bytes);
    MOEC_TRY_OUT(
        moec_alloc((void **)&fit->codes.codecs, fit->codes.n_codec, sizeof *fit->codes.codecs, what, err));
    memcpy(fit->codes.codecs, request->codes.codecs, fit->codes.n_codec * sizeof *fit->codes.codecs);
    MOEC_TRY_OUT(moec_alloc((void **)&fit->found.errors, fit->work.sweep.n_total * MOEC_PROJECTION_COUNT,
                            fit->codes.n_codec * sizeof(double), what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&fit->found.facts, fit->work.sweep.n_total * MOEC_PROJECTION_COUNT,
                            N_FACT * sizeof(double), what, err));
    MOEC_TRY_OUT(list_wanted(fit, request->codes.wanted, err));
    MOEC_TRY_OUT(make_store(fit, request->of.windows->work, err));
    fit->work.sweep.units = request->units;
    MOEC_TRY_OUT(moec_expert_fit_find(fit, err));
    MOEC_TRY_OUT(make_room(fit, request->of.windows, batch, err));
    fit->work.sweep.also = request->also.watch;
    MOEC_TRY_OUT(fit_layers(fit, request, batch, err));
    release_room(fit);
    fit->work.sweep.also = NULL;
    fit->work.sweep.progress = NULL;
    fit->work.sweep.units = NULL;
    fit->work.sweep.ranks = NULL;
    fit->work.sweep.block = NULL;
    *out = fit;
    fit = NULL;
out:
    moec_expert_fit_free(fit);
    return status;
}

void moec_expert_fit_free(struct moec_expert_fit *fit)
{
    if (fit == NULL)
        return;
    release_room(fit);
    moec_states_release(&fit->found.store);
    free(fit->codes.codecs);
    free(fit->codes.wanted);
    free(fit->work.layer.left);
    free(fit->found.firsts);
    free(fit->found.errors);
    free(fit->found.facts);
    free(fit);
}

/* ---- results ---- */

const struct moec_expert_encoder *moec_expert_fit_encoder(const struct moec_expert_fit *fit)
{
    return &fit->encoder;
}

double moec_expert_fit_error(const struct moec_expert_fit *fit, uint32_t layer, uint32_t expert,
                             enum moec_projection projection, uint32_t index)
{
    const size_t at = expert_index(fit, layer, expert) * MOEC_PROJECTION_COUNT + projection;
    return fit->found.errors[at * fit->codes.n_codec + index];
}

double moec_expert_fit_energy(const struct moec_expert_fit *fit, uint32_t layer, uint32_t expert,
                              enum moec_projection projection)
{
    return facts_of(fit, expert_index(fit, layer, expert), projection)[FACT_ENERGY];
}

double moec_expert_fit_noise(const struct moec_expert_fit *fit, uint32_t layer, uint32_t expert,
                             enum moec_projection projection)
{
    return facts_of(fit, expert_index(fit, layer, expert), projection)[FACT_NOISE];
}

uint64_t moec_expert_fit_count(const struct moec_expert_fit *fit)
{
    return fit->codes.n_matrix;
}

uint32_t moec_expert_fit_unseen(const struct moec_expert_fit *fit)
{
    return fit->codes.n_unseen;
}
