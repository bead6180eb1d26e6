#include "cli/output/tiers_output.h"

#include "cli/print/print.h"
#include "cli/terminal/json_output.h"
#include "cli/terminal/terminal.h"

#include <inttypes.h>

static double per_token(const struct moec_tiers *tiers, uint64_t amount)
{
    const uint64_t n = tiers->sweep.recording->counted.n_decoded;
    return n > 0 ? (double)amount / (double)n : 0;
}

static double percent(uint64_t part, uint64_t all)
{
    return all > 0 ? 100 * (double)part / (double)all : 0;
}

/* ---- for people ---- */

static void print_row(const struct moec_tiers *tiers, const struct moec_tiers_row *row)
{
    const struct moec_tiers_counts *counts = &row->result.decode;
    char size[24], copied[24], read[24];
    cli_print(stdout, "  %10s  %-12s%-16s", cli_memory_text(size, row->pool_bytes),
              moec_tiers_mode_name(row->mode),
              row->mode == MOEC_TIERS_CACHE || row->mode == MOEC_TIERS_PRELOAD ||
                      row->mode == MOEC_TIERS_COOPERATIVE
                  ? row->policy.word
                  : "-");
    cli_print(stdout, "%7.1f%7.1f%8.1f%8.1f%8.1f", percent(counts->hits, counts->asked),
              percent(counts->late, counts->asked), percent(counts->misses, counts->asked),
              percent(counts->misses - counts->buffer_hits, counts->asked),
              percent(counts->computed_there, counts->asked));
    cli_print(stdout, "%12s%12s%11.3f%10.3f\n",
              cli_memory_text(copied, (uint64_t)per_token(tiers, counts->copied_bytes)),
              cli_memory_text(read, (uint64_t)per_token(tiers, counts->read_bytes)),
              row->result.tpot_ns_mean / 1e6, row->result.floor_ns / 1e6);
}

void cli_print_tiers(const struct moec_tiers *tiers, const char *source, const char *gpu, const char *note)
{
    const struct moec_tiers_sweep *sweep = &tiers->sweep;
    uint64_t buffer_bytes = 0;
    char size[24];
    cli_print(stdout,
              "%s: %" PRIu64 " tokens, %" PRIu64 " of them decoded one by one; %" PRIu32
              " MoE layers, %" PRIu32 " experts, top-%" PRIu32 "\n",
              source, sweep->recording->counted.n_token, sweep->recording->counted.n_decoded,
              sweep->model->shape.n_layer, sweep->model->shape.n_expert, sweep->model->shape.top_k);
    cli_print(stdout, "Records: %s; all experts %s; GPU: %s\n", sweep->model->sizes,
              cli_memory_text(size, sweep->model->slots.all_bytes), gpu);
    if (note[0] != '\0')
        cli_print(stdout, "%s\n", note);
    for (uint32_t i = 0; i < tiers->n; i++) {
        const struct moec_tiers_row *row = &tiers->rows[i];
        if (row->buffer_bytes != buffer_bytes && row->mode != MOEC_TIERS_RESIDENT) {
            buffer_bytes = row->buffer_bytes;
            cli_print(stdout,
                      "\n%s in pinned memory; of 100 experts asked for while decoding, and ms a token\n"
                      "        pool  mode        evict              hits   late  misses storage     CPU"
                      "      copied        read    mean ms     floor\n",
                      cli_memory_text(size, buffer_bytes));
        }
        print_row(tiers, row);
    }
    cli_print(stdout, "\nModes, and what compares with them\n");
    for (uint32_t m = 0; m < sweep->modes.n; m++)
        cli_print(stdout, "  %-12s%s\n", moec_tiers_mode_name(sweep->modes.all[m]),
                  moec_tiers_mode_words(sweep->modes.all[m]));
}

/* ---- for programs ---- */

static struct moec_json_out *json_row(const struct moec_tiers *tiers, const struct moec_tiers_row *row)
{
    const struct moec_tiers_counts *counts = &row->result.decode;
    struct moec_json_out *node = moec_json_out_object();
    moec_json_out_string(node, "mode", moec_tiers_mode_name(row->mode));
    moec_json_out_string(node, "evict", row->policy.word);
    moec_json_out_u64(node, "pool_bytes", row->pool_bytes);
    moec_json_out_u64(node, "buffer_bytes", row->buffer_bytes);
    moec_json_out_u64(node, "asked", counts->asked);
    moec_json_out_u64(node, "hits", counts->hits);
    moec_json_out_u64(node, "late", counts->late);
    moec_json_out_u64(node, "misses", counts->misses);
    moec_json_out_u64(node, "buffer_hits", counts->buffer_hits);
    moec_json_out_u64(node, "computed_by_cpu", counts->computed_there);
    moec_json_out_u64(node, "guesses", counts->prefetches);
    moec_json_out_u64(node, "useful_guesses", counts->useful);
    moec_json_out_double(node, "copied_bytes_per_token", per_token(tiers, counts->copied_bytes));
    moec_json_out_double(node, "read_bytes_per_token", per_token(tiers, counts->read_bytes));
    moec_json_out_double(node, "tpot_ms_median", row->result.tpot_ns_median / 1e6);
    moec_json_out_double(node, "tpot_ms_p95", row->result.tpot_ns_p95 / 1e6);
    moec_json_out_double(node, "tpot_ms_mean", row->result.tpot_ns_mean / 1e6);
    moec_json_out_double(node, "floor_ms", row->result.floor_ns / 1e6);
    return node;
}

enum moec_status cli_print_tiers_json(const struct moec_tiers *tiers, const char *source, const char *gpu,
                                      const char *note, struct moec_error *err)
{
    struct moec_json_out *root = moec_json_out_object(), *rows = moec_json_out_array(),
                         *modes = moec_json_out_object();
    moec_json_out_string(root, "recording", source);
    moec_json_out_u64(root, "tokens", tiers->sweep.recording->counted.n_token);
    moec_json_out_u64(root, "decoded", tiers->sweep.recording->counted.n_decoded);
    moec_json_out_string(root, "gpu", gpu);
    moec_json_out_string(root, "note", note);
    for (uint32_t m = 0; m < tiers->sweep.modes.n; m++)
        moec_json_out_string(modes, moec_tiers_mode_name(tiers->sweep.modes.all[m]),
                             moec_tiers_mode_words(tiers->sweep.modes.all[m]));
    moec_json_out_node(root, "modes", modes);
    for (uint32_t i = 0; i < tiers->n; i++)
        moec_json_out_node(rows, NULL, json_row(tiers, &tiers->rows[i]));
    moec_json_out_node(root, "rows", rows);
    return cli_print_json(root, err);
}
