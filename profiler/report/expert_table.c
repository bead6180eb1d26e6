#include "profiler/report/expert_table.h"

#include "profiler/evaluate/metrics.h"
#include "profiler/plot/plot.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* "" for what is not known: what readers of CSV take as missing. */
static void put(FILE *stream, double value)
{
    if (isfinite(value))
        (void)fprintf(stream, ",%.9g", value);
    else
        (void)fputc(',', stream);
}

static enum moec_status put_expert(FILE *stream, const struct moec_profile *profile, uint32_t s, uint32_t e,
                                   uint32_t b, struct moec_error *err)
{
    const struct moec_loss_options options = moec_loss_options_default();
    struct moec_loss_windows windows = moec_profile_loss_windows(profile, MOEC_PART_ALL);
    struct moec_loss loss = {.loss = NAN, .low = NAN, .high = NAN, .mean_kl = NAN};
    windows.n_window = profile->n_sensitivity_window;
    if (moec_profile_expert_reached(profile, s, e))
        MOEC_TRY(moec_loss_measure(
            &windows,
            &(struct moec_paired_nll){profile->reference.nll,
                                      moec_profile_expert_row(profile, profile->expert_nll, s, e, b),
                                      moec_profile_expert_row(profile, profile->expert_kl, s, e, b)},
            &options, &loss, err));
    const bool has_interval = profile->sensitivity == MOEC_SENSITIVITY_EXACT;
    (void)fprintf(stream, "%" PRIu32 ",%" PRIu32 ",%" PRIu32, profile->moe_layers[s], e, profile->bits[b]);
    put(stream, loss.loss);
    put(stream, has_interval ? loss.low : (double)NAN);
    put(stream, has_interval ? loss.high : (double)NAN);
    put(stream, loss.mean_kl);
    (void)fprintf(stream, ",%" PRIu64 "\n", profile->activations[(size_t)s * profile->n_expert + e]);
    return MOEC_OK;
}

static enum moec_status put_all(FILE *stream, const struct moec_profile *profile, struct moec_error *err)
{
    (void)fputs("layer,expert,bits,loss,low,high,kl,tokens\n", stream);
    for (uint32_t s = 0; s < profile->n_moe_layer; s++)
        for (uint32_t e = 0; e < profile->n_expert; e++)
            for (uint32_t b = 0; b < profile->n_bits; b++)
                MOEC_TRY(put_expert(stream, profile, s, e, b, err));
    return MOEC_OK;
}

enum moec_status moec_expert_table_write(const struct moec_profile *profile, const char *path,
                                         struct moec_error *err)
{
    enum moec_plot_format format = MOEC_PLOT_CSV;
    char *text = NULL;
    size_t n_bytes = 0;
    MOEC_TRY(moec_plot_format_of(path, &format, err));
    if (format != MOEC_PLOT_CSV)
        return moec_fail(err, MOEC_ERR_USAGE, "the name of the table '%s' does not end in .csv", path);
    FILE *stream = open_memstream(&text, &n_bytes);
    if (stream == NULL)
        return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: table '%s'", path);
    enum moec_status status = put_all(stream, profile, err);
    if (fclose(stream) != 0 && status == MOEC_OK)
        status = moec_fail(err, MOEC_ERR_MEMORY, "out of memory: table '%s'", path);
    if (status == MOEC_OK)
        status = moec_plot_write_csv(path, text, n_bytes, err);
    free(text);
    return status;
}
