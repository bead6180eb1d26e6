/* Options that show what a profile holds: --plots, --plot-format and --report. */
#ifndef MOEC_CLI_FIGURE_OUTPUT_H
#define MOEC_CLI_FIGURE_OUTPUT_H

#include "cli/options/options.h"
#include "formats/profile/profile.h"
#include "profiler/report/figures.h"

/* Rows of an option table. */
#define CLI_FIGURE_OPTIONS                                                                                   \
    {"report",                                                                                               \
     0,                                                                                                      \
     "FILE.html",                                                                                            \
     NULL,                                                                                                   \
     "Write a page with the verdict and every figure.",                                                      \
     CLI_OUTPUT | CLI_OF_OUTPUT},                                                                            \
        {"plots", 0, "FOLDER", NULL, "Draw every figure for which there is data.", CLI_OF_OUTPUT},           \
    {                                                                                                        \
        "plot-format", 0, CLI_LIST, "png|svg|pdf|csv",                                                       \
            "Formats for --plots: png, svg, pdf, csv, separated by commas (default png,svg,csv).",           \
            CLI_RARE | CLI_OF_OUTPUT                                                                         \
    }

/* Whether any of them was given. */
bool cli_wants_figures(const struct cli_args *args);

/* Checks what can be checked before hours of measuring. Errors: MOEC_ERR_USAGE. */
MOEC_WARN_UNUSED enum moec_status cli_check_figures(const struct cli_args *args, struct moec_error *err);

/* Draws what was asked for and says on stdout what it wrote, unless `is_silent`. */
MOEC_WARN_UNUSED enum moec_status cli_write_figures(const struct cli_args *args,
                                                    const struct moec_profile *profile, bool is_silent,
                                                    struct moec_error *err);

/* --plots of these figures alone. */
MOEC_WARN_UNUSED enum moec_status cli_write_plots(const struct cli_args *args,
                                                  const struct moec_figures *figures, bool is_silent,
                                                  struct moec_error *err);

#endif
