/* What `moec run --stats` prints: speed, memory use and expert hits, as text for people or as one JSON object
 * for programs. Written by hand against libmoert alone, since moec-run links no JSON library. Thread rule:
 * main thread. */
#ifndef MOEC_CLI_RUN_STATS_H
#define MOEC_CLI_RUN_STATS_H

#include "runtime/moert.h"

#include <stdio.h>

/* What the command itself measured. */
struct run_figures {
    uint64_t n_prompt_tokens;
    double prefill_seconds;
    uint64_t n_decode_tokens; /* after the prompt, the first that follows it left out */
    bool drafts;
    uint64_t n_drafted, n_accepted; /* with drafts: tokens drafted, and those of them that saved a step */
    double decode_seconds;
    struct moert_decisions decisions; /* as asked for */
    struct moert_decided decided;     /* and what came of it */
    uint64_t budget_bytes;            /* 0 = none */
    bool is_context_full;             /* the text ended because the context did */
    const char *note;                 /* moert_engine_warning, "" = nothing */
};

/* Whether storage took more than twice the time, 1, or less than half of it, -1, that the storage would have taken
 * which the bundle was fitted for; else 0, also for a bundle that was not fitted and after few reads. What lies
 * between reads that wait for each other and reads that wait for nothing cannot be told apart. */
int run_stats_storage_differs(const struct moert_info *info, const struct moert_stats *stats);

void run_stats_print_text(FILE *out, const struct moert_engine *engine, const struct run_figures *figures);

/* On one line. "layers" has the counters of each layer, "experts" those of all layers together. */
void run_stats_print_json(FILE *out, const struct moert_engine *engine, const struct run_figures *figures);

#endif
