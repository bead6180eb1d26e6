/* Shares of experts by score, in steps of a hundredth: they never fall, and the last is 1. So the first
 * step that reaches a share is the threshold for it. */
#include "formats/tables/score_shares.h"

#include "formats/base/bytes.h"
#include "formats/base/memory.h"

#define VERSION 1u

uint32_t moec_score_threshold(const float *shares, double share)
{
    uint32_t step = 0;
    while (step < MOEC_SCORE_STEPS && !((double)shares[step] >= share))
        step++;
    return step;
}

void moec_score_shares_encode(const float *shares, uint8_t *bytes)
{
    moec_put_u32(bytes, VERSION);
    moec_put_u32(bytes + 4, MOEC_SCORE_COUNT);
    for (size_t i = 0; i < MOEC_SCORE_COUNT; i++)
        moec_put_f32(bytes + 8 + 4 * i, shares[i]);
}

/* NaN fails every comparison. */
static enum moec_status check(const float *shares, struct moec_error *err)
{
    float before = 0;
    for (uint32_t i = 0; i < MOEC_SCORE_COUNT; before = shares[i++])
        if (!(shares[i] >= before && shares[i] <= 1) || (i == MOEC_SCORE_STEPS && shares[i] < 1))
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "the share of experts with scores up to %g is %g, expected %g to 1%s", i * 0.01,
                             (double)shares[i], (double)before,
                             i == MOEC_SCORE_STEPS ? "; the last share must be exactly 1" : "");
    return MOEC_OK;
}

enum moec_status moec_score_shares_decode(const uint8_t *bytes, size_t n_bytes, float **shares,
                                          struct moec_error *err)
{
    float *read = NULL;
    if (n_bytes >= 4 && moec_get_u32(bytes) != VERSION)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "the section of expert scores has version %u, expected %u", moec_get_u32(bytes),
                         VERSION);
    if (n_bytes != MOEC_SCORES_BYTES)
        return moec_fail(err, MOEC_ERR_FORMAT, "the section of expert scores has %zu bytes, expected %u",
                         n_bytes, MOEC_SCORES_BYTES);
    if (moec_get_u32(bytes + 4) != MOEC_SCORE_COUNT)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the section of expert scores counts %u thresholds, expected %u",
                         moec_get_u32(bytes + 4), MOEC_SCORE_COUNT);
    MOEC_TRY(moec_alloc((void **)&read, MOEC_SCORE_COUNT, sizeof *read, "expert scores", err));
    for (size_t i = 0; i < MOEC_SCORE_COUNT; i++)
        read[i] = moec_get_f32(bytes + 8 + 4 * i);
    const enum moec_status status = check(read, err);
    if (status != MOEC_OK)
        free(read);
    else
        *shares = read;
    return status;
}
