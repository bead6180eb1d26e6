/* A setting is taken from the option, else from what fits the bundle, else from the mode's default. A mode
 * that leaves no choice refuses the option instead of ignoring it. */
#include "runtime/engine/mode.h"

#include "runtime/policy/schedule/preload.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MIB(bytes) ((double)(bytes) / 1048576.0)

const struct moec_mode moec_modes[] = {
    {.name = "cache",
     .takes_any = true,
     .is_warm = true,
     .keeps = true,
     .evict = "hobbit",
     .predict = "gate"},
    {.name = "edgemoe", .is_warm = true, .keeps = true, .evict = "edgemoe", .predict = "path"},
    {.name = "io-free", .bits = 16, .is_resident = true, .is_warm = true, .keeps = true, .predict = "none"},
    {.name = "io-qfree", .bits = 8, .is_resident = true, .is_warm = true, .keeps = true, .predict = "none"},
    {.name = "io-exp", .bits = 16, .predict = "none"},
    {.name = "io-qexp", .bits = 4, .predict = "none"},
    {.name = "sti", .streams_all = true, .predict = "none"},
    {.name = "io-exp+lru", .bits = 16, .keeps = true, .evict = "lru", .predict = "none"},
    {.name = "io-qexp+lru", .bits = 4, .keeps = true, .evict = "lru", .predict = "none"},
    {.name = "lod", .by_name = true, .predict = "none"},
    {.name = "eap", .by_name = true, .keeps = true, .evict = "fate", .predict = "path"},
    {.name = "moe-offloading", .by_name = true, .keeps = true, .evict = "lru", .predict = "gate"},
    {.name = "moe-infinity", .by_name = true, .keeps = true, .evict = "lfu", .predict = "path"},
    {0},
};

static enum moec_status find_mode(const char *name, const struct moec_mode **out, struct moec_error *err)
{
    char names[256] = "";
    size_t at = 0;
    for (const struct moec_mode *mode = moec_modes; mode->name != NULL; mode++) {
        if (strcmp(mode->name, name) == 0) {
            *out = mode;
            return MOEC_OK;
        }
        const int n = snprintf(names + at, sizeof names - at, "%s%s", at > 0 ? ", " : "", mode->name);
        if (n > 0 && (size_t)n < sizeof names - at)
            at += (size_t)n;
    }
    return moec_fail(err, MOEC_ERR_USAGE, "unknown mode '%.40s', expected one of %s", name, names);
}

static enum moec_status choose_copy(const struct moec_bundle *bundle, const struct moec_mode *mode,
                                    uint32_t copy, uint32_t *out, struct moec_error *err)
{
    if (copy > 0 && !mode->takes_any)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "mode '%s' chooses its precision copy by itself: do not ask for copy %" PRIu32
                         ", or use mode 'cache', which runs any copy",
                         mode->name, copy);
    if (copy >= bundle->n_copy)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "precision copy %" PRIu32 " is requested, but the bundle '%s' has only %" PRIu32
            " precision copies, numbered from 0: compile the model again with --copies to add one",
            copy, bundle->file.path, bundle->n_copy);
    *out = copy;
    struct moec_error missing = {0};
    if (mode->bits > 0 && moec_bundle_find_copy(bundle, mode->bits, out, &missing) != MOEC_OK)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "mode '%s' needs a copy of the experts: %.700s; compile it with --copies %" PRIu32,
                         mode->name, missing.message, mode->bits);
    return MOEC_OK;
}

const char *moec_mode_evict(const struct moec_mode *mode, const struct moec_bundle *bundle)
{
    const struct moec_evict_ops *fitted = NULL;
    struct moec_error ignored = {0}; /* a later version's policy: the mode's own stands in */
    if (mode->takes_any && bundle->fitted_evict[0] != '\0' &&
        moec_evict_find(bundle->fitted_evict, &fitted, &ignored) == MOEC_OK)
        return fitted->name;
    /* A source's experts are done when the target begins, which only this policy knows. */
    if (mode->takes_any && moec_config_moe_encoder_count(&bundle->config) > 0)
        return moec_evict_edgemoe.name;
    const bool is_fate = mode->evict != NULL && strcmp(mode->evict, moec_evict_fate.name) == 0;
    return is_fate && bundle->paths.n_shallow == 0 ? moec_evict_arc.name : mode->evict;
}

static enum moec_status choose_evict(const struct moec_bundle *bundle, const struct moec_mode *mode,
                                     const char *word, struct moec_evict_choice *out, struct moec_error *err)
{
    *out = (struct moec_evict_choice){0};
    if (word != NULL)
        MOEC_TRY(moec_evict_read(word, out, err));
    if (word != NULL && mode->evict == NULL)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "mode '%s' evicts nothing: leave out the eviction '%s', or use mode 'cache'",
                         mode->name, word);
    if (word != NULL && !mode->takes_any && strcmp(out->ops->name, mode->evict) != 0)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "mode '%s' evicts by '%s': leave out the eviction '%s', or use mode 'cache', which takes any "
            "eviction",
            mode->name, mode->evict, word);
    if (word == NULL && mode->evict != NULL)
        return moec_evict_read(moec_mode_evict(mode, bundle), out, err);
    return MOEC_OK;
}

/* What a device's memory misses is copied there beside its own work, which guesses were not measured with. */
const char *moec_mode_predict(const struct moec_mode *mode, struct moec_mode_facts facts)
{
    if (!mode->takes_any)
        return mode->predict;
    if (facts.routes_by_token)
        return moec_predict_token.name;
    if (facts.has_device)
        return moec_predict_none.name;
    if (facts.fitted != NULL)
        return facts.fitted;
    return facts.is_taught && !facts.decides ? moec_predict_learned.name : mode->predict;
}

struct moec_mode_facts moec_mode_facts_of(const struct moec_bundle *bundle, bool has_device)
{
    const struct moec_predict_ops *fitted = NULL;
    struct moec_error ignored = {0};
    const bool is_fitted = bundle->fitted_predict[0] != '\0' &&
                           moec_predict_find(bundle->fitted_predict, &fitted, &ignored) == MOEC_OK;
    return (struct moec_mode_facts){.routes_by_token = moec_config_routes_by_token(&bundle->config),
                                    .is_taught = bundle->has_predictor,
                                    .has_device = has_device,
                                    .fitted = is_fitted ? fitted->name : NULL};
}

static enum moec_status choose_predict(const struct moec_bundle *bundle,
                                       const struct moec_mode_request *request, struct moec_mode_choice *out,
                                       struct moec_error *err)
{
    const struct moec_mode *mode = out->mode;
    const char *name = request->predict;
    struct moec_mode_facts facts = moec_mode_facts_of(bundle, request->has_device);
    facts.decides = request->decides;
    facts.is_taught = facts.is_taught && request->preload_ahead <= 1; /* walks ask gates */
    const char *chosen = name != NULL ? name : moec_mode_predict(mode, facts);
    MOEC_TRY(moec_predict_find(chosen, &out->predict, err));
    if (name != NULL && !mode->takes_any && strcmp(name, mode->predict) != 0)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "mode '%s' runs only with predictor '%s', not with '%s': leave out the predictor, or use "
            "mode 'cache', which takes any predictor",
            mode->name, mode->predict, name);
    if (out->predict->needs_learned && !bundle->has_predictor)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "predictor 'learned' must be trained first, and the bundle '%s' has no trained predictor yet: "
            "run moec predict '%s' --data TEXT",
            bundle->file.path, bundle->file.path);
    const bool has_paths = bundle->paths.n_layer > 0;
    if (!out->predict->needs_paths || has_paths)
        return MOEC_OK;
    if (name != NULL)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "predictor '%s' needs a path table (which experts follow which), and the bundle '%s' has "
            "none: compile the model with a profile, or choose another predictor",
            name, bundle->file.path);
    out->lacks_paths = true;
    return moec_predict_find("none", &out->predict, err);
}

static enum moec_status choose_ahead(const struct moec_mode_request *request, struct moec_mode_choice *out,
                                     struct moec_error *err)
{
    const struct moec_predict_ops *predict = out->predict;
    const uint32_t ahead = request->preload_ahead;
    if (ahead > 1 && !predict->needs_next_gate)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "preloads for %" PRIu32 " layers ahead are asked for, but predictor '%s' does not "
                         "run the routers of later layers: use 'gate' or 'path+gate'",
                         ahead, predict->name);
    if (ahead > MOEC_GATES_AHEAD)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "preloads for %" PRIu32 " layers ahead are asked for, expected 1 to %u", ahead,
                         MOEC_GATES_AHEAD);
    out->preload_ahead = predict == &moec_predict_none || predict == &moec_predict_token ? 0 : 1;
    if (predict->needs_next_gate)
        out->preload_ahead = ahead > 0 ? ahead : MOEC_PRELOAD_AHEAD;
    return MOEC_OK;
}

enum moec_status moec_mode_choose(const struct moec_bundle *bundle, const struct moec_mode_request *request,
                                  struct moec_mode_choice *out, struct moec_error *err)
{
    struct moec_mode_choice choice = {.preload_count = request->preload_count};
    MOEC_TRY(find_mode(request->mode != NULL ? request->mode : "cache", &choice.mode, err));
    MOEC_TRY(choose_copy(bundle, choice.mode, request->copy, &choice.copy, err));
    MOEC_TRY(choose_evict(bundle, choice.mode, request->evict, &choice.evict, err));
    MOEC_TRY(choose_predict(bundle, request, &choice, err));
    if (choice.preload_count > 0 &&
        (choice.predict == &moec_predict_none || choice.predict == &moec_predict_token))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "%" PRIu32 " preloads per layer are asked for, but nothing is predicted: choose a "
                         "predictor, or a mode that predicts ('edgemoe' needs a bundle with a path table)",
                         choice.preload_count);
    MOEC_TRY(choose_ahead(request, &choice, err));
    *out = choice;
    return MOEC_OK;
}

enum moec_status moec_mode_check_plan(const struct moec_mode *mode, const struct moec_memory_plan *plan,
                                      struct moec_error *err)
{
    if (!mode->is_resident || plan->experts.all_stay)
        return MOEC_OK;
    const uint64_t others = plan->total_bytes - plan->expert_buffer_bytes;
    return moec_fail(err, MOEC_ERR_BUDGET,
                     "mode '%s' keeps every expert in memory: they take %.2f MiB at %" PRIu32
                     " bits, and the budget leaves %.2f MiB; raise --memory to %.2f MiB, or leave it out",
                     mode->name, MIB(plan->experts.all_bytes), mode->bits, MIB(plan->expert_buffer_bytes),
                     MIB(others + plan->experts.all_bytes));
}
