/* Post-processors of a tokenizer.json: the ids around a text. */
#include "formats/tokenizer/tokenizer_json_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Ids of a SpecialToken piece, appended to ids[*count]. */
static enum moec_status special_piece(struct moec_tokenizer_reader *r, const struct moec_json *node,
                                      const struct moec_json *piece, const char *path, uint32_t *ids,
                                      uint32_t *count)
{
    const char *name = NULL;
    const struct moec_json *table = NULL;
    const struct moec_json *entry = NULL;
    const struct moec_json *list = NULL;
    struct moec_tokenizer_place place = moec_tokenizer_place_in(r, path);
    MOEC_TRY(moec_json_get_string(piece, place.text, "id", &name, NULL, r->err));
    MOEC_TRY(moec_json_get(node, place.text, "special_tokens", MOEC_JSON_OBJECT, &table, r->err));
    MOEC_TRY(moec_json_get(table, place.text, name, MOEC_JSON_OBJECT, &entry, r->err));
    MOEC_TRY(moec_json_get(entry, place.text, "ids", MOEC_JSON_ARRAY, &list, r->err));
    for (size_t i = 0; i < moec_json_length(list); i++) {
        uint64_t id = 0;
        char what[PLACE_BYTES];
        (void)snprintf(what, sizeof what, "the id of '%.64s' in %.160s", name, place.text);
        MOEC_TRY(
            moec_json_as_u64(moec_json_at(list, i), what, 0, MOEC_TOKENIZER_MAX_TOKENS - 1, &id, r->err));
        if (id >= r->n_tokens)
            return moec_fail(r->err, MOEC_ERR_FORMAT, "%s is %" PRIu64 ", expected an id below %zu", what, id,
                             r->n_tokens);
        if (*count == MOEC_TOKENIZER_MAX_AFFIX)
            return moec_fail(r->err, MOEC_ERR_LIMIT, "%s adds more than %u ids before or after a text",
                             place.text, MOEC_TOKENIZER_MAX_AFFIX);
        ids[(*count)++] = (uint32_t)id;
    }
    return MOEC_OK;
}

/* Puts ids around those that are there: a later processor of a Sequence works on what the earlier ones made.
 */
static enum moec_status add_affixes(struct moec_tokenizer_reader *r, const char *path,
                                    uint32_t ids[2][MOEC_TOKENIZER_MAX_AFFIX], const uint32_t counts[2])
{
    if (counts[0] > MOEC_TOKENIZER_MAX_AFFIX - r->n_affix[0] ||
        counts[1] > MOEC_TOKENIZER_MAX_AFFIX - r->n_affix[1])
        return moec_fail(r->err, MOEC_ERR_LIMIT, "%s adds more than %u ids before or after a text",
                         moec_tokenizer_place_in(r, path).text, MOEC_TOKENIZER_MAX_AFFIX);
    memmove(r->affix[0] + counts[0], r->affix[0], r->n_affix[0] * sizeof r->affix[0][0]);
    memcpy(r->affix[0], ids[0], counts[0] * sizeof ids[0][0]);
    r->n_affix[0] += counts[0];
    memcpy(r->affix[1] + r->n_affix[1], ids[1], counts[1] * sizeof ids[1][0]);
    r->n_affix[1] += counts[1];
    return MOEC_OK;
}

static enum moec_status read_template(struct moec_tokenizer_reader *r, const struct moec_json *node,
                                      const char *path)
{
    const struct moec_json *single = NULL;
    struct moec_tokenizer_place place = moec_tokenizer_place_in(r, path);
    uint32_t ids[2][MOEC_TOKENIZER_MAX_AFFIX];
    uint32_t counts[2] = {0};
    size_t side = 0;
    MOEC_TRY(moec_json_get(node, place.text, "single", MOEC_JSON_ARRAY, &single, r->err));
    for (size_t i = 0; i < moec_json_length(single); i++) {
        const struct moec_json *item = moec_json_at(single, i);
        const struct moec_json *special = moec_json_find(item, "SpecialToken");
        if (special != NULL) {
            MOEC_TRY(special_piece(r, node, special, path, ids[side], &counts[side]));
        } else if (moec_json_find(item, "Sequence") != NULL && side == 0) {
            side = 1;
        } else {
            return moec_fail(
                r->err, MOEC_ERR_UNSUPPORTED,
                "'single' in %s must be one Sequence with special tokens around it, but item %zu is "
                "something else",
                place.text, i);
        }
    }
    if (side == 0)
        return moec_fail(r->err, MOEC_ERR_UNSUPPORTED,
                         "'single' in %s has no Sequence, expected one for the text", place.text);
    return add_affixes(r, path, ids, counts);
}

/* RobertaProcessing and BertProcessing: "cls" before a text and "sep" behind it, each [token, id]. */
static enum moec_status read_ends(struct moec_tokenizer_reader *r, const struct moec_json *node,
                                  const char *path)
{
    static const char *const keys[2] = {"cls", "sep"};
    const struct moec_tokenizer_place place = moec_tokenizer_place_in(r, path);
    uint32_t ids[2][MOEC_TOKENIZER_MAX_AFFIX];
    const uint32_t counts[2] = {1, 1};
    for (size_t i = 0; i < 2; i++) {
        const struct moec_json *pair = NULL;
        uint64_t id = 0;
        char what[PLACE_BYTES];
        MOEC_TRY(moec_json_get(node, place.text, keys[i], MOEC_JSON_ARRAY, &pair, r->err));
        (void)snprintf(what, sizeof what, "the id of '%s' in %.200s", keys[i], place.text);
        if (moec_json_length(pair) != 2)
            return moec_fail(r->err, MOEC_ERR_FORMAT, "'%s' in %s has %zu items, expected a token and its id",
                             keys[i], place.text, moec_json_length(pair));
        MOEC_TRY(
            moec_json_as_u64(moec_json_at(pair, 1), what, 0, MOEC_TOKENIZER_MAX_TOKENS - 1, &id, r->err));
        if (id >= r->n_tokens)
            return moec_fail(r->err, MOEC_ERR_FORMAT, "%s is %" PRIu64 ", expected an id below %zu", what, id,
                             r->n_tokens);
        ids[i][0] = (uint32_t)id;
    }
    return add_affixes(r, path, ids, counts);
}

enum moec_status moec_tokenizer_read_processor(struct moec_tokenizer_reader *r, const struct moec_json *node,
                                               const char *type, const char *path)
{
    /* ByteLevel as a post-processor moves offsets, which moec does not report. */
    if (strcmp(type, "ByteLevel") == 0)
        return MOEC_OK;
    if (strcmp(type, "TemplateProcessing") == 0)
        return read_template(r, node, path);
    if (strcmp(type, "RobertaProcessing") == 0 || strcmp(type, "BertProcessing") == 0)
        return read_ends(r, node, path);
    return moec_tokenizer_unsupported(
        r, path, type, "ByteLevel, TemplateProcessing, RobertaProcessing, BertProcessing or Sequence");
}
