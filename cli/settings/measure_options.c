/* Words are compared with names and not checked, since the option tables allow no others. What a verb does
 * not offer keeps its default. A quantiser brings its scheme where none is given: HQQ and trellis an
 * asymmetric one, outlier and log codes their own. */
#include "cli/settings/measure_options.h"

#include "cli/settings/engine_options.h"
#include "compiler/lua/task_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool has_option(const struct cli_args *args, const char *name)
{
    return cli_offers(args, name) && cli_has(args, name);
}

static enum moec_status check_nested(const struct cli_args *args, const struct moec_profile_codes *codes,
                                     struct moec_error *err)
{
    const char *scheme = cli_text(args, "scheme");
    if (codes->group == 0)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--scheme %s stores an 8-bit scale for each group of a "
                         "row, so it needs groups: give --group 16, 32, 64 or 128",
                         scheme);
    if (codes->quantizer == MOEC_QUANTIZER_AUTO)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--quantizer auto compares only symmetric and asymmetric codes: "
                         "leave out --scheme %s, or give --quantizer linear or hqq",
                         scheme);
    return MOEC_OK;
}

static enum moec_status read_quantiser(const struct cli_args *args, struct moec_profile_codes *out,
                                       struct moec_error *err)
{
    /* The table allows only these spellings. */
    if (has_option(args, "group") && strcmp(cli_text(args, "group"), "channel") != 0)
        out->group = (uint32_t)strtoul(cli_text(args, "group"), NULL, 10);
    for (int q = 0; has_option(args, "quantizer") && q < MOEC_QUANTIZER_COUNT; q++)
        if (strcmp(cli_text(args, "quantizer"), moec_quantizer_name((enum moec_quantizer)q)) == 0)
            out->quantizer = (enum moec_quantizer)q;
    out->any_scheme = out->quantizer == MOEC_QUANTIZER_AUTO && !has_option(args, "scheme");
    const bool is_hqq = out->quantizer == MOEC_QUANTIZER_HQQ || out->quantizer == MOEC_QUANTIZER_TRELLIS;
    if (!has_option(args, "scheme") && is_hqq)
        out->scheme = MOEC_SCHEME_ASYMMETRIC;
    for (int s = 0; has_option(args, "scheme") && s < MOEC_SCHEME_COUNT; s++)
        if (strcmp(cli_text(args, "scheme"), moec_scheme_name((enum moec_scheme)s)) == 0)
            out->scheme = (enum moec_scheme)s;
    if (moec_scheme_is_nested(out->scheme))
        MOEC_TRY(check_nested(args, out, err));
    const bool is_outlier = out->quantizer == MOEC_QUANTIZER_OUTLIER;
    if (is_outlier || out->quantizer == MOEC_QUANTIZER_LOG) {
        if (has_option(args, "scheme"))
            return moec_fail(err, MOEC_ERR_USAGE,
                             "--scheme applies to linear and hqq codes only: leave it out, as --quantizer %s "
                             "has its own scheme",
                             cli_text(args, "quantizer"));
        out->scheme = is_outlier ? MOEC_SCHEME_GAUSSIAN : MOEC_SCHEME_LOGARITHMIC;
    }
    if (has_option(args, "baseline"))
        out->baseline_bits = (uint32_t)strtoul(cli_text(args, "baseline"), NULL, 10);
    return MOEC_OK;
}

/* TMPDIR where the user names one, else beside the output, where room for a large file is expected anyway. */
static void choose_spill_folder(const struct cli_args *args, struct cli_measure_options *out)
{
    const char *named = getenv("TMPDIR");
    const char *output = has_option(args, "output") ? cli_text(args, "output") : NULL;
    const char *slash = output == NULL ? NULL : strrchr(output, '/');
    if (named != NULL && named[0] != '\0')
        (void)snprintf(out->memory.spill_folder, sizeof out->memory.spill_folder, "%s", named);
    else if (slash != NULL)
        (void)snprintf(out->memory.spill_folder, sizeof out->memory.spill_folder, "%.*s",
                       (int)(slash - output) + 1, output);
    else
        (void)snprintf(out->memory.spill_folder, sizeof out->memory.spill_folder, ".");
}

static enum moec_status read_sensitivity(const struct cli_args *args, struct moec_profile_measures *out,
                                         struct moec_error *err)
{
    if (has_option(args, "sensitivity")) {
        const char *mode = cli_text(args, "sensitivity");
        out->sensitivity = strcmp(mode, "exact") == 0  ? MOEC_SENSITIVITY_EXACT
                           : strcmp(mode, "fast") == 0 ? MOEC_SENSITIVITY_FAST
                           : strcmp(mode, "none") == 0 ? MOEC_SENSITIVITY_NONE
                                                       : MOEC_SENSITIVITY_AUTO;
    }
    if (has_option(args, "time-limit")) {
        if (out->sensitivity != MOEC_SENSITIVITY_AUTO)
            return moec_fail(err, MOEC_ERR_USAGE,
                             "--time-limit chooses between --sensitivity exact and "
                             "fast: leave out either --time-limit or --sensitivity %s",
                             cli_text(args, "sensitivity"));
        MOEC_TRY(cli_duration(args, "time-limit", &out->time_limit_seconds, err));
    }
    return MOEC_OK;
}

/* Windows in all, and those of each part. */
static enum moec_status read_samples(const struct cli_args *args, struct cli_measure_options *out,
                                     struct moec_error *err)
{
    static const struct {
        const char *name;
        enum moec_part part;
    } parts[] = {{"search-samples", MOEC_PART_SEARCH},
                 {"select-samples", MOEC_PART_SELECT},
                 {"certificate-samples", MOEC_PART_CERTIFICATE}};
    MOEC_TRY(cli_u32(args, "samples", 1, 1u << 24, &out->data.parts.n_window, err));
    out->data.parts.min_part_windows = MOEC_MIN_PART_WINDOWS;
    if (!cli_offers(args, "certificate-samples"))
        return MOEC_OK;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const uint32_t least = parts[i].part == MOEC_PART_SELECT ? 0 : MOEC_MIN_PART_WINDOWS;
        if (!cli_offers(args, parts[i].name) || !cli_has(args, parts[i].name))
            continue;
        MOEC_TRY(cli_u32(args, parts[i].name, least, 1u << 24, &out->data.parts.n_part[parts[i].part], err));
        if (parts[i].part == MOEC_PART_SELECT)
            out->data.parts.no_select = out->data.parts.n_part[MOEC_PART_SELECT] == 0;
    }
    if (!cli_offers(args, "sensitivity-samples"))
        return MOEC_OK;
    return cli_u32(args, "sensitivity-samples", 1, 1u << 24, &out->measures.n_sensitivity_window, err);
}

/* A machine's, of which each of its ranks has a part. */
static uint64_t default_work_bytes(const struct cli_args *args)
{
    const uint64_t least = (uint64_t)256 << 20, own = ((uint64_t)1 << 30) / args->n_local_ranks;
    return own > least ? own : least;
}

enum moec_status cli_read_measure_options(const struct cli_args *args, struct cli_measure_options *out,
                                          struct moec_error *err)
{
    *out = (struct cli_measure_options){
        .data = {.path = cli_text(args, "data"), .seq_len_tokens = 256},
        .codes = {.scheme = MOEC_SCHEME_SYMMETRIC, .baseline_bits = 4},
        .measures = {.sensitivity = MOEC_SENSITIVITY_AUTO, .time_limit_seconds = 1800},
        .memory.work_bytes = default_work_bytes(args),
        .by.ranks = args->ranks,
        .is_quiet = cli_has(args, "quiet"),
        .is_verbose = cli_has(args, "verbose"),
    };
    if (out->is_quiet && out->is_verbose)
        return moec_fail(err, MOEC_ERR_USAGE, "give either --quiet or --verbose, not both");
    MOEC_TRY(cli_u32(args, "seq-len", 2, 1u << 20, &out->data.seq_len_tokens, err));
    MOEC_TRY(read_samples(args, out, err));
    MOEC_TRY(cli_u64(args, "seed", 0, UINT64_MAX, &out->data.seed, err));
    MOEC_TRY(cli_read_threads(args, &out->by.n_threads, err));
    MOEC_TRY(cli_bytes(args, "work-memory", &out->memory.work_bytes, err));
    MOEC_TRY(read_sensitivity(args, &out->measures, err));
    MOEC_TRY(read_quantiser(args, &out->codes, err));
    choose_spill_folder(args, out);
    out->data.goes_on_by_chance = has_option(args, "anyway");
    MOEC_TRY(cli_read_kernels(args, &out->by.kernels, err));
    return moec_task_load(cli_has(args, "task") ? cli_text(args, "task") : "text", &out->data.task, err);
}
