/* Scores pairs of texts from standard input with ROUGE, for comparison with another implementation
 * (tests/live/compare_rouge.py).
 *
 *     rouge < pairs > answers
 *
 * A record is one letter (p: plain, s: words stemmed) and twice a 32-bit little-endian length and so many
 * bytes: reference, then candidate. Answers are nine doubles each: precision, recall, F1 of ROUGE-1, 2 and L.
 * With the letter w the reference is one word of a-z and 0-9, the candidate empty, and the answer the stem's
 * 32-bit length and bytes. */
#include "profiler/tasks/rouge.h"
#include "formats/base/memory.h"
#include "profiler/tasks/porter_stem.h"

#include <stdio.h>

static bool read_text(char **bytes, size_t *capacity, uint32_t *n_bytes, struct moec_error *err)
{
    return fread(n_bytes, sizeof *n_bytes, 1, stdin) == 1 &&
           moec_grow((void **)bytes, capacity, (size_t)*n_bytes + 1, 1, "a record", err) == MOEC_OK &&
           fread(*bytes, 1, *n_bytes, stdin) == *n_bytes;
}

int main(void)
{
    struct moec_error err = {0};
    char *texts[2] = {NULL, NULL};
    size_t capacities[2] = {0, 0};
    int letter = 0;
    int result = 0;
    while (result == 0 && (letter = getchar()) != EOF) {
        uint32_t n_bytes[2] = {0, 0};
        struct moec_rouge scores[MOEC_ROUGE_KINDS];
        if (!read_text(&texts[0], &capacities[0], &n_bytes[0], &err) ||
            !read_text(&texts[1], &capacities[1], &n_bytes[1], &err)) {
            (void)fprintf(stderr, "rouge: a record is cut short\n");
            result = 1;
        } else if (letter == 'w') {
            uint32_t n = (uint32_t)moec_porter_stem(texts[0], n_bytes[0]);
            (void)fwrite(&n, sizeof n, 1, stdout);
            (void)fwrite(texts[0], 1, n, stdout);
        } else if (moec_rouge_measure(
                       &(struct moec_rouge_texts){texts[0], n_bytes[0], texts[1], n_bytes[1], letter == 's'},
                       scores, &err) != MOEC_OK) {
            (void)fprintf(stderr, "rouge: %s\n", err.message);
            result = 1;
        } else {
            (void)fwrite(scores, sizeof scores, 1, stdout);
        }
    }
    free(texts[0]);
    free(texts[1]);
    return result;
}
