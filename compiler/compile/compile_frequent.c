/* An error in a row of the embedding or the head does harm each time that its token is read or predicted: about in
 * proportion to how often that is. Vocabularies number tokens about from frequent to rare. So rows of small numbers are
 * worth more bits.
 *
 * A bit more quarters a squared error. If a row that is f times as frequent gets log2(f) / 2 bits more, all rows do as
 * much harm. Two parts with r1 and r2 of the rows and p1 and p2 of the text then take
 *
 *   (r1 log2(r1 / p1) + r2 log2(r2 / p2)) / 2
 *
 * bits per weight less than one part does at the same harm. The parts are cut where this is largest. */
#include "compiler/compile/compile_frequent.h"

#include "formats/base/memory.h"

#include <math.h>

#define LEAST_ROWS  1024u /* of a vocabulary that is cut */
#define STEP_ROWS   64u
#define WORTH       0.003 /* of the bundle's bytes, that the cut saves */
#define BUNDLE_BITS 2.5   /* of a weight, about */
/* Of typical text: one id of so many is frequent, and two codecs save so many bits per weight. */
#define TYPICAL_SHARE 4
#define TYPICAL_SAVED 0.4

/* Of all experts and of all dense matrices that plans encode. */
static double count_weights(const struct moec_config *config)
{
    double n = (double)moec_config_moe_count(config) * config->n_expert * config->n_embd *
               config->n_ff_expert * moec_config_mlp_matrices(config);
    for (struct moec_dense_walk at = {0}; moec_dense_next_matrix(config, &at);)
        n += (double)at.rows * at.columns;
    return n;
}

static bool is_worth(const struct moec_config *config, double saved_bits)
{
    const double n_divided = (double)config->n_vocab * config->n_embd * (config->head.is_tied ? 1 : 2);
    return config->n_vocab >= LEAST_ROWS &&
           saved_bits * n_divided >= WORTH * BUNDLE_BITS * count_weights(config);
}

/* Half of a part's term above. */
static double part_bits(double row_share, double text_share)
{
    return row_share * log2(row_share / text_share) / 2;
}

uint32_t moec_compile_frequent_count(const struct moec_config *config, const uint32_t *counts)
{
    const double n_vocab = config->n_vocab;
    double all = 1, first = 0, most = 0; /* one occurrence is of all ids alike, so that no part is without */
    uint32_t best = 0;
    for (uint32_t id = 0; id < config->n_vocab; id++)
        all += counts[id];
    for (uint32_t id = 0; id + STEP_ROWS < config->n_vocab; id++) {
        first += counts[id];
        const double rows = (id + 1) / n_vocab, text = (first + rows) / all;
        if ((id + 1) % STEP_ROWS != 0 || text <= rows)
            continue;
        const double saved = part_bits(rows, text) + part_bits(1 - rows, 1 - text);
        if (saved > most) {
            most = saved;
            best = id + 1;
        }
    }
    return is_worth(config, most) ? best : 0;
}

static bool may_have(const struct moec_compile_options *options)
{
    return options->search.offers_variants && options->dense.is_planned;
}

uint32_t moec_compile_frequent_expect(const struct moec_config *config,
                                      const struct moec_compile_options *options)
{
    return may_have(options) && is_worth(config, TYPICAL_SAVED) ? config->n_vocab / TYPICAL_SHARE : 0;
}

enum moec_status moec_compile_frequent_choose(struct moec_compile_run *run, struct moec_error *err)
{
    const struct moec_config *config = moec_checkpoint_config(run->checkpoint);
    struct moec_windows windows = {0};
    uint32_t *counts = NULL;
    enum moec_status status = MOEC_OK;
    moec_checkpoint_set_frequent(run->checkpoint, 0);
    if (run->profile == NULL || !may_have(run->options))
        return MOEC_OK;
    MOEC_TRY(moec_alloc((void **)&counts, config->n_vocab, sizeof *counts, "counts of tokens", err));
    MOEC_TRY_OUT(moec_windows_from_profile(run->profile, MOEC_PART_SEARCH, &windows, err));
    for (uint32_t w = 0; w < windows.n_window; w++)
        for (uint32_t t = 0; t < windows.length[w]; t++) {
            const uint32_t id = moec_windows_tokens(&windows, w)[t];
            if (id < config->n_vocab) /* which a profile that was edited may say otherwise */
                counts[id]++;
        }
    moec_checkpoint_set_frequent(run->checkpoint, moec_compile_frequent_count(config, counts));
    if (config->n_frequent > 0)
        moec_compile_say(run, "rows of the %u most frequent of %u tokens may have more bits than the rest",
                         config->n_frequent, config->n_vocab);
out:
    moec_windows_release(&windows);
    free(counts);
    return status;
}
