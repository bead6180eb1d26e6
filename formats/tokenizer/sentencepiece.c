/* A SentencePiece BPE has scores instead of merges. Every split of a piece into two pieces is a merge whose
 * rank is the rank of the piece's score; equal scores share a rank. That gives the library's ids if every
 * character of a piece is a piece itself, which is checked. Pieces other than normal ones get the score
 * -infinity and take part in no merge. */
#include "formats/tokenizer/sentencepiece.h"

#include "formats/base/bytes.h"
#include "formats/base/memory.h"
#include "formats/base/protobuf.h"
#include "formats/base/utf8.h"
#include "formats/tokenizer/unigram_vocab.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Field numbers of sentencepiece_model.proto. */
enum { MODEL_PIECES = 1, MODEL_TRAINER = 2, MODEL_NORMALIZER = 3 };
enum { PIECE_TEXT = 1, PIECE_SCORE = 2, PIECE_TYPE = 3 };
enum {
    TRAINER_MODEL_TYPE = 3,
    TRAINER_SPACE_AS_SUFFIX = 24,
    TRAINER_BYTE_FALLBACK = 35,
    TRAINER_BOS_ID = 41,
    TRAINER_EOS_ID = 42
};
enum { NORMALIZER_MAP = 2, NORMALIZER_PREFIX = 3, NORMALIZER_EXTRA_SPACES = 4, NORMALIZER_ESCAPE = 5 };
enum piece_type { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5, BYTE = 6 };
enum { TYPE_UNIGRAM = 1, TYPE_BPE = 2 };

/* Strings of the decoder's steps: U+2581 becomes a space. */
#define STEP_TEXT        "\xE2\x96\x81 "
#define SPACE_OFFSET     3
#define SPACE_MARK_BYTES 3

/* In the order of the file. */
struct pieces {
    struct moec_unigram_vocab vocab;
    uint8_t *types; /* (n) enum piece_type */
    size_t capacity, types_capacity;
};

struct trainer {
    uint32_t unk_id;
    uint64_t model_type;
    int64_t bos_id, eos_id;
    bool byte_fallback, space_as_suffix;
};

struct normalizer {
    bool dummy_prefix, remove_extra, escape;
    const uint8_t *charsmap;
    size_t n_charsmap;
    uint64_t charsmap_offset;
};

struct merges {
    uint32_t *ranks;                  /* (n): of a BPE piece, best score first, equal scores alike */
    struct moec_tokenizer_merge *all; /* sorted by left piece, then right */
    uint32_t *lefts;                  /* (n) */
    size_t n, capacity, lefts_capacity;
};

/* User-defined pieces. */
struct added {
    struct moec_tokenizer_added *all;
    size_t n, capacity;
};

struct reader {
    const char *subject;
    struct moec_error *err;
    struct pieces pieces;
    struct trainer trainer;
    struct normalizer normalizer;
    struct merges merges;
    struct added added;
};

/* ---- the message ---- */

static float as_float(uint64_t bits)
{
    const uint32_t low = (uint32_t)bits;
    float value;
    memcpy(&value, &low, sizeof value);
    return value;
}

static enum moec_status check_piece(const struct reader *r, const struct moec_unigram_piece *piece,
                                    uint64_t type)
{
    const int shown = (int)(piece->n_bytes < 64 ? piece->n_bytes : 64);
    if (piece->n_bytes == 0 || moec_utf8_valid_bytes(piece->bytes, piece->n_bytes) != piece->n_bytes ||
        !isfinite(piece->score))
        return moec_fail(r->err, MOEC_ERR_FORMAT,
                         "piece %" PRIu32 " of the tokenizer of '%s' is empty, is not UTF-8 or has no "
                         "finite score",
                         r->pieces.vocab.n, r->subject);
    if (type == UNUSED)
        return moec_fail(r->err, MOEC_ERR_UNSUPPORTED,
                         "piece %" PRIu32 " ('%.*s') of the tokenizer of '%s' has type 'unused', which "
                         "moec does not support",
                         r->pieces.vocab.n, shown, piece->bytes, r->subject);
    if (type < NORMAL || type > BYTE)
        return moec_fail(r->err, MOEC_ERR_FORMAT,
                         "piece %" PRIu32 " of the tokenizer of '%s' has type %" PRIu64 ", expected 1..6",
                         r->pieces.vocab.n, r->subject, type);
    return MOEC_OK;
}

static enum moec_status read_piece(struct reader *r, const struct moec_protobuf_field *in)
{
    struct moec_protobuf message = {in->bytes, in->n_bytes, 0, in->offset, r->subject};
    struct moec_protobuf_field field;
    struct moec_unigram_piece piece = {.bytes = ""};
    uint64_t type = NORMAL;
    for (bool more = true;;) {
        MOEC_TRY(moec_protobuf_next(&message, &field, &more, r->err));
        if (!more)
            break;
        if (field.number == PIECE_TEXT && field.is_bytes) {
            piece.bytes = (const char *)field.bytes;
            piece.n_bytes = field.n_bytes;
        } else if (field.number == PIECE_SCORE && !field.is_bytes) {
            piece.score = as_float(field.value);
        } else if (field.number == PIECE_TYPE && !field.is_bytes) {
            type = field.value;
        }
    }
    MOEC_TRY(check_piece(r, &piece, type));
    if (r->pieces.vocab.n == MOEC_TOKENIZER_MAX_TOKENS)
        return moec_fail(r->err, MOEC_ERR_LIMIT, "the tokenizer of '%s' has more than %u pieces", r->subject,
                         MOEC_TOKENIZER_MAX_TOKENS);
    if (type == UNKNOWN && r->trainer.unk_id != MOEC_TOKENIZER_NO_ID)
        return moec_fail(r->err, MOEC_ERR_FORMAT,
                         "pieces %" PRIu32 " and %" PRIu32 " of the tokenizer of '%s' both have type "
                         "'unknown', expected only one such piece",
                         r->trainer.unk_id, r->pieces.vocab.n, r->subject);
    MOEC_TRY(moec_grow((void **)&r->pieces.vocab.pieces, &r->pieces.capacity, (size_t)r->pieces.vocab.n + 1,
                       sizeof *r->pieces.vocab.pieces, "a vocabulary", r->err));
    MOEC_TRY(moec_grow((void **)&r->pieces.types, &r->pieces.types_capacity, (size_t)r->pieces.vocab.n + 1, 1,
                       "a vocabulary", r->err));
    if (type == UNKNOWN)
        r->trainer.unk_id = r->pieces.vocab.n;
    r->pieces.types[r->pieces.vocab.n] = (uint8_t)type;
    r->pieces.vocab.pieces[r->pieces.vocab.n++] = piece;
    return MOEC_OK;
}

static enum moec_status read_trainer(struct reader *r, const struct moec_protobuf_field *in)
{
    struct moec_protobuf message = {in->bytes, in->n_bytes, 0, in->offset, r->subject};
    struct moec_protobuf_field field;
    for (bool more = true;;) {
        MOEC_TRY(moec_protobuf_next(&message, &field, &more, r->err));
        if (!more)
            return MOEC_OK;
        if (field.is_bytes)
            continue;
        if (field.number == TRAINER_MODEL_TYPE)
            r->trainer.model_type = field.value;
        else if (field.number == TRAINER_SPACE_AS_SUFFIX)
            r->trainer.space_as_suffix = field.value != 0;
        else if (field.number == TRAINER_BYTE_FALLBACK)
            r->trainer.byte_fallback = field.value != 0;
        else if (field.number == TRAINER_BOS_ID)
            r->trainer.bos_id = (int64_t)field.value;
        else if (field.number == TRAINER_EOS_ID)
            r->trainer.eos_id = (int64_t)field.value;
    }
}

static enum moec_status read_normalizer(struct reader *r, const struct moec_protobuf_field *in)
{
    struct moec_protobuf message = {in->bytes, in->n_bytes, 0, in->offset, r->subject};
    struct moec_protobuf_field field;
    for (bool more = true;;) {
        MOEC_TRY(moec_protobuf_next(&message, &field, &more, r->err));
        if (!more)
            return MOEC_OK;
        if (field.number == NORMALIZER_MAP && field.is_bytes) {
            r->normalizer.charsmap = field.bytes;
            r->normalizer.n_charsmap = field.n_bytes;
        } else if (field.number == NORMALIZER_PREFIX && !field.is_bytes) {
            r->normalizer.dummy_prefix = field.value != 0;
        } else if (field.number == NORMALIZER_EXTRA_SPACES && !field.is_bytes) {
            r->normalizer.remove_extra = field.value != 0;
        } else if (field.number == NORMALIZER_ESCAPE && !field.is_bytes) {
            r->normalizer.escape = field.value != 0;
        }
    }
}

/* User-defined pieces are cut out of the normalised text before anything else, the longest that begins first.
 * In a Unigram model they compete with others, and a character map would have to leave them alone. */
static enum moec_status list_user_defined(struct reader *r)
{
    for (uint32_t id = 0; id < r->pieces.vocab.n; id++) {
        const struct moec_unigram_piece *piece = &r->pieces.vocab.pieces[id];
        const bool has_space = memchr(piece->bytes, ' ', piece->n_bytes) != NULL;
        if (r->pieces.types[id] != USER_DEFINED)
            continue;
        if (r->trainer.model_type != TYPE_BPE || r->normalizer.n_charsmap > 0 || has_space)
            return moec_fail(r->err, MOEC_ERR_UNSUPPORTED,
                             "piece %" PRIu32 " ('%.*s') of the tokenizer of '%s' is user-defined and %s, "
                             "which moec does not support",
                             id, (int)(piece->n_bytes < 64 ? piece->n_bytes : 64), piece->bytes, r->subject,
                             r->trainer.model_type != TYPE_BPE ? "in a Unigram model"
                             : has_space                       ? "has a space"
                                                               : "in a model with a character map");
        if (r->added.n == MOEC_TOKENIZER_MAX_ADDED)
            return moec_fail(r->err, MOEC_ERR_LIMIT,
                             "the tokenizer of '%s' has more than %u user-defined pieces", r->subject,
                             MOEC_TOKENIZER_MAX_ADDED);
        MOEC_TRY(moec_grow((void **)&r->added.all, &r->added.capacity, r->added.n + 1, sizeof *r->added.all,
                           "pieces", r->err));
        r->added.all[r->added.n++] =
            (struct moec_tokenizer_added){id, MOEC_ADDED_NORMALIZED | MOEC_ADDED_IN_MODEL};
    }
    return MOEC_OK;
}

static enum moec_status list_controls(struct reader *r, struct moec_sentencepiece_affixes affixes)
{
    if (affixes.n_controls > MOEC_TOKENIZER_MAX_ADDED - r->added.n)
        return moec_fail(r->err, MOEC_ERR_LIMIT,
                         "the tokenizer of '%s' has more than %u control and user-defined pieces", r->subject,
                         MOEC_TOKENIZER_MAX_ADDED);
    MOEC_TRY(moec_grow((void **)&r->added.all, &r->added.capacity, r->added.n + affixes.n_controls,
                       sizeof *r->added.all, "pieces", r->err));
    for (size_t i = 0; i < affixes.n_controls; i++) {
        r->added.all[r->added.n] = affixes.controls[i];
        r->added.all[r->added.n++].flags |= MOEC_ADDED_SPECIAL | MOEC_ADDED_IN_MODEL | MOEC_ADDED_WRITTEN;
    }
    return MOEC_OK;
}

static enum moec_status read_message(struct reader *r, const uint8_t *bytes, size_t n_bytes)
{
    struct moec_protobuf message = {bytes, n_bytes, 0, 0, r->subject};
    struct moec_protobuf_field field;
    for (bool more = true;;) {
        MOEC_TRY(moec_protobuf_next(&message, &field, &more, r->err));
        if (!more)
            break;
        if (!field.is_bytes)
            continue;
        if (field.number == MODEL_PIECES)
            MOEC_TRY(read_piece(r, &field));
        else if (field.number == MODEL_TRAINER)
            MOEC_TRY(read_trainer(r, &field));
        else if (field.number == MODEL_NORMALIZER)
            MOEC_TRY(read_normalizer(r, &field));
    }
    if (r->pieces.vocab.n == 0 || r->trainer.unk_id == MOEC_TOKENIZER_NO_ID)
        return moec_fail(r->err, MOEC_ERR_FORMAT,
                         "the tokenizer of '%s' has %" PRIu32 " pieces and %s piece of type 'unknown': "
                         "the file is damaged or not a SentencePiece model",
                         r->subject, r->pieces.vocab.n,
                         r->trainer.unk_id == MOEC_TOKENIZER_NO_ID ? "no" : "a");
    if (r->trainer.model_type != TYPE_UNIGRAM && r->trainer.model_type != TYPE_BPE)
        return moec_fail(r->err, MOEC_ERR_UNSUPPORTED,
                         "'%s' is a SentencePiece model of type %" PRIu64 ", expected 1 (Unigram) or 2 (BPE)",
                         r->subject, r->trainer.model_type);
    MOEC_TRY(list_user_defined(r));
    if (!r->normalizer.escape)
        return moec_fail(
            r->err, MOEC_ERR_UNSUPPORTED,
            "the tokenizer of '%s' keeps spaces as they are (escape_whitespaces is off), which moec does "
            "not support",
            r->subject);
    return MOEC_OK;
}

/* ---- BPE: the merges that make each piece ---- */

static int compare_scores(const void *a, const void *b, void *context)
{
    const struct reader *r = context;
    const double x = r->pieces.vocab.pieces[*(const uint32_t *)a].score,
                 y = r->pieces.vocab.pieces[*(const uint32_t *)b].score;
    return (x < y) - (x > y);
}

static enum moec_status rank_pieces(struct reader *r)
{
    uint32_t *order = NULL;
    MOEC_TRY(
        moec_alloc((void **)&r->merges.ranks, r->pieces.vocab.n, sizeof *r->merges.ranks, "merges", r->err));
    MOEC_TRY(moec_alloc((void **)&order, r->pieces.vocab.n, sizeof *order, "merges", r->err));
    for (uint32_t id = 0; id < r->pieces.vocab.n; id++)
        order[id] = id;
    qsort_r(order, r->pieces.vocab.n, sizeof *order, compare_scores, r);
    uint32_t rank = 0;
    for (uint32_t i = 0; i < r->pieces.vocab.n; i++) {
        rank += i > 0 && compare_scores(&order[i - 1], &order[i], r) != 0;
        r->merges.ranks[order[i]] = rank;
    }
    free(order);
    return MOEC_OK;
}

/* Id of a normal piece, or MOEC_TOKENIZER_NO_ID. */
static uint32_t find_normal(const struct reader *r, const char *bytes, size_t n_bytes)
{
    uint32_t id = moec_unigram_vocab_find(&r->pieces.vocab, bytes, n_bytes);
    return id != MOEC_TOKENIZER_NO_ID && r->pieces.types[id] == NORMAL ? id : MOEC_TOKENIZER_NO_ID;
}

static enum moec_status add_merges(struct reader *r, uint32_t id)
{
    const struct moec_unigram_piece *piece = &r->pieces.vocab.pieces[id];
    for (size_t at = 0; at < piece->n_bytes;) {
        const size_t n_char = moec_utf8_read(piece->bytes + at, piece->n_bytes - at).n_bytes;
        if (find_normal(r, piece->bytes + at, n_char) == MOEC_TOKENIZER_NO_ID)
            return moec_fail(r->err, MOEC_ERR_UNSUPPORTED,
                             "piece %" PRIu32 " ('%.*s') of the tokenizer of '%s' has the character "
                             "'%.*s', which is not itself a piece",
                             id, (int)(piece->n_bytes < 64 ? piece->n_bytes : 64), piece->bytes, r->subject,
                             (int)n_char, piece->bytes + at);
        at += n_char;
        if (at == piece->n_bytes)
            break;
        const uint32_t left = find_normal(r, piece->bytes, at);
        const uint32_t right = find_normal(r, piece->bytes + at, piece->n_bytes - at);
        if (left == MOEC_TOKENIZER_NO_ID || right == MOEC_TOKENIZER_NO_ID)
            continue;
        if (r->merges.n == MOEC_TOKENIZER_MAX_MERGES)
            return moec_fail(r->err, MOEC_ERR_LIMIT,
                             "the pieces of the tokenizer of '%s' have more than %u merges", r->subject,
                             MOEC_TOKENIZER_MAX_MERGES);
        MOEC_TRY(moec_grow((void **)&r->merges.all, &r->merges.capacity, r->merges.n + 1,
                           sizeof *r->merges.all, "merges", r->err));
        MOEC_TRY(moec_grow((void **)&r->merges.lefts, &r->merges.lefts_capacity, r->merges.n + 1,
                           sizeof *r->merges.lefts, "merges", r->err));
        r->merges.lefts[r->merges.n] = left;
        r->merges.all[r->merges.n++] = (struct moec_tokenizer_merge){right, r->merges.ranks[id], id};
    }
    return MOEC_OK;
}

static int compare_rights(const void *a, const void *b)
{
    const struct moec_tokenizer_merge *x = a, *y = b;
    return (x->right > y->right) - (x->right < y->right);
}

/* Merges in the order of left pieces, then right ones; merge_start (n + 1). A pair makes one text, so none
 * stands twice. */
static enum moec_status sort_merges(struct reader *r, uint32_t *merge_start)
{
    struct moec_tokenizer_merge *sorted = NULL;
    MOEC_TRY(moec_alloc((void **)&sorted, r->merges.n, sizeof *sorted, "merges", r->err));
    for (size_t i = 0; i < r->merges.n; i++)
        merge_start[r->merges.lefts[i] + 1]++;
    for (uint32_t id = 0; id < r->pieces.vocab.n; id++)
        merge_start[id + 1] += merge_start[id];
    for (size_t i = r->merges.n; i > 0; i--) {
        /* From the end of each left piece's places; lefts[] counts those taken. */
        const uint32_t left = r->merges.lefts[i - 1];
        sorted[--merge_start[left + 1]] = r->merges.all[i - 1];
    }
    /* merge_start[left + 1] now says where left begins. */
    for (uint32_t id = 0; id < r->pieces.vocab.n; id++)
        merge_start[id] = merge_start[id + 1];
    merge_start[r->pieces.vocab.n] = (uint32_t)r->merges.n;
    for (uint32_t id = 0; id < r->pieces.vocab.n; id++)
        qsort(sorted + merge_start[id], merge_start[id + 1] - merge_start[id], sizeof *sorted,
              compare_rights);
    free(r->merges.all);
    r->merges.all = sorted;
    return MOEC_OK;
}

/* ---- assembly ---- */

/* The pipeline around the model: one normalizer, and the decoder of byte fallback. */
struct pipeline {
    struct moec_tokenizer_step normalizer, decoder[4];
    uint32_t n_decoder;
};

static struct pipeline make_pipeline(const struct reader *r, uint32_t text_end)
{
    const struct moec_tokenizer_string mark = {text_end, SPACE_MARK_BYTES},
                                       space = {text_end + SPACE_OFFSET, 1};
    struct pipeline p = {.normalizer = {.kind = MOEC_STEP_SENTENCEPIECE}};
    p.normalizer.flags = (r->normalizer.dummy_prefix ? MOEC_STEP_PREFIX_SPACE : 0) |
                         (r->normalizer.remove_extra ? MOEC_STEP_LEFT : 0) |
                         (r->trainer.space_as_suffix ? MOEC_STEP_RIGHT : 0);
    p.decoder[p.n_decoder++] =
        (struct moec_tokenizer_step){.kind = MOEC_STEP_REPLACE, .pattern = mark, .content = space};
    if (r->trainer.byte_fallback)
        p.decoder[p.n_decoder++] = (struct moec_tokenizer_step){.kind = MOEC_STEP_BYTE_FALLBACK};
    p.decoder[p.n_decoder++] = (struct moec_tokenizer_step){.kind = MOEC_STEP_FUSE};
    if (r->normalizer.dummy_prefix && !r->trainer.space_as_suffix)
        p.decoder[p.n_decoder++] =
            (struct moec_tokenizer_step){.kind = MOEC_STEP_STRIP_CHAR, .content = space, .start = 1};
    return p;
}

static enum moec_status affix_id(const struct reader *r, const char *name, bool wanted, int64_t id,
                                 uint32_t *ids, uint32_t *n)
{
    if (!wanted)
        return MOEC_OK;
    if (id < 0 || id >= (int64_t)r->pieces.vocab.n)
        return moec_fail(r->err, MOEC_ERR_FORMAT,
                         "the tokenizer of '%s' has %s %" PRId64 ", expected a piece id below %" PRIu32,
                         r->subject, name, id, r->pieces.vocab.n);
    ids[(*n)++] = (uint32_t)id;
    return MOEC_OK;
}

/* Arrays that the flat model points to. */
struct arrays {
    uint32_t *token_start, *merge_start, *scores;
    char *text;
};

static enum moec_status fill_arrays(struct reader *r, struct arrays *a, uint32_t *text_end)
{
    const uint32_t n = r->pieces.vocab.n;
    uint64_t total = sizeof STEP_TEXT - 1;
    for (uint32_t id = 0; id < n; id++)
        total += r->pieces.vocab.pieces[id].n_bytes;
    if (total > MOEC_TOKENIZER_MAX_TEXT_BYTES)
        return moec_fail(r->err, MOEC_ERR_LIMIT,
                         "the vocabulary of '%s' has %" PRIu64 " bytes of text, more than the limit of %u",
                         r->subject, total, MOEC_TOKENIZER_MAX_TEXT_BYTES);
    MOEC_TRY(moec_alloc((void **)&a->token_start, (uint64_t)n + 1, sizeof(uint32_t), "a vocabulary", r->err));
    MOEC_TRY(moec_alloc((void **)&a->merge_start, (uint64_t)n + 1, sizeof(uint32_t), "merges", r->err));
    MOEC_TRY(moec_alloc((void **)&a->scores, 2 * (uint64_t)n, sizeof(uint32_t), "a vocabulary", r->err));
    MOEC_TRY(moec_alloc((void **)&a->text, total, 1, "a vocabulary", r->err));
    uint32_t at = 0;
    for (uint32_t id = 0; id < n; id++) {
        const struct moec_unigram_piece *piece = &r->pieces.vocab.pieces[id];
        a->token_start[id] = at;
        memcpy(a->text + at, piece->bytes, piece->n_bytes);
        at += (uint32_t)piece->n_bytes;
        moec_tokenizer_score_words(r->pieces.types[id] == NORMAL ? piece->score : -INFINITY,
                                   a->scores + 2 * (size_t)id);
    }
    a->token_start[n] = at;
    memcpy(a->text + at, STEP_TEXT, sizeof STEP_TEXT - 1);
    *text_end = at;
    if (r->trainer.model_type != TYPE_BPE)
        return MOEC_OK;
    MOEC_TRY(rank_pieces(r));
    for (uint32_t id = 0; id < n; id++)
        if (r->pieces.types[id] == NORMAL)
            MOEC_TRY(add_merges(r, id));
    return sort_merges(r, a->merge_start);
}

static enum moec_status assemble(struct reader *r, struct moec_sentencepiece_affixes affixes,
                                 struct moec_tokenizer_model *model)
{
    enum moec_status status = MOEC_OK;
    struct arrays a = {0};
    uint32_t text_end = 0, prefix = 0, suffix = 0, n_prefix = 0, n_suffix = 0;
    void *bytes = NULL;
    size_t n_bytes = 0;
    if (r->normalizer.n_charsmap > MOEC_TOKENIZER_MAX_CHARSMAP)
        return moec_fail(r->err, MOEC_ERR_LIMIT,
                         "the tokenizer of '%s' has a character map of %zu bytes, more than the limit of "
                         "%u",
                         r->subject, r->normalizer.n_charsmap, MOEC_TOKENIZER_MAX_CHARSMAP);
    MOEC_TRY(affix_id(r, "bos_id", affixes.bos, r->trainer.bos_id, &prefix, &n_prefix));
    MOEC_TRY(affix_id(r, "eos_id", affixes.eos, r->trainer.eos_id, &suffix, &n_suffix));
    MOEC_TRY_OUT(fill_arrays(r, &a, &text_end));
    const struct pipeline pipeline = make_pipeline(r, text_end);
    const bool is_bpe = r->trainer.model_type == TYPE_BPE;
    const struct moec_tokenizer_model flat = {
        .flags = (is_bpe ? MOEC_TOKENIZER_FUSE_UNK : MOEC_TOKENIZER_UNIGRAM | MOEC_TOKENIZER_SENTENCEPIECE) |
                 (r->trainer.byte_fallback ? MOEC_TOKENIZER_BYTE_FALLBACK : 0),
        .n_tokens = r->pieces.vocab.n,
        .n_merges = (uint32_t)r->merges.n,
        .n_added = (uint32_t)r->added.n,
        .n_normalizer = 1,
        .n_decoder = pipeline.n_decoder,
        .n_prefix = n_prefix,
        .n_suffix = n_suffix,
        .unk_id = r->trainer.unk_id,
        .text_bytes = text_end + (uint32_t)sizeof STEP_TEXT - 1,
        .charsmap_bytes = (uint32_t)r->normalizer.n_charsmap,
        .token_start = a.token_start,
        .merge_start = a.merge_start,
        .merges = r->merges.all,
        .added = r->added.all,
        .normalizer = &pipeline.normalizer,
        .decoder = pipeline.decoder,
        .prefix = &prefix,
        .suffix = &suffix,
        .scores = a.scores,
        .text = a.text,
        .charsmap = r->normalizer.charsmap,
    };
    MOEC_TRY_OUT(moec_tokenizer_model_encode(&flat, &bytes, &n_bytes, r->err));
    MOEC_TRY_OUT(moec_tokenizer_model_decode(bytes, n_bytes, r->subject, model, r->err));
out:
    free(bytes);
    free(a.token_start);
    free(a.merge_start);
    free(a.scores);
    free(a.text);
    return status;
}

enum moec_status moec_sentencepiece_read(const uint8_t *bytes, size_t n_bytes, const char *subject,
                                         struct moec_sentencepiece_affixes affixes,
                                         struct moec_tokenizer_model *model, struct moec_error *err)
{
    *model = (struct moec_tokenizer_model){0};
    if (n_bytes > MOEC_SENTENCEPIECE_MAX_BYTES)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "the tokenizer of '%s' has %zu bytes, more than the limit of %zu", subject, n_bytes,
                         MOEC_SENTENCEPIECE_MAX_BYTES);
    /* Defaults of the message. */
    struct reader r = {
        .subject = subject,
        .err = err,
        .trainer = {.unk_id = MOEC_TOKENIZER_NO_ID, .model_type = TYPE_UNIGRAM, .bos_id = 1, .eos_id = 2},
        .normalizer = {.dummy_prefix = true, .remove_extra = true, .escape = true}};
    enum moec_status status = read_message(&r, bytes, n_bytes);
    if (status == MOEC_OK)
        status = moec_unigram_vocab_sort(&r.pieces.vocab, subject, err);
    if (status == MOEC_OK)
        status = list_controls(&r, affixes);
    if (status == MOEC_OK)
        status = assemble(&r, affixes, model);
    moec_unigram_vocab_release(&r.pieces.vocab);
    free(r.pieces.types);
    free(r.merges.ranks);
    free(r.merges.all);
    free(r.merges.lefts);
    free(r.added.all);
    return status;
}
