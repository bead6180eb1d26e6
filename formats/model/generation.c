/* Settings are checked when they are encoded, and again when they are decoded, then against the model's
 * vocabulary too: no other code meets one that is out of range. The layout of the section stands above its
 * functions. */
#include "formats/model/generation.h"

#include "formats/base/bytes.h"
#include "formats/base/memory.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

struct moec_generation moec_generation_default(void)
{
    return (struct moec_generation){
        .n_beam = 1, .length_penalty = 1, .repetition_penalty = 1, .forced_bos = MOEC_NO_TOKEN};
}

bool moec_generation_is_default(const struct moec_generation *g)
{
    return g->n_beam == 1 && g->length_penalty == 1 && g->repetition_penalty == 1 &&
           g->early_stopping == MOEC_STOP_HEURISTIC && g->no_repeat_ngram == 0 && g->min_length == 0 &&
           g->min_new_tokens == 0 && g->max_length == 0 && g->max_new_tokens == 0 &&
           g->forced_bos == MOEC_NO_TOKEN && g->forced_eos.n == 0 && g->suppress.n == 0 &&
           g->begin_suppress.n == 0;
}

static enum moec_status check_count(const char *subject, const char *name, uint32_t value, uint32_t min,
                                    uint32_t max, struct moec_error *err)
{
    if (value < min || value > max)
        return moec_fail(err, MOEC_ERR_LIMIT, "%s says '%s' %" PRIu32 ", expected %" PRIu32 "..%" PRIu32,
                         subject, name, value, min, max);
    return MOEC_OK;
}

static enum moec_status check_list(const char *subject, const char *name, const struct moec_token_list *list,
                                   uint32_t n_vocab, struct moec_error *err)
{
    MOEC_TRY(check_count(subject, name, list->n, 0, MOEC_MAX_LISTED_TOKENS, err));
    for (uint32_t i = 0; i < list->n; i++)
        MOEC_TRY(check_count(subject, name, list->ids[i], 0, n_vocab - 1, err));
    return MOEC_OK;
}

enum moec_status moec_generation_check(const struct moec_generation *g, uint32_t n_vocab, const char *subject,
                                       struct moec_error *err)
{
    MOEC_TRY(check_count(subject, "num_beams", g->n_beam, 1, MOEC_MAX_BEAMS, err));
    if (!(isfinite(g->length_penalty) && fabs(g->length_penalty) <= 100))
        return moec_fail(err, MOEC_ERR_LIMIT, "%s says 'length_penalty' %g, expected -100..100", subject,
                         g->length_penalty);
    if (!(isfinite(g->repetition_penalty) && g->repetition_penalty > 0 && g->repetition_penalty <= 100))
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "%s says 'repetition_penalty' %g, expected more than 0 and at most 100", subject,
                         g->repetition_penalty);
    MOEC_TRY(check_count(subject, "early_stopping", g->early_stopping, 0, MOEC_STOP_NEVER, err));
    MOEC_TRY(check_count(subject, "no_repeat_ngram_size", g->no_repeat_ngram, 0, MOEC_MAX_NGRAM, err));
    MOEC_TRY(check_count(subject, "min_length", g->min_length, 0, MOEC_MAX_POSITIONS, err));
    MOEC_TRY(check_count(subject, "min_new_tokens", g->min_new_tokens, 0, MOEC_MAX_POSITIONS, err));
    MOEC_TRY(check_count(subject, "max_length", g->max_length, 0, MOEC_MAX_POSITIONS, err));
    MOEC_TRY(check_count(subject, "max_new_tokens", g->max_new_tokens, 0, MOEC_MAX_POSITIONS, err));
    if (g->forced_bos != MOEC_NO_TOKEN)
        MOEC_TRY(check_count(subject, "forced_bos_token_id", g->forced_bos, 0, n_vocab - 1, err));
    MOEC_TRY(check_list(subject, "forced_eos_token_id", &g->forced_eos, n_vocab, err));
    MOEC_TRY(check_list(subject, "suppress_tokens", &g->suppress, n_vocab, err));
    return check_list(subject, "begin_suppress_tokens", &g->begin_suppress, n_vocab, err);
}

uint32_t moec_generation_room(const struct moec_generation *g, uint32_t n_prompt, uint32_t otherwise)
{
    if (g->max_new_tokens > 0)
        return g->max_new_tokens;
    if (g->max_length > 0)
        return g->max_length > n_prompt ? g->max_length - n_prompt : 0;
    return otherwise;
}

/* ---- binary section ---- */

/* Little-endian; offsets in bytes:
 *     0 u32 version (1)
 *     4 u32 n_beam, early_stopping, no_repeat_ngram, min_length, min_new_tokens, max_length, max_new_tokens,
 *           forced_bos, then the lengths of the lists forced_eos, suppress, begin_suppress
 *    48 f64 length_penalty, repetition_penalty
 *    64 u32 the lists' ids, one list after the other */
#define SECTION_VERSION 1u
#define SECTION_FIXED   64u
#define N_COUNTS        8
#define N_LISTS         3

enum moec_status moec_generation_encode(const struct moec_generation *g, uint8_t **bytes, size_t *n_bytes,
                                        struct moec_error *err)
{
    const uint32_t counts[N_COUNTS] = {
        g->n_beam,     (uint32_t)g->early_stopping, g->no_repeat_ngram, g->min_length, g->min_new_tokens,
        g->max_length, g->max_new_tokens,           g->forced_bos};
    const struct moec_token_list *const lists[N_LISTS] = {&g->forced_eos, &g->suppress, &g->begin_suppress};
    void *memory = NULL;
    MOEC_TRY(moec_generation_check(g, MOEC_MAX_VOCABULARY, "the generation section", err));
    const size_t total = SECTION_FIXED + sizeof(uint32_t) * ((size_t)lists[0]->n + lists[1]->n + lists[2]->n);
    MOEC_TRY(moec_alloc(&memory, total, 1, "generation section", err));
    uint8_t *at = memory;
    moec_put_u32(at, SECTION_VERSION);
    for (size_t i = 0; i < N_COUNTS; i++)
        moec_put_u32(at + 4 + 4 * i, counts[i]);
    for (size_t i = 0; i < N_LISTS; i++)
        moec_put_u32(at + 36 + 4 * i, lists[i]->n);
    moec_put_f64(at + 48, g->length_penalty);
    moec_put_f64(at + 56, g->repetition_penalty);
    at += SECTION_FIXED;
    for (size_t list = 0; list < N_LISTS; list++)
        for (uint32_t i = 0; i < lists[list]->n; i++, at += 4)
            moec_put_u32(at, lists[list]->ids[i]);
    *bytes = memory;
    *n_bytes = total;
    return MOEC_OK;
}

static enum moec_status decode_lists(const uint8_t *bytes, size_t n_bytes, struct moec_generation *g,
                                     struct moec_error *err)
{
    struct moec_token_list *const lists[N_LISTS] = {&g->forced_eos, &g->suppress, &g->begin_suppress};
    size_t expected = SECTION_FIXED;
    for (size_t list = 0; list < N_LISTS; list++) {
        lists[list]->n = moec_get_u32(bytes + 36 + 4 * list);
        MOEC_TRY(check_count("the generation section", "tokens of a list", lists[list]->n, 0,
                             MOEC_MAX_LISTED_TOKENS, err));
        expected += sizeof(uint32_t) * lists[list]->n;
    }
    if (n_bytes != expected)
        return moec_fail(err, MOEC_ERR_FORMAT, "the generation section has %zu bytes, expected %zu", n_bytes,
                         expected);
    bytes += SECTION_FIXED;
    for (size_t list = 0; list < N_LISTS; list++)
        for (uint32_t i = 0; i < lists[list]->n; i++, bytes += 4)
            lists[list]->ids[i] = moec_get_u32(bytes);
    return MOEC_OK;
}

enum moec_status moec_generation_decode(const uint8_t *bytes, size_t n_bytes, uint32_t n_vocab,
                                        struct moec_generation *generation, struct moec_error *err)
{
    struct moec_generation g = {0};
    uint32_t early = 0;
    uint32_t *const counts[N_COUNTS] = {&g.n_beam,         &early,        &g.no_repeat_ngram, &g.min_length,
                                        &g.min_new_tokens, &g.max_length, &g.max_new_tokens,  &g.forced_bos};
    if (n_bytes < SECTION_FIXED)
        return moec_fail(err, MOEC_ERR_FORMAT, "the generation section has %zu bytes, expected at least %u",
                         n_bytes, SECTION_FIXED);
    if (moec_get_u32(bytes) != SECTION_VERSION)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "the generation section has version %" PRIu32 ", expected %u", moec_get_u32(bytes),
                         SECTION_VERSION);
    for (size_t i = 0; i < N_COUNTS; i++)
        *counts[i] = moec_get_u32(bytes + 4 + 4 * i);
    MOEC_TRY(check_count("the generation section", "early_stopping", early, 0, MOEC_STOP_NEVER, err));
    g.early_stopping = (enum moec_early_stopping)early;
    g.length_penalty = moec_get_f64(bytes + 48);
    g.repetition_penalty = moec_get_f64(bytes + 56);
    MOEC_TRY(decode_lists(bytes, n_bytes, &g, err));
    MOEC_TRY(moec_generation_check(&g, n_vocab, "the generation section", err));
    *generation = g;
    return MOEC_OK;
}
