#include "cli/print/print.h"
#include "cli/terminal/json_output.h"
#include "cli/terminal/terminal.h"
#include "cli/verbs/commands.h"
#include "formats/bundle/bundle_strip.h"

#include <inttypes.h>

static const struct cli_option options[] = {
    {"copies", 0, CLI_LIST, "2|3|4|8|16",
     "Bitwidths of the copies to drop: any of 2, 3, 4, 8 and 16, such as 2,4.", 0},
    {"unpack", 0, NULL, NULL,
     "Store dense weights uncompressed, on memory pages of their own. The bundle then starts faster "
     "if it is in the page cache, because a run uses the cached pages in place.",
     0},
    {"output", 'o', "OUT.moec", NULL, "The new bundle; with --force it may be MODEL.moec itself.",
     CLI_OUTPUT | CLI_IN_PLACE},
    {"json", 0, NULL, NULL, "Print what was dropped as JSON.", 0},
    {0},
};

static const uint32_t copy_bits[] = {2, 3, 4, 8, 16, 0};

static enum moec_status strip(const struct cli_args *args, struct moec_error *err)
{
    uint32_t bits[MOEC_MAX_COPIES] = {0};
    struct cli_numbers copies = {bits, 0, MOEC_MAX_COPIES};
    struct moec_bundle_stripped stripped;
    char before[24], after[24], changed[24];
    if (!cli_has(args, "copies") && !cli_has(args, "unpack"))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "say which copies to drop with --copies LIST, or give --unpack");
    if (!cli_has(args, "output"))
        return moec_fail(err, MOEC_ERR_USAGE, "name the new bundle with -o OUT.moec");
    if (cli_has(args, "copies"))
        MOEC_TRY(cli_u32_list(args, "copies", copy_bits, &copies, err));
    MOEC_TRY((cli_has(args, "unpack") ? moec_bundle_unpack : moec_bundle_strip)(
        args->positional[0], bits, copies.n, cli_text(args, "output"), &stripped, err));
    const bool is_larger = stripped.after_bytes > stripped.before_bytes;
    const uint64_t difference = is_larger ? stripped.after_bytes - stripped.before_bytes
                                          : stripped.before_bytes - stripped.after_bytes;
    if (cli_has(args, "json")) {
        struct moec_json_out *root = moec_json_out_object();
        moec_json_out_string(root, "file", cli_text(args, "output"));
        moec_json_out_u64(root, "before_bytes", stripped.before_bytes);
        moec_json_out_u64(root, "after_bytes", stripped.after_bytes);
        moec_json_out_u64(root, "copies_left", stripped.n_copy - 1);
        moec_json_out_bool(root, "dropped_decisions", stripped.drops_decisions);
        return cli_print_json(root, err);
    }
    cli_print(stdout, "wrote '%s': %s, %s %s than the %s before\n", cli_text(args, "output"),
              cli_size_text(after, stripped.after_bytes), cli_size_text(changed, difference),
              is_larger ? "more" : "less", cli_size_text(before, stripped.before_bytes));
    if (stripped.drops_decisions)
        cli_print(
            stdout,
            "the bundle's decision settings need a dropped copy, so they were dropped too; moec tune finds "
            "others\n");
    return MOEC_OK;
}

static int run_strip(const struct cli_args *args)
{
    struct moec_error err = {0};
    return strip(args, &err) == MOEC_OK ? CLI_OK : cli_fail(args, &err);
}

const struct cli_command cli_command_strip = {
    .name = "strip",
    .model = CLI_BUNDLE,
    .summary = "drop precision copies from a bundle, or unpack it",
    .usage = "MODEL.moec",
    .about = "Writes the bundle without its copies at the given bitwidths, which moec compile --copies had "
             "added. The compiled assignment, its output and its certificate stay the same. Every section "
             "that stays is checked and copied unchanged, and the provenance records what was dropped. "
             "With --unpack, with or without copies to drop, its dense weights are unpacked.",
    .examples = "moec strip model.moec --copies 2 -o smaller.moec\n"
                "moec strip model.moec --copies 2,8 -o model.moec --force\n"
                "moec strip model.moec --unpack -o faster.moec",
    .n_positional_min = 1,
    .n_positional_max = 1,
    .options = options,
    .run = run_strip,
};
