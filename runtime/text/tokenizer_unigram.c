/* Unigram (Kudo, arXiv 1804.10959), the library's way: of all ways to cut a word into tokens the one with the
 * largest sum of scores, found from left to right (Viterbi); of equals the one whose last token starts first.
 * A character that no token is costs the smallest score less a penalty of 10; neighbouring ones become one
 * unk token. */
#include "runtime/text/tokenizer_internal.h"

#include "formats/base/memory.h"
#include "formats/base/utf8.h"

#include <math.h>
#include <string.h>

#define UNK_PENALTY 10.0
#define NONE        UINT32_MAX

/* ---- the vocabulary in order ---- */

static int compare_tokens(const void *a, const void *b, void *context)
{
    const struct moec_tokenizer_model *model = context;
    uint32_t n_x = 0, n_y = 0;
    const char *x = moec_tokenizer_model_text(model, *(const uint32_t *)a, &n_x);
    const char *y = moec_tokenizer_model_text(model, *(const uint32_t *)b, &n_y);
    int order = memcmp(x, y, n_x < n_y ? n_x : n_y);
    return order != 0 ? order : (n_x > n_y) - (n_x < n_y);
}

enum moec_status moec_tokenizer_index_unigram(struct moec_tokenizer *t, struct moec_error *err)
{
    const struct moec_tokenizer_model *m = t->model;
    uint32_t n = 0, length = 0;
    double least = INFINITY;
    MOEC_TRY(moec_alloc((void **)&t->sorted, m->n_tokens, sizeof *t->sorted, "a vocabulary's order", err));
    for (uint32_t id = 0; id < m->n_tokens; id++) {
        (void)moec_tokenizer_model_text(m, id, &length);
        if (length == 0 || moec_bit(t->outside_model, id))
            continue;
        const double score = moec_tokenizer_model_score(m, id);
        if (score == -INFINITY)
            continue;
        t->sorted[n++] = id;
        least = fmin(least, score);
    }
    t->unk_score = least - UNK_PENALTY;
    if ((m->flags & MOEC_TOKENIZER_SENTENCEPIECE) != 0)
        t->unk_score = (float)t->unk_score;
    struct moec_tokenizer_model order = *m;
    qsort_r(t->sorted, n, sizeof *t->sorted, compare_tokens, &order);
    uint32_t at = 0;
    for (uint32_t byte = 0; byte < 256; byte++) {
        t->sorted_first[byte] = at;
        while (at < n && (uint8_t)moec_tokenizer_model_text(m, t->sorted[at], &length)[0] == byte)
            at++;
    }
    t->sorted_first[256] = at;
    return MOEC_OK;
}

/* Tokens that a text starts with, shortest first: the range of those that agree so far narrows byte by byte.
 */
struct prefix_walk {
    const struct moec_tokenizer *t;
    const char *text;
    size_t n_bytes, depth;
    uint32_t low, high;
};

/* First place in low..high whose token has a byte of at least `least` at `depth`; all are longer than that.
 */
static uint32_t narrow(const struct prefix_walk *walk, uint32_t low, uint32_t high, unsigned least)
{
    while (low < high) {
        uint32_t middle = low + (high - low) / 2, length = 0;
        const char *text = moec_tokenizer_model_text(walk->t->model, walk->t->sorted[middle], &length);
        if ((uint8_t)text[walk->depth] < least)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The next token, of walk->depth bytes, or MOEC_TOKENIZER_NO_ID. */
static uint32_t next_prefix(struct prefix_walk *walk)
{
    while (walk->low < walk->high && walk->depth < walk->n_bytes) {
        const unsigned byte = (uint8_t)walk->text[walk->depth];
        if (walk->depth > 0) {
            walk->low = narrow(walk, walk->low, walk->high, byte);
            walk->high = narrow(walk, walk->low, walk->high, byte + 1);
        }
        walk->depth++;
        if (walk->low == walk->high)
            break;
        uint32_t length = 0;
        (void)moec_tokenizer_model_text(walk->t->model, walk->t->sorted[walk->low], &length);
        if (length == walk->depth)
            return walk->t->sorted[walk->low++];
    }
    return MOEC_TOKENIZER_NO_ID;
}

/* ---- the best cut ---- */

static void offer(struct moec_unigram_node *node, double score, uint32_t start, uint32_t id)
{
    if (node->start == NONE || score > node->score)
        *node = (struct moec_unigram_node){.score = score, .start = start, .id = id};
}

/* The sum that a path has with one token more. */
static double extend(const struct moec_tokenizer *t, double score, double token)
{
    const double sum = score + token;
    return (t->model->flags & MOEC_TOKENIZER_SENTENCEPIECE) != 0 ? (double)(float)sum : sum;
}

/* Fills nodes[1..n_bytes] where characters end. */
static enum moec_status find_cut(struct moec_encoding *e, const char *word, uint32_t n_bytes)
{
    const struct moec_tokenizer *t = e->tokenizer;
    MOEC_TRY(moec_grow_within((void **)&e->nodes, &e->nodes_capacity, (size_t)n_bytes + 1, sizeof *e->nodes,
                              e->left_bytes, "a word's cuts", e->err));
    for (uint32_t i = 0; i <= n_bytes; i++)
        e->nodes[i] = (struct moec_unigram_node){.start = NONE};
    for (uint32_t at = 0; at < n_bytes;) {
        const double here = e->nodes[at].score;
        const uint32_t n_char = moec_utf8_read(word + at, n_bytes - at).n_bytes;
        const uint8_t byte = (uint8_t)word[at];
        struct prefix_walk walk = {.t = t,
                                   .text = word + at,
                                   .n_bytes = n_bytes - at,
                                   .low = t->sorted_first[byte],
                                   .high = t->sorted_first[byte + 1]};
        bool has_char = false;
        for (uint32_t id = next_prefix(&walk); id != MOEC_TOKENIZER_NO_ID; id = next_prefix(&walk)) {
            offer(&e->nodes[at + walk.depth], extend(t, here, moec_tokenizer_model_score(t->model, id)), at,
                  id);
            has_char = has_char || walk.depth == n_char;
        }
        struct moec_unigram_node *end = &e->nodes[at + n_char];
        const double unk = extend(t, here, t->unk_score);
        if (!has_char && (end->start == NONE || unk > end->score)) {
            if (t->model->unk_id == MOEC_TOKENIZER_NO_ID)
                return moec_fail(e->err, MOEC_ERR_NOT_FOUND,
                                 "the tokenizer's vocabulary has neither the character '%.*s' nor an unk_id",
                                 (int)n_char, word + at);
            offer(end, unk, at, t->model->unk_id);
        }
        at += n_char;
    }
    return MOEC_OK;
}

/* ---- ids ---- */

/* A token, or a run of unknown characters: its id, its bytes, or unk. */
static enum moec_status add_piece(struct moec_encoding *e, const char *text, uint32_t n_bytes)
{
    const struct moec_tokenizer *t = e->tokenizer;
    /* SentencePiece does not look a run of unknown characters up again, which may spell a control piece. */
    uint32_t id = moec_tokenizer_model_id(t, text, n_bytes);
    if (id != MOEC_TOKENIZER_NO_ID && moec_tokenizer_model_score(t->model, id) == -INFINITY)
        id = MOEC_TOKENIZER_NO_ID;
    if (id == MOEC_TOKENIZER_NO_ID && (t->model->flags & MOEC_TOKENIZER_BYTE_FALLBACK) != 0) {
        bool all = true;
        for (uint32_t i = 0; i < n_bytes; i++)
            all = all && t->byte_token[(uint8_t)text[i]] != MOEC_TOKENIZER_NO_ID;
        for (uint32_t i = 0; all && i < n_bytes; i++)
            MOEC_TRY(moec_encoding_add_id(e, t->byte_token[(uint8_t)text[i]]));
        if (all)
            return MOEC_OK;
    }
    return moec_encoding_add_id(e, id != MOEC_TOKENIZER_NO_ID ? id : t->model->unk_id);
}

enum moec_status moec_tokenizer_unigram(struct moec_encoding *e, const char *word, size_t n_bytes)
{
    const struct moec_tokenizer *t = e->tokenizer;
    if (t->byte_level) {
        MOEC_TRY(moec_encoding_map_bytes(e, word, n_bytes));
        word = e->mapped.bytes;
        n_bytes = e->mapped.n_bytes;
    }
    if (n_bytes >= NONE)
        return moec_fail(e->err, MOEC_ERR_LIMIT,
                         "a word of the text has %zu bytes, but the tokenizer takes at most %u", n_bytes,
                         NONE - 1);
    MOEC_TRY(find_cut(e, word, (uint32_t)n_bytes));
    /* The cut is known from its end; turned round, each node holds where its token ends. */
    uint32_t end = (uint32_t)n_bytes, next = NONE;
    while (next != 0) {
        const uint32_t start = end == 0 ? NONE : e->nodes[end].start;
        e->nodes[end].start = next;
        next = end;
        end = start;
    }
    for (uint32_t at = 0; at < n_bytes;) {
        uint32_t stop = e->nodes[at].start;
        if (e->nodes[stop].id == t->model->unk_id)
            while (stop < n_bytes && e->nodes[e->nodes[stop].start].id == t->model->unk_id)
                stop = e->nodes[stop].start;
        MOEC_TRY(add_piece(e, word + at, stop - at));
        at = stop;
    }
    return MOEC_OK;
}
