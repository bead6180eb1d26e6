/* Byte-pair encoding (Sennrich et al., arXiv 1508.07909) by rank, the library's way: the pair with the lowest
 * rank merges first, the leftmost of equals. A queue of candidates and a linked list of symbols make it O(n
 * log n). */
#include "runtime/text/tokenizer_internal.h"

#include "formats/base/memory.h"
#include "formats/base/utf8.h"

#include <string.h>

#define NONE UINT32_MAX

/* ---- symbols of a word ---- */

static enum moec_status add_symbol(struct moec_encoding *e, uint32_t id)
{
    MOEC_TRY(moec_grow_within((void **)&e->symbols, &e->symbols_capacity, e->n_symbols + 1,
                              sizeof *e->symbols, e->left_bytes, "a word's symbols", e->err));
    uint32_t at = (uint32_t)e->n_symbols;
    e->symbols[at] = (struct moec_bpe_symbol){.id = id, .prev = at == 0 ? NONE : at - 1, .next = at + 1};
    e->n_symbols++;
    return MOEC_OK;
}

/* The unk token waiting to be added: with fuse_unk a run of unknown characters makes one. */
struct pending_unk {
    bool waiting;
};

static enum moec_status flush_unk(struct moec_encoding *e, struct pending_unk *unk)
{
    if (!unk->waiting)
        return MOEC_OK;
    unk->waiting = false;
    return add_symbol(e, e->tokenizer->model->unk_id);
}

/* `text[n_bytes]` is one character that the vocabulary does not have. */
static enum moec_status unknown_char(struct moec_encoding *e, struct pending_unk *unk, const char *text,
                                     size_t n_bytes)
{
    const struct moec_tokenizer *t = e->tokenizer;
    if ((t->model->flags & MOEC_TOKENIZER_BYTE_FALLBACK) != 0) {
        bool all = true;
        for (size_t i = 0; i < n_bytes; i++)
            all = all && t->byte_token[(uint8_t)text[i]] != MOEC_TOKENIZER_NO_ID;
        /* A waiting unk stays behind these bytes, as it does in the library. */
        for (size_t i = 0; all && i < n_bytes; i++)
            MOEC_TRY(add_symbol(e, t->byte_token[(uint8_t)text[i]]));
        if (all)
            return MOEC_OK;
    }
    if (t->model->unk_id == MOEC_TOKENIZER_NO_ID)
        return MOEC_OK;
    if (t->model->unk_id == MOEC_TOKENIZER_ID_MISSING)
        return moec_fail(e->err, MOEC_ERR_NOT_FOUND,
                         "the tokenizer's vocabulary has neither the character '%.*s' nor the unk_token "
                         "that would replace it",
                         (int)n_bytes, text);
    if ((t->model->flags & MOEC_TOKENIZER_FUSE_UNK) == 0)
        MOEC_TRY(flush_unk(e, unk));
    unk->waiting = true;
    return MOEC_OK;
}

static enum moec_status add_char(struct moec_encoding *e, struct pending_unk *unk, uint32_t id,
                                 const char *text, size_t n_bytes)
{
    if (id == MOEC_TOKENIZER_NO_ID)
        return unknown_char(e, unk, text, n_bytes);
    MOEC_TRY(flush_unk(e, unk));
    return add_symbol(e, id);
}

static enum moec_status word_symbols(struct moec_encoding *e, const char *word, size_t n_bytes)
{
    const struct moec_tokenizer *t = e->tokenizer;
    struct pending_unk unk = {false};
    e->n_symbols = 0;
    for (size_t at = 0; at < n_bytes;) {
        if (t->byte_level) {
            uint8_t byte = (uint8_t)word[at++];
            char text[4];
            size_t length = moec_utf8_write(moec_byte_level_char(byte), text);
            MOEC_TRY(add_char(e, &unk, t->byte_symbol[byte], text, length));
            continue;
        }
        size_t length = moec_utf8_read(word + at, n_bytes - at).n_bytes;
        MOEC_TRY(add_char(e, &unk, moec_tokenizer_model_id(t, word + at, length), word + at, length));
        at += length;
    }
    MOEC_TRY(flush_unk(e, &unk));
    if (e->n_symbols > 0)
        e->symbols[e->n_symbols - 1].next = NONE;
    return MOEC_OK;
}

/* ---- the queue: a binary heap, lowest rank first, then leftmost ---- */

static bool before(const struct moec_bpe_candidate *a, const struct moec_bpe_candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void sift_down(struct moec_encoding *e, size_t at)
{
    struct moec_bpe_candidate item = e->heap[at];
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= e->n_heap)
            break;
        if (child + 1 < e->n_heap && before(&e->heap[child + 1], &e->heap[child]))
            child++;
        if (!before(&e->heap[child], &item))
            break;
        e->heap[at] = e->heap[child];
        at = child;
    }
    e->heap[at] = item;
}

static enum moec_status push(struct moec_encoding *e, struct moec_bpe_candidate item)
{
    MOEC_TRY(moec_grow_within((void **)&e->heap, &e->heap_capacity, e->n_heap + 1, sizeof *e->heap,
                              e->left_bytes, "a word's merges", e->err));
    size_t at = e->n_heap++;
    for (; at > 0 && before(&item, &e->heap[(at - 1) / 2]); at = (at - 1) / 2)
        e->heap[at] = e->heap[(at - 1) / 2];
    e->heap[at] = item;
    return MOEC_OK;
}

static struct moec_bpe_candidate pop(struct moec_encoding *e)
{
    struct moec_bpe_candidate top = e->heap[0];
    e->heap[0] = e->heap[--e->n_heap];
    if (e->n_heap > 0)
        sift_down(e, 0);
    return top;
}

/* ---- merging ---- */

static const struct moec_tokenizer_merge *find_merge(const struct moec_tokenizer_model *m, uint32_t left,
                                                     uint32_t right)
{
    uint32_t low = m->merge_start[left];
    uint32_t high = m->merge_start[left + 1];
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (m->merges[middle].right < right)
            low = middle + 1;
        else
            high = middle;
    }
    return low < m->merge_start[left + 1] && m->merges[low].right == right ? &m->merges[low] : NULL;
}

/* Adds the pair that begins with symbol `at`, if it merges. */
static enum moec_status push_pair(struct moec_encoding *e, uint32_t at)
{
    uint32_t next = e->symbols[at].next;
    if (next == NONE)
        return MOEC_OK;
    const struct moec_tokenizer_merge *merge =
        find_merge(e->tokenizer->model, e->symbols[at].id, e->symbols[next].id);
    if (merge == NULL)
        return MOEC_OK;
    return push(e, (struct moec_bpe_candidate){merge->rank, at, merge->merged});
}

static enum moec_status merge_symbols(struct moec_encoding *e)
{
    const struct moec_tokenizer_model *m = e->tokenizer->model;
    e->n_heap = 0;
    for (uint32_t at = 0; at + 1 < e->n_symbols; at++)
        MOEC_TRY(push_pair(e, at));
    while (e->n_heap > 0) {
        struct moec_bpe_candidate top = pop(e);
        struct moec_bpe_symbol *left = &e->symbols[top.at];
        if (left->id == MOEC_TOKENIZER_NO_ID || left->next == NONE)
            continue;
        struct moec_bpe_symbol *right = &e->symbols[left->next];
        /* An entry is stale when its pair has changed; the library looks at the merged id alone. */
        const struct moec_tokenizer_merge *now = find_merge(m, left->id, right->id);
        if (now == NULL || now->merged != top.merged)
            continue;
        left->id = top.merged;
        left->next = right->next;
        right->id = MOEC_TOKENIZER_NO_ID;
        if (left->next != NONE)
            e->symbols[left->next].prev = top.at;
        if (left->prev != NONE)
            MOEC_TRY(push_pair(e, left->prev));
        MOEC_TRY(push_pair(e, top.at));
    }
    return MOEC_OK;
}

/* With ignore_merges a word that is a token stays whole; `*id` is MOEC_TOKENIZER_NO_ID when it is none. */
static enum moec_status whole_word(struct moec_encoding *e, const char *word, size_t n_bytes, uint32_t *id)
{
    const struct moec_tokenizer *t = e->tokenizer;
    *id = MOEC_TOKENIZER_NO_ID;
    if ((t->model->flags & MOEC_TOKENIZER_IGNORE_MERGES) == 0 || n_bytes > t->longest_token_bytes)
        return MOEC_OK;
    if (!t->byte_level) {
        *id = moec_tokenizer_model_id(t, word, n_bytes);
        return MOEC_OK;
    }
    MOEC_TRY(moec_encoding_map_bytes(e, word, n_bytes));
    *id = moec_tokenizer_model_id(t, e->mapped.bytes, e->mapped.n_bytes);
    return MOEC_OK;
}

enum moec_status moec_tokenizer_bpe(struct moec_encoding *encoding, const char *word, size_t n_bytes)
{
    uint32_t whole = MOEC_TOKENIZER_NO_ID;
    MOEC_TRY(whole_word(encoding, word, n_bytes, &whole));
    if (whole != MOEC_TOKENIZER_NO_ID)
        return moec_encoding_add_id(encoding, whole);
    MOEC_TRY(word_symbols(encoding, word, n_bytes));
    MOEC_TRY(merge_symbols(encoding));
    if (encoding->n_symbols == 0)
        return MOEC_OK;
    for (uint32_t at = 0; at != NONE; at = encoding->symbols[at].next)
        MOEC_TRY(moec_encoding_add_id(encoding, encoding->symbols[at].id));
    return MOEC_OK;
}
