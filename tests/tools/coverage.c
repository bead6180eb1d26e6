/* How often the upper end of a loss's interval covers the true loss, on the windows of a profile.
 *
 *     coverage PROFILE.h5 [REDRAWS [WINDOWS_OF_A_DOCUMENT]]
 *
 * The windows that the profile has losses of stand for all text: the loss of a whole model on all of them is
 * the true one, and the target. A redraw takes 64 of them, with replacement, as the search part and as many as
 * are asked for as the certificate's: 64, 128, or as many as the rule says that compile goes by
 * (compiler/certify/prefix.h). By documents, runs of 2 neighbouring windows (or as many as are said) are drawn
 * whole. Prints a TSV, and fails where less than 94.5 % of the redraws by the rule are covered. */
#include "compiler/certify/prefix.h"
#include "formats/base/memory.h"
#include "formats/profile/profile_h5.h"
#include "profiler/common/random.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_SEARCH 64u
#define LEAST    0.945
#define BY_RULE  0u

/* A redraw of windows. */
struct draw {
    uint32_t n;
    uint32_t scored[MOEC_PREFIX_MOST];
    uint64_t document[MOEC_PREFIX_MOST];
    double reference[MOEC_PREFIX_MOST], variant[MOEC_PREFIX_MOST];
};

struct tool {
    struct moec_profile profile;
    uint32_t *windows; /* (n): those with losses, in the order of the text; owned */
    uint32_t n, n_redraw, block;
    bool by_document;
    struct moec_random random;
    struct draw search, certificate;
    uint64_t n_taken; /* windows of certificates by the rule */
};

static const struct moec_profile *sorted;

static int compare_places(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    const uint64_t *index = sorted->window_index;
    return (index[x] > index[y]) - (index[x] < index[y]);
}

/* Draws n windows, or documents until there are n. */
static void redraw(struct tool *tool, uint32_t u, uint32_t n, struct draw *draw)
{
    const struct moec_profile *profile = &tool->profile;
    const uint32_t block = tool->by_document ? tool->block : 1;
    draw->n = 0;
    for (uint64_t document = 0; draw->n < n; document++) {
        const uint32_t first = block * (uint32_t)moec_random_below(&tool->random, tool->n / block);
        for (uint32_t i = first; i < first + block && draw->n < n; i++) {
            const uint32_t w = tool->windows[i];
            draw->scored[draw->n] = profile->window_scored[w];
            draw->document[draw->n] = document;
            draw->reference[draw->n] = profile->reference.nll[w];
            draw->variant[draw->n++] = profile->uniform[u].nll[w];
        }
    }
}

static enum moec_status measure(const struct tool *tool, const struct draw *draw, uint32_t n,
                                struct moec_loss *loss, struct moec_error *err)
{
    const struct moec_loss_options options = moec_loss_options_default();
    const struct moec_loss_windows windows = {.n_window = n,
                                              .scored = draw->scored,
                                              .documents = tool->by_document ? draw->document : NULL,
                                              .part = MOEC_PART_ALL};
    return moec_loss_measure(&windows, &(struct moec_paired_nll){draw->reference, draw->variant, NULL},
                             &options, loss, err);
}

/* One redraw: as many windows as asked for, or as the rule says. */
static enum moec_status try_once(struct tool *tool, uint32_t u, uint32_t asked, double truth,
                                 bool *is_covered, struct moec_error *err)
{
    struct moec_loss search, loss;
    struct moec_prefix_request request = {.n_window = MOEC_PREFIX_MOST,
                                          .documents = tool->by_document ? tool->certificate.document : NULL,
                                          .target = truth,
                                          .confidence = moec_loss_options_default().confidence};
    uint32_t n = asked;
    if (asked == BY_RULE) {
        redraw(tool, u, N_SEARCH, &tool->search);
        MOEC_TRY(measure(tool, &tool->search, N_SEARCH, &search, err));
        request.error = search.error;
        request.n_measured = N_SEARCH;
    }
    redraw(tool, u, asked == BY_RULE ? MOEC_PREFIX_MOST : n, &tool->certificate);
    if (asked == BY_RULE)
        n = moec_prefix_choose(&request);
    tool->n_taken += n;
    MOEC_TRY(measure(tool, &tool->certificate, n, &loss, err));
    *is_covered = loss.high >= truth;
    return MOEC_OK;
}

static enum moec_status run_one(struct tool *tool, uint32_t u, uint32_t asked, bool *is_enough,
                                struct moec_error *err)
{
    const struct moec_profile *profile = &tool->profile;
    double difference = 0, n_token = 0;
    uint32_t n_covered = 0;
    const uint32_t n = tool->by_document ? tool->n / tool->block * tool->block : tool->n;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t w = tool->windows[i];
        difference += profile->uniform[u].nll[w] - profile->reference.nll[w];
        n_token += profile->window_scored[w];
    }
    const double truth = expm1(difference / n_token);
    if (!(truth > 0))
        return MOEC_OK;
    tool->n_taken = 0;
    for (uint32_t r = 0; r < tool->n_redraw; r++) {
        bool is_covered = false;
        MOEC_TRY(try_once(tool, u, asked, truth, &is_covered, err));
        n_covered += is_covered;
    }
    const double share = n_covered / (double)tool->n_redraw;
    char text[24] = "by the rule";
    if (asked != BY_RULE)
        (void)snprintf(text, sizeof text, "%" PRIu32, asked);
    (void)printf("%" PRIu32 "\t%.3f%%\t%s\t%s\t%.0f\t%.2f%%\n", profile->uniform_bits[u], 100 * truth,
                 tool->by_document ? "documents" : "windows", text, (double)tool->n_taken / tool->n_redraw,
                 100 * share);
    *is_enough = *is_enough && (asked != BY_RULE || share >= LEAST);
    return MOEC_OK;
}

static enum moec_status run(struct tool *tool, const char *path, bool *is_enough, struct moec_error *err)
{
    static const uint32_t asked[] = {64, 128, BY_RULE};
    const struct moec_profile *profile = &tool->profile;
    uint8_t digest[MOEC_SHA256_BYTES];
    MOEC_TRY(moec_profile_read(path, false, &tool->profile, digest, err));
    MOEC_TRY(moec_alloc((void **)&tool->windows, profile->n_window, sizeof *tool->windows, "windows", err));
    for (uint32_t w = 0; w < profile->n_window; w++)
        if (isfinite(profile->reference.nll[w]))
            tool->windows[tool->n++] = w;
    if (tool->n < 2 * tool->block)
        return moec_fail(err, MOEC_ERR_USAGE, "'%s' has losses of %" PRIu32 " windows only", path, tool->n);
    sorted = profile;
    qsort(tool->windows, tool->n, sizeof *tool->windows, compare_places);
    (void)printf("bits\tloss\tunits\tasked\twindows\tcovered\n");
    for (uint32_t u = 0; u < profile->n_uniform; u++)
        for (int by_document = 0; by_document < 2; by_document++)
            for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
                tool->by_document = by_document != 0;
                MOEC_TRY(run_one(tool, u, asked[i], is_enough, err));
            }
    return MOEC_OK;
}

int main(int argc, char **argv)
{
    static struct tool tool;
    struct moec_error err = {0};
    bool is_enough = true;
    tool.n_redraw = argc > 2 ? (uint32_t)atoi(argv[2]) : 10000;
    tool.block = argc > 3 ? (uint32_t)atoi(argv[3]) : 2;
    tool.random.state = MOEC_BOOTSTRAP_SEED;
    if (argc < 2 || tool.n_redraw < 1 || tool.block < 1) {
        (void)fprintf(stderr, "usage: coverage PROFILE.h5 [REDRAWS [WINDOWS_OF_A_DOCUMENT]]\n");
        return 2;
    }
    const enum moec_status status = run(&tool, argv[1], &is_enough, &err);
    if (status != MOEC_OK)
        (void)fprintf(stderr, "coverage: %s\n", err.message);
    free(tool.windows);
    moec_profile_release(&tool.profile);
    return status != MOEC_OK ? 2 : !is_enough;
}
