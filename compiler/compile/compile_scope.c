/* How much a compile looks at. A level is chosen from a forecast before the work, never by a clock on the way, and
 * is kept in the journal: an interrupted compile goes on with what it began with. Whatever the level, tests are on
 * windows that nobody saw before, so the promise stays. */
#include "compiler/compile/compile_scope.h"

#include <math.h>
#include <string.h>

/* The least loss first: fewer windows that tests may take widen the interval by so much, fewer windows of the
 * search make a plan a little larger, fewer codes and windows to fit on cost most. */
static const struct moec_compile_scope scopes[MOEC_COMPILE_SCOPES] = {
    {UINT32_MAX, MOEC_SEARCH_WINDOWS, MOEC_HARM_WINDOWS, MOEC_HARM_CLASS_WINDOWS, UINT32_MAX, 4},
    {UINT32_MAX, 64, 64, 16, 128, 4},
    {UINT32_MAX, 32, 32, 8, 128, 4},
    {128, 32, 32, 8, 64, 3},
    {64, 16, 16, 8, 64, 2},
};

const struct moec_compile_scope *moec_compile_scope_at(uint32_t level)
{
    return &scopes[level < MOEC_COMPILE_SCOPES ? level : MOEC_COMPILE_SCOPES - 1];
}

enum moec_status moec_compile_scope_take(struct moec_compile_run *run, uint64_t n_kept,
                                         struct moec_error *err)
{
    uint32_t level = run->options->target.scope;
    const struct moec_unit_part part = {&level, sizeof level};
    uint64_t cost = 0;
    bool found = false;
    const struct moec_unit unit = {"scope", &part, 1};
    MOEC_TRY(moec_unit_find(run->units, &unit, &cost, &found, err));
    if (!found && n_kept > 0)
        level = 0; /* whose journals say nothing */
    else if (!found && level > 0)
        MOEC_TRY(moec_unit_keep(run->units, &unit, 0, err));
    if (level >= MOEC_COMPILE_SCOPES)
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "the journal '%s' was begun by another version of moec, which left out more work than this "
            "version can; delete the journal to start over",
            run->options->journal.path);
    if (level != run->options->target.scope)
        moec_compile_tell(
            run,
            "the journal was begun with another --time-limit, and the work that this limit left out stays "
            "left out; delete the journal to start over");
    run->scope = *moec_compile_scope_at(level);
    run->report->scope = level;
    return MOEC_OK;
}

uint32_t moec_compile_part_count(const struct moec_compile_run *run, enum moec_part which)
{
    if (run->rows != NULL)
        return moec_row_metric_count(run->rows, which);
    const uint32_t n = moec_profile_part_count(run->profile, which);
    if (which == MOEC_PART_CERTIFICATE && run->n_certify > 0)
        return run->n_certify;
    return which != MOEC_PART_CERTIFICATE && n > run->scope.n_search ? run->scope.n_search : n;
}

bool moec_compile_has_wanted(const struct moec_compile_options *options)
{
    return (options->search.policy == NULL || strcmp(options->search.policy, "hull") == 0) &&
           !isnan(options->target.max_loss) && options->target.max_bytes == 0 && options->target.rows == NULL;
}
