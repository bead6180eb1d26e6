#include "cli/print/print.h"
#include "cli/terminal/json_output.h"
#include "cli/terminal/progress_line.h"
#include "cli/terminal/terminal.h"
#include "cli/verbs/commands.h"
#include "formats/checkpoint/checkpoint_write.h"

#include <inttypes.h>

static const struct cli_option options[] = {
    {"output", 'o', "FOLDER", NULL, "The folder to write; it must not exist.", CLI_OUTPUT},
    {"copy", 0, "BITS", "2|3|4|8|16",
     "Decode the copy of all experts at this bitwidth (2, 3, 4, 8 or 16) instead of the compiled assignment.",
     0},
    {"shard-size", 0, "SIZE", NULL, "Largest safetensors file (default 2GB).", 0},
    {"json", 0, NULL, NULL, "Print what was written as JSON.", 0},
    {"quiet", 'q', NULL, NULL, "Show no progress.", 0},
    {0},
};

static enum moec_status show_progress(void *context, uint64_t done, uint64_t total, struct moec_error *err)
{
    (void)err;
    cli_progress_show(context, "exporting", (double)done / 1e6, (double)total / 1e6);
    return MOEC_OK;
}

static enum moec_status print_written(const struct cli_args *args, const struct moec_bundle *bundle,
                                      const struct moec_checkpoint_written *written, struct moec_error *err)
{
    char size[24];
    const struct moec_codec codec = {.dtype = (uint8_t)written->expert_dtype};
    char text[40];
    if (cli_has(args, "json")) {
        struct moec_json_out *root = moec_json_out_object();
        moec_json_out_string(root, "folder", cli_text(args, "output"));
        moec_json_out_string(root, "family", bundle->config.family);
        moec_json_out_string(root, "expert_dtype", moec_codec_name(codec, text));
        moec_json_out_u64(root, "weight_bytes", written->weight_bytes);
        moec_json_out_u64(root, "tensors", written->n_tensor);
        moec_json_out_u64(root, "safetensors_files", written->n_shard);
        moec_json_out_bool(root, "tokenizer", bundle->tokenizer != NULL);
        return cli_print_json(root, err);
    }
    cli_print(stdout, "wrote '%s': %" PRIu32 " tensors, %s in %" PRIu32 " file%s, experts as %s%s\n",
              cli_text(args, "output"), written->n_tensor, cli_size_text(size, written->weight_bytes),
              written->n_shard, written->n_shard == 1 ? "" : "s", moec_codec_name(codec, text),
              bundle->tokenizer == NULL ? "; the bundle has no tokenizer" : "");
    return MOEC_OK;
}

static enum moec_status export_bundle(const struct cli_args *args, struct moec_bundle **bundle,
                                      struct cli_progress *progress, struct moec_error *err)
{
    struct moec_checkpoint_write_options write = {.progress = show_progress, .context = progress};
    struct moec_checkpoint_written written = {0};
    uint32_t bits = 0;
    if (!cli_has(args, "output"))
        return moec_fail(err, MOEC_ERR_USAGE, "name the folder with -o FOLDER");
    MOEC_TRY(cli_u32(args, "copy", 2, 16, &bits, err));
    MOEC_TRY(cli_bytes(args, "shard-size", &write.shard_bytes, err));
    MOEC_TRY(moec_bundle_open(args->positional[0], bundle, err));
    if (bits != 0)
        MOEC_TRY(moec_bundle_find_copy(*bundle, bits, &write.copy, err));
    MOEC_TRY(moec_checkpoint_write(*bundle, &write, cli_text(args, "output"), &written, err));
    cli_progress_end(progress);
    return print_written(args, *bundle, &written, err);
}

static int run_export(const struct cli_args *args)
{
    struct moec_error err = {0};
    struct moec_bundle *bundle = NULL;
    struct cli_progress progress;
    cli_progress_init(&progress, "export", "MB", cli_has(args, "quiet"));
    enum moec_status status = export_bundle(args, &bundle, &progress, &err);
    cli_progress_end(&progress);
    moec_bundle_close(bundle);
    return status == MOEC_OK ? CLI_OK : cli_fail(args, &err);
}

const struct cli_command cli_command_export = {
    .name = "export",
    .model = CLI_BUNDLE,
    .summary = "write a bundle as a Hugging Face folder, to check it elsewhere",
    .usage = "MODEL.moec",
    .about = "Decodes the weights of the compiled assignment and writes them as a Hugging Face folder: "
             "config.json, generation_config.json, tokenizer.json and safetensors. With this folder, "
             "transformers measures the perplexity that the bundle's certificate states.",
    .details =
        "Values are exact: quantised weights are written as the F32 numbers that they stand for, other "
        "weights in their own type. moec eval gives the same bits for the folder as for the bundle.\n"
        "The folder appears only when it is complete. The export needs memory for the dense weights "
        "and one expert.",
    .examples = "moec export model.moec -o model-decoded\n"
                "moec export model.moec --copy 2 -o model-at-2-bits\n"
                "moec eval model-decoded --data test.txt",
    .n_positional_min = 1,
    .n_positional_max = 1,
    .options = options,
    .run = run_export,
};
