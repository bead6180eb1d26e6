/* What moec fit found, on one screen or as JSON. Thread rule: main thread. */
#ifndef MOEC_CLI_FIT_OUTPUT_H
#define MOEC_CLI_FIT_OUTPUT_H

#include "compiler/tune/tune.h"
#include "formats/bundle/bundle_fit.h"

#define CLI_FIT_MAX_LOOKS 8

/* The same bundle elsewhere, or without one of its decisions: what it would take, which nobody promises. */
struct cli_fit_look {
    char name[64];
    double amount; /* ns a token, or bytes; NaN: it does not run there */
};

struct cli_fit_result {
    const char *file, *program; /* borrowed: the bundle, and what the command line calls its memory */
    const char *memory;
    const char *page;               /* of --report; NULL: none */
    bool by_bytes;                  /* of no device: read_bytes of what is foretold is what counts */
    double compiled_read_bytes;     /* of the plan of moec compile; 0: there is none */
    uint64_t file_bytes, all_bytes; /* of the bundle, and of its experts in memory */
    const struct moec_tune_report *report;
    struct moec_bundle_fit fit;
    struct moec_foretold foretold; /* of the bundle on the device */
    uint32_t n_look;
    struct cli_fit_look looks[CLI_FIT_MAX_LOOKS];
};

/* What most of a token's time goes to: "storage" or "computing". */
const char *cli_fit_bound_by(const struct cli_fit_result *result);
/* Of bits alone that are written since no test of anything faster passed: a sentence without its end; else NULL. */
const char *cli_fit_why_plain(const struct cli_fit_result *result);

void cli_print_fit(const struct cli_fit_result *result);
MOEC_WARN_UNUSED enum moec_status cli_print_fit_json(const struct cli_fit_result *result,
                                                     struct moec_error *err);

#endif
