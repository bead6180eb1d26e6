/* Words of both texts are sorted together and numbered, equal ones alike. Pairs of neighbours are then one
 * 64-bit number. Common words and pairs are counted by merging sorted lists, the longest subsequence with one
 * row of its table. */
#include "profiler/tasks/rouge.h"

#include "formats/base/memory.h"
#include "formats/base/utf8.h"
#include "profiler/tasks/porter_stem.h"

#include <string.h>

#define MAX_TEXT_BYTES      ((size_t)1 << 31)
#define MIN_STEMMED_LETTERS 4

struct word {
    const char *letters;
    size_t n;
    size_t position; /* in `ids` */
};

/* Both texts as numbers, one for each different word. */
struct words {
    char *letters;      /* owned */
    struct word *words; /* owned */
    uint64_t *ids;      /* owned: reference, then candidate */
    size_t n_reference, n_candidate;
};

static void release_texts(struct words *words)
{
    free(words->letters);
    free(words->words);
    free(words->ids);
}

/* The a-z or 0-9 that a character is in lower case, or a space. Beside A-Z two more become ASCII. */
static char fold(uint32_t code_point)
{
    if (code_point == 0x130) /* capital I with dot above: i and a combining dot, which parts words */
        return 'i';
    if (code_point == 0x212A) /* the Kelvin sign */
        return 'k';
    if (code_point >= 'A' && code_point <= 'Z')
        return (char)(code_point - 'A' + 'a');
    if ((code_point >= 'a' && code_point <= 'z') || (code_point >= '0' && code_point <= '9'))
        return (char)code_point;
    return ' ';
}

/* Appends the text's words at words[*n_word], their letters at letters[*n_letter]. */
static void split_words(const char *text, size_t n_bytes, bool stem, struct words *words, size_t *n_letter,
                        size_t *n_word)
{
    size_t start = *n_letter;
    for (size_t at = 0; at <= n_bytes;) {
        uint32_t code_point = ' ';
        if (at < n_bytes) {
            struct moec_utf8_char c = moec_utf8_read(text + at, n_bytes - at);
            code_point = c.code_point;
            at += c.n_bytes;
        } else {
            at++; /* the end parts words too */
        }
        char letter = fold(code_point);
        if (letter != ' ')
            words->letters[(*n_letter)++] = letter;
        size_t n = *n_letter - start;
        if (n == 0 || (letter != ' ' && code_point != 0x130))
            continue;
        if (stem && n >= MIN_STEMMED_LETTERS)
            n = moec_porter_stem(words->letters + start, n);
        if (n > 0)
            words->words[*n_word] = (struct word){words->letters + start, n, *n_word};
        *n_word += n > 0;
        start = *n_letter;
    }
}

static int compare_words(const void *a, const void *b)
{
    const struct word *x = a, *y = b;
    int order = memcmp(x->letters, y->letters, x->n < y->n ? x->n : y->n);
    return order != 0 ? order : (x->n > y->n) - (x->n < y->n);
}

static enum moec_status number_words(const struct moec_rouge_texts *texts, struct words *words,
                                     struct moec_error *err)
{
    const char *what = "the words of two texts";
    if (texts->reference_bytes > MAX_TEXT_BYTES || texts->candidate_bytes > MAX_TEXT_BYTES)
        return moec_fail(err, MOEC_ERR_LIMIT, "a text to score is longer than %zu bytes: give shorter texts",
                         MAX_TEXT_BYTES);
    const size_t n_bytes = texts->reference_bytes + texts->candidate_bytes;
    size_t n_letter = 0, n_word = 0;
    MOEC_TRY(moec_alloc((void **)&words->letters, n_bytes, 1, what, err));
    /* A capital I with dot above is a whole word in two bytes, any other needs a separator. */
    MOEC_TRY(moec_alloc((void **)&words->words, n_bytes / 2 + 2, sizeof *words->words, what, err));
    split_words(texts->reference, texts->reference_bytes, texts->stem, words, &n_letter, &n_word);
    words->n_reference = n_word;
    split_words(texts->candidate, texts->candidate_bytes, texts->stem, words, &n_letter, &n_word);
    words->n_candidate = n_word - words->n_reference;
    MOEC_TRY(moec_alloc((void **)&words->ids, n_word, sizeof *words->ids, what, err));
    qsort(words->words, n_word, sizeof *words->words, compare_words);
    uint64_t id = 0;
    for (size_t i = 0; i < n_word; i++) {
        id += i > 0 && compare_words(&words->words[i - 1], &words->words[i]) != 0;
        words->ids[words->words[i].position] = id;
    }
    return MOEC_OK;
}

static int compare_numbers(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Numbers that both sorted lists have, each as often as in both. */
static size_t count_common(const uint64_t *a, size_t n_a, const uint64_t *b, size_t n_b)
{
    size_t common = 0;
    for (size_t i = 0, j = 0; i < n_a && j < n_b;) {
        if (a[i] == b[j]) {
            common++;
            i++;
            j++;
        } else if (a[i] < b[j]) {
            i++;
        } else {
            j++;
        }
    }
    return common;
}

/* Words of a text in runs of n_gram (1 or 2), sorted; returns how many. */
static size_t sort_grams(const uint64_t *ids, size_t n, size_t n_gram, uint64_t *grams)
{
    size_t count = n >= n_gram ? n - n_gram + 1 : 0;
    for (size_t i = 0; i < count; i++)
        grams[i] = n_gram == 1 ? ids[i] : ids[i] << 32 | ids[i + 1];
    qsort(grams, count, sizeof *grams, compare_numbers);
    return count;
}

/* Length of the longest common subsequence; `row` has room for n_b + 1 numbers. */
static size_t common_subsequence(const uint64_t *a, size_t n_a, const uint64_t *b, size_t n_b, uint64_t *row)
{
    memset(row, 0, (n_b + 1) * sizeof *row);
    for (size_t i = 0; i < n_a; i++) {
        uint64_t diagonal = 0; /* row i-1, column j-1 */
        for (size_t j = 1; j <= n_b; j++) {
            uint64_t above = row[j];
            if (a[i] == b[j - 1])
                row[j] = diagonal + 1;
            else if (row[j - 1] > above)
                row[j] = row[j - 1];
            diagonal = above;
        }
    }
    return (size_t)row[n_b];
}

static struct moec_rouge rate(size_t common, size_t n_reference, size_t n_candidate)
{
    struct moec_rouge score = {0};
    if (common == 0)
        return score;
    score.precision = (double)common / (double)n_candidate;
    score.recall = (double)common / (double)n_reference;
    score.f1 = 2 * score.precision * score.recall / (score.precision + score.recall);
    return score;
}

enum moec_status moec_rouge_measure(const struct moec_rouge_texts *texts,
                                    struct moec_rouge scores[MOEC_ROUGE_KINDS], struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct words words = {0};
    uint64_t *room = NULL;
    MOEC_TRY_OUT(number_words(texts, &words, err));
    const uint64_t *ours = words.ids, *theirs = words.ids + words.n_reference;
    MOEC_TRY_OUT(moec_alloc((void **)&room, words.n_reference + words.n_candidate + 1, sizeof *room,
                            "the words of two texts", err));
    for (size_t n_gram = 1; n_gram <= 2; n_gram++) {
        uint64_t *grams = room + words.n_reference;
        size_t n_reference = sort_grams(ours, words.n_reference, n_gram, room);
        size_t n_candidate = sort_grams(theirs, words.n_candidate, n_gram, grams);
        scores[n_gram == 1 ? MOEC_ROUGE_1 : MOEC_ROUGE_2] =
            rate(count_common(room, n_reference, grams, n_candidate), n_reference, n_candidate);
    }
    scores[MOEC_ROUGE_L] = rate(common_subsequence(ours, words.n_reference, theirs, words.n_candidate, room),
                                words.n_reference, words.n_candidate);
out:
    free(room);
    release_texts(&words);
    return status;
}
