/* Bundles of one run without certificates: a search over more than bits compares them. */

#include "compiler/compile/compile_dense.h"
#include "compiler/compile/compile_internal.h"
#include "compiler/compile/compile_part.h"
#include "compiler/compile/compile_scope.h"
#include "compiler/compile/compile_search.h"

#include <inttypes.h>
#include <string.h>

static bool is_same_plan(const struct moec_plan *a, const struct moec_plan *b)
{
    for (size_t i = 0; i < moec_plan_count(a); i++)
        if (!moec_variant_equal(a->experts[i], b->experts[i]))
            return false;
    return memcmp(a->dense, b->dense, a->n_dense) == 0;
}

static bool is_new(const struct moec_compile_draft *drafts, uint32_t at)
{
    for (uint32_t i = 0; i < at; i++)
        if (drafts[i].n_bytes > 0 && is_same_plan(&drafts[i].plan, &drafts[at].plan))
            return false;
    return true;
}

/* A loss that no plan meets leaves the draft without bytes. */
static enum moec_status search(struct moec_compile_run *run, const struct moec_compile_options *options,
                               struct moec_compile_draft *draft, struct moec_error *err)
{
    struct moec_compile_options own = *options;
    struct moec_error missed = {0};
    const struct moec_compile_scope scope = run->scope;
    if (draft->n_search > 0 && draft->n_search < scope.n_search)
        run->scope.n_search = draft->n_search;
    if (run->search.is_open &&
        run->search.measured.windows.n_window != moec_compile_part_count(run, MOEC_PART_SEARCH))
        moec_compile_part_release(&run->search);
    own.target.max_loss = draft->max_loss;
    own.search.pair_share = draft->pair_share;
    own.search.loss_tolerance = draft->loss_tolerance;
    run->options = &own;
    const enum moec_status status = moec_compile_search(run, &missed);
    run->options = options;
    run->scope = scope;
    if (status == MOEC_ERR_TARGET) {
        moec_compile_say(run, "found no draft that loses at most %.3f%%: %s", 100 * draft->max_loss,
                         missed.message);
        return MOEC_OK;
    }
    if (status != MOEC_OK)
        return moec_fail(err, status, "%s", missed.message);
    MOEC_TRY(moec_plan_create(&draft->plan, moec_checkpoint_config(run->checkpoint), err));
    moec_plan_copy(&draft->plan, &run->report->plan);
    draft->plan.dense_bits = run->report->plan.dense_bits;
    draft->n_bytes = run->report->n_bytes;
    moec_compile_say(run, "a draft of %" PRIu64 " bytes for a loss of at most %.3f%%", draft->n_bytes,
                     100 * draft->max_loss);
    return MOEC_OK;
}

static enum moec_status search_all(struct moec_compile_run *run, const struct moec_compile_draft_list *list,
                                   struct moec_error *err)
{
    struct moec_compile_draft *drafts = list->drafts;
    const struct moec_compile_options *options = run->options;
    bool is_any = false;
    for (uint32_t i = 0; i < list->n; i++) {
        MOEC_TRY(search(run, options, &drafts[i], err));
        if (drafts[i].n_bytes > 0 && !is_new(drafts, i))
            drafts[i].n_bytes = 0;
        is_any = is_any || drafts[i].n_bytes > 0;
    }
    if (is_any)
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_TARGET,
                     "no plan of bits has a loss of at most %.3f%% on the search part, so too little "
                     "loss is left for decisions and nothing was written: ask for a larger --max-loss",
                     100 * drafts[list->n - 1].max_loss);
}

static enum moec_status write_all(struct moec_compile_run *run,
                                  const uint8_t profile_digest[static MOEC_SHA256_BYTES],
                                  const struct moec_compile_draft_list *list, struct moec_error *err)
{
    struct moec_compile_draft *drafts = list->drafts;
    moec_compile_pack_begin(run);
    for (uint32_t i = 0; i < list->n; i++) {
        if (drafts[i].n_bytes == 0)
            continue;
        moec_plan_copy(&run->report->plan, &drafts[i].plan);
        MOEC_TRY(moec_compile_write(run, profile_digest, drafts[i].path, err));
        drafts[i].is_written = true;
        run->report->is_written = false; /* so that what was measured is kept: no draft is the end */
    }
    return MOEC_OK;
}

enum moec_status moec_compile_drafts(const struct moec_compile_inputs *inputs,
                                     const struct moec_compile_options *options,
                                     const struct moec_compile_hooks *hooks,
                                     const struct moec_compile_draft_list *list,
                                     struct moec_compile_report *report, struct moec_error *err)
{
    struct moec_compile_run run = {.checkpoint = inputs->checkpoint,
                                   .profile = inputs->profile,
                                   .options = options,
                                   .hooks = hooks,
                                   .least_loss = list->drafts[0].max_loss,
                                   .most_loss = list->drafts[list->n - 1].max_loss,
                                   .report = report};
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_compile_start(&run, err));
    MOEC_TRY_OUT(moec_compile_dense_bind(&run, options->dense.bits, err));
    MOEC_TRY_OUT(search_all(&run, list, err));
    MOEC_TRY_OUT(write_all(&run, inputs->profile_digest, list, err));
out:
    moec_compile_finish(&run);
    return status;
}

void moec_compile_draft_release(struct moec_compile_draft *draft)
{
    moec_plan_release(&draft->plan);
}
