/* Numbers of a plan's dense matrices are made effective first: 0 becomes what is bound, and stored precision
 * becomes 0. A plan whose effective numbers are all the bound ones uses the bound model and bundle. For
 * others the last model and the last bundle of each form are kept, and compressed sizes by matrix and effective
 * number. Each matrix is compressed alone here, so that sizes add up. A change of codecs must forget everything
 * kept (moec_compile_codecs_changed).
 *
 * Plans are measured with an embedding that is divided as the checkpoint's config says, whatever the form of their
 * bundle: the weights are the same. */
#include "compiler/compile/compile_dense_plan.h"

#include "formats/base/memory.h"
#include "formats/bundle/bundle_dense.h"
#include "formats/checkpoint/checkpoint_chat.h"
#include "formats/model/dense_join.h"
#include "profiler/evaluate/load_model.h"
#include "profiler/routing/path_study.h"
#include "profiler/routing/paths.h"
#include "profiler/routing/router_study.h"
#include "profiler/routing/score_study.h"

#include <float.h>
#include <inttypes.h>
#include <string.h>

bool moec_compile_dense_is_original(const struct moec_compile_run *run, uint32_t dense_bits)
{
    return dense_bits == 32 || (dense_bits == 16 && !run->has_f32);
}

/* Float ranges of a profile's study; nothing where it has none of this model's shape. */
static enum moec_status take_ranges(const struct moec_profile *profile, struct moec_path_table *paths,
                                    struct moec_error *err)
{
    const struct moec_study *study = moec_studies_find(&profile->studies, MOEC_ROUTER_RANGE_STUDY);
    if (study == NULL || moec_study_count(study) != paths->n_layer)
        return MOEC_OK;
    for (uint32_t layer = 0; layer < paths->n_layer; layer++)
        if (!(study->values[layer] >= 0 && study->values[layer] <= FLT_MAX))
            return MOEC_OK;
    MOEC_TRY(
        moec_alloc((void **)&paths->ranges, paths->n_layer, sizeof *paths->ranges, "router ranges", err));
    for (uint32_t layer = 0; layer < paths->n_layer; layer++)
        paths->ranges[layer] = (float)study->values[layer];
    return MOEC_OK;
}

enum moec_status moec_compile_take_paths(const struct moec_compile_run *run, uint64_t least_bytes,
                                         struct moec_path_table *paths, struct moec_error *err)
{
    MOEC_TRY(moec_paths_prune(&run->profile->paths, least_bytes / 100, paths, err));
    MOEC_TRY(take_ranges(run->profile, paths, err));
    paths->n_shallow = moec_path_study_shallow_layers(run->profile);
    return moec_score_study_take(run->profile, &paths->scores, err);
}

enum moec_status moec_compile_bundle_make(struct moec_compile_run *run, const struct moec_path_table *paths,
                                          struct moec_bundle_parts *parts, struct moec_bundle_plan **out,
                                          struct moec_error *err)
{
    const struct moec_profile *profile = run->profile;
    struct moec_routing_summary routing = {0};
    if (profile != NULL)
        routing = (struct moec_routing_summary){.activations = profile->activations,
                                                .mean_gate_weight = profile->mean_gate_weight};
    parts->generation = moec_checkpoint_generation(run->checkpoint);
    parts->tokenizer = moec_checkpoint_tokenizer(run->checkpoint);
    parts->chat = moec_checkpoint_chat(run->checkpoint);
    parts->paths = profile != NULL ? paths : NULL;
    parts->router_ranges = profile != NULL ? paths->ranges : NULL;
    parts->expert_scores = profile != NULL ? paths->scores : NULL;
    parts->has_sequence = profile != NULL;
    parts->routing = &routing;
    parts->codecs = run->codecs;
    parts->alignment = moec_bundle_choose_alignment(parts->config);
    return moec_bundle_plan_create(parts, out, err);
}

enum moec_status moec_compile_dense_codec(const struct moec_compile_run *run, uint32_t number,
                                          struct moec_codec *codec, struct moec_error *err)
{
    *codec = (struct moec_codec){.dtype = MOEC_DTYPE_F32};
    if (number == 0 || moec_compile_dense_is_original(run, number))
        return MOEC_OK;
    if (number < MOEC_CODEC_FIRST_OTHER)
        return moec_codec_for_bits(number, MOEC_SCHEME_SYMMETRIC, run->group, MOEC_DTYPE_F32, codec, err);
    if (number >= MOEC_CODEC_TABLE || run->codecs[number].dtype == MOEC_DTYPE_F32)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "a plan has codec %" PRIu32 " for a dense matrix, but this codec does not exist",
                         number);
    *codec = run->codecs[number];
    return MOEC_OK;
}

enum moec_status moec_compile_dense_codecs(const struct moec_compile_run *run,
                                           struct moec_codec codecs[static MOEC_CODEC_TABLE],
                                           struct moec_error *err)
{
    static const uint8_t bits[] = {4, 8, 16};
    memcpy(codecs, run->codecs, sizeof run->codecs);
    for (size_t i = 0; i < sizeof bits; i++)
        MOEC_TRY(moec_compile_dense_codec(run, bits[i], &codecs[bits[i]], err));
    return MOEC_OK;
}

/* The number that 0 stands for: of the dense weights that are bound. */
static uint8_t bound_number(const struct moec_compile_run *run)
{
    const uint32_t bits = run->report->plan.dense_bits;
    return moec_compile_dense_is_original(run, bits) ? 0 : (uint8_t)bits;
}

static uint8_t effective(const struct moec_compile_run *run, uint8_t number)
{
    if (number == 0)
        return bound_number(run);
    return moec_compile_dense_is_original(run, number) ? 0 : number;
}

static bool is_bound(const struct moec_compile_run *run, const uint8_t *numbers)
{
    for (uint32_t i = 0; i < run->report->plan.n_dense; i++)
        if (effective(run, numbers[i]) != bound_number(run))
            return false;
    return true;
}

/* Whether the bundle of these numbers is that of the dense weights that are bound. */
static bool has_bound_bundle(const struct moec_compile_run *run, const uint8_t *numbers)
{
    return run->plan != NULL && is_bound(run, numbers);
}

/* Joined where each matrix that is divided has one codec. */
static enum moec_compile_form form_of(const struct moec_compile_run *run, const uint8_t *numbers)
{
    const struct moec_config *config = moec_checkpoint_config(run->checkpoint);
    uint8_t first[MOEC_ROLE_COUNT] = {0}; /* numbers of first parts */
    uint32_t i = 0;
    if (config->n_frequent == 0)
        return MOEC_FORM_PLAIN;
    for (struct moec_dense_walk at = {0}; moec_dense_next_matrix(config, &at); i++) {
        const enum moec_role whole = moec_role_whole(at.role);
        if (moec_role_rest(at.role) != at.role)
            first[at.role] = effective(run, numbers[i]);
        else if (whole != at.role && first[whole] != effective(run, numbers[i]))
            return MOEC_FORM_PLAIN;
    }
    return MOEC_FORM_JOINED;
}

/* Effective numbers, (n_dense), as a table with a source. */
static enum moec_status open_table(const struct moec_compile_run *run, const uint8_t *numbers,
                                   struct moec_dense *dense, struct moec_error *err)
{
    struct moec_codec *codecs = NULL;
    const uint32_t n = run->report->plan.n_dense;
    enum moec_status status = MOEC_OK;
    if (run->fit != NULL)
        return moec_dense_fit_open(run->fit, numbers, dense, err);
    MOEC_TRY(moec_alloc((void **)&codecs, n, sizeof *codecs, "codecs of dense matrices", err));
    for (uint32_t i = 0; i < n; i++)
        MOEC_TRY_OUT(moec_compile_dense_codec(run, numbers[i], &codecs[i], err));
    status = moec_checkpoint_stream_dense_each(run->checkpoint, codecs, dense, err);
out:
    free(codecs);
    return status;
}

/* ---- measuring ---- */

enum moec_status moec_compile_dense_model(const struct moec_compile_run *run, const uint8_t *numbers,
                                          struct moec_model **model, struct moec_error *err)
{
    struct moec_dense dense = {0};
    uint8_t *all = NULL;
    const uint32_t n = run->report->plan.n_dense;
    MOEC_TRY(moec_alloc((void **)&all, n, 1, "codecs of dense matrices", err));
    for (uint32_t i = 0; i < n; i++)
        all[i] = effective(run, numbers != NULL ? numbers[i] : 0);
    const enum moec_status status = open_table(run, all, &dense, err);
    free(all);
    MOEC_TRY(status);
    MOEC_TRY(moec_load_dense_model(moec_checkpoint_config(run->checkpoint), &dense, run->memory.dense_bytes,
                                   model, err));
    return moec_offload_if_room(run->options->memory.place, *model, &run->stopper, err);
}

/* Room for what is kept between plans. */
static enum moec_status prepare(struct moec_compile_run *run, struct moec_error *err)
{
    struct moec_compile_dense *own = &run->own_dense;
    const uint64_t n = run->report->plan.n_dense;
    if (own->stored_bytes != NULL)
        return MOEC_OK;
    MOEC_TRY(moec_alloc((void **)&own->model_numbers, n, 1, "codecs of dense matrices", err));
    for (int form = 0; form < MOEC_FORM_COUNT; form++)
        MOEC_TRY(moec_alloc((void **)&own->bundles[form].numbers, n, 1, "codecs of dense matrices", err));
    own->joined_config = *moec_checkpoint_config(run->checkpoint);
    own->joined_config.n_frequent = 0;
    return moec_alloc((void **)&own->stored_bytes, (n + 2) * MOEC_CODEC_TABLE, sizeof *own->stored_bytes,
                      "sizes of dense matrices", err);
}

enum moec_status moec_compile_dense_take(struct moec_compile_run *run, const struct moec_plan *plan,
                                         const struct moec_model **model, struct moec_error *err)
{
    struct moec_compile_dense *own = &run->own_dense;
    *model = run->compiled;
    if (is_bound(run, plan->dense))
        return MOEC_OK;
    MOEC_TRY(prepare(run, err));
    if (own->model == NULL || memcmp(own->model_numbers, plan->dense, plan->n_dense) != 0) {
        moec_model_free(own->model); /* first: both together may be too much */
        own->model = NULL;
        MOEC_TRY(moec_compile_dense_model(run, plan->dense, &own->model, err));
        memcpy(own->model_numbers, plan->dense, plan->n_dense);
    }
    *model = own->model;
    return MOEC_OK;
}

/* ---- sizes ---- */

enum moec_status moec_compile_dense_rest_bytes(const struct moec_dense *dense, uint64_t *n_bytes,
                                               struct moec_error *err)
{
    *n_bytes = 0;
    for (uint32_t first = 0; first < dense->n_entries; first += moec_bundle_dense_run(dense, first)) {
        uint64_t stored = 0;
        if (moec_role_is_quantisable((enum moec_role)dense->entries[first].role))
            continue;
        MOEC_TRY(moec_bundle_dense_run_bytes(dense, first, &stored, err));
        *n_bytes += stored;
    }
    return MOEC_OK;
}

/* Of matrix i, which has this effective number. Parts that joined ones lack are the last of a plan's matrices. */
static uint64_t *stored_at(const struct moec_compile_run *run, enum moec_compile_form form,
                           enum moec_role role, uint32_t i, uint8_t number)
{
    const bool is_joined = form == MOEC_FORM_JOINED && moec_role_rest(role) != role;
    const size_t at = is_joined ? run->report->plan.n_dense + (role == MOEC_ROLE_HEAD) : (size_t)i;
    return &run->own_dense.stored_bytes[at * MOEC_CODEC_TABLE + number];
}

/* Of a section with the matrices of `dense`, whose effective numbers these are. */
static enum moec_status count_stored(struct moec_compile_run *run, enum moec_compile_form form,
                                     const struct moec_dense *dense, const uint8_t *numbers,
                                     uint64_t *n_bytes, struct moec_error *err)
{
    struct moec_compile_dense *own = &run->own_dense;
    uint32_t i = 0;
    if (own->rest_bytes == 0)
        MOEC_TRY(moec_compile_dense_rest_bytes(dense, &own->rest_bytes, err));
    *n_bytes = own->rest_bytes;
    for (uint32_t e = 0; e < dense->n_entries; e++) {
        const enum moec_role role = (enum moec_role)dense->entries[e].role;
        if (!moec_role_is_quantisable(role))
            continue;
        uint64_t *stored = stored_at(run, form, role, i, numbers[i]);
        if (*stored == 0)
            MOEC_TRY(moec_bundle_dense_run_bytes(dense, e, stored, err));
        *n_bytes += *stored;
        i++;
    }
    return MOEC_OK;
}

/* What the bundle of a plan will weigh is not known before the search, but never less than all weights at two
 * bits: the path table takes 1 % of that. */
static enum moec_status prune_paths(struct moec_compile_run *run, struct moec_error *err)
{
    const struct moec_config *config = moec_checkpoint_config(run->checkpoint);
    const struct moec_codec codec = {.dtype = MOEC_DTYPE_INT2};
    struct moec_dense smallest = {0};
    MOEC_TRY(moec_checkpoint_stream_dense_as(run->checkpoint, &codec, &smallest, err));
    const uint64_t n_experts = (uint64_t)moec_config_moe_count(config) * config->n_expert;
    const uint64_t least = smallest.blob_bytes + n_experts * moec_record_layout_make(config, codec).n_bytes;
    moec_dense_release(&smallest);
    return moec_compile_take_paths(run, least, &run->own_dense.paths, err);
}

static enum moec_status make_bundle(struct moec_compile_run *run, enum moec_compile_form form,
                                    uint64_t stored_bytes, struct moec_error *err)
{
    struct moec_compile_dense *own = &run->own_dense;
    struct moec_bundle_parts parts = {
        .config = form == MOEC_FORM_JOINED ? &own->joined_config : moec_checkpoint_config(run->checkpoint),
        .dense = &own->bundles[form].dense,
        .cuts_dense = true,
        .dense_stored_bytes = stored_bytes};
    if (run->profile != NULL && own->paths.n_layer == 0)
        MOEC_TRY(prune_paths(run, err));
    return moec_compile_bundle_make(run, &own->paths, &parts, &own->bundles[form].plan, err);
}

/* Effective numbers as a table of this form. */
static enum moec_status open_form(struct moec_compile_run *run, enum moec_compile_form form,
                                  const uint8_t *numbers, struct moec_dense *dense, struct moec_error *err)
{
    struct moec_dense parts = {0};
    if (form == MOEC_FORM_PLAIN)
        return open_table(run, numbers, dense, err);
    MOEC_TRY(open_table(run, numbers, &parts, err));
    const enum moec_status status = moec_dense_join(&run->own_dense.joined_config, &parts, dense, err);
    moec_dense_release(&parts);
    return status;
}

/* Makes the plan's bundle the one of its form. */
static enum moec_status set_form(struct moec_compile_run *run, enum moec_compile_form form,
                                 const struct moec_plan *plan, struct moec_error *err)
{
    struct moec_compile_bundle *own = &run->own_dense.bundles[form];
    struct moec_dense made = {0}, old = own->dense;
    uint64_t stored_bytes = 0;
    uint8_t *numbers = NULL;
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_alloc((void **)&numbers, plan->n_dense, 1, "codecs of dense matrices", err));
    for (uint32_t i = 0; i < plan->n_dense; i++)
        numbers[i] = effective(run, plan->dense[i]);
    MOEC_TRY_OUT(open_form(run, form, numbers, &made, err));
    MOEC_TRY_OUT(count_stored(run, form, &made, numbers, &stored_bytes, err));
    own->dense = made;
    made = old;
    status = own->plan == NULL ? make_bundle(run, form, stored_bytes, err)
                               : moec_bundle_plan_set_dense(own->plan, &own->dense, stored_bytes, err);
    if (status != MOEC_OK) {
        made = own->dense;
        own->dense = old;
        goto out;
    }
    memcpy(own->numbers, plan->dense, plan->n_dense);
out:
    moec_dense_release(&made);
    free(numbers);
    return status;
}

enum moec_status moec_compile_bundle_of(struct moec_compile_run *run, const struct moec_plan *plan,
                                        struct moec_bundle_plan **bundle, const struct moec_dense **dense,
                                        struct moec_error *err)
{
    *bundle = run->plan;
    *dense = &run->compiled->dense;
    if (has_bound_bundle(run, plan->dense))
        return MOEC_OK;
    MOEC_TRY(prepare(run, err));
    const enum moec_compile_form form = form_of(run, plan->dense);
    const struct moec_compile_bundle *own = &run->own_dense.bundles[form];
    if (own->plan == NULL || memcmp(own->numbers, plan->dense, plan->n_dense) != 0)
        MOEC_TRY(set_form(run, form, plan, err));
    *bundle = own->plan;
    *dense = &own->dense;
    return MOEC_OK;
}

enum moec_status moec_compile_size(void *context, const struct moec_plan *plan, uint64_t *n_bytes,
                                   struct moec_error *err)
{
    struct moec_compile_run *run = context;
    struct moec_bundle_plan *bundle = NULL;
    const struct moec_dense *dense = NULL;
    MOEC_TRY(moec_compile_bundle_of(run, plan, &bundle, &dense, err));
    return moec_bundle_plan_bytes(
        bundle,
        &(struct moec_bundle_assignment){.experts = plan->experts,
                                         .copy_bits = run->options->experts.copy_bits,
                                         .n_extra = run->options->experts.n_copy_bits},
        n_bytes, err);
}

enum moec_status moec_compile_dense_bytes(const struct moec_compile_run *run, const struct moec_plan *plan,
                                          const struct moec_dense *dense, uint64_t **n_bytes,
                                          struct moec_error *err)
{
    const enum moec_compile_form form = form_of(run, plan->dense);
    uint32_t i = 0;
    *n_bytes = NULL;
    if (has_bound_bundle(run, plan->dense))
        return MOEC_OK;
    MOEC_TRY(
        moec_alloc((void **)n_bytes, dense->n_entries, sizeof **n_bytes, "sizes of dense matrices", err));
    for (uint32_t e = 0; e < dense->n_entries; e++) {
        const enum moec_role role = (enum moec_role)dense->entries[e].role;
        if (!moec_role_is_quantisable(role))
            continue;
        (*n_bytes)[e] = *stored_at(run, form, role, i, effective(run, plan->dense[i]));
        i++;
    }
    return MOEC_OK;
}

/* ---- life ---- */

enum moec_status moec_compile_codecs_changed(struct moec_compile_run *run, struct moec_error *err)
{
    memcpy(run->report->codecs, run->codecs, sizeof run->codecs);
    moec_compile_dense_forget(run);
    if (run->plan != NULL)
        MOEC_TRY(moec_bundle_plan_set_codecs(run->plan, run->codecs, err));
    return moec_variants_set_codecs(run->variants, run->codecs, err);
}

void moec_compile_dense_forget(struct moec_compile_run *run)
{
    struct moec_compile_dense *own = &run->own_dense;
    for (int form = 0; form < MOEC_FORM_COUNT; form++) {
        moec_bundle_plan_free(own->bundles[form].plan);
        moec_dense_release(&own->bundles[form].dense);
        free(own->bundles[form].numbers);
    }
    moec_path_table_release(&own->paths);
    moec_model_free(own->model);
    free(own->model_numbers);
    free(own->stored_bytes);
    *own = (struct moec_compile_dense){0};
}
