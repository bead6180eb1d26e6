/* Insertion heuristic for the travelling salesman: a doubly linked path, with each row's distance to its
 * successor in `step`. `away` holds the distances of the row at work, and is valid only between a search and
 * its put. Scratch serves twice: sorting uses `away` and `step` before there is a path. Ties go to the first
 * place, so the order is a function of the rows. */
#include "compiler/fit/seriation.h"

#include <stdbool.h>
#include <string.h>

#define NONE UINT32_MAX

struct path {
    struct {
        const uint64_t *rows;
        uint32_t n, n_words;
    } bits;
    uint32_t first;
    uint32_t *next, *before; /* (n) by row; NONE at the ends */
    uint32_t *step;          /* (n): distance to the next one */
    uint32_t *away;          /* (n): distances of the row at work */
    uint32_t *turn;          /* (n): rows, those with most bits first */
};

size_t moec_seriation_scratch_count(uint32_t n)
{
    return (size_t)n * 5;
}

/* Without an instruction of the processor's, which not all have: its replacement looks up bytes. */
static uint32_t count_bits(uint64_t x)
{
    x -= x >> 1 & 0x5555555555555555u;
    x = (x & 0x3333333333333333u) + (x >> 2 & 0x3333333333333333u);
    x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0fu;
    return (uint32_t)(x * 0x0101010101010101u >> 56);
}

static uint32_t distance(const struct path *path, uint32_t a, uint32_t b)
{
    const uint64_t *x = path->bits.rows + (size_t)a * path->bits.n_words,
                   *y = path->bits.rows + (size_t)b * path->bits.n_words;
    uint32_t n = 0;
    for (uint32_t i = 0; i < path->bits.n_words; i++)
        n += count_bits(x[i] ^ y[i]);
    return n;
}

/* Puts a row behind `place`, or first behind NONE. */
static void put(struct path *path, uint32_t row, uint32_t place)
{
    const uint32_t after = place == NONE ? path->first : path->next[place];
    path->before[row] = place;
    path->next[row] = after;
    path->step[row] = after == NONE ? 0 : path->away[after];
    if (place == NONE) {
        path->first = row;
    } else {
        path->next[place] = row;
        path->step[place] = path->away[place];
    }
    if (after != NONE)
        path->before[after] = row;
}

/* Where a row that is not on the path lengthens it least. */
static void insert(struct path *path, uint32_t row)
{
    uint32_t best = NONE;
    int64_t least = INT64_MAX;
    for (uint32_t at = path->first; at != NONE; at = path->next[at])
        path->away[at] = distance(path, row, at);
    if (path->first != NONE)
        least = path->away[path->first];
    for (uint32_t at = path->first; at != NONE; at = path->next[at]) {
        const uint32_t after = path->next[at];
        const int64_t longer =
            after == NONE ? path->away[at] : (int64_t)path->away[at] + path->away[after] - path->step[at];
        if (longer < least) {
            least = longer;
            best = at;
        }
    }
    put(path, row, best);
}

static void take_out(struct path *path, uint32_t row)
{
    const uint32_t before = path->before[row], after = path->next[row];
    if (before == NONE)
        path->first = after;
    else
        path->next[before] = after;
    if (after != NONE)
        path->before[after] = before;
    if (before != NONE)
        path->step[before] = after == NONE ? 0 : distance(path, before, after);
}

static uint32_t bit_count(const struct path *path, uint32_t row)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < path->bits.n_words; i++)
        n += count_bits(path->bits.rows[(size_t)row * path->bits.n_words + i]);
    return n;
}

/* Sorts `turn` by falling number of bits, equal rows rising, by merging runs. */
static void find_turns(struct path *path)
{
    uint32_t *from = path->turn, *to = path->step;
    for (uint32_t row = 0; row < path->bits.n; row++) {
        path->away[row] = bit_count(path, row);
        from[row] = row;
    }
    for (uint32_t width = 1; width < path->bits.n; width *= 2) {
        for (uint32_t first = 0; first < path->bits.n; first += 2 * width) {
            const uint32_t middle = first + width < path->bits.n ? first + width : path->bits.n;
            const uint32_t end = middle + width < path->bits.n ? middle + width : path->bits.n;
            for (uint32_t a = first, b = middle, at = first; at < end; at++) {
                const bool takes_a = b >= end || (a < middle && path->away[from[a]] >= path->away[from[b]]);
                to[at] = from[takes_a ? a++ : b++];
            }
        }
        uint32_t *const sorted = to;
        to = from;
        from = sorted;
    }
    if (from != path->turn)
        memcpy(path->turn, from, path->bits.n * sizeof *from);
}

void moec_seriation_make(const uint64_t *rows, uint32_t n, uint32_t n_words, uint32_t *scratch,
                         uint16_t *order)
{
    struct path path = {.bits = {.rows = rows, .n = n, .n_words = n_words},
                        .first = NONE,
                        .next = scratch,
                        .before = scratch + n,
                        .step = scratch + 2 * (size_t)n,
                        .away = scratch + 3 * (size_t)n,
                        .turn = scratch + 4 * (size_t)n};
    find_turns(&path);
    for (uint32_t i = 0; i < n; i++)
        insert(&path, path.turn[i]);
    for (uint32_t turn = 0; turn < MOEC_SERIATION_TURNS; turn++)
        for (uint32_t i = 0; i < n; i++) {
            take_out(&path, path.turn[i]);
            insert(&path, path.turn[i]);
        }
    uint32_t place = 0;
    for (uint32_t at = path.first; at != NONE; at = path.next[at])
        order[place++] = (uint16_t)at;
}
