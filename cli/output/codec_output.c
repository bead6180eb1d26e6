/* Experts are counted by codec and projection, dense matrices by codec and role; both come by rising bits.
 * Roles of a line that is full go on in the next. */
#include "cli/output/codec_output.h"

#include "cli/print/print.h"
#include "cli/terminal/terminal.h"

#include <inttypes.h>
#include <stdio.h>

#define ITEM_BYTES 160

static const char *const projections[MOEC_PROJECTION_COUNT] = {"gate", "up", "down"};

static int first_projection(const struct moec_bundle *bundle)
{
    return bundle->config.mlp.plain ? MOEC_PROJECTION_UP : MOEC_PROJECTION_GATE;
}

/* How many experts have each codec for each projection, and the numbers in use by rising bits. */
struct uses {
    uint32_t of[MOEC_CODEC_TABLE][MOEC_PROJECTION_COUNT];
    uint8_t numbers[MOEC_CODEC_TABLE];
    uint32_t n_number;
};

static struct uses count_uses(const struct moec_bundle *bundle)
{
    struct uses uses = {0};
    uint32_t sum[MOEC_CODEC_TABLE] = {0};
    const size_t n = (size_t)moec_config_moe_count(&bundle->config) * bundle->config.n_expert;
    for (size_t i = 0; i < n; i++)
        for (int p = first_projection(bundle); p < MOEC_PROJECTION_COUNT; p++) {
            uses.of[bundle->records[i].variant.codecs[p]][p]++;
            sum[bundle->records[i].variant.codecs[p]]++;
        }
    for (uint32_t bits = 0; bits <= 16; bits++)
        for (uint32_t number = 0; number < MOEC_CODEC_TABLE; number++)
            if (sum[number] > 0 && moec_codec_bits(bundle->codecs[number]) == bits)
                uses.numbers[uses.n_number++] = (uint8_t)number;
    return uses;
}

void cli_print_codecs(const struct moec_bundle *bundle)
{
    const struct uses uses = count_uses(bundle);
    char name[40];
    for (uint32_t i = 0; i < uses.n_number; i++) {
        const struct moec_codec codec = bundle->codecs[uses.numbers[i]];
        cli_print(stdout, "  %2" PRIu32 " bit%s %s:", moec_codec_code_bits(codec),
                  moec_codec_code_bits(codec) == 1 ? ": " : "s:", moec_codec_name(codec, name));
        for (int p = first_projection(bundle); p < MOEC_PROJECTION_COUNT; p++)
            cli_print(stdout, "%s %s %" PRIu32, p == first_projection(bundle) ? "" : ",", projections[p],
                      uses.of[uses.numbers[i]][p]);
        cli_print(stdout, "\n");
    }
}

struct moec_json_out *cli_json_codecs(const struct moec_bundle *bundle)
{
    const struct uses uses = count_uses(bundle);
    struct moec_json_out *array = moec_json_out_array();
    char name[40];
    for (uint32_t i = 0; i < uses.n_number; i++) {
        const struct moec_codec codec = bundle->codecs[uses.numbers[i]];
        struct moec_json_out *node = moec_json_out_object();
        moec_json_out_string(node, "codec", moec_codec_name(codec, name));
        moec_json_out_u64(node, "bits", moec_codec_code_bits(codec));
        for (int p = first_projection(bundle); p < MOEC_PROJECTION_COUNT; p++)
            moec_json_out_u64(node, projections[p], uses.of[uses.numbers[i]][p]);
        moec_json_out_node(array, NULL, node);
    }
    return array;
}

static bool is_matrix(const struct moec_dense_entry *entry)
{
    return moec_role_is_quantisable((enum moec_role)entry->role);
}

/* The first matrix of this codec. */
static bool is_first(const struct moec_dense *dense, uint32_t at)
{
    for (uint32_t i = 0; i < at; i++)
        if (is_matrix(&dense->entries[i]) &&
            moec_codec_equal(dense->entries[i].codec, dense->entries[at].codec))
            return false;
    return true;
}

/* " q projection (6)," of one line; returns its length. */
static int role_item(char item[static ITEM_BYTES], enum moec_role role, uint32_t n, bool is_followed)
{
    const char *comma = is_followed ? "," : "";
    if (n == 1)
        return snprintf(item, ITEM_BYTES, " %s%s", moec_role_name(role), comma);
    return snprintf(item, ITEM_BYTES, " %s (%" PRIu32 ")%s", moec_role_name(role), n, comma);
}

static void print_dense_codec(const struct moec_dense *dense, struct moec_codec codec)
{
    uint32_t of_role[MOEC_ROLE_COUNT] = {0}, n = 0;
    uint64_t n_bytes = 0;
    char name[40], size[24], item[ITEM_BYTES], line_start[16];
    for (uint32_t i = 0; i < dense->n_entries; i++) {
        const struct moec_dense_entry *entry = &dense->entries[i];
        if (!is_matrix(entry) || !moec_codec_equal(entry->codec, codec))
            continue;
        of_role[entry->role]++;
        n_bytes += entry->n_bytes;
        n++;
    }
    int column = snprintf(item, sizeof item,
                          "  %2" PRIu32 " bits: %s: %" PRIu32 " matrices, %s:", moec_codec_bits(codec),
                          moec_codec_name(codec, name), n, cli_size_text(size, n_bytes));
    cli_print(stdout, "%s", item);
    for (uint32_t role = 0, n_left = n; role < MOEC_ROLE_COUNT; n_left -= of_role[role++]) {
        if (of_role[role] == 0)
            continue;
        const int length = role_item(item, (enum moec_role)role, of_role[role], of_role[role] < n_left);
        if (column + length > CLI_COLUMNS)
            column = snprintf(line_start, sizeof line_start, "\n%10s", "") - 1;
        else
            line_start[0] = '\0';
        cli_print(stdout, "%s%s", line_start, item);
        column += length;
    }
    cli_print(stdout, "\n");
}

void cli_print_dense_codecs(const struct moec_dense *dense)
{
    cli_print(stdout, "\nDense matrices\n");
    for (uint32_t bits = 0; bits <= 32; bits++)
        for (uint32_t i = 0; i < dense->n_entries; i++)
            if (is_matrix(&dense->entries[i]) && moec_codec_bits(dense->entries[i].codec) == bits &&
                is_first(dense, i))
                print_dense_codec(dense, dense->entries[i].codec);
}

struct moec_json_out *cli_json_dense_matrices(const struct moec_dense *dense)
{
    struct moec_json_out *array = moec_json_out_array();
    char name[40];
    for (uint32_t i = 0; i < dense->n_entries; i++) {
        const struct moec_dense_entry *entry = &dense->entries[i];
        if (!is_matrix(entry))
            continue;
        struct moec_json_out *node = moec_json_out_object();
        moec_json_out_string(node, "role", moec_role_name((enum moec_role)entry->role));
        if (entry->layer == MOEC_LAYER_NONE)
            moec_json_out_null(node, "layer");
        else
            moec_json_out_u64(node, "layer", entry->layer);
        moec_json_out_string(node, "codec", moec_codec_name(entry->codec, name));
        moec_json_out_u64(node, "bits", moec_codec_bits(entry->codec));
        moec_json_out_u64(node, "rows", entry->rows);
        moec_json_out_u64(node, "columns", entry->columns);
        moec_json_out_u64(node, "bytes", entry->n_bytes);
        moec_json_out_node(array, NULL, node);
    }
    return array;
}
