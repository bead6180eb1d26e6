#include "cli/output/figure_output.h"

#include "cli/options/outputs.h"
#include "cli/print/print.h"
#include "formats/base/file.h"
#include "profiler/report/report.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define N_FORMAT 4

static const char *const endings[N_FORMAT] = {
    [MOEC_PLOT_PNG] = "png", [MOEC_PLOT_SVG] = "svg", [MOEC_PLOT_PDF] = "pdf", [MOEC_PLOT_CSV] = "csv"};

static enum moec_status read_formats(const struct cli_args *args, enum moec_plot_format formats[N_FORMAT],
                                     uint32_t *n, struct moec_error *err)
{
    const char *list = cli_text(args, "plot-format");
    bool is_wanted[N_FORMAT] = {false};
    *n = 0;
    if (list != NULL && !cli_has(args, "plots"))
        return moec_fail(err, MOEC_ERR_USAGE, "--plot-format needs --plots FOLDER");
    if (list == NULL)
        list = "png,svg,csv";
    for (const char *item = list;; item++) {
        const size_t length = strcspn(item, ",");
        for (int f = 0; f < N_FORMAT; f++)
            if (strlen(endings[f]) == length && strncmp(item, endings[f], length) == 0)
                is_wanted[f] = true;
        item += length;
        if (*item == '\0')
            break;
    }
    for (int f = 0; f < N_FORMAT; f++)
        if (is_wanted[f])
            formats[(*n)++] = (enum moec_plot_format)f;
    return MOEC_OK;
}

/* Plots are many files: a name that ends as one of them was meant for one. */
static enum moec_status check_folder(const struct cli_args *args, struct moec_error *err)
{
    const char *folder = cli_text(args, "plots");
    const char *ending = folder != NULL ? strrchr(folder, '.') : NULL;
    for (int f = 0; f < N_FORMAT && ending != NULL; f++)
        if (strcmp(ending + 1, endings[f]) == 0 && !moec_path_is_folder(folder))
            return moec_fail(err, MOEC_ERR_USAGE,
                             "--plots writes many files, but '%s' is "
                             "the name of a single file: give a folder",
                             folder);
    return MOEC_OK;
}

bool cli_wants_figures(const struct cli_args *args)
{
    return cli_has(args, "plots") || cli_has(args, "report");
}

enum moec_status cli_check_figures(const struct cli_args *args, struct moec_error *err)
{
    enum moec_plot_format formats[N_FORMAT];
    uint32_t n = 0;
    MOEC_TRY(check_folder(args, err));
    if (cli_has(args, "plots"))
        MOEC_TRY(cli_check_folder("plots", cli_text(args, "plots"), err));
    return read_formats(args, formats, &n, err);
}

/* A figure may have the name of an input that stands in the same folder. */
static enum moec_status check_plots(const struct cli_args *args, const struct moec_figures *figures,
                                    const enum moec_plot_format *formats, uint32_t n, struct moec_error *err)
{
    for (uint32_t i = 0; i < figures->n; i++)
        for (uint32_t c = 0; c < figures->items[i].n_chart; c++)
            for (uint32_t f = 0; f < n; f++) {
                char *path = NULL;
                if (asprintf(&path, "%s/%s.%s", cli_text(args, "plots"), figures->items[i].charts[c].name,
                             endings[formats[f]]) < 0)
                    return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: path of a figure");
                const enum moec_status status = cli_check_output(args, "plots", path, err);
                free(path);
                MOEC_TRY(status);
            }
    return MOEC_OK;
}

enum moec_status cli_write_plots(const struct cli_args *args, const struct moec_figures *figures,
                                 bool is_silent, struct moec_error *err)
{
    enum moec_plot_format formats[N_FORMAT];
    uint32_t n = 0, n_written = 0;
    MOEC_TRY(read_formats(args, formats, &n, err));
    MOEC_TRY(check_plots(args, figures, formats, n, err));
    MOEC_TRY(moec_figures_write(figures, cli_text(args, "plots"), formats, n, &n_written, err));
    if (!is_silent)
        cli_print(stdout, "wrote %" PRIu32 " plots into '%s'\n", n_written, cli_text(args, "plots"));
    return MOEC_OK;
}

enum moec_status cli_write_figures(const struct cli_args *args, const struct moec_profile *profile,
                                   bool is_silent, struct moec_error *err)
{
    struct moec_figures figures = {0};
    enum moec_status status = MOEC_OK;
    if (!cli_wants_figures(args))
        return MOEC_OK;
    MOEC_TRY(moec_figures_make(profile, &figures, err));
    if (cli_has(args, "plots"))
        MOEC_TRY_OUT(cli_write_plots(args, &figures, is_silent, err));
    if (cli_has(args, "report")) {
        MOEC_TRY_OUT(moec_report_write(profile, &figures, cli_text(args, "report"), err));
        if (!is_silent)
            cli_print(stdout, "wrote '%s'\n", cli_text(args, "report"));
    }
out:
    moec_figures_release(&figures);
    return status;
}
