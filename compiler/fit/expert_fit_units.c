/* Units of a fit of experts: each matrix at a codec, so that a fit that wants others finds those that it wants too. */
#include "compiler/fit/expert_fit_internal.h"

#include "formats/base/bytes.h"
#include "formats/base/digest.h"
#include "formats/base/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define UNIT_PARTS 3

/* What a matrix at a codec has: its error, what is known of it at any codec, and its rows where they are kept. */
static uint32_t list_parts(struct moec_expert_fit *fit, size_t expert, uint32_t p, uint32_t c,
                           struct moec_unit_part parts[static UNIT_PARTS])
{
    const size_t at = (expert * MOEC_PROJECTION_COUNT + p) * fit->codes.n_codec + c;
    parts[0] = (struct moec_unit_part){&fit->found.errors[at], sizeof *fit->found.errors};
    parts[1] = (struct moec_unit_part){facts_of(fit, expert, p), N_FACT * sizeof *fit->found.facts};
    if (!is_kept(fit, c, p))
        return 2;
    parts[2] =
        (struct moec_unit_part){rows_of(fit, expert, p, c), matrix_bytes(fit, fit->codes.codecs[c].codec)};
    return 3;
}

static void name_unit(const struct moec_expert_fit *fit, size_t expert, uint32_t p, uint32_t c,
                      char key[static MOEC_JOURNAL_MAX_KEY])
{
    const struct moec_codec codec = fit->codes.codecs[c].codec;
    uint8_t bytes[5] = {codec.dtype, codec.scheme, codec.quantizer};
    moec_put_u16(bytes + 3, codec.group);
    (void)snprintf(key, MOEC_JOURNAL_MAX_KEY, "expert/%zu/%zu/%" PRIu32 "/%08" PRIx32,
                   expert / fit->of.config->n_expert, expert % fit->of.config->n_expert, p,
                   moec_crc32c(0, bytes, sizeof bytes));
}

typedef enum moec_status matrix_step(struct moec_expert_fit *fit, size_t expert, uint32_t p, uint32_t c,
                                     struct moec_error *err);

/* Of all that is left of an expert, or of all that is wanted: every matrix at a codec. */
static enum moec_status for_each(struct moec_expert_fit *fit, size_t expert, const uint8_t *masks,
                                 matrix_step *each, struct moec_error *err)
{
    for (uint32_t p = 0; p < MOEC_PROJECTION_COUNT; p++)
        for (uint32_t c = 0; c < fit->codes.n_codec; c++)
            if (has_bit(masks, expert, p, c))
                MOEC_TRY(each(fit, expert, p, c, err));
    return MOEC_OK;
}

static enum moec_status find_matrix(struct moec_expert_fit *fit, size_t expert, uint32_t p, uint32_t c,
                                    struct moec_error *err)
{
    char key[MOEC_JOURNAL_MAX_KEY];
    struct moec_unit_part parts[UNIT_PARTS];
    uint64_t cost = 0;
    bool found = false;
    const uint32_t n_part = list_parts(fit, expert, p, c, parts);
    name_unit(fit, expert, p, c, key);
    MOEC_TRY(
        moec_unit_find(fit->work.sweep.units, &(struct moec_unit){key, parts, n_part}, &cost, &found, err));
    uint8_t *left = &fit->work.layer.left[expert * MOEC_PROJECTION_COUNT + p];
    if (found)
        *left = (uint8_t)(*left & ~(1u << c));
    return MOEC_OK;
}

/* To be told to all ranks by the one that encoded it. */
static enum moec_status tell_matrix(struct moec_expert_fit *fit, size_t expert, uint32_t p, uint32_t c,
                                    struct moec_error *err)
{
    struct moec_unit_part parts[UNIT_PARTS];
    const uint32_t n_part = list_parts(fit, expert, p, c, parts);
    MOEC_TRY(moec_grow((void **)&fit->work.told.parts, &fit->work.told.n_room, fit->work.told.n + n_part,
                       sizeof *fit->work.told.parts, "encoded experts", err));
    for (uint32_t i = 0; i < n_part; i++)
        fit->work.told.parts[fit->work.told.n++] = (struct moec_ranks_part){
            moec_ranks_owner(fit->work.sweep.ranks, expert), parts[i].data, parts[i].n_bytes};
    return MOEC_OK;
}

static enum moec_status keep_matrix(struct moec_expert_fit *fit, size_t expert, uint32_t p, uint32_t c,
                                    struct moec_error *err)
{
    char key[MOEC_JOURNAL_MAX_KEY];
    struct moec_unit_part parts[UNIT_PARTS];
    const uint32_t n_part = list_parts(fit, expert, p, c, parts);
    name_unit(fit, expert, p, c, key);
    return moec_unit_keep(fit->work.sweep.units, &(struct moec_unit){key, parts, n_part}, 0, err);
}

/* An expert that is finished is counted. */
static void count_expert(struct moec_expert_fit *fit, size_t expert)
{
    bool any = false;
    double n_token = 0;
    for (uint32_t p = 0; p < MOEC_PROJECTION_COUNT; p++) {
        any |= fit->codes.wanted[expert * MOEC_PROJECTION_COUNT + p] != 0;
        n_token += facts_of(fit, expert, p)[FACT_TOKENS];
    }
    fit->codes.n_unseen += any && n_token == 0;
    fit->work.sweep.n_done++;
}

enum moec_status moec_expert_fit_find(struct moec_expert_fit *fit, struct moec_error *err)
{
    bool any = false;
    MOEC_TRY(moec_unit_any(fit->work.sweep.units, "expert/", &any, err));
    for (size_t expert = 0; expert < fit->work.sweep.n_total; expert++) {
        if (any)
            MOEC_TRY(for_each(fit, expert, fit->codes.wanted, find_matrix, err));
        leave_rows(fit, expert);
        if (!is_left(fit, expert))
            count_expert(fit, expert);
    }
    return MOEC_OK;
}

enum moec_status moec_expert_fit_share(struct moec_expert_fit *fit, size_t first, size_t n,
                                       struct moec_error *err)
{
    fit->work.told.n = 0;
    for (size_t expert = first; expert < first + n && fit->work.sweep.ranks != NULL; expert++)
        MOEC_TRY(for_each(fit, expert, fit->work.layer.left, tell_matrix, err));
    MOEC_TRY(moec_ranks_spread_parts(fit->work.sweep.ranks, fit->work.told.parts, fit->work.told.n, err));
    for (size_t expert = first; expert < first + n; expert++) {
        if (!is_left(fit, expert))
            continue;
        MOEC_TRY(for_each(fit, expert, fit->work.layer.left, keep_matrix, err));
        leave_rows(fit, expert);
        memset(fit->work.layer.left + expert * MOEC_PROJECTION_COUNT, 0, MOEC_PROJECTION_COUNT);
        count_expert(fit, expert);
    }
    return MOEC_OK;
}
