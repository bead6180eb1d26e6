/* --sensitivity weights: the squared error of each expert's weights over their squares, at each bitwidth.
 * It needs no data, so options about data are refused. errors[(s * E + e) * n_bits + b] is that of expert e
 * in MoE layer s. */
#include "cli/verbs/profile_weights.h"

#include "cli/print/print.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/json_output.h"
#include "cli/verbs/run_profile.h"
#include "formats/base/memory.h"
#include "profiler/plot/plot.h"
#include "profiler/report/weight_heatmap.h"
#include "profiler/sensitivity/weight_error.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BAND 64 /* experts of a line */

struct first_look {
    const struct cli_args *args;
    struct moec_checkpoint *checkpoint;
    const struct moec_config *config;
    const uint32_t *bits; /* (n_bits) */
    struct moec_codec codecs[MOEC_WEIGHT_ERROR_MAX_BITS];
    uint32_t n_bits, shown, n_moe; /* shown: place of the bitwidth that is drawn */
    double *errors;                /* (S, E, n_bits), owned */
};

bool cli_profile_wants_weights(const struct cli_args *args)
{
    return cli_has(args, "sensitivity") && strcmp(cli_text(args, "sensitivity"), "weights") == 0;
}

/* A first look has no windows, so nothing that is made of them. */
static enum moec_status check_options(const struct cli_args *args, const struct cli_measure_options *measure,
                                      struct moec_error *err)
{
    static const char *const of_data[] = {
        "data",    "output", "resume",     "dry-run",  "study", "projections", "report",
        "plots",   "task",   "samples",    "baseline", "seed",  "seq-len",     "sensitivity-samples",
        "compare", "show",   "time-limit", "device"};
    for (size_t i = 0; i < sizeof of_data / sizeof *of_data; i++)
        if (cli_offers(args, of_data[i]) && cli_has(args, of_data[i]))
            return moec_fail(
                err, MOEC_ERR_USAGE,
                "--sensitivity weights looks at weights alone and makes no profile: leave out --%s, "
                "or choose another --sensitivity",
                of_data[i]);
    if (measure->codes.quantizer == MOEC_QUANTIZER_AUTO)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "--quantizer auto compares losses, which --sensitivity weights does not measure: name "
            "one quantizer");
    return MOEC_OK;
}

static double error_of(const struct first_look *look, uint32_t s, uint32_t e, uint32_t b)
{
    return look->errors[((size_t)s * look->config->n_expert + e) * look->n_bits + b];
}

static size_t count(const struct first_look *look)
{
    return (size_t)look->n_moe * look->config->n_expert;
}

/* ---- what is printed ---- */

static void print_bits(const struct first_look *look)
{
    cli_print(stdout, "\nall experts at   error of weights    least     most\n");
    for (uint32_t b = 0; b < look->n_bits; b++) {
        double sum = 0, least = INFINITY, most = 0;
        for (size_t i = 0; i < count(look); i++) {
            const double error = look->errors[i * look->n_bits + b];
            sum += error;
            least = fmin(least, error);
            most = fmax(most, error);
        }
        cli_print(stdout, "%2" PRIu32 " bits                 %7.3f%%  %7.3f%%  %7.3f%%\n", look->bits[b],
                  100 * sum / (double)count(look), 100 * least, 100 * most);
    }
}

/* One digit an expert, 0 the least of all and 9 the most. */
static void print_digits(const struct first_look *look)
{
    double least = INFINITY, most = 0;
    for (size_t i = 0; i < count(look); i++) {
        least = fmin(least, look->errors[i * look->n_bits + look->shown]);
        most = fmax(most, look->errors[i * look->n_bits + look->shown]);
    }
    cli_print(stdout, "\nat %" PRIu32 " bits, by layer and expert: 0 is %.3f%%, 9 is %.3f%%\n",
              look->bits[look->shown], 100 * least, 100 * most);
    for (uint32_t first = 0; first < look->config->n_expert; first += BAND) {
        const uint32_t left = look->config->n_expert - first, n = left < BAND ? left : BAND;
        if (look->config->n_expert > BAND)
            cli_print(stdout, "experts %" PRIu32 " to %" PRIu32 "\n", first, first + n - 1);
        for (uint32_t s = 0; s < look->n_moe; s++) {
            char digits[BAND + 1] = "";
            for (uint32_t e = 0; e < n; e++) {
                const double over = error_of(look, s, first + e, look->shown) - least;
                digits[e] = (char)('0' + (most > least ? (int)(9.999 * over / (most - least)) : 0));
            }
            cli_print(stdout, "%4" PRIu32 "  %s\n", moec_config_moe_layer(look->config, s), digits);
        }
    }
}

static void print_look(const struct first_look *look)
{
    char name[256];
    cli_base_name(look->args->positional[0], name, sizeof name);
    cli_print_wrapped(
        stdout, 0,
        "A first look at '%s', from weights alone: the squared error of each expert's weights over "
        "their squares. This error is not a loss.\n",
        name);
    print_bits(look);
    print_digits(look);
    cli_print_wrapped(stdout, 0,
                      "\nThe weights do not show which experts tokens choose, or what the model loses.\n");
    cli_print(stdout, "next: moec profile %s --data FILE -o profile.h5\n", look->args->positional[0]);
}

static enum moec_status print_json(const struct first_look *look, struct moec_error *err)
{
    struct moec_json_out *root = moec_json_out_object(), *layers = moec_json_out_array(),
                         *bits = moec_json_out_array();
    moec_json_out_bool(root, "first_look", true);
    for (uint32_t b = 0; b < look->n_bits; b++)
        moec_json_out_u64(bits, NULL, look->bits[b]);
    moec_json_out_node(root, "bits", bits);
    for (uint32_t s = 0; s < look->n_moe; s++) {
        struct moec_json_out *layer = moec_json_out_object(), *errors = moec_json_out_array();
        moec_json_out_u64(layer, "layer", moec_config_moe_layer(look->config, s));
        for (uint32_t e = 0; e < look->config->n_expert; e++) {
            struct moec_json_out *expert = moec_json_out_array();
            for (uint32_t b = 0; b < look->n_bits; b++)
                moec_json_out_double(expert, NULL, error_of(look, s, e, b));
            moec_json_out_node(errors, NULL, expert);
        }
        moec_json_out_node(layer, "weight_errors", errors);
        moec_json_out_node(layers, NULL, layer);
    }
    moec_json_out_node(root, "layers", layers);
    return cli_print_json(root, err);
}

/* ---- files ---- */

static enum moec_status write_table(const struct first_look *look, const char *path, struct moec_error *err)
{
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *stream = open_memstream(&text, &n_bytes);
    if (stream == NULL)
        return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: table '%s'", path);
    (void)fputs("layer,expert,bits,weight_error\n", stream);
    for (uint32_t s = 0; s < look->n_moe; s++)
        for (uint32_t e = 0; e < look->config->n_expert; e++)
            for (uint32_t b = 0; b < look->n_bits; b++)
                (void)fprintf(stream, "%" PRIu32 ",%" PRIu32 ",%" PRIu32 ",%.9g\n",
                              moec_config_moe_layer(look->config, s), e, look->bits[b],
                              error_of(look, s, e, b));
    enum moec_status status = MOEC_OK;
    if (fclose(stream) != 0)
        status = moec_fail(err, MOEC_ERR_MEMORY, "out of memory: table '%s'", path);
    else
        status = moec_plot_write_csv(path, text, n_bytes, err);
    free(text);
    return status;
}

static enum moec_status draw(const struct first_look *look, struct moec_error *err)
{
    char name[256], codes[80], text[40];
    cli_base_name(look->args->positional[0], name, sizeof name);
    (void)snprintf(codes, sizeof codes, "%s", moec_codec_name(look->codecs[look->shown], text));
    const struct moec_weight_heatmap heatmap = {.config = look->config,
                                                .model = name,
                                                .codes = codes,
                                                .bits = look->bits[look->shown],
                                                .errors = look->errors + look->shown,
                                                .stride = look->n_bits};
    for (uint32_t i = 0; i < cli_count(look->args, "heatmap"); i++)
        MOEC_TRY(moec_weight_heatmap_write(&heatmap, cli_repeat(look->args, "heatmap", i), err));
    if (cli_has(look->args, "table"))
        MOEC_TRY(write_table(look, cli_text(look->args, "table"), err));
    return MOEC_OK;
}

/* ---- all of it ---- */

static enum moec_status choose_codecs(struct first_look *look, const struct cli_measure_options *measure,
                                      uint32_t show_bits, struct moec_error *err)
{
    struct moec_codec codecs[MOEC_CODEC_TABLE];
    MOEC_TRY(moec_codec_table(measure->codes.quantizer, measure->codes.scheme, measure->codes.group,
                              (enum moec_dtype)look->config->expert_dtype, codecs, err));
    for (uint32_t b = 0; b < look->n_bits; b++) {
        look->codecs[b] = codecs[look->bits[b]];
        if (look->bits[b] < look->bits[look->shown])
            look->shown = b;
    }
    for (uint32_t b = 0; b < look->n_bits; b++)
        if (look->bits[b] == show_bits)
            look->shown = b;
    if (show_bits > 0 && look->bits[look->shown] != show_bits)
        return moec_fail(err, MOEC_ERR_USAGE, "--show-bits %" PRIu32 " is not among --bits", show_bits);
    return MOEC_OK;
}

static enum moec_status show(void *context, const char *phase, double done, double total)
{
    cli_progress_show(context, phase, done, total);
    return cli_interrupt_status();
}

static enum moec_status measure_all(struct first_look *look, const struct cli_measure_options *measure,
                                    uint32_t show_bits, struct cli_progress *progress, struct moec_error *err)
{
    const struct moec_progress reported = {.report = show, .context = progress};
    look->config = moec_checkpoint_config(look->checkpoint);
    look->n_moe = moec_config_moe_count(look->config);
    if (look->n_moe == 0)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "the model in the folder '%s' has no layer with experts, so there is nothing to "
                         "look at",
                         moec_checkpoint_folder(look->checkpoint));
    MOEC_TRY(choose_codecs(look, measure, show_bits, err));
    MOEC_TRY(moec_alloc((void **)&look->errors, count(look) * look->n_bits, sizeof(double),
                        "errors of weights", err));
    const struct moec_weight_error_request request = {.checkpoint = look->checkpoint,
                                                      .codecs = look->codecs,
                                                      .n_bits = look->n_bits,
                                                      .n_threads = measure->by.n_threads,
                                                      .progress = &reported};
    MOEC_TRY(moec_weight_error_measure(&request, look->errors, err));
    cli_progress_end(progress);
    MOEC_TRY(draw(look, err));
    if (cli_has(look->args, "json"))
        return print_json(look, err);
    print_look(look);
    return MOEC_OK;
}

enum moec_status cli_profile_weights(const struct cli_args *args, const struct cli_measure_options *measure,
                                     const struct cli_numbers *bits, uint32_t show_bits,
                                     struct cli_progress *progress, struct moec_error *err)
{
    struct first_look look = {.args = args, .bits = bits->all, .n_bits = bits->n};
    enum moec_status status = check_options(args, measure, err);
    if (status == MOEC_OK)
        status = moec_checkpoint_open(args->positional[0], &look.checkpoint, err);
    if (status == MOEC_OK)
        status = measure_all(&look, measure, show_bits, progress, err);
    free(look.errors);
    moec_checkpoint_close(look.checkpoint);
    return status;
}
