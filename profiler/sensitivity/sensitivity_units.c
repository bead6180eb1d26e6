/* Variants of a window and a layer are kept in order alone, so one count says which are done. Restoring
 * refuses a unit that is out of order or comes twice. The first rank reads the journal and spreads it. */
#include "profiler/sensitivity/sensitivity_units.h"

#include "formats/base/bytes.h"
#include "formats/base/memory.h"

#include <stdio.h>
#include <string.h>

/* Parts of a baseline: 0 first window and number of windows, u64 each; 1 NLL and 2 KL (windows).
 * Parts of variants: 0 layer, first window, windows, first variant, variants, extra, u64 each; 1 NLL and 2 KL
 * (variants, windows); 3 tokens that reached each expert, u64 (E), empty but for the layer's first variants.
 */
#define BASELINE_NUMBERS 2
#define RANGE_NUMBERS    6

void moec_sensitivity_units_release(struct moec_sensitivity_units *kept)
{
    free(kept->baseline);
    free(kept->variants);
    kept->baseline = NULL;
    kept->variants = NULL;
}

static const char *key_of(const struct moec_sensitivity_units *kept, const char *what,
                          char key[static MOEC_JOURNAL_MAX_KEY])
{
    (void)snprintf(key, MOEC_JOURNAL_MAX_KEY, "%s/%s", kept->name, what);
    return key;
}

static enum moec_status refuse(const char *what, struct moec_error *err)
{
    return moec_fail(err, MOEC_ERR_FORMAT,
                     "the sensitivity results in the journal are damaged: %s; delete the journal to start "
                     "over",
                     what);
}

static double *cell(const struct moec_sensitivity_units *kept, double *array, uint32_t s, uint32_t variant)
{
    const size_t e = variant % kept->n_expert, b = variant / kept->n_expert;
    return array + (((size_t)s * kept->n_expert + e) * kept->n_bits + b) * kept->n_window;
}

static enum moec_status restore_baseline(struct moec_sensitivity_units *kept, size_t record,
                                         struct moec_sensitivity *result, struct moec_error *err)
{
    uint64_t numbers[BASELINE_NUMBERS], cost = 0;
    MOEC_TRY(moec_unit_read_part(kept->units, record, 0, numbers, sizeof numbers, err));
    const uint64_t first = numbers[0], n = numbers[1];
    if (first > kept->n_window || n > kept->n_window - first)
        return refuse("they name windows that do not exist", err);
    for (uint64_t w = first; w < first + n; w++) {
        if (kept->baseline[w])
            return refuse("they have the baseline of a window twice", err);
        kept->baseline[w] = 1;
    }
    const uint64_t n_bytes = n * sizeof(double);
    MOEC_TRY(moec_unit_read_part(kept->units, record, 1, result->baseline.nll + first, n_bytes, err));
    MOEC_TRY(moec_unit_read_part(kept->units, record, 2, result->baseline.kl + first, n_bytes, err));
    MOEC_TRY(moec_unit_cost(kept->units, record, &cost, err));
    result->multiply_adds += cost;
    return MOEC_OK;
}

static enum moec_status read_range(const struct moec_sensitivity_units *kept, size_t record,
                                   struct moec_sensitivity_range *range, struct moec_error *err)
{
    uint64_t numbers[RANGE_NUMBERS];
    const uint64_t n_variant = (uint64_t)kept->n_expert * kept->n_bits;
    MOEC_TRY(moec_unit_read_part(kept->units, record, 0, numbers, sizeof numbers, err));
    if (numbers[0] >= kept->n_moe || numbers[1] > kept->n_window ||
        numbers[2] > kept->n_window - numbers[1] || numbers[3] > n_variant ||
        numbers[4] > n_variant - numbers[3])
        return refuse("they name a layer, window or expert variant that does not exist", err);
    *range = (struct moec_sensitivity_range){.s = (uint32_t)numbers[0],
                                             .first_window = (uint32_t)numbers[1],
                                             .n_window = (uint32_t)numbers[2],
                                             .first_variant = (uint32_t)numbers[3],
                                             .n_variant = (uint32_t)numbers[4],
                                             .extra = numbers[5]};
    return moec_unit_cost(kept->units, record, &range->multiply_adds, err);
}

/* A unit that is read. */
struct restored {
    size_t record;
    struct moec_sensitivity_range range;
    double *rows; /* (variants, windows): room for a part, owned */
};

/* Rows of a unit's part into their cells. */
static enum moec_status scatter(const struct moec_sensitivity_units *kept, const struct restored *unit,
                                uint32_t part, double *array, struct moec_error *err)
{
    const struct moec_sensitivity_range *range = &unit->range;
    double *rows = unit->rows;
    const size_t n = range->n_window;
    MOEC_TRY(
        moec_unit_read_part(kept->units, unit->record, part, rows, range->n_variant * n * sizeof *rows, err));
    for (uint32_t i = 0; i < range->n_variant; i++)
        memcpy(cell(kept, array, range->s, range->first_variant + i) + range->first_window, rows + i * n,
               n * sizeof *rows);
    return MOEC_OK;
}

static enum moec_status restore_variants(struct moec_sensitivity_units *kept, size_t record,
                                         struct moec_sensitivity *result, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct restored unit = {.record = record};
    const struct moec_sensitivity_range *range = &unit.range;
    uint64_t *reached = NULL;
    MOEC_TRY(read_range(kept, record, &unit.range, err));
    for (uint32_t i = 0; i < range->n_window; i++) {
        uint32_t *done = moec_sensitivity_units_variants(kept, range->first_window + i, range->s);
        if (*done != range->first_variant || !kept->baseline[range->first_window + i])
            return refuse("their expert variants are out of order", err);
        *done += range->n_variant;
    }
    const uint64_t n_row = (uint64_t)range->n_variant * range->n_window;
    MOEC_TRY(moec_alloc((void **)&unit.rows, n_row, sizeof *unit.rows, "kept measures", err));
    MOEC_TRY_OUT(scatter(kept, &unit, 1, result->expert_nll, err));
    MOEC_TRY_OUT(scatter(kept, &unit, 2, result->expert_kl, err));
    if (range->first_variant == 0 && result->reached != NULL) {
        MOEC_TRY_OUT(moec_alloc((void **)&reached, kept->n_expert, sizeof *reached, "kept counts", err));
        MOEC_TRY_OUT(
            moec_unit_read_part(kept->units, record, 3, reached, kept->n_expert * sizeof *reached, err));
        for (uint32_t e = 0; e < kept->n_expert; e++)
            result->reached[(size_t)range->s * kept->n_expert + e] += reached[e];
    }
    result->multiply_adds += range->multiply_adds;
    kept->extra += range->extra;
out:
    free(unit.rows);
    free(reached);
    return status;
}

/* What the first rank found, to the others. */
static enum moec_status spread(struct moec_sensitivity_units *kept, struct moec_sensitivity *result,
                               struct moec_error *err)
{
    struct moec_ranks *ranks = kept->ranks;
    const uint64_t n_expert = (uint64_t)kept->n_moe * kept->n_expert;
    const uint64_t n_cell = n_expert * kept->n_bits * kept->n_window;
    const struct moec_unit_part parts[] = {
        {kept->baseline, kept->n_window},
        {kept->variants, (uint64_t)kept->n_window * kept->n_moe * sizeof *kept->variants},
        {&kept->extra, sizeof kept->extra},
        {&result->multiply_adds, sizeof result->multiply_adds},
        {result->baseline.nll, kept->n_window * sizeof(double)},
        {result->baseline.kl, kept->n_window * sizeof(double)},
        {result->expert_nll, n_cell * sizeof(double)},
        {result->expert_kl, n_cell * sizeof(double)},
        {result->reached, result->reached != NULL ? n_expert * sizeof *result->reached : 0}};
    MOEC_TRY(moec_ranks_spread(ranks, 0, parts[0].data, parts[0].n_bytes, err));
    if (memchr(kept->baseline, 1, kept->n_window) == NULL) /* the first unit of all */
        return MOEC_OK;
    for (size_t i = 1; i < sizeof parts / sizeof *parts; i++)
        MOEC_TRY(moec_ranks_spread(ranks, 0, parts[i].data, parts[i].n_bytes, err));
    return MOEC_OK;
}

static enum moec_status restore_here(struct moec_sensitivity_units *kept, struct moec_sensitivity *result,
                                     struct moec_error *err)
{
    char key[MOEC_JOURNAL_MAX_KEY];
    size_t cursor = 0, record = 0;
    while (moec_unit_next(kept->units, key_of(kept, "baseline", key), &cursor, &record))
        MOEC_TRY(restore_baseline(kept, record, result, err));
    cursor = 0;
    while (moec_unit_next(kept->units, key_of(kept, "variants", key), &cursor, &record))
        MOEC_TRY(restore_variants(kept, record, result, err));
    return MOEC_OK;
}

enum moec_status moec_sensitivity_units_restore(struct moec_sensitivity_units *kept,
                                                struct moec_sensitivity *result, struct moec_error *err)
{
    const char *what = "progress of the sweep";
    MOEC_TRY(moec_alloc((void **)&kept->baseline, kept->n_window, 1, what, err));
    MOEC_TRY(moec_alloc((void **)&kept->variants, (uint64_t)kept->n_window * kept->n_moe,
                        sizeof *kept->variants, what, err));
    if (kept->units == NULL)
        return MOEC_OK;
    if (moec_ranks_own(kept->ranks) == 0)
        MOEC_TRY(restore_here(kept, result, err));
    return spread(kept, result, err);
}

enum moec_status moec_sensitivity_units_keep_baseline(struct moec_sensitivity_units *kept,
                                                      const struct moec_sensitivity *result, uint32_t first,
                                                      uint32_t n, uint64_t multiply_adds,
                                                      struct moec_error *err)
{
    uint64_t numbers[BASELINE_NUMBERS] = {first, n};
    const uint64_t n_bytes = n * sizeof(double);
    const struct moec_unit_part parts[] = {{numbers, sizeof numbers},
                                           {result->baseline.nll + first, n_bytes},
                                           {result->baseline.kl + first, n_bytes}};
    char key[MOEC_JOURNAL_MAX_KEY];
    MOEC_TRY(moec_unit_keep(kept->units, &(struct moec_unit){key_of(kept, "baseline", key), parts, 3},
                            multiply_adds, err));
    memset(kept->baseline + first, 1, n);
    return MOEC_OK;
}

static void gather(const struct moec_sensitivity_units *kept, const struct moec_sensitivity_range *range,
                   double *array, double *rows)
{
    const size_t n = range->n_window;
    for (uint32_t i = 0; i < range->n_variant; i++)
        memcpy(rows + i * n, cell(kept, array, range->s, range->first_variant + i) + range->first_window,
               n * sizeof *rows);
}

enum moec_status moec_sensitivity_units_keep(struct moec_sensitivity_units *kept,
                                             const struct moec_sensitivity *result,
                                             const struct moec_sensitivity_range *range,
                                             const uint64_t *reached, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const uint64_t n_row = (uint64_t)range->n_variant * range->n_window, n_bytes = n_row * sizeof(double);
    double *rows = NULL;
    uint64_t numbers[RANGE_NUMBERS] = {
        range->s, range->first_window, range->n_window, range->first_variant, range->n_variant, range->extra};
    for (uint32_t i = 0; i < range->n_window; i++)
        *moec_sensitivity_units_variants(kept, range->first_window + i, range->s) += range->n_variant;
    if (kept->units == NULL)
        return MOEC_OK;
    MOEC_TRY(moec_alloc((void **)&rows, 2 * n_row, sizeof *rows, "kept measures", err));
    gather(kept, range, result->expert_nll, rows);
    gather(kept, range, result->expert_kl, rows + n_row);
    const uint64_t n_reached = range->first_variant == 0 ? kept->n_expert * sizeof *reached : 0;
    const struct moec_unit_part parts[] = {{numbers, sizeof numbers},
                                           {rows, n_bytes},
                                           {rows + n_row, n_bytes},
                                           {(void *)(uintptr_t)reached, n_reached}};
    char key[MOEC_JOURNAL_MAX_KEY];
    status = moec_unit_keep(kept->units, &(struct moec_unit){key_of(kept, "variants", key), parts, 4},
                            range->multiply_adds, err);
    free(rows);
    return status;
}

bool moec_sensitivity_units_alike(const struct moec_sensitivity_units *kept, uint32_t a, uint32_t b)
{
    return kept->baseline[a] == kept->baseline[b] &&
           memcmp(moec_sensitivity_units_variants(kept, a, 0), moec_sensitivity_units_variants(kept, b, 0),
                  kept->n_moe * sizeof *kept->variants) == 0;
}

bool moec_sensitivity_units_complete(const struct moec_sensitivity_units *kept, uint32_t w)
{
    bool complete = kept->baseline[w];
    for (uint32_t s = 0; s < kept->n_moe; s++)
        complete = complete && *moec_sensitivity_units_variants(kept, w, s) == kept->n_expert * kept->n_bits;
    return complete;
}
