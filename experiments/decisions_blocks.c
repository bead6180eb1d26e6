#include "experiments/decisions_blocks.h"

#include "experiments/decisions_time_claims.h"

#include <math.h>
#include <stdio.h>

/* How a prompt was read: names of the files. */
enum way { WAY_NONE, WAY_TOKENS, WAY_BLOCKS, N_WAY };
static const char *const way_files[N_WAY] = {"none", "tokens", "blocks"};

#define MEMORY     50.0 /* percent of the experts */
#define LEAST_LESS 0.1  /* the figure to reach */
#define PAPER_LESS 0.14 /* of Fig. 14, the least of the paper's */

static const struct decisions_timing *timing_of(const struct decisions_blocks *blocks, enum way way,
                                                double rate)
{
    return decisions_timing_find(&blocks->times, way_files[way], "cache", MEMORY, rate);
}

/* How many bytes fewer a prompt reads than without decisions, 0.1 for 10 %; NaN where it was not measured. */
static double less_of(const struct decisions_blocks *blocks, enum way way)
{
    const struct decisions_timing *without = timing_of(blocks, WAY_NONE, decisions_rates[0]),
                                  *with = timing_of(blocks, way, decisions_rates[0]);
    return without != NULL && with != NULL ? 1 - with->prompt_bytes / without->prompt_bytes : (double)NAN;
}

void decisions_block_goals(const struct decisions_sample *sample, struct experiment_claims *claims)
{
    for (uint32_t b = 0; b < sample->n_blocks; b++) {
        const struct decisions_blocks *blocks = &sample->blocks[b];
        const struct decisions_point *loss = decisions_find(&blocks->losses, way_files[WAY_BLOCKS]);
        const double less = less_of(blocks, WAY_BLOCKS);
        char goal[192];
        (void)snprintf(
            goal, sizeof goal,
            "prompts, %u to %u bits, half of the memory: by blocks at least 10 %% fewer bytes than "
            "without decisions",
            blocks->bits, blocks->low_bits);
        struct experiment_claim *claim = experiment_claim_add(claims, "HOBBIT", goal);
        if (!isfinite(less) || loss == NULL)
            continue;
        experiment_claim_say(
            claim,
            "%.0f %% fewer: %.0f of %.0f KiB for %u tokens, at a loss of %.2f (%.2f to "
            "%.2f) %% of the prompts' own tokens",
            experiment_percent(less), timing_of(blocks, WAY_BLOCKS, decisions_rates[0])->prompt_bytes / 1024,
            timing_of(blocks, WAY_NONE, decisions_rates[0])->prompt_bytes / 1024,
            timing_of(blocks, WAY_NONE, decisions_rates[0])->prompt_tokens, experiment_percent(loss->loss),
            experiment_percent(loss->low), experiment_percent(loss->high));
        experiment_claim_decide(claim, less >= LEAST_LESS);
        if (less < LEAST_LESS)
            experiment_claim_explain(claim, "tokens that decide each for themselves read %+.0f %%",
                                     -experiment_percent(less_of(blocks, WAY_TOKENS)));
    }
}

/* Pairs of the systems of Fig. 14, or of dynamic loading alone. */
static void find_less(const struct decisions_sample *sample, bool is_of_systems, const char *figure,
                      const char *sentence, double least, struct experiment_claims *claims)
{
    char text[256] = "";
    size_t n = 0;
    bool is_so = true;
    for (uint32_t b = 0; b < sample->n_blocks; b++) {
        const struct decisions_blocks *blocks = &sample->blocks[b];
        const struct decisions_point *loss = decisions_find(&blocks->losses, way_files[WAY_BLOCKS]);
        const double less = less_of(blocks, WAY_BLOCKS), tokens = less_of(blocks, WAY_TOKENS);
        if (decisions_blocks_are_of_systems(blocks) != is_of_systems || !isfinite(less) ||
            !isfinite(tokens) || loss == NULL || n >= sizeof text)
            continue;
        n += (size_t)snprintf(
            text + n, sizeof text - n,
            "%s%u to %u bits: %+.0f %% of the bytes by blocks, at a loss of %.2f %%; %+.0f %% "
            "by tokens alone",
            n > 0 ? "; " : "", blocks->bits, blocks->low_bits, -experiment_percent(less),
            experiment_percent(loss->loss), -experiment_percent(tokens));
        is_so = is_so && less >= least;
    }
    if (n == 0)
        return;
    struct experiment_claim *claim = experiment_claim_add(claims, figure, sentence);
    experiment_claim_say(claim, "%s", text);
    experiment_claim_decide(claim, is_so);
}

void decisions_block_findings(const struct decisions_sample *sample, struct experiment_claims *claims)
{
    find_less(
        sample, true, "HOBBIT, Fig. 14",
        "prefill latency is 14 to 72 % lower, since dynamic loading reduces the volume of data to be read; "
        "here the bytes of a prompt",
        PAPER_LESS, claims);
    find_less(sample, false, "HOBBIT, Fig. 16",
              "dynamic loading reduces the volume of data to be read; here that of a prompt", 0, claims);
}

static void put_way(struct experiment_table *table, const struct decisions_blocks *blocks, enum way way)
{
    static const char *const names[N_WAY] = {"none", "hobbit:0.6:0.9, each token by itself",
                                             "hobbit:0.6:0.9, by blocks of 128"};
    const struct decisions_timing *fast = timing_of(blocks, way, decisions_rates[0]),
                                  *slow = timing_of(blocks, way, decisions_rates[1]);
    const struct decisions_point *loss = decisions_find(&blocks->losses, way_files[way]);
    if (fast == NULL || slow == NULL)
        return;
    experiment_table_cell(table, "%u and %u", blocks->bits, blocks->low_bits);
    experiment_table_cell(table, "%s", names[way]);
    experiment_table_number(table, fast->prompt_bytes, 1.0 / 1024, 1);
    experiment_table_number(table, way == WAY_NONE ? 0 : -less_of(blocks, way), 100, 1);
    experiment_table_number(table, fast->ttft_ms, 1, 2);
    experiment_table_number(table, slow->ttft_ms, 1, 2);
    if (way == WAY_NONE || loss == NULL) {
        experiment_table_cell(table, "0");
        experiment_table_cell(table, "-");
    } else {
        experiment_table_number(table, loss->loss, 100, 2);
        experiment_table_interval(table, loss->low, loss->high);
    }
    experiment_table_end_row(table);
}

enum moec_status decisions_page_blocks(const struct experiment_page *page,
                                       const struct decisions_sample *sample, struct moec_error *err)
{
    static const char *const headings[] = {
        "bits",           "decisions",     "KiB of a prompt", "more than without, %",
        "ms at 550 MB/s", "ms at 50 MB/s", "loss, %",         "90 % interval"};
    struct experiment_table table;
    char name[64];
    if (sample->n_blocks == 0)
        return MOEC_OK;
    experiment_page_heading(page, "HOBBIT, Fig. 14 and 16: what a prompt reads");
    experiment_page_paragraph(
        page,
        "Half of the experts fit into memory, a fifth of it for low copies; LRU, no preloads. Tokens of a "
        "prompt that decide each for themselves let a chunk read one expert in both copies. In a block, the "
        "first token that takes an expert decides for the others. The loss is that of the prompts' own "
        "tokens, against the same bundle without decisions.");
    MOEC_TRY(experiment_page_begin(page, &table, name, "blocks", headings, sizeof headings / sizeof *headings,
                                   err));
    for (uint32_t b = 0; b < sample->n_blocks; b++)
        for (int way = 0; way < N_WAY; way++)
            put_way(&table, &sample->blocks[b], (enum way)way);
    return experiment_page_end(page, &table, err);
}
