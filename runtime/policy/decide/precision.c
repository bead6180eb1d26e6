/* An expert's score is the share of weight that stands before it, by falling weight and then lower index.
 * Both sides of a comparison are multiplied by the sum: nothing is divided, and a threshold of 1 is never
 * passed. What a block has decided comes first. Without that an expert that is resident is neither skipped
 * nor lowered, but with `always`, which does not ask. */
#include "runtime/policy/decide/precision.h"

#include "formats/model/neighbors.h"
#include "formats/tables/score_shares.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const kinds[MOEC_PRECISION_COUNT] = {[MOEC_PRECISION_HOBBIT] = "hobbit",
                                                        [MOEC_PRECISION_ALWAYS] = "always",
                                                        [MOEC_PRECISION_FATE] = "fate",
                                                        [MOEC_PRECISION_SHARED] = "shared"};

/* Reads ":0.6" and moves on behind it; an end leaves the score as it is. */
static bool read_score(const char **at, float *score)
{
    char *end = NULL;
    if (**at == '\0')
        return true;
    if (**at != ':')
        return false;
    const double value = strtod(*at + 1, &end);
    if (end == *at + 1 || !(value >= 0 && value <= 1))
        return false;
    *score = (float)value;
    *at = end;
    return true;
}

/* Reads ":128" to the end; an end leaves the block as it is. */
static bool read_block(const char *at, uint32_t *block_tokens)
{
    char *end = NULL;
    if (*at == '\0')
        return true;
    const double value = *at == ':' ? strtod(at + 1, &end) : -1;
    if (end == NULL || end == at + 1 || *end != '\0' || !(value >= 0 && value <= MOEC_PRECISION_MAX_BLOCK) ||
        value != floor(value))
        return false;
    *block_tokens = (uint32_t)value;
    return true;
}

/* Reads ":8" or ":25%" to the end; nothing leaves both at 0. */
static bool read_width(const char *at, struct moec_precision *precision)
{
    char *end = NULL;
    if (*at == '\0')
        return true;
    if (*at != ':')
        return false;
    const double value = strtod(at + 1, &end);
    if (end == at + 1 || !(value > 0 && value <= MOEC_MAX_EXPERTS))
        return false;
    if (strcmp(end, "%") == 0 && value <= 100) {
        precision->width_share = (float)(value / 100);
        return true;
    }
    precision->width = (uint32_t)value;
    return *end == '\0' && value == floor(value);
}

enum moec_status moec_precision_read(const char *text, struct moec_precision *precision,
                                     struct moec_error *err)
{
    for (unsigned kind = MOEC_PRECISION_HOBBIT; kind < MOEC_PRECISION_COUNT; kind++) {
        const size_t length = strlen(kinds[kind]);
        if (strncmp(text, kinds[kind], length) != 0)
            continue;
        const char *at = text + length;
        if (kind == MOEC_PRECISION_FATE) {
            struct moec_precision fate = {.kind = MOEC_PRECISION_FATE};
            if (!read_width(at, &fate))
                break;
            *precision = fate;
            return MOEC_OK;
        }
        float high = MOEC_PRECISION_HIGH_SCORE, low = MOEC_PRECISION_LOW_SCORE;
        bool is_read = read_score(&at, &high);
        if (is_read && *at == '\0' && low < high)
            low = high;
        uint32_t block_tokens = kind == MOEC_PRECISION_HOBBIT ? MOEC_PRECISION_BLOCK : 0;
        if (is_read)
            is_read = read_score(&at, &low) && low >= high;
        const bool names_block = is_read && *at == ':';
        if (!is_read || !(kind == MOEC_PRECISION_HOBBIT ? read_block(at, &block_tokens) : *at == '\0'))
            break;
        *precision = (struct moec_precision){.kind = (uint8_t)kind,
                                             .high_score = high,
                                             .low_score = low,
                                             .by_shares = text[length] == '\0',
                                             .block_tokens = block_tokens,
                                             .names_block = names_block};
        return MOEC_OK;
    }
    return moec_fail(err, MOEC_ERR_USAGE,
                     "unknown precision '%s', expected hobbit:T1:T2, hobbit:T1:T2:L, always:T1:T2, "
                     "shared:T1:T2 or fate:W. T1 and T2 are scores from 0 to 1, and T2 is at least T1; L "
                     "is the number of tokens in a block; W is a number of experts such as 8, or a share "
                     "such as 25%%",
                     text);
}

void moec_precision_know_scores(struct moec_precision *precision, const float *scores)
{
    if (!precision->by_shares)
        return;
    precision->high_score =
        (float)moec_score_threshold(scores, MOEC_SCORE_PAPER_HIGH) / (float)MOEC_SCORE_STEPS;
    precision->low_score =
        (float)moec_score_threshold(scores, MOEC_SCORE_PAPER_READ) / (float)MOEC_SCORE_STEPS;
}

uint32_t moec_precision_width(const struct moec_precision *precision, const struct moec_config *config)
{
    const uint32_t n_quarter = (config->n_expert + 3) / 4;
    if (precision->width > 0)
        return precision->width;
    if (precision->width_share > 0) {
        const uint32_t width = (uint32_t)(precision->width_share * (float)config->n_expert);
        return width > 0 ? width : 1;
    }
    return n_quarter > config->top_k ? n_quarter : config->top_k;
}

/* Whether a MoE layer foresees what another one asks for. */
static bool hints(const struct moec_config *config)
{
    for (uint32_t layer = 0; layer < config->n_layer; layer++)
        if (moec_config_is_moe(config, layer) && !moec_config_layer(config, layer)->routes_by_token &&
            moec_config_moe_layer_before(config, layer) != MOEC_NO_LAYER)
            return true;
    return false;
}

static enum moec_status check_fate(const struct moec_precision *precision, const struct moec_config *config,
                                   struct moec_error *err)
{
    const uint32_t width = moec_precision_width(precision, config);
    if (!hints(config))
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "precision 'fate' changes nothing in this model: it needs a MoE layer whose experts an earlier "
            "MoE layer predicts, and the model has no such layer");
    if (width < config->n_expert)
        return MOEC_OK;
    return moec_fail(
        err, MOEC_ERR_USAGE,
        "--precision fate:%u takes all %u experts of a layer as predicted and so changes nothing: expected "
        "fate:1 to fate:%u",
        width, config->n_expert, config->n_expert - 1);
}

enum moec_status moec_precision_check(const struct moec_precision *precision,
                                      const struct moec_config *config, struct moec_error *err)
{
    const char *name = kinds[precision->kind];
    if (precision->kind == MOEC_PRECISION_ONE)
        return MOEC_OK;
    if (precision->kind == MOEC_PRECISION_FATE)
        return check_fate(precision, config, err);
    if (config->top_k == 1)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "a token of this model uses one expert, always in its high-precision copy, so precision %s "
            "changes nothing: leave it out",
            name);
    return MOEC_OK;
}

enum moec_status moec_precision_check_pure(const struct moec_precision *precision, const char *whose,
                                           struct moec_error *err)
{
    if (precision->kind != MOEC_PRECISION_SHARED)
        return MOEC_OK;
    return moec_fail(
        err, MOEC_ERR_USAGE,
        "%s: precision shared:%g:%g decides by the experts in memory, so its output depends on memory and "
        "timing, and no loss can be promised or compared; use hobbit:%g:%g, which decides by a logical cache",
        whose, (double)precision->high_score, (double)precision->low_score, (double)precision->high_score,
        (double)precision->low_score);
}

/* Ranks that are not skipped, by falling weight. */
static uint32_t order_by_weight(uint32_t top_k, const uint32_t *experts, const float *weights,
                                const bool *skips, uint32_t *ranks)
{
    uint32_t n = 0;
    for (uint32_t rank = 0; rank < top_k; rank++) {
        const float weight = fabsf(weights[rank]);
        if (skips[rank])
            continue;
        uint32_t at = n++;
        for (; at > 0; at--) {
            const float before = fabsf(weights[ranks[at - 1]]);
            if (!(weight > before || (weight == before && experts[rank] < experts[ranks[at - 1]])))
                break;
            ranks[at] = ranks[at - 1];
        }
        ranks[at] = rank;
    }
    return n;
}

uint32_t moec_precision_scores(uint32_t top_k, const uint32_t *experts, const float *weights,
                               const bool *skips, float *scores)
{
    uint32_t ranks[MOEC_MAX_TOP_K];
    const uint32_t n = order_by_weight(top_k, experts, weights, skips, ranks);
    float sum = 0, before = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += fabsf(weights[ranks[i]]);
    for (uint32_t i = 0; i < n; i++) {
        scores[i] = sum > 0 ? before / sum : 0;
        before += fabsf(weights[ranks[i]]);
    }
    return n;
}

void moec_precision_decide(const struct moec_precision *precision, const struct moec_token_experts *token,
                           const struct moec_residents *residents, uint32_t layer, const uint8_t *block,
                           uint32_t n_block)
{
    const uint32_t top_k = token->top_k, *experts = token->experts;
    const float *weights = token->weights;
    bool *skips = token->skips, *is_low = token->is_low;
    uint32_t ranks[MOEC_MAX_TOP_K];
    if (precision->kind == MOEC_PRECISION_FATE) {
        for (uint32_t rank = 0; rank < top_k; rank++)
            is_low[rank] = !skips[rank] && !residents->has(residents, layer, experts[rank]);
        return;
    }
    const uint32_t n = order_by_weight(top_k, experts, weights, skips, ranks);
    float sum = 0, before = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += fabsf(weights[ranks[i]]);
    /* Scores are compared times the sum: a threshold of 1 is then never passed. */
    const float most_high = precision->high_score * sum, most_low = precision->low_score * sum;
    memset(is_low, 0, top_k * sizeof *is_low);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t rank = ranks[i];
        const uint8_t copy =
            block != NULL && experts[rank] < n_block ? block[experts[rank]] : (uint8_t)MOEC_BLOCK_NONE;
        const bool is_there = copy != MOEC_BLOCK_NONE || (precision->kind != MOEC_PRECISION_ALWAYS &&
                                                          residents->has(residents, layer, experts[rank]));
        if (before > most_low && !is_there)
            skips[rank] = true;
        else if (copy == MOEC_BLOCK_LOW || (before > most_high && !is_there))
            is_low[rank] = true;
        before += fabsf(weights[rank]);
    }
}
