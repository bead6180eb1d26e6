#include "cli/print/print.h"
#include "cli/terminal/terminal.h"
#include "cli/verbs/commands.h"
#include "formats/bundle/bundle.h"
#include "runtime/text/tokenizer.h"

#include <inttypes.h>

static const struct cli_option options[] = {
    {"quiet", 'q', NULL, NULL, "Print nothing; only set the exit status.", 0},
    {0},
};

struct verify_report {
    uint64_t n_damages;
    bool is_quiet;
};

static void report_damage(void *context, const char *place, uint64_t offset, uint64_t n_bytes)
{
    struct verify_report *report = context;
    report->n_damages++;
    if (!report->is_quiet)
        cli_print(stdout, "damaged: %s, %" PRIu64 " bytes at offset %" PRIu64 "\n", place, n_bytes, offset);
}

/* Bytes that are as they were written can still be of no use: a model that `moec run` does not open. */
static enum moec_status check_tokenizer(const char *path, struct moec_error *err)
{
    struct moec_bundle *bundle = NULL;
    struct moec_tokenizer *tokenizer = NULL;
    MOEC_TRY(moec_bundle_open(path, &bundle, err));
    enum moec_status status = MOEC_OK;
    if (bundle->tokenizer != NULL)
        status = moec_tokenizer_create(bundle->tokenizer, &tokenizer, err);
    if (status != MOEC_OK)
        (void)moec_error_prefix(err, "'%s' is not damaged, but `moec run` cannot use it", path);
    moec_tokenizer_free(tokenizer);
    moec_bundle_close(bundle);
    return status;
}

static int run_verify(const struct cli_args *args)
{
    struct verify_report report = {.is_quiet = cli_has(args, "quiet")};
    struct moec_error err = {0};
    double start = cli_seconds();
    enum moec_status status = moec_bundle_verify(args->positional[0], report_damage, &report, &err);
    if (status == MOEC_OK)
        status = check_tokenizer(args->positional[0], &err);
    if (status != MOEC_OK) {
        if (report.n_damages > 1 && !report.is_quiet)
            cli_print(stdout, "%" PRIu64 " damages\n", report.n_damages);
        return cli_fail(args, &err);
    }
    if (!report.is_quiet)
        cli_print(stdout, "'%s' is intact: every byte was checked in %.2f s\n", args->positional[0],
                  cli_seconds() - start);
    return CLI_OK;
}

const struct cli_command cli_command_verify = {
    .name = "verify",
    .model = CLI_BUNDLE,
    .summary = "check every byte of a bundle and name what is damaged",
    .usage = "MODEL.moec",
    .about = "Reads the whole file and checks the header, the table of contents, every section (SHA-256), "
             "every expert record (CRC32C) and the padding between records. Damaged experts are named by "
             "layer and number. Then the model, its dense weights and its tokenizer are read as in moec "
             "run. The exit status is 1 if anything is damaged or cannot be used.",
    .examples = "moec verify model.moec\n"
                "moec verify --quiet model.moec && cp model.moec /mnt/board/",
    .n_positional_min = 1,
    .n_positional_max = 1,
    .options = options,
    .run = run_verify,
};
