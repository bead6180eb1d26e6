/* A setting that would change the text and that moec does not have is refused, unless its value means "off".
 * Only what differs from the defaults is written. Ids outside the vocabulary are passed over, as padded
 * configs have them. */
#include "formats/family/generation_json.h"

#include <stdio.h>
#include <string.h>

/* The class's default: written or not, transformers takes it as "nobody asked". */
#define CLASS_MAX_LENGTH 20

/* Settings of transformers that change the text and have no counterpart here, each with the number that
 * stands for "off" beside null, false and what is empty. */
static const struct {
    const char *key;
    double off;
} unknown[] = {
    {"num_beam_groups", 1},
    {"diversity_penalty", 0},
    {"penalty_alpha", 0},
    {"encoder_repetition_penalty", 1},
    {"encoder_no_repeat_ngram_size", 0},
    {"exponential_decay_length_penalty", 0},
    {"guidance_scale", 1},
    {"bad_words_ids", 0},
    {"force_words_ids", 0},
    {"constraints", 0},
    {"sequence_bias", 0},
    {"renormalize_logits", 0},
    {"stop_strings", 0},
    {"watermarking_config", 0},
    {"forced_decoder_ids", 0},
    {"token_healing", 0},
    {"dola_layers", 0},
    {"max_time", 0},
};

static enum moec_status refuse_unknown(const struct moec_json *root, const char *where,
                                       struct moec_error *err)
{
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        const char *key = unknown[i].key;
        const struct moec_json *node = moec_json_present(root, key);
        double number = unknown[i].off;
        bool is_on = false;
        if (node == NULL)
            continue;
        switch (moec_json_type(node)) {
        case MOEC_JSON_BOOL:
            MOEC_TRY(moec_json_as_bool(node, key, &is_on, err));
            break;
        case MOEC_JSON_INTEGER:
        case MOEC_JSON_REAL:
            MOEC_TRY(moec_json_as_double(node, key, -1e300, 1e300, &number, err));
            is_on = number != unknown[i].off;
            break;
        case MOEC_JSON_STRING:
            is_on = true;
            break;
        default:
            is_on = moec_json_length(node) > 0;
        }
        if (is_on)
            return moec_fail(
                err, MOEC_ERR_UNSUPPORTED,
                "%s asks for '%s', which moec does not support; remove the key to generate without it", where,
                key);
    }
    return MOEC_OK;
}

static enum moec_status read_number(const struct moec_json *root, const char *where, const char *key,
                                    double *value, struct moec_error *err)
{
    return moec_json_present(root, key) == NULL
               ? MOEC_OK
               : moec_json_get_double(root, where, key, -1e9, 1e9, value, err);
}

/* An id or a list of them. */
static enum moec_status read_list(const struct moec_json *root, const char *where, const char *key,
                                  uint32_t n_vocab, struct moec_token_list *list, struct moec_error *err)
{
    char what[256];
    const struct moec_json *node = moec_json_present(root, key);
    if (node == NULL)
        return MOEC_OK;
    const bool is_list = moec_json_type(node) == MOEC_JSON_ARRAY;
    const size_t count = is_list ? moec_json_length(node) : 1;
    (void)snprintf(what, sizeof what, "'%s' in %.200s", key, where);
    list->n = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t id = 0;
        MOEC_TRY(moec_json_as_u64(is_list ? moec_json_at(node, i) : node, what, 0, UINT32_MAX, &id, err));
        if (id >= n_vocab)
            continue;
        if (list->n == MOEC_MAX_LISTED_TOKENS)
            return moec_fail(err, MOEC_ERR_LIMIT, "%s has more than %d ids", what, MOEC_MAX_LISTED_TOKENS);
        list->ids[list->n++] = (uint32_t)id;
    }
    return MOEC_OK;
}

static enum moec_status read_early_stopping(const struct moec_json *root, const char *where,
                                            struct moec_generation *g, struct moec_error *err)
{
    const struct moec_json *node = moec_json_present(root, "early_stopping");
    const char *word = NULL;
    bool early = false;
    if (node == NULL)
        return MOEC_OK;
    if (moec_json_type(node) != MOEC_JSON_STRING) {
        MOEC_TRY(moec_json_get_bool(root, where, "early_stopping", &early, err));
        g->early_stopping = early ? MOEC_STOP_EARLY : MOEC_STOP_HEURISTIC;
        return MOEC_OK;
    }
    MOEC_TRY(moec_json_get_string(root, where, "early_stopping", &word, NULL, err));
    if (strcmp(word, "never") != 0)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s says 'early_stopping' '%.40s', expected true, false or 'never'", where, word);
    g->early_stopping = MOEC_STOP_NEVER;
    return MOEC_OK;
}

enum moec_status moec_generation_read(const struct moec_json *root, const char *where, uint32_t n_vocab,
                                      struct moec_generation *generation, struct moec_error *err)
{
    struct moec_generation g = *generation;
    MOEC_TRY(refuse_unknown(root, where, err));
    MOEC_TRY(moec_json_update_u32(root, where, "num_beams", UINT32_MAX, &g.n_beam, err));
    MOEC_TRY(read_number(root, where, "length_penalty", &g.length_penalty, err));
    MOEC_TRY(read_number(root, where, "repetition_penalty", &g.repetition_penalty, err));
    MOEC_TRY(read_early_stopping(root, where, &g, err));
    MOEC_TRY(moec_json_update_u32(root, where, "no_repeat_ngram_size", UINT32_MAX, &g.no_repeat_ngram, err));
    MOEC_TRY(moec_json_update_u32(root, where, "min_length", UINT32_MAX, &g.min_length, err));
    MOEC_TRY(moec_json_update_u32(root, where, "min_new_tokens", UINT32_MAX, &g.min_new_tokens, err));
    MOEC_TRY(moec_json_update_u32(root, where, "max_length", UINT32_MAX, &g.max_length, err));
    if (g.max_length == CLASS_MAX_LENGTH)
        g.max_length = 0;
    MOEC_TRY(moec_json_update_u32(root, where, "max_new_tokens", UINT32_MAX, &g.max_new_tokens, err));
    MOEC_TRY(
        moec_json_update_u32(root, where, "forced_bos_token_id", MOEC_MAX_VOCABULARY, &g.forced_bos, err));
    MOEC_TRY(read_list(root, where, "forced_eos_token_id", n_vocab, &g.forced_eos, err));
    MOEC_TRY(read_list(root, where, "suppress_tokens", n_vocab, &g.suppress, err));
    MOEC_TRY(read_list(root, where, "begin_suppress_tokens", n_vocab, &g.begin_suppress, err));
    MOEC_TRY(moec_generation_check(&g, n_vocab, where, err));
    *generation = g;
    return MOEC_OK;
}

void moec_generation_sampling(const struct moec_json *root, char *text, size_t n_bytes)
{
    static const char *const keys[] = {"temperature", "top_k",          "top_p",      "min_p",
                                       "typical_p",   "epsilon_cutoff", "eta_cutoff", "top_h"};
    bool is_on = false;
    size_t used = 0;
    text[0] = '\0';
    if (moec_json_get_bool_or(root, "", "do_sample", false, &is_on, NULL) != MOEC_OK || !is_on)
        return;
    (void)snprintf(text, n_bytes, "do_sample");
    for (size_t i = 0; i < sizeof keys / sizeof *keys && used < n_bytes; i++) {
        double value = 0;
        if (moec_json_present(root, keys[i]) != NULL &&
            moec_json_get_double(root, "", keys[i], -1e9, 1e9, &value, NULL) == MOEC_OK) {
            const int wrote =
                snprintf(text + used, n_bytes - used, "%s%s %g", used == 0 ? "" : ", ", keys[i], value);
            used += wrote > 0 ? (size_t)wrote : 0;
        }
    }
}

/* ---- writing ---- */

static void put_count(struct moec_json_out *root, const char *key, uint32_t value, uint32_t missing)
{
    if (value != missing)
        moec_json_out_u64(root, key, value);
}

static void put_list(struct moec_json_out *root, const char *key, const struct moec_token_list *list,
                     bool one_as_number)
{
    if (list->n == 1 && one_as_number) {
        moec_json_out_u64(root, key, list->ids[0]);
    } else if (list->n > 0) {
        struct moec_json_out *ids = moec_json_out_array();
        for (uint32_t i = 0; i < list->n; i++)
            moec_json_out_u64(ids, NULL, list->ids[i]);
        moec_json_out_node(root, key, ids);
    }
}

void moec_generation_write(const struct moec_generation *g, struct moec_json_out *root)
{
    put_count(root, "num_beams", g->n_beam, 1);
    if (g->length_penalty != 1)
        moec_json_out_double(root, "length_penalty", g->length_penalty);
    if (g->repetition_penalty != 1)
        moec_json_out_double(root, "repetition_penalty", g->repetition_penalty);
    if (g->early_stopping == MOEC_STOP_EARLY)
        moec_json_out_bool(root, "early_stopping", true);
    if (g->early_stopping == MOEC_STOP_NEVER)
        moec_json_out_string(root, "early_stopping", "never");
    put_count(root, "no_repeat_ngram_size", g->no_repeat_ngram, 0);
    put_count(root, "min_length", g->min_length, 0);
    put_count(root, "min_new_tokens", g->min_new_tokens, 0);
    put_count(root, "max_length", g->max_length, 0);
    put_count(root, "max_new_tokens", g->max_new_tokens, 0);
    put_count(root, "forced_bos_token_id", g->forced_bos, MOEC_NO_TOKEN);
    put_list(root, "forced_eos_token_id", &g->forced_eos, true);
    put_list(root, "suppress_tokens", &g->suppress, false);
    put_list(root, "begin_suppress_tokens", &g->begin_suppress, false);
}
