/* Edits are counted as the distance of optimal string alignment, in which no part is edited twice. Three rows
 * of its table take turns, since a swap looks two rows back. A word of more than LONGEST letters is near to
 * nothing. */
#include "cli/options/nearest.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define LONGEST 40

struct cli_nearest cli_nearest_of(const char *word, size_t length)
{
    return (struct cli_nearest){.word = word, .length = length, .best_edits = SIZE_MAX};
}

static size_t least(size_t a, size_t b, size_t c)
{
    const size_t smaller = a < b ? a : b;
    return smaller < c ? smaller : c;
}

/* Distance of optimal string alignment: each pair of letters is swapped at most once. */
static size_t edits(const char *a, size_t n, const char *b, size_t m)
{
    size_t rows[3][LONGEST + 1];
    for (size_t j = 0; j <= m; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t *row = rows[i % 3];
        const size_t *above = rows[(i - 1) % 3], *two_above = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            row[j] = least(above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = least(row[j], two_above[j - 2] + 1, SIZE_MAX);
        }
    }
    return rows[n % 3][m];
}

void cli_nearest_offer(struct cli_nearest *nearest, const char *candidate, size_t length)
{
    if (nearest->length > LONGEST || length > LONGEST || length == 0)
        return;
    const bool is_start = nearest->length >= 3 && nearest->length < length &&
                          memcmp(nearest->word, candidate, nearest->length) == 0;
    const size_t distance = is_start ? 1 : edits(nearest->word, nearest->length, candidate, length);
    if (distance * 3 > length && !is_start)
        return;
    if (distance < nearest->best_edits) {
        nearest->best = candidate;
        nearest->best_length = length;
        nearest->best_edits = distance;
    }
}

void cli_nearest_offer_choices(struct cli_nearest *nearest, const char *choices)
{
    for (const char *at = choices; *at != '\0'; at += *at == '|') {
        const size_t length = strcspn(at, "|");
        cli_nearest_offer(nearest, at, length);
        at += length;
    }
}
