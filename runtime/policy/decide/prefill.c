/* A word is the kind and its numbers, "unpopular:0.25:64"; a number that is left out has its default. Only
 * the kind 'unpopular' has blocks; for the others the whole prompt is one. */
#include "runtime/policy/decide/prefill.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const kinds[MOEC_PREFILL_COUNT] = {[MOEC_PREFILL_UNPOPULAR] = "unpopular",
                                                      [MOEC_PREFILL_WHOLE] = "whole",
                                                      [MOEC_PREFILL_POPULAR] = "popular"};

const char *moec_prefill_name(const struct moec_prefill *prefill)
{
    return kinds[prefill->kind];
}

/* Reads ":0.25" and moves on behind it; an end leaves the number as it is. */
static bool read_number(const char **at, double least, double most, double *number)
{
    char *end = NULL;
    if (**at == '\0')
        return true;
    if (**at != ':')
        return false;
    const double value = strtod(*at + 1, &end);
    if (end == *at + 1 || !(value >= least && value <= most))
        return false;
    *number = value;
    *at = end;
    return true;
}

enum moec_status moec_prefill_read(const char *text, struct moec_prefill *prefill, struct moec_error *err)
{
    for (unsigned kind = MOEC_PREFILL_UNPOPULAR; kind < MOEC_PREFILL_COUNT; kind++) {
        const size_t length = strlen(kinds[kind]);
        if (strncmp(text, kinds[kind], length) != 0)
            continue;
        const char *at = text + length;
        const bool has_blocks = kind == MOEC_PREFILL_UNPOPULAR;
        double share = (double)MOEC_PREFILL_SHARE, tokens = MOEC_PREFILL_TOKENS;
        if (!read_number(&at, 0, 1, &share) ||
            (has_blocks && !read_number(&at, 1, MOEC_MAX_POSITIONS, &tokens)) || *at != '\0' ||
            tokens != floor(tokens))
            break;
        *prefill = (struct moec_prefill){.kind = (uint8_t)kind,
                                         .share = (float)share,
                                         .block_tokens = has_blocks ? (uint32_t)tokens : UINT32_MAX,
                                         .frequency = prefill->frequency};
        return MOEC_OK;
    }
    return moec_fail(err, MOEC_ERR_USAGE,
                     "unknown prefill '%s', expected unpopular:SHARE:TOKENS, whole:SHARE or popular:SHARE, "
                     "with SHARE from 0 to 1 and a whole number of TOKENS in a block",
                     text);
}
