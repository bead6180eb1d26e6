/* Documents come in a drawn order, and each goes to the part furthest behind its share; ties go to the
 * certificate. Documents of one window each fall back to drawing windows, with a generator that begins anew.
 * The order of draws is part of every profile: with another, a seed would give other parts. */
#include "profiler/evaluate/parts.h"

#include "formats/base/half.h"
#include "formats/base/memory.h"
#include "profiler/common/random.h"

#include <inttypes.h>
#include <string.h>

/* In the order in which their windows are kept. */
static const enum moec_part order_of_parts[MOEC_PART_COUNT] = {MOEC_PART_SEARCH, MOEC_PART_SELECT,
                                                               MOEC_PART_CERTIFICATE};

struct moec_part_split moec_part_split_make(const uint8_t *parts, uint32_t n_window)
{
    bool has[MOEC_PART_COUNT] = {false};
    for (uint32_t w = 0; w < n_window; w++)
        for (int part = 0; part < MOEC_PART_COUNT; part++)
            has[part] = has[part] || moec_part_has((enum moec_part)part, parts, w);
    return (struct moec_part_split){parts, has[MOEC_PART_CERTIFICATE] ? MOEC_PART_CERTIFICATE
                                           : has[MOEC_PART_SELECT]    ? MOEC_PART_SELECT
                                                                      : MOEC_PART_ALL};
}

bool moec_part_split_teaches(const struct moec_part_split *split, uint32_t w)
{
    if (split->tested == MOEC_PART_ALL)
        return w % 2 == 0;
    return moec_part_has(MOEC_PART_SEARCH, split->parts, w);
}

bool moec_part_split_tests(const struct moec_part_split *split, uint32_t w)
{
    return split->tested == MOEC_PART_ALL ? w % 2 == 1 : moec_part_has(split->tested, split->parts, w);
}

const char *moec_part_name(enum moec_part part)
{
    static const char *const names[] = {[MOEC_PART_SEARCH] = "search",
                                        [MOEC_PART_CERTIFICATE] = "certificate",
                                        [MOEC_PART_SELECT] = "select",
                                        [MOEC_PART_ALL] = "all"};
    return names[part];
}

/* ---- sizes ---- */

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Shares of n windows for the parts whose size is not given; `capped`: no part larger than the default. */
static void share(const struct moec_part_request *request, uint64_t n, bool capped,
                  uint64_t sizes[MOEC_PART_COUNT])
{
    const uint64_t given_search = request->n_part[MOEC_PART_SEARCH],
                   given_select = request->n_part[MOEC_PART_SELECT];
    uint64_t certificate = request->n_part[MOEC_PART_CERTIFICATE];
    if (certificate == 0) {
        const uint64_t given = smaller(n, given_search + given_select);
        certificate = smaller(n / 2, n - given);
        certificate = capped ? smaller(certificate, MOEC_DEFAULT_CERTIFICATE_WINDOWS) : certificate;
    }
    const uint64_t rest = n - smaller(n, certificate);
    uint64_t select = given_select, search = given_search;
    if (select == 0 && !request->no_select) {
        select = smaller(rest / 3,
                         rest - smaller(rest, given_search > 0 ? given_search : request->min_part_windows));
        select = capped ? smaller(select, MOEC_DEFAULT_SELECT_WINDOWS) : select;
        select = select < MOEC_MIN_SELECT_WINDOWS ? 0 : select;
    }
    if (search == 0) {
        search = rest - smaller(rest, select);
        search = capped ? smaller(search, MOEC_DEFAULT_SEARCH_WINDOWS) : search;
    }
    sizes[MOEC_PART_SEARCH] = search;
    sizes[MOEC_PART_SELECT] = select;
    sizes[MOEC_PART_CERTIFICATE] = certificate;
}

enum moec_status moec_parts_size(const struct moec_part_request *request, uint64_t n_available,
                                 uint32_t sizes[MOEC_PART_COUNT], struct moec_error *err)
{
    static const enum moec_part needed[] = {MOEC_PART_SEARCH, MOEC_PART_CERTIFICATE};
    uint64_t wide[MOEC_PART_COUNT], sum = 0;
    const uint64_t n = request->n_window > 0 ? smaller(request->n_window, n_available) : n_available;
    share(request, n, request->n_window == 0, wide);
    for (size_t i = 0; i < 2; i++)
        if (wide[needed[i]] < request->min_part_windows)
            return moec_fail(err, MOEC_ERR_USAGE,
                             "of %" PRIu64 " windows only %" PRIu64
                             " go to the %s part, expected at least %" PRIu32 ": draw at least %" PRIu32
                             " windows, or give fewer to the other parts",
                             n, wide[needed[i]], moec_part_name(needed[i]), request->min_part_windows,
                             2 * request->min_part_windows);
    for (int p = 0; p < MOEC_PART_COUNT; p++)
        sum += wide[p];
    if (sum > n)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "%" PRIu64 " windows to search on, %" PRIu64 " to select with and %" PRIu64 " to "
                         "certify with are %" PRIu64 " together, but the text has only %" PRIu64 "; ask for "
                         "fewer or shorter windows, or give more text",
                         wide[MOEC_PART_SEARCH], wide[MOEC_PART_SELECT], wide[MOEC_PART_CERTIFICATE], sum, n);
    for (int p = 0; p < MOEC_PART_COUNT; p++)
        sizes[p] = (uint32_t)wide[p];
    return MOEC_OK;
}

/* ---- drawing ---- */

struct documents {
    const uint64_t *starts;
    uint64_t n, n_available;
    uint64_t *order; /* (n_used): those with windows, in the order drawn; owned */
    uint8_t *part;   /* (n): of each document; owned */
    uint64_t n_used;
    uint64_t n_window[MOEC_PART_COUNT]; /* that the documents of each part have */
    double squares;                     /* sum of squares of the windows of documents that certify */
};

static uint64_t window_count(const struct documents *documents, uint64_t d)
{
    const uint64_t end = d + 1 < documents->n ? documents->starts[d + 1] : documents->n_available;
    return end - documents->starts[d];
}

/* Whether part a has less of its share than part b. */
static bool is_behind(const struct documents *documents, const uint32_t *sizes, enum moec_part a,
                      enum moec_part b)
{
    return (double)documents->n_window[a] * sizes[b] < (double)documents->n_window[b] * sizes[a];
}

/* Gives each document a part. False where that leaves a part with too few documents or windows. */
static bool assign_documents(struct documents *documents, const uint32_t *sizes)
{
    for (uint64_t i = 0; i < documents->n_used; i++) {
        const uint64_t d = documents->order[i];
        enum moec_part behind = MOEC_PART_CERTIFICATE;
        if (is_behind(documents, sizes, MOEC_PART_SEARCH, behind))
            behind = MOEC_PART_SEARCH;
        if (sizes[MOEC_PART_SELECT] > 0 && is_behind(documents, sizes, MOEC_PART_SELECT, behind))
            behind = MOEC_PART_SELECT;
        documents->part[d] = (uint8_t)behind;
        documents->n_window[behind] += window_count(documents, d);
        if (behind == MOEC_PART_CERTIFICATE)
            documents->squares += (double)window_count(documents, d) * (double)window_count(documents, d);
    }
    for (int p = 0; p < MOEC_PART_COUNT; p++)
        if (sizes[p] > 0 && documents->n_window[p] < smaller(sizes[p], MOEC_MIN_PART_WINDOWS))
            return false;
    const double sum = (double)documents->n_window[MOEC_PART_CERTIFICATE];
    return sum * sum >= MOEC_MIN_EFFECTIVE_DOCUMENTS * documents->squares;
}

static enum moec_status draw_documents(struct documents *documents, const uint32_t *sizes,
                                       struct moec_random *random, bool *by_document, struct moec_error *err)
{
    *by_document = false;
    for (uint64_t d = 0; d < documents->n; d++)
        documents->n_used += window_count(documents, d) > 0;
    if (documents->n_used < MOEC_MIN_DOCUMENTS)
        return MOEC_OK;
    MOEC_TRY(moec_alloc((void **)&documents->order, documents->n_used, sizeof(uint64_t),
                        "the list of documents", err));
    MOEC_TRY(moec_alloc((void **)&documents->part, documents->n, 1, "parts of the documents", err));
    uint64_t n = 0;
    for (uint64_t d = 0; d < documents->n; d++)
        if (window_count(documents, d) > 0)
            documents->order[n++] = d;
    moec_random_draw(random, documents->order, n, n);
    *by_document = assign_documents(documents, sizes);
    return MOEC_OK;
}

/* Draws the windows of one part from its documents, or its share of a list of all. */
static enum moec_status draw_part(const struct documents *documents, enum moec_part part, uint32_t n_wanted,
                                  struct moec_random *random, struct moec_part_draw *draw,
                                  struct moec_error *err)
{
    uint64_t *windows = NULL, n = 0;
    const uint64_t n_window = documents->n_window[part];
    const uint32_t n_drawn = (uint32_t)smaller(n_wanted, n_window);
    if (n_drawn == 0)
        return MOEC_OK;
    MOEC_TRY(moec_alloc((void **)&windows, n_window, sizeof *windows, "the list of windows", err));
    for (uint64_t d = 0; d < documents->n; d++)
        for (uint64_t w = 0; window_count(documents, d) > w && documents->part[d] == (uint8_t)part; w++)
            windows[n++] = documents->starts[d] + w;
    moec_random_draw(random, windows, n, n_drawn);
    memcpy(draw->index + draw->n_window, windows, n_drawn * sizeof *windows);
    memset(draw->parts + draw->n_window, (int)part, n_drawn);
    draw->n_window += n_drawn;
    free(windows);
    return MOEC_OK;
}

static enum moec_status draw_windows(uint64_t n_available, const uint32_t *sizes, uint32_t n_wanted,
                                     struct moec_random *random, struct moec_part_draw *draw,
                                     struct moec_error *err)
{
    uint64_t *windows = NULL;
    MOEC_TRY(moec_alloc((void **)&windows, n_available, sizeof *windows, "the list of windows", err));
    for (uint64_t i = 0; i < n_available; i++)
        windows[i] = i;
    moec_random_draw(random, windows, n_available, n_wanted);
    memcpy(draw->index, windows, n_wanted * sizeof *windows);
    for (int i = 0; i < MOEC_PART_COUNT; i++) {
        memset(draw->parts + draw->n_window, (int)order_of_parts[i], sizes[order_of_parts[i]]);
        draw->n_window += sizes[order_of_parts[i]];
    }
    free(windows);
    return MOEC_OK;
}

enum moec_status moec_parts_draw(const struct moec_part_documents *all, const uint32_t sizes[MOEC_PART_COUNT],
                                 uint64_t seed, struct moec_part_draw *draw, struct moec_error *err)
{
    const uint64_t n_available = all->n_window;
    struct documents documents = {.starts = all->starts, .n = all->n, .n_available = n_available};
    struct moec_random random = {seed};
    enum moec_status status = MOEC_OK;
    uint32_t n_wanted = 0;
    *draw = (struct moec_part_draw){0};
    for (int p = 0; p < MOEC_PART_COUNT; p++)
        n_wanted += sizes[p];
    MOEC_TRY_OUT(moec_alloc((void **)&draw->index, n_wanted, sizeof(uint64_t), "drawn windows", err));
    MOEC_TRY_OUT(moec_alloc((void **)&draw->parts, n_wanted, 1, "drawn windows", err));
    MOEC_TRY_OUT(draw_documents(&documents, sizes, &random, &draw->by_document, err));
    /* To draw one of documents with one window each is to draw a window. */
    const bool is_plain = !draw->by_document || documents.n_used == n_available;
    if (is_plain) {
        random = (struct moec_random){seed};
        MOEC_TRY_OUT(draw_windows(n_available, sizes, n_wanted, &random, draw, err));
    }
    for (int i = 0; !is_plain && i < MOEC_PART_COUNT; i++)
        MOEC_TRY_OUT(draw_part(&documents, order_of_parts[i], sizes[order_of_parts[i]], &random, draw, err));
out:
    free(documents.order);
    free(documents.part);
    return status;
}

void moec_part_draw_release(struct moec_part_draw *draw)
{
    free(draw->index);
    free(draw->parts);
    *draw = (struct moec_part_draw){0};
}

/* ---- routing ---- */

void moec_part_routing(const struct moec_profile *profile, enum moec_part part, uint64_t *activations,
                       double *mean_gate_weight)
{
    const uint32_t n_layer = profile->n_moe_layer, n_expert = profile->n_expert, k = profile->top_k;
    const size_t n = (size_t)n_layer * n_expert;
    uint64_t token = 0;
    if (profile->n_trace_token == 0) {
        memcpy(activations, profile->activations, n * sizeof *activations);
        memcpy(mean_gate_weight, profile->mean_gate_weight, n * sizeof *mean_gate_weight);
        return;
    }
    memset(activations, 0, n * sizeof *activations);
    memset(mean_gate_weight, 0, n * sizeof *mean_gate_weight);
    for (uint32_t w = 0; w < profile->n_window; w++) {
        const uint64_t end = token + moec_profile_traced(profile, w);
        for (; token < end && moec_part_has(part, profile->window_part, w); token++)
            for (uint32_t c = 0; c < n_layer * k; c++) {
                const size_t at = token * n_layer * k + c;
                if (profile->trace_experts[at] == MOEC_PROFILE_NO_EXPERT)
                    continue;
                const size_t expert = (size_t)(c / k) * n_expert + profile->trace_experts[at];
                activations[expert]++;
                mean_gate_weight[expert] += moec_f16_to_f32(profile->trace_weights[at]);
            }
        token = end;
    }
    for (size_t i = 0; i < n; i++)
        if (activations[i] > 0)
            mean_gate_weight[i] /= (double)activations[i];
}
