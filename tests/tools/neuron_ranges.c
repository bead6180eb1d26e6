/* What a token needs of an expert that is not in memory: requests for ranges of its pairs and their bytes,
 * counted on a text, with neurons as the bundle orders them and as if they were active by lot.
 *
 *     neuron_ranges MODEL.moec TEXT [PAIR_BYTES...]
 *
 * The bundle has thresholds (moec sparsify). PAIR_BYTES stand for the bundle's own, so that a small model
 * tells what its order would save in a larger one's records. Requests join ranges as runtime/experts/
 * expert_units.h does, at 550 MB/s and 10 us a request. Prints a TSV: bytes of a pair, share left out, share
 * of neurons active, share of the pairs' bytes read, requests; the last two again by lot. */
#include "formats/base/memory.h"
#include "formats/bundle/record_parts.h"
#include "profiler/common/random.h"
#include "profiler/evaluate/score.h"
#include "profiler/evaluate/source.h"
#include "runtime/forward/moe/mlp.h"
#include "runtime/forward/moe/sparsity.h"
#include "runtime/text/tokenizer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GAP_BYTES 5500u
#define N_WINDOW  64u
#define WINDOW    128u
#define MAX_PAIRS 8

static const double shares[] = {0.7, 0.8, 0.9};

struct counts {
    double n_reads, read_bytes;
};

struct tool {
    struct moec_source source;
    struct moec_windows windows;
    uint32_t pair_bytes[MAX_PAIRS];
    int n_pair;
    uint64_t *bits, *by_lot; /* neurons of an expert */
    struct moec_random random;
    /* Of a share. */
    double n_token, n_active;
    struct counts real[MAX_PAIRS], lot[MAX_PAIRS];
};

static bool bit_of(const uint64_t *bits, uint32_t at)
{
    return (bits[at / 64] >> (at % 64) & 1) != 0;
}

/* Adds what is read for these neurons of n. */
static void count(const uint64_t *bits, uint32_t n, uint32_t pair_bytes, struct counts *counts)
{
    const uint32_t each = pair_bytes < MOEC_PARTS_UNIT_BYTES ? MOEC_PARTS_UNIT_BYTES / pair_bytes : 1;
    uint32_t end = 0; /* neurons before it are read, or left out */
    bool is_first = true;
    for (uint32_t unit = 0; unit < n; unit += each) {
        const uint32_t after = unit + each < n ? unit + each : n;
        bool is_needed = false;
        for (uint32_t i = unit; i < after; i++)
            is_needed = is_needed || bit_of(bits, i);
        if (!is_needed)
            continue;
        if (is_first || (unit - end) * (uint64_t)pair_bytes > GAP_BYTES)
            counts->n_reads++;
        else
            counts->read_bytes += (unit - end) * (double)pair_bytes;
        counts->read_bytes += (after - unit) * (double)pair_bytes;
        end = after;
        is_first = false;
    }
}

/* As many of n, anywhere. */
static void draw(struct tool *tool, uint32_t n, uint32_t n_active)
{
    memset(tool->by_lot, 0, (n + 63) / 64 * sizeof *tool->by_lot);
    for (uint32_t left = n; left > 0; left--) {
        if (moec_random_below(&tool->random, left) >= n_active)
            continue;
        tool->by_lot[(n - left) / 64] |= (uint64_t)1 << ((n - left) % 64);
        n_active--;
    }
}

static void take_expert(void *context, const struct moec_expert_inputs *in)
{
    struct tool *tool = context;
    if (in->expert == MOEC_EXPERT_ALL)
        return;
    const uint32_t n = in->mlp->up.rows;
    for (uint32_t t = 0; t < in->rows.n_pair; t++) {
        const struct moec_mlp_job job = {.mlp = *in->mlp,
                                         .pairs = {.list = in->rows.pairs + t,
                                                   .per_row = in->rows.top_k,
                                                   .n = 1,
                                                   .weights = in->rows.weights},
                                         .input = in->rows.normed};
        uint32_t n_active = 0;
        (void)moec_mlp_mark(in->forward, &job, tool->bits, NULL);
        for (uint32_t i = 0; i < n; i++)
            n_active += bit_of(tool->bits, i);
        draw(tool, n, n_active);
        for (int p = 0; p < tool->n_pair; p++) {
            count(tool->bits, n, tool->pair_bytes[p], &tool->real[p]);
            count(tool->by_lot, n, tool->pair_bytes[p], &tool->lot[p]);
        }
        tool->n_active += (double)n_active / n;
        tool->n_token++;
    }
}

static enum moec_status end_layer(void *context, uint32_t layer, struct moec_error *err)
{
    (void)context;
    (void)layer;
    (void)err;
    return MOEC_OK;
}

static enum moec_status count_share(struct tool *tool, struct moec_scorer *scorer, double share,
                                    struct moec_error *err)
{
    const struct moec_config *config = tool->source.config;
    struct moec_sparsity *sparsity = NULL;
    double *nll = NULL;
    MOEC_TRY(moec_sparsity_open(tool->source.bundle, 0, share, &sparsity, err));
    enum moec_status status = MOEC_OK;
    const struct moec_scorer_watch watch = {.inputs = {.take_expert = take_expert, .context = tool},
                                            .layer_done = end_layer};
    const struct moec_scorer_variation variation = {.watch = &watch};
    tool->n_token = tool->n_active = 0;
    memset(tool->real, 0, sizeof tool->real);
    memset(tool->lot, 0, sizeof tool->lot);
    MOEC_TRY_OUT(moec_scorer_set_sparsity(scorer, sparsity, err));
    MOEC_TRY_OUT(moec_alloc((void **)&nll, tool->windows.n_window, sizeof *nll, "losses", err));
    MOEC_TRY_OUT(moec_scorer_run_varied(scorer, &variation, &(struct moec_measure){.nll = nll}, NULL, err));
    for (int p = 0; p < tool->n_pair; p++) {
        const double all = (double)config->n_ff_expert * tool->pair_bytes[p] * tool->n_token;
        printf("%" PRIu32 "\t%g\t%.3f\t%.3f\t%.1f\t%.3f\t%.1f\n", tool->pair_bytes[p], share,
               tool->n_active / tool->n_token, tool->real[p].read_bytes / all,
               tool->real[p].n_reads / tool->n_token, tool->lot[p].read_bytes / all,
               tool->lot[p].n_reads / tool->n_token);
    }
out:
    if (moec_scorer_set_sparsity(scorer, NULL, err) != MOEC_OK && status == MOEC_OK)
        status = MOEC_ERR_IO;
    moec_sparsity_free(sparsity);
    free(nll);
    return status;
}

static enum moec_status read_windows(struct tool *tool, const char *path, struct moec_error *err)
{
    const struct moec_pool pool = moec_pool_make(0);
    struct moec_windows_options options = {.seq_len_tokens = WINDOW, .n_sample = N_WINDOW, .seed = 1};
    struct moec_task task = moec_task_text();
    struct moec_rows rows = {0};
    struct moec_tokenizer *tokenizer = NULL;
    MOEC_TRY(moec_rows_read(&task, path, 0, &rows, err));
    enum moec_status status = moec_tokenizer_create(tool->source.tokenizer, &tokenizer, err);
    if (status == MOEC_OK)
        status = moec_windows_make(&rows, tokenizer, &options, &pool, &tool->windows, err);
    moec_tokenizer_free(tokenizer);
    moec_rows_release(&rows);
    return status;
}

static enum moec_status run(struct tool *tool, int argc, char **argv, struct moec_error *err)
{
    struct moec_scorer *scorer = NULL;
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_source_open(argv[1], (uint64_t)4 << 30, 0, WINDOW, &tool->source, err));
    const uint32_t n_words = (tool->source.config->n_ff_expert + 63) / 64;
    const struct moec_scorer_options options = {.by.kernels = moec_kernels_best()};
    MOEC_TRY(read_windows(tool, argv[2], err));
    MOEC_TRY(moec_alloc((void **)&tool->bits, n_words, sizeof *tool->bits, "neurons", err));
    MOEC_TRY(moec_alloc((void **)&tool->by_lot, n_words, sizeof *tool->by_lot, "neurons", err));
    for (int i = 3; i < argc && tool->n_pair < MAX_PAIRS; i++)
        tool->pair_bytes[tool->n_pair++] = (uint32_t)strtoul(argv[i], NULL, 10);
    if (tool->n_pair == 0)
        tool->pair_bytes[tool->n_pair++] =
            (uint32_t)moec_bundle_layout(tool->source.bundle, 0, 0, 0)->pair_stride_bytes;
    MOEC_TRY(
        moec_scorer_create(tool->source.model, tool->source.experts, &tool->windows, &options, &scorer, err));
    printf("pair\tleft out\tactive\tbytes\trequests\tby lot: bytes\trequests\n");
    for (size_t i = 0; i < sizeof shares / sizeof *shares && status == MOEC_OK; i++)
        status = count_share(tool, scorer, shares[i], err);
    moec_scorer_free(scorer);
    return status;
}

int main(int argc, char **argv)
{
    struct tool tool = {0};
    struct moec_error err = {0};
    if (argc < 3) {
        fprintf(stderr, "usage: neuron_ranges MODEL.moec TEXT [PAIR_BYTES...]\n");
        return 2;
    }
    const enum moec_status status = run(&tool, argc, argv, &err);
    if (status != MOEC_OK)
        fprintf(stderr, "neuron_ranges: %s\n", err.message);
    moec_windows_release(&tool.windows);
    free(tool.bits);
    free(tool.by_lot);
    moec_source_close(&tool.source);
    return status == MOEC_OK ? 0 : 1;
}
