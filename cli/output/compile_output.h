/* What `moec compile` prints. */
#ifndef MOEC_CLI_COMPILE_OUTPUT_H
#define MOEC_CLI_COMPILE_OUTPUT_H

#include "cli/output/compile_forecast.h"
#include "cli/terminal/phase_output.h"
#include "compiler/compile/compile.h"

/* A compile that has ended; all of it is borrowed. */
struct cli_compile_result {
    const struct moec_compile_report *report;
    const struct moec_compile_options *options;
    const struct moec_config *config;
    const struct cli_phases *phases; /* empty without --verbose */
    struct {
        const char *bundle;
        const char *page; /* of --report, or NULL */
    } paths;
    double seconds;
    const struct cli_compile_forecast *forecast; /* that was made before it; NULL: none */
    bool is_quiet;                               /* what to do next is left out */
};

/* Bits, size, what mixing gains, peak memory and certificate, and what to do next. */
void cli_print_compile(const struct cli_compile_result *result);

MOEC_WARN_UNUSED enum moec_status cli_print_compile_json(const struct cli_compile_result *result,
                                                         struct moec_error *err);

#endif
