/* Decoding checks every count, offset, id and order once, so that the tokenizer runs without bounds checks.
 * The arrays point into one block in the machine's byte order. A tokenizer that version 1 can state is
 * written as version 1, which older programs read. Decoder steps must have an order that works on text as it
 * comes. */
#include "formats/model/tokenizer_model.h"

#include "formats/base/bytes.h"
#include "formats/base/memory.h"
#include "formats/base/utf8.h"

#include <endian.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

/* The section: a header of HEADER_WORDS little-endian 32-bit words, then in this order token_start,
 * merge_start, merges (right, rank, merged), added (id, flags), the steps of normalizer, pre-tokenizer and
 * decoder (nine words each), prefix ids, suffix ids, scores (two words each) of a Unigram model, the text and
 * the charsmap. Nothing follows. In memory `block` holds the same words. */

#define MAGIC        0x4B4F544Du /* "MTOK" */
#define VERSION_BPE  1u          /* no scores, no charsmap */
#define VERSION      2u
#define HEADER_WORDS 16u
#define MERGE_WORDS  3u
#define ADDED_WORDS  2u
#define STEP_WORDS   9u
#define SCORE_WORDS  2u

#define MAX_MARK_BYTES 255u /* of a Japanese tokenizer's spelling that begins with '<': all are tried */

_Static_assert(sizeof(struct moec_tokenizer_merge) == MERGE_WORDS * sizeof(uint32_t),
               "a merge is three words");
_Static_assert(sizeof(struct moec_tokenizer_added) == ADDED_WORDS * sizeof(uint32_t),
               "an added token is two words");
_Static_assert(sizeof(struct moec_tokenizer_step) == STEP_WORDS * sizeof(uint32_t), "a step is nine words");

const char *moec_tokenizer_model_text(const struct moec_tokenizer_model *model, uint32_t id, uint32_t *length)
{
    if (id >= model->n_tokens) {
        *length = 0;
        return "";
    }
    *length = model->token_start[id + 1] - model->token_start[id];
    return model->text + model->token_start[id];
}

bool moec_tokenizer_next_pair(const char **content, const char *end, const char **from, const char **to)
{
    if (*content == end)
        return false;
    *from = *content;
    *to = *from + strlen(*from) + 1;
    *content = *to + strlen(*to) + 1;
    return true;
}

size_t moec_tokenizer_spelling(const char *text, size_t n_bytes, size_t *rest)
{
    const char *comma = n_bytes == 1 ? NULL : memchr(text, ',', n_bytes);
    const size_t n = comma == NULL ? n_bytes : (size_t)(comma - text);
    *rest = n + 1;
    return n;
}

double moec_tokenizer_model_score(const struct moec_tokenizer_model *model, uint32_t id)
{
    const uint32_t *words = model->scores + (size_t)SCORE_WORDS * id;
    uint64_t bits = (uint64_t)words[1] << 32 | words[0];
    double score;
    memcpy(&score, &bits, sizeof score);
    return score;
}

void moec_tokenizer_score_words(double score, uint32_t words[2])
{
    uint64_t bits;
    memcpy(&bits, &score, sizeof bits);
    words[0] = (uint32_t)(bits & UINT32_MAX);
    words[1] = (uint32_t)(bits >> 32);
}

static uint32_t score_count(const struct moec_tokenizer_model *m)
{
    return (m->flags & MOEC_TOKENIZER_UNIGRAM) != 0 ? m->n_tokens : 0;
}

enum moec_status moec_tokenizer_model_fits(const struct moec_tokenizer_model *model, uint64_t vocab_size,
                                           const char *subject, struct moec_error *err)
{
    for (uint64_t id = vocab_size; id < model->n_tokens; id++) {
        uint32_t length = 0;
        const char *text = moec_tokenizer_model_text(model, (uint32_t)id, &length);
        if (length > 0)
            return moec_fail(err, MOEC_ERR_MISMATCH,
                             "tokenizer '%s' has token '%.*s' with id %" PRIu64
                             ", expected ids below the model's vocab_size %" PRIu64,
                             subject, (int)(length < 64 ? length : 64), text, id, vocab_size);
    }
    return MOEC_OK;
}

void moec_tokenizer_model_release(struct moec_tokenizer_model *model)
{
    free(model->block);
    *model = (struct moec_tokenizer_model){0};
}

/* ---- layout ---- */

/* Words before the text; the counts are within their limits, so the sum fits 64 bits with room. */
static uint64_t total_words(const struct moec_tokenizer_model *m)
{
    uint64_t steps = (uint64_t)m->n_normalizer + m->n_pretokenizer + m->n_decoder;
    return HEADER_WORDS + 2 * ((uint64_t)m->n_tokens + 1) + MERGE_WORDS * (uint64_t)m->n_merges +
           ADDED_WORDS * (uint64_t)m->n_added + STEP_WORDS * steps + m->n_prefix + m->n_suffix +
           SCORE_WORDS * (uint64_t)score_count(m);
}

static enum moec_status check_counts(const struct moec_tokenizer_model *m, const char *subject,
                                     struct moec_error *err)
{
    const struct {
        const char *what;
        uint32_t value, limit;
    } counts[] = {
        {"tokens", m->n_tokens, MOEC_TOKENIZER_MAX_TOKENS},
        {"merges", m->n_merges, MOEC_TOKENIZER_MAX_MERGES},
        {"added tokens", m->n_added, MOEC_TOKENIZER_MAX_ADDED},
        {"normalizer steps", m->n_normalizer, MOEC_TOKENIZER_MAX_STEPS},
        {"pre-tokenizer steps", m->n_pretokenizer, MOEC_TOKENIZER_MAX_STEPS},
        {"decoder steps", m->n_decoder, MOEC_TOKENIZER_MAX_STEPS},
        {"ids before a text", m->n_prefix, MOEC_TOKENIZER_MAX_AFFIX},
        {"ids after a text", m->n_suffix, MOEC_TOKENIZER_MAX_AFFIX},
        {"bytes of text", m->text_bytes, MOEC_TOKENIZER_MAX_TEXT_BYTES},
        {"bytes of a character map", m->charsmap_bytes, MOEC_TOKENIZER_MAX_CHARSMAP},
    };
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        if (counts[i].value > counts[i].limit)
            return moec_fail(err, MOEC_ERR_LIMIT,
                             "tokenizer '%s' has %" PRIu32 " %s, more than the limit of %" PRIu32, subject,
                             counts[i].value, counts[i].what, counts[i].limit);
    }
    return MOEC_OK;
}

/* Points the arrays of `m` into its block. */
static void place_arrays(struct moec_tokenizer_model *m)
{
    const uint32_t *at = (const uint32_t *)m->block + HEADER_WORDS;
    m->token_start = at;
    at += m->n_tokens + 1;
    m->merge_start = at;
    at += m->n_tokens + 1;
    m->merges = (const struct moec_tokenizer_merge *)(const void *)at;
    at += (size_t)MERGE_WORDS * m->n_merges;
    m->added = (const struct moec_tokenizer_added *)(const void *)at;
    at += (size_t)ADDED_WORDS * m->n_added;
    m->normalizer = (const struct moec_tokenizer_step *)(const void *)at;
    at += (size_t)STEP_WORDS * m->n_normalizer;
    m->pretokenizer = (const struct moec_tokenizer_step *)(const void *)at;
    at += (size_t)STEP_WORDS * m->n_pretokenizer;
    m->decoder = (const struct moec_tokenizer_step *)(const void *)at;
    at += (size_t)STEP_WORDS * m->n_decoder;
    m->prefix = at;
    at += m->n_prefix;
    m->suffix = at;
    at += m->n_suffix;
    m->scores = at;
    at += (size_t)SCORE_WORDS * score_count(m);
    m->text = (const char *)at;
    m->charsmap = (const uint8_t *)at + m->text_bytes;
}

/* Turns little-endian words into the machine's and back; nothing is left of it where they are the same. */
static void swap_words(uint32_t *words, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        words[i] = le32toh(words[i]);
}

/* ---- checks ---- */

static enum moec_status check_tokens(const struct moec_tokenizer_model *m, const char *subject,
                                     struct moec_error *err)
{
    if (m->token_start[0] != 0)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "tokenizer '%s': token 0 starts at byte %" PRIu32 ", expected 0", subject,
                         m->token_start[0]);
    for (uint32_t id = 0; id < m->n_tokens; id++) {
        uint32_t start = m->token_start[id];
        uint32_t end = m->token_start[id + 1];
        if (end < start || end > m->text_bytes)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "tokenizer '%s': token %" PRIu32 " ends at byte %" PRIu32 ", expected %" PRIu32
                             "..%" PRIu32,
                             subject, id, end, start, m->text_bytes);
        if (end - start > MOEC_TOKENIZER_MAX_TOKEN_BYTES)
            return moec_fail(err, MOEC_ERR_LIMIT,
                             "tokenizer '%s': token %" PRIu32 " has %" PRIu32
                             " bytes, more than the limit of %" PRIu32,
                             subject, id, end - start, MOEC_TOKENIZER_MAX_TOKEN_BYTES);
        size_t valid = moec_utf8_valid_bytes(m->text + start, end - start);
        if (valid != end - start)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "tokenizer '%s': token %" PRIu32 " is not UTF-8 at its byte %zu", subject, id,
                             valid);
    }
    if (m->unk_id >= m->n_tokens && m->unk_id != MOEC_TOKENIZER_NO_ID &&
        m->unk_id != MOEC_TOKENIZER_ID_MISSING)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "tokenizer '%s' has unk id %" PRIu32 ", expected an id below %" PRIu32, subject,
                         m->unk_id, m->n_tokens);
    return MOEC_OK;
}

static enum moec_status check_merges(const struct moec_tokenizer_model *m, const char *subject,
                                     struct moec_error *err)
{
    if (m->merge_start[0] != 0 || m->merge_start[m->n_tokens] != m->n_merges)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "tokenizer '%s': the merge index does not begin at 0 and end at %" PRIu32
                         ", the number of merges",
                         subject, m->n_merges);
    for (uint32_t left = 0; left < m->n_tokens; left++) {
        uint32_t start = m->merge_start[left];
        uint32_t end = m->merge_start[left + 1];
        if (end < start || end > m->n_merges)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "tokenizer '%s': the merges of token %" PRIu32 " end at %" PRIu32
                             ", expected %" PRIu32 "..%" PRIu32,
                             subject, left, end, start, m->n_merges);
        for (uint32_t i = start; i < end; i++) {
            const struct moec_tokenizer_merge *merge = &m->merges[i];
            if (merge->right >= m->n_tokens || merge->merged >= m->n_tokens)
                return moec_fail(
                    err, MOEC_ERR_FORMAT,
                    "tokenizer '%s': merge %" PRIu32 " names token %" PRIu32 ", expected ids below %" PRIu32,
                    subject, i, merge->right >= m->n_tokens ? merge->right : merge->merged, m->n_tokens);
            if (i > start && m->merges[i - 1].right >= merge->right)
                return moec_fail(err, MOEC_ERR_FORMAT,
                                 "tokenizer '%s': merge %" PRIu32
                                 " is out of order, expected the ids of a token's right neighbours to rise",
                                 subject, i);
        }
    }
    return MOEC_OK;
}

static enum moec_status check_ids(const struct moec_tokenizer_model *m, const char *subject,
                                  struct moec_error *err)
{
    for (uint32_t i = 0; i < m->n_added; i++) {
        uint32_t id = m->added[i].id;
        if (id >= m->n_tokens || m->token_start[id] == m->token_start[id + 1])
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "tokenizer '%s': added token %" PRIu32 " has id %" PRIu32 ", which has no text",
                             subject, i, id);
        if (m->added[i].flags >= 2 * MOEC_ADDED_WRITTEN)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "tokenizer '%s': added token %" PRIu32 " has unknown flags 0x%" PRIx32, subject,
                             i, m->added[i].flags);
    }
    for (uint32_t i = 0; i < m->n_prefix + m->n_suffix; i++) {
        uint32_t id = i < m->n_prefix ? m->prefix[i] : m->suffix[i - m->n_prefix];
        if (id >= m->n_tokens)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "tokenizer '%s': the post-processor adds id %" PRIu32
                             ", expected ids below %" PRIu32,
                             subject, id, m->n_tokens);
    }
    return MOEC_OK;
}

static enum moec_status check_unigram(const struct moec_tokenizer_model *m, const char *subject,
                                      struct moec_error *err)
{
    const uint32_t n = score_count(m);
    if ((m->flags & (MOEC_TOKENIZER_UNIGRAM | MOEC_TOKENIZER_SENTENCEPIECE)) == MOEC_TOKENIZER_SENTENCEPIECE)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "tokenizer '%s' has Unigram flags (0x%" PRIx32 ") but is not Unigram", subject,
                         m->flags);
    if (n > 0 && (m->n_merges > 0 || (m->flags & ~(MOEC_TOKENIZER_UNIGRAM | MOEC_TOKENIZER_BYTE_FALLBACK |
                                                   MOEC_TOKENIZER_SENTENCEPIECE)) != 0))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "tokenizer '%s' is a Unigram model with merges or with BPE flags (0x%" PRIx32 "), "
                         "expected neither",
                         subject, m->flags);
    /* Unigram names its unknown token by id, which a vocabulary has or has not. */
    if (n > 0 && m->unk_id == MOEC_TOKENIZER_ID_MISSING)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "tokenizer '%s' is a Unigram model whose unk token is not in its vocabulary, "
                         "expected an id below %" PRIu32 " or no unk token",
                         subject, m->n_tokens);
    for (uint32_t id = 0; id < n; id++) {
        const double score = moec_tokenizer_model_score(m, id);
        const bool is_out = score == -INFINITY && (m->flags & MOEC_TOKENIZER_SENTENCEPIECE) != 0;
        if (!isfinite(score) && !is_out)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "tokenizer '%s': the score of token %" PRIu32 " is not finite", subject, id);
    }
    return MOEC_OK;
}

static enum moec_status check_japanese(const struct moec_tokenizer_model *m, const char *subject,
                                       struct moec_error *err)
{
    const bool is_japanese = (m->flags & MOEC_TOKENIZER_JAPANESE) != 0,
               decodes = m->n_decoder == 1 && m->decoder[0].kind == MOEC_STEP_JAPANESE;
    if (is_japanese && (m->flags != MOEC_TOKENIZER_JAPANESE || m->n_merges > 0 || m->n_pretokenizer > 0 ||
                        m->unk_id >= m->n_tokens || m->n_suffix > 0 || m->n_prefix > 2 || !decodes))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "tokenizer '%s' is a Japanese tokenizer (flags 0x%" PRIx32 "), but it has parts "
                         "that such tokenizers do not have, or its decoder or unknown token is missing",
                         subject, m->flags);
    for (uint32_t id = 0; is_japanese && id < m->n_tokens; id++) {
        const uint32_t length = m->token_start[id + 1] - m->token_start[id];
        const char *text = m->text + m->token_start[id];
        if (memchr(text, 0, length) != NULL)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "Japanese tokenizer '%s': token %" PRIu32 " contains a NUL byte, expected none",
                             subject, id);
        for (size_t at = 0, rest = 0; at < length; at += rest)
            if (moec_tokenizer_spelling(text + at, length - at, &rest) > MAX_MARK_BYTES && text[at] == '<')
                return moec_fail(err, MOEC_ERR_LIMIT,
                                 "tokenizer '%s': a spelling of token %" PRIu32
                                 " begins with '<' and has more than %u bytes",
                                 subject, id, MAX_MARK_BYTES);
    }
    return MOEC_OK;
}

static enum moec_status check_charsmap(const struct moec_tokenizer_model *m, const char *subject,
                                       struct moec_error *err)
{
    uint32_t n_steps = 0, n_may = 0;
    for (uint32_t i = 0; i < m->n_normalizer; i++) {
        n_steps += m->normalizer[i].kind == MOEC_STEP_PRECOMPILED;
        n_may += m->normalizer[i].kind == MOEC_STEP_SENTENCEPIECE;
    }
    if (m->charsmap_bytes > 0 ? n_steps + n_may == 0 : n_steps > 0)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "tokenizer '%s' has %" PRIu32
                         " steps that need a character map, but its map has %" PRIu32 " bytes",
                         subject, n_steps, m->charsmap_bytes);
    if (m->charsmap_bytes == 0)
        return MOEC_OK;
    const uint32_t trie_bytes = m->charsmap_bytes < 4 ? 0 : moec_get_u32(m->charsmap);
    if (trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes > m->charsmap_bytes - 4)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "tokenizer '%s': the character map of %" PRIu32 " bytes has a trie of %" PRIu32 " "
                         "bytes, expected a multiple of 4 that fits in the map",
                         subject, m->charsmap_bytes, trie_bytes);
    const size_t n_text = m->charsmap_bytes - 4 - trie_bytes;
    const size_t valid = moec_utf8_valid_bytes((const char *)m->charsmap + 4 + trie_bytes, n_text);
    if (valid != n_text)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "tokenizer '%s': the texts of the character map are not UTF-8 at their byte %zu",
                         subject, valid);
    return MOEC_OK;
}

static bool string_fits(const struct moec_tokenizer_model *m, struct moec_tokenizer_string s, uint32_t limit)
{
    return s.offset <= m->text_bytes && s.length <= m->text_bytes - s.offset && s.length <= limit &&
           moec_utf8_valid_bytes(m->text + s.offset, s.length) == s.length;
}

static bool is_one_char(const struct moec_tokenizer_model *m, struct moec_tokenizer_string s)
{
    return s.length > 0 && moec_utf8_read(m->text + s.offset, s.length).n_bytes == s.length;
}

enum pipeline {
    NORMALIZER,
    PRETOKENIZER,
    DECODER,
};

static const char *const pipeline_names[] = {"normalizer", "pre-tokenizer", "decoder"};

static bool kind_belongs(uint32_t kind, enum pipeline pipeline)
{
    switch (kind) {
    case MOEC_STEP_NFC:
    case MOEC_STEP_NFD:
    case MOEC_STEP_NFKC:
    case MOEC_STEP_NFKD:
    case MOEC_STEP_LOWERCASE:
    case MOEC_STEP_PREPEND:
    case MOEC_STEP_STRIP:
    case MOEC_STEP_PRECOMPILED:
    case MOEC_STEP_SENTENCEPIECE:
    case MOEC_STEP_REPLACE_EACH:
        return pipeline == NORMALIZER;
    case MOEC_STEP_REPLACE:
        return pipeline == NORMALIZER || pipeline == DECODER;
    case MOEC_STEP_BYTE_LEVEL:
        return true;
    case MOEC_STEP_METASPACE:
        return pipeline == PRETOKENIZER || pipeline == DECODER;
    case MOEC_STEP_SPLIT:
    case MOEC_STEP_DIGITS:
    case MOEC_STEP_PUNCTUATION:
    case MOEC_STEP_WHITESPACE:
    case MOEC_STEP_WHITESPACE_SPLIT:
        return pipeline == PRETOKENIZER;
    case MOEC_STEP_BYTE_FALLBACK:
    case MOEC_STEP_FUSE:
    case MOEC_STEP_STRIP_CHAR:
    case MOEC_STEP_JAPANESE:
        return pipeline == DECODER;
    default:
        return false;
    }
}

static bool has_pairs(uint32_t kind)
{
    return kind == MOEC_STEP_REPLACE_EACH || kind == MOEC_STEP_JAPANESE;
}

/* Whole pairs, of which no first text is empty. */
static bool are_pairs(const struct moec_tokenizer_model *m, struct moec_tokenizer_string s)
{
    const char *at = m->text + s.offset, *end = at + s.length;
    uint32_t n = 0;
    for (; at < end; n++) {
        const char *nul = memchr(at, 0, (size_t)(end - at));
        if (nul == NULL || (n % 2 == 0 && nul == at))
            return false;
        at = nul + 1;
    }
    return n % 2 == 0;
}

static enum moec_status check_step(const struct moec_tokenizer_model *m,
                                   const struct moec_tokenizer_step *step, enum pipeline pipeline,
                                   uint32_t index, const char *subject, struct moec_error *err)
{
    const char *problem = NULL;
    if (!kind_belongs(step->kind, pipeline))
        problem = "has an unknown kind";
    else if (!string_fits(m, step->pattern, MOEC_TOKENIZER_MAX_STRING) ||
             !string_fits(m, step->content,
                          has_pairs(step->kind) ? MOEC_TOKENIZER_MAX_PAIRS : MOEC_TOKENIZER_MAX_STRING))
        problem = "has a string that is too long, not UTF-8 or outside the tokenizer's text";
    else if (has_pairs(step->kind) && !are_pairs(m, step->content))
        problem = "needs pairs of texts that end with NUL, the first of each pair not empty";
    else if ((step->kind == MOEC_STEP_SPLIT || step->kind == MOEC_STEP_REPLACE) && step->pattern.length == 0)
        problem = "has an empty pattern";
    else if ((step->kind == MOEC_STEP_METASPACE || step->kind == MOEC_STEP_STRIP_CHAR) &&
             !is_one_char(m, step->content))
        problem = "needs exactly one character";
    else if (step->mode > (step->kind == MOEC_STEP_METASPACE ? (uint32_t)MOEC_PREPEND_ALWAYS
                                                             : (uint32_t)MOEC_SPLIT_CONTIGUOUS))
        problem = "has an unknown mode";
    if (problem == NULL)
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_FORMAT, "tokenizer '%s': %s step %" PRIu32 " (kind %" PRIu32 ") %s",
                     subject, pipeline_names[pipeline], index, step->kind, problem);
}

/* ByteLevel leaves bytes, not text, to whatever stands behind it. */
static enum moec_status check_pretokenizer_order(const struct moec_tokenizer_model *m, const char *subject,
                                                 struct moec_error *err)
{
    for (uint32_t i = 0; i + 1 < m->n_pretokenizer; i++) {
        if (m->pretokenizer[i].kind == MOEC_STEP_BYTE_LEVEL)
            return moec_fail(
                err, MOEC_ERR_UNSUPPORTED,
                "tokenizer '%s' has a pre-tokenizer step after ByteLevel: moec supports ByteLevel only as "
                "the last step",
                subject);
    }
    return MOEC_OK;
}

/* Decoders run on text as it comes: per-token steps, then one that joins bytes or texts, then at most one
 * Strip of the start. Every published BPE tokenizer that we know has this shape. */
static enum moec_status check_decoder_order(const struct moec_tokenizer_model *m, const char *subject,
                                            struct moec_error *err)
{
    bool bytes = false;
    bool fused = false;
    bool stripped = false;
    for (uint32_t i = 0; i < m->n_decoder; i++) {
        const struct moec_tokenizer_step *step = &m->decoder[i];
        bool fits = false;
        switch (step->kind) {
        case MOEC_STEP_FUSE:
            fits = !stripped;
            fused = true;
            break;
        case MOEC_STEP_BYTE_LEVEL:
            fits = !bytes && !fused;
            fused = true;
            break;
        case MOEC_STEP_BYTE_FALLBACK:
            fits = !bytes && !fused;
            bytes = true;
            break;
        case MOEC_STEP_JAPANESE:
            fits = m->n_decoder == 1 && (m->flags & MOEC_TOKENIZER_JAPANESE) != 0;
            break;
        case MOEC_STEP_STRIP_CHAR:
            fits = fused ? step->stop == 0 && !stripped : !bytes;
            stripped = fused;
            break;
        default:
            fits = !bytes && !fused;
            break;
        }
        if (!fits)
            return moec_fail(
                err, MOEC_ERR_UNSUPPORTED,
                "tokenizer '%s': decoder step %" PRIu32 " is in a position that moec does not support; "
                "expected any of Replace, Strip and Metaspace first, then either ByteLevel or ByteFallback with "
                "Fuse, and at the end at most one Strip that removes from the start",
                subject, i);
    }
    return MOEC_OK;
}

static enum moec_status check_steps(const struct moec_tokenizer_model *m, const char *subject,
                                    struct moec_error *err)
{
    for (uint32_t i = 0; i < m->n_normalizer; i++)
        MOEC_TRY(check_step(m, &m->normalizer[i], NORMALIZER, i, subject, err));
    for (uint32_t i = 0; i < m->n_pretokenizer; i++)
        MOEC_TRY(check_step(m, &m->pretokenizer[i], PRETOKENIZER, i, subject, err));
    for (uint32_t i = 0; i < m->n_decoder; i++)
        MOEC_TRY(check_step(m, &m->decoder[i], DECODER, i, subject, err));
    MOEC_TRY(check_pretokenizer_order(m, subject, err));
    return check_decoder_order(m, subject, err);
}

/* ---- bytes ---- */

static enum moec_status read_header(const uint32_t *header, const char *subject,
                                    struct moec_tokenizer_model *m, struct moec_error *err)
{
    if (header[0] != MAGIC)
        return moec_fail(err, MOEC_ERR_FORMAT, "tokenizer '%s' starts with 0x%08" PRIx32 ", expected 0x%08x",
                         subject, header[0], MAGIC);
    if (header[1] != VERSION_BPE && header[1] != VERSION)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "tokenizer '%s' has version %" PRIu32 ", expected %u or %u", subject, header[1],
                         VERSION_BPE, VERSION);
    m->flags = header[2];
    m->n_tokens = header[3];
    m->n_merges = header[4];
    m->n_added = header[5];
    m->n_normalizer = header[6];
    m->n_pretokenizer = header[7];
    m->n_decoder = header[8];
    m->n_prefix = header[9];
    m->n_suffix = header[10];
    m->unk_id = header[11];
    m->text_bytes = header[12];
    m->charsmap_bytes = header[13];
    const bool is_first = header[1] == VERSION_BPE;
    if (m->flags >= 2 * (is_first ? MOEC_TOKENIZER_IGNORE_MERGES : MOEC_TOKENIZER_JAPANESE) ||
        (is_first && header[13] != 0) || header[14] != 0 || header[15] != 0)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "tokenizer '%s' has unknown flags (byte 8) or nonzero reserved fields (bytes "
                         "52..63) in its header",
                         subject);
    return check_counts(m, subject, err);
}

enum moec_status moec_tokenizer_model_decode(const void *bytes, size_t n_bytes, const char *subject,
                                             struct moec_tokenizer_model *model, struct moec_error *err)
{
    *model = (struct moec_tokenizer_model){0};
    struct moec_tokenizer_model m = {0};
    uint32_t header[HEADER_WORDS];
    if (n_bytes < sizeof header)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "tokenizer '%s' has %zu bytes, too few for its header of %zu bytes", subject,
                         n_bytes, sizeof header);
    memcpy(header, bytes, sizeof header);
    swap_words(header, HEADER_WORDS);
    MOEC_TRY(read_header(header, subject, &m, err));
    uint64_t words = total_words(&m);
    const uint64_t expected = words * 4 + m.text_bytes + m.charsmap_bytes;
    if (n_bytes != expected)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "tokenizer '%s' has %zu bytes, expected %" PRIu64 " by its header", subject, n_bytes,
                         expected);

    MOEC_TRY(moec_alloc(&m.block, n_bytes, 1, "a tokenizer", err));
    memcpy(m.block, bytes, n_bytes);
    swap_words(m.block, words);
    place_arrays(&m);

    enum moec_status status = check_tokens(&m, subject, err);
    if (status == MOEC_OK)
        status = check_merges(&m, subject, err);
    if (status == MOEC_OK)
        status = check_ids(&m, subject, err);
    if (status == MOEC_OK)
        status = check_unigram(&m, subject, err);
    if (status == MOEC_OK)
        status = check_charsmap(&m, subject, err);
    if (status == MOEC_OK)
        status = check_steps(&m, subject, err);
    if (status == MOEC_OK)
        status = check_japanese(&m, subject, err);
    if (status != MOEC_OK) {
        moec_tokenizer_model_release(&m);
        return status;
    }
    *model = m;
    return MOEC_OK;
}

static uint8_t *append(uint8_t *at, const void *items, size_t n_bytes)
{
    if (n_bytes > 0)
        memcpy(at, items, n_bytes);
    return at + n_bytes;
}

enum moec_status moec_tokenizer_model_encode(const struct moec_tokenizer_model *model, void **bytes,
                                             size_t *n_bytes, struct moec_error *err)
{
    const struct moec_tokenizer_model *m = model;
    *bytes = NULL;
    *n_bytes = 0;
    MOEC_TRY(check_counts(m, "to write", err));
    uint64_t words = total_words(m);
    size_t total = (size_t)(words * 4 + m->text_bytes + m->charsmap_bytes);
    void *block = NULL;
    MOEC_TRY(moec_alloc(&block, total, 1, "a tokenizer", err));
    /* Bundles that version 1 can say are read by programs that know no other. */
    bool is_first =
        (m->flags & (MOEC_TOKENIZER_UNIGRAM | MOEC_TOKENIZER_JAPANESE)) == 0 && m->charsmap_bytes == 0;
    for (uint32_t i = 0; i < m->n_normalizer; i++)
        is_first = is_first && m->normalizer[i].kind != MOEC_STEP_SENTENCEPIECE &&
                   m->normalizer[i].kind != MOEC_STEP_BYTE_LEVEL;
    const uint32_t version = is_first ? VERSION_BPE : VERSION;
    const uint32_t header[HEADER_WORDS] = {
        MAGIC,       version,         m->flags,          m->n_tokens,       m->n_merges,
        m->n_added,  m->n_normalizer, m->n_pretokenizer, m->n_decoder,      m->n_prefix,
        m->n_suffix, m->unk_id,       m->text_bytes,     m->charsmap_bytes,
    };
    uint8_t *at = append(block, header, sizeof header);
    at = append(at, m->token_start, ((size_t)m->n_tokens + 1) * 4);
    at = append(at, m->merge_start, ((size_t)m->n_tokens + 1) * 4);
    at = append(at, m->merges, (size_t)m->n_merges * sizeof *m->merges);
    at = append(at, m->added, (size_t)m->n_added * sizeof *m->added);
    at = append(at, m->normalizer, (size_t)m->n_normalizer * sizeof *m->normalizer);
    at = append(at, m->pretokenizer, (size_t)m->n_pretokenizer * sizeof *m->pretokenizer);
    at = append(at, m->decoder, (size_t)m->n_decoder * sizeof *m->decoder);
    at = append(at, m->prefix, (size_t)m->n_prefix * 4);
    at = append(at, m->suffix, (size_t)m->n_suffix * 4);
    at = append(at, m->scores, (size_t)score_count(m) * SCORE_WORDS * 4);
    swap_words(block, words);
    at = append(at, m->text, m->text_bytes);
    (void)append(at, m->charsmap, m->charsmap_bytes);
    *bytes = block;
    *n_bytes = total;
    return MOEC_OK;
}
