/* What stands in a bundle: print_ functions for people, json_ functions for programs. Sections that are no
 * part of an opened bundle are loaded first (struct additions), so that an error comes before any output. */
#include "cli/output/codec_output.h"
#include "cli/output/decisions_output.h"
#include "cli/output/sequence_output.h"
#include "cli/output/sparsity_output.h"
#include "cli/print/print.h"
#include "cli/terminal/json_output.h"
#include "cli/terminal/terminal.h"
#include "cli/verbs/commands.h"
#include "formats/bundle/bundle.h"
#include "formats/bundle/bundle_evict.h"
#include "formats/bundle/bundle_fit.h"
#include "formats/bundle/bundle_predictor.h"
#include "formats/bundle/bundle_sparsity.h"
#include "formats/bundle/record_parts.h"
#include "formats/family/generation_json.h"
#include "formats/tables/score_shares.h"
#include "profiler/evaluate/chance.h"
#include "runtime/policy/decide/precision.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct cli_option options[] = {
    {"json", 0, NULL, NULL, "Print everything as JSON.", 0},
    {"color", 0, "WHEN", "auto|always|never", "Colour of the bitwidth map: auto (default), always or never.",
     0},
    {0},
};

static const uint8_t widths[] = {1, 2, 3, 4, 5, 6, 8, 16};
#define N_WIDTHS (sizeof widths / sizeof *widths)

struct copy_summary {
    uint32_t count[N_WIDTHS];        /* experts at each bitwidth */
    uint32_t n_mixed;                /* whose projections differ */
    uint32_t uses[MOEC_CODEC_TABLE]; /* projections with each codec of the bundle */
    uint64_t n_bytes;                /* records without padding */
};

static struct copy_summary summarise_copy(const struct moec_bundle *bundle, uint32_t copy)
{
    struct copy_summary summary = {0};
    uint32_t n_layer = moec_config_moe_count(&bundle->config);
    const int first = bundle->config.mlp.plain ? MOEC_PROJECTION_UP : MOEC_PROJECTION_GATE;
    for (uint32_t s = 0; s < n_layer; s++)
        for (uint32_t e = 0; e < bundle->config.n_expert; e++) {
            const struct moec_record_entry *entry = moec_bundle_record(bundle, copy, s, e);
            summary.n_bytes += entry->n_bytes;
            const bool is_uniform = moec_variant_is_uniform(entry->variant);
            summary.n_mixed += !is_uniform;
            for (size_t i = 0; i < N_WIDTHS; i++)
                summary.count[i] += is_uniform && widths[i] == entry->bits;
            for (int p = first; p < MOEC_PROJECTION_COUNT; p++)
                summary.uses[entry->variant.codecs[p]]++;
        }
    return summary;
}

/* ---- for people ---- */

/* Which stack a layer of an encoder-decoder model is in. */
static char stack_mark(const struct moec_config *config, uint32_t layer)
{
    if (!moec_config_is_encoder_decoder(config))
        return ' ';
    return moec_config_stack(config, layer) == MOEC_STACK_ENCODER ? 'e' : 'd';
}

#define MIXTURES_SHOWN 24u

/* "gate 4, up 3, down 8 bits"; codecs by name where bits do not tell them apart. */
static void print_mixture(FILE *out, const struct moec_bundle *bundle, struct moec_variant variant)
{
    static const char *const names[MOEC_PROJECTION_COUNT] = {"gate", "up", "down"};
    const bool has_others = bundle->codecs[MOEC_CODEC_FIRST_OTHER].dtype != MOEC_DTYPE_F32;
    const int first = bundle->config.mlp.plain ? MOEC_PROJECTION_UP : MOEC_PROJECTION_GATE;
    char text[40];
    for (int p = first; p < MOEC_PROJECTION_COUNT; p++) {
        const struct moec_codec codec = bundle->codecs[variant.codecs[p]];
        cli_print(out, "%s%s ", p == first ? "" : ", ", names[p]);
        if (has_others)
            cli_print(out, "%s", moec_codec_name(codec, text));
        else
            cli_print(out, "%" PRIu32, moec_codec_code_bits(codec));
    }
    cli_print(out, "%s", has_others ? "" : " bits");
}

/* Each mixture of codecs once, in the order of the first expert that has it, and how many have it. */
static void list_mixed(FILE *out, const struct moec_bundle *bundle)
{
    const size_t n = (size_t)moec_config_moe_count(&bundle->config) * bundle->config.n_expert;
    uint32_t *count = calloc(bundle->n_layout, sizeof *count), n_shown = 0;
    for (size_t i = 0; count != NULL && i < n; i++)
        count[bundle->records[i].layout]++;
    for (size_t i = 0; count != NULL && i < n; i++) {
        const struct moec_variant variant = bundle->records[i].variant;
        uint32_t *left = &count[bundle->records[i].layout];
        if (*left == 0 || moec_variant_is_uniform(variant))
            continue;
        if (n_shown++ < MIXTURES_SHOWN) {
            cli_print(out, "  * %" PRIu32 " experts: ", *left);
            print_mixture(out, bundle, variant);
            cli_print(out, "\n");
        }
        *left = 0;
    }
    if (n_shown > MIXTURES_SHOWN)
        cli_print(out, "  * and %" PRIu32 " other mixtures\n", n_shown - MIXTURES_SHOWN);
    free(count);
}

static void print_mixed(const struct moec_bundle *bundle)
{
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *memory = open_memstream(&text, &n_bytes);
    if (memory != NULL)
        list_mixed(memory, bundle);
    if (memory != NULL && fclose(memory) == 0)
        cli_put_wrapped(stdout, 4, text);
    free(text);
}

/* One character an expert, its bitwidth; 16 is shown as F. Colours run from few bits (dark) to many (bright).
 */
static void print_map(const struct moec_bundle *bundle, const struct cli_terminal *terminal)
{
    static const int colours[N_WIDTHS] = {53, 54, 61, 31, 30, 37, 36, 226};
    static const char glyphs[] = "1234568F";
    uint32_t n_layer = moec_config_moe_count(&bundle->config);
    uint32_t n_expert = bundle->config.n_expert;
    const uint32_t band = 64;
    const bool is_mxfp4 = moec_codec_traits(bundle->codecs[16])->is_exact;
    printf("\nBitwidth map: a row for each MoE layer, a column for each expert; F is %s\n",
           is_mxfp4 ? "MXFP4" : "16 bits");
    for (uint32_t first = 0; first < n_expert; first += band) {
        uint32_t last = first + band < n_expert ? first + band : n_expert;
        printf("\n  experts %" PRIu32 " to %" PRIu32 "\n", first, last - 1);
        for (uint32_t s = 0; s < n_layer; s++) {
            const uint32_t layer = moec_config_moe_layer(&bundle->config, s);
            printf("  layer %3" PRIu32 "%c ", layer, stack_mark(&bundle->config, layer));
            for (uint32_t e = first; e < last; e++) {
                const struct moec_record_entry *entry = moec_bundle_record(bundle, 0, s, e);
                size_t i = 0;
                while (i + 1 < N_WIDTHS && widths[i] != entry->bits)
                    i++;
                char glyph = '*';
                if (moec_variant_is_uniform(entry->variant))
                    glyph = glyphs[i];
                if (terminal->colour != CLI_COLOUR_NONE)
                    printf("\033[48;5;%d;38;5;%dm%c\033[0m", colours[i], i == N_WIDTHS - 1 ? 16 : 231, glyph);
                else
                    putchar(glyph);
            }
            putchar('\n');
        }
    }
    printf("\n  ");
    struct copy_summary summary = summarise_copy(bundle, 0);
    for (size_t i = 0; i < N_WIDTHS; i++)
        if (summary.count[i] > 0 && widths[i] == 16 && is_mxfp4)
            printf("MXFP4, as in the checkpoint: %" PRIu32 " experts   ", summary.count[i]);
        else if (summary.count[i] > 0)
            printf("%u bit%s: %" PRIu32 " experts   ", widths[i], widths[i] == 1 ? "" : "s",
                   summary.count[i]);
    if (summary.n_mixed > 0)
        cli_print(stdout, "*, projections differ: %" PRIu32 " experts", summary.n_mixed);
    putchar('\n');
    if (summary.n_mixed > 0)
        print_mixed(bundle);
}

/* How the promise was proven, test by test. */
static void print_tests(const struct moec_certificate *certificate)
{
    static const char *const results[] = {"not tested", "passed", "failed"};
    uint32_t chosen = 0;
    if (certificate->n_sequence == 0 || isnan(certificate->target))
        return;
    while (chosen + 1 < certificate->n_sequence && !certificate->sequence[chosen].is_chosen)
        chosen++;
    if (certificate->confidence > 0 && !certificate->missed)
        cli_print(stdout,
                  "  proven with                      %g%% confidence, by plan %" PRIu32 " of %" PRIu32 "\n",
                  100 * certificate->confidence, chosen + 1, certificate->n_sequence);
    for (uint32_t i = 0; i < certificate->n_sequence; i++) {
        const struct moec_sequence_step *step = &certificate->sequence[i];
        char size[24];
        cli_print(stdout, "    plan %" PRIu32 " %*s", i + 1, 12, cli_size_text(size, step->n_bytes));
        if (step->result != MOEC_SEQUENCE_NOT_TESTED && isnan(step->high))
            cli_print(stdout, "  loss %.3f%% on the first half of the windows", 100 * step->loss);
        else if (step->result != MOEC_SEQUENCE_NOT_TESTED)
            cli_print(stdout, "  loss %.3f%% (upper bound %.3f%%)", 100 * step->loss, 100 * step->high);
        cli_print(stdout, ": %s\n", results[step->result]);
    }
}

/* Whether only the certificate part has measured the plan that is written. */
static bool is_unmeasured(const struct moec_certificate *certificate)
{
    for (uint32_t i = 0; i < certificate->n_sequence; i++)
        if (certificate->sequence[i].is_chosen)
            return isnan(certificate->sequence[i].search_loss);
    return false;
}

/* `is_part`: there is one of the bits together with decisions or a plan. */
static void print_certificate(const struct moec_certificate *certificate, bool is_part)
{
    cli_print(stdout, "\nCertificate\n");
    if (!certificate->present) {
        cli_print(stdout, "  none%s\n",
                  is_part ? " of the bits alone: the certificate below covers their loss too"
                          : ": compiled without data, no loss was measured");
        return;
    }
    char digest[2 * MOEC_SHA256_BYTES + 1];
    moec_sha256_hex(certificate->data_digest, digest);
    const int pad = 33 - (int)strlen(certificate->metric);
    cli_print(stdout, "  %s%-*s %.4f\n", certificate->metric, pad, " of the original",
              certificate->reference);
    cli_print(stdout, "  %s%-*s %.4f\n", certificate->metric, pad, " of this bundle", certificate->compiled);
    cli_print(stdout, "  loss                             %.3f%% (%g%% interval %.3f%% to %.3f%%)\n",
              100 * certificate->loss, cli_interval_percent(certificate), 100 * certificate->loss_low,
              100 * certificate->loss_high);
    if (!isnan(certificate->target))
        cli_print(stdout, "  asked for                        at most %.3f%%%s\n", 100 * certificate->target,
                  certificate->missed ? "   MISSED (written under --accept-miss)" : "");
    if (certificate->is_chance)
        cli_print(stdout, "  promises nothing                 " MOEC_CHANCE_MARK " (--anyway)\n");
    print_tests(certificate);
    cli_print(stdout, "  search part                      loss %.3f%% (upper bound %.3f%%)%s\n",
              100 * certificate->search_loss, 100 * certificate->search_loss_high,
              is_unmeasured(certificate) ? " of the smallest plan" : "");
    if (certificate->n_token > 0)
        cli_print(stdout, "  mean KL divergence               %.6f nats per token\n", certificate->mean_kl);
    if (certificate->n_token == 0)
        cli_print(stdout, "  measured on                      %" PRIu32 " rows of '%s'\n",
                  certificate->n_window, certificate->data_name);
    else
        cli_print_wrapped(stdout, 35,
                          "  measured on                      %" PRIu32 " windows of %" PRIu32
                          " tokens (%" PRIu64 " scored) of '%s'\n",
                          certificate->n_window, certificate->seq_len_tokens, certificate->n_token,
                          certificate->data_name);
    cli_print_wrapped(stdout, 4, "  arithmetic                       %s\n  data SHA-256  %s\n",
                      certificate->arithmetic, digest);
}

static void print_decisions(const struct moec_bundle_decisions *decisions)
{
    if (!moec_decision_settings_are_on(&decisions->settings))
        return;
    cli_print(stdout, "\nDecisions (moec tune)\n");
    cli_print_decisions(decisions);
}

/* What moec tune, moec sparsify and moec predict have put into a bundle. */
struct additions {
    struct moec_bundle_decisions decisions;
    struct moec_sparsity_plan plan;
    struct moec_record_parts parts;
    struct moec_expert_predictor predictor;
    struct moec_bundle_evict evict;
    struct moec_bundle_fit fit;
};

static void print_sparsity(const struct moec_bundle *bundle, const struct additions *additions)
{
    if (additions->plan.n_layer + additions->parts.n_layer == 0)
        return;
    cli_print(stdout, "\nSparsity (moec sparsify, moec tune)\n");
    if (additions->plan.n_layer > 0)
        cli_print_plan(&additions->plan);
    if (additions->parts.n_layer > 0)
        cli_print_parts(bundle, &additions->parts, &additions->plan);
}

/* What --precision hobbit without thresholds would take. */
static void print_scores(const struct moec_bundle *bundle)
{
    struct moec_precision precision = {.kind = MOEC_PRECISION_HOBBIT, .by_shares = true};
    if (bundle->paths.scores == NULL)
        return;
    moec_precision_know_scores(&precision, bundle->paths.scores);
    cli_print_wrapped(stdout, 2,
                      "\n"
                      "Scores of experts (moec profile)\n"
                      "  --precision hobbit means hobbit:%g:%g here: %.0f%% of a token's experts have a "
                      "score of at most %g, %.0f%% of at most %g\n",
                      (double)precision.high_score, (double)precision.low_score, 100 * MOEC_SCORE_PAPER_HIGH,
                      (double)precision.high_score, 100 * MOEC_SCORE_PAPER_READ, (double)precision.low_score);
}

static struct moec_json_out *json_scores(const float *scores)
{
    struct moec_json_out *node = moec_json_out_array();
    for (uint32_t i = 0; i < MOEC_SCORE_COUNT; i++)
        moec_json_out_double(node, NULL, (double)scores[i]);
    return node;
}

static void print_evict(const struct moec_bundle_evict *evict)
{
    char size[24];
    if (!moec_bundle_evict_is_there(evict))
        return;
    cli_print(
        stdout,
        "\nEviction (moec simulate --search-evict)\n  --evict hobbit takes %g:%g:%g:%g, found for a buffer "
        "of %s:\n  a token lost %.3f ms by misses, by recency alone %.3f ms\n",
        (double)evict->weights[0], (double)evict->weights[1], (double)evict->weights[2],
        (double)evict->weights[3], cli_memory_text(size, evict->buffer_bytes), 1e-6 * evict->lost_ns,
        1e-6 * evict->lost_by_lru_ns);
}

/* All settings of a fitted bundle in one block; its decisions have their certificate below. */
static void print_fit(const struct additions *additions)
{
    const struct moec_bundle_fit *fit = &additions->fit;
    const struct moec_decision_settings *settings = &additions->decisions.settings;
    char memory[24], buffer[24];
    if (!moec_bundle_fit_is_there(fit))
        return;
    cli_print(stdout,
              "\nFit (moec fit)\n"
              "  for        --memory %s, of which %s hold experts; a context of %" PRIu32 " tokens\n"
              "  storage    %.4g MB/s, %.4g us a request\n"
              "  token      %.3f ms expected, %.3f ms as moec compile alone would write it,\n"
              "             %.3f ms with all experts in memory\n"
              "  run as     --evict %s --predict %s%s%s\n",
              cli_memory_text(memory, fit->memory_bytes), cli_memory_text(buffer, fit->buffer_bytes),
              fit->n_context, 1e-6 * (double)fit->bytes_per_second, 1e-3 * (double)fit->latency_ns,
              1e-6 * fit->token_ns, 1e-6 * fit->compiled_ns, 1e-6 * fit->resident_ns, fit->evict,
              fit->predict, settings->route[0] != '\0' ? " --route " : "", settings->route);
}

static struct moec_json_out *json_fit(const struct moec_bundle_fit *fit)
{
    struct moec_json_out *node = moec_json_out_object();
    moec_json_out_u64(node, "memory_bytes", fit->memory_bytes);
    moec_json_out_u64(node, "buffer_bytes", fit->buffer_bytes);
    moec_json_out_u64(node, "context_tokens", fit->n_context);
    moec_json_out_u64(node, "storage_bytes_per_second", fit->bytes_per_second);
    moec_json_out_u64(node, "storage_latency_ns", fit->latency_ns);
    moec_json_out_double(node, "token_ms", 1e-6 * fit->token_ns);
    moec_json_out_double(node, "compiled_token_ms", 1e-6 * fit->compiled_ns);
    moec_json_out_double(node, "resident_token_ms", 1e-6 * fit->resident_ns);
    moec_json_out_string(node, "evict", fit->evict);
    moec_json_out_string(node, "predict", fit->predict);
    return node;
}

static struct moec_json_out *json_evict(const struct moec_bundle_evict *evict)
{
    struct moec_json_out *node = moec_json_out_object(), *weights = moec_json_out_array();
    for (size_t i = 0; i < MOEC_BUNDLE_EVICT_WEIGHTS; i++)
        moec_json_out_double(weights, NULL, (double)evict->weights[i]);
    moec_json_out_node(node, "weights", weights);
    moec_json_out_u64(node, "buffer_bytes", evict->buffer_bytes);
    moec_json_out_double(node, "lost_ms_per_token", 1e-6 * evict->lost_ns);
    moec_json_out_double(node, "lost_by_lru_ms_per_token", 1e-6 * evict->lost_by_lru_ns);
    return node;
}

static void print_predictor(const struct moec_expert_predictor *predictor)
{
    char size[24];
    if (predictor->n_layer == 0)
        return;
    cli_print_wrapped(
        stdout, 2,
        "\nPredictor (moec predict)\n  %s in memory, learned from %" PRIu64
        " tokens; with one prediction for each expert that a token takes, it names %.1f%% of these experts "
        "on other text, and the next layer's router %.1f%%\n",
        cli_size_text(size, moec_expert_predictor_bytes(predictor)), predictor->n_token,
        100 * predictor->recall, 100 * predictor->gate_recall);
}

static struct moec_json_out *json_predictor(const struct moec_expert_predictor *predictor)
{
    struct moec_json_out *node = moec_json_out_object();
    moec_json_out_u64(node, "bytes", moec_expert_predictor_bytes(predictor));
    moec_json_out_u64(node, "tokens", predictor->n_token);
    moec_json_out_double(node, "recall", predictor->recall);
    moec_json_out_double(node, "gate_recall", predictor->gate_recall);
    return node;
}

static void print_provenance(const struct moec_provenance *provenance)
{
    char digest[2 * MOEC_SHA256_BYTES + 1];
    moec_sha256_hex(provenance->model_digest, digest);
    cli_print(stdout, "\nProvenance\n  moec %s, policy '%s'\n", provenance->moec_version, provenance->policy);
    cli_print_wrapped(stdout, 4, "  options: %s\n  source '%s', SHA-256 %s\n", provenance->options,
                      provenance->source_name, digest);
}

/* The settings that differ from the defaults, as in generation_config.json. */
static struct moec_json_out *json_generation(const struct moec_generation *generation)
{
    struct moec_json_out *node = moec_json_out_object();
    moec_generation_write(generation, node);
    return node;
}

static void print_generation(const struct moec_generation *generation)
{
    struct moec_json_out *node = json_generation(generation);
    struct moec_error err = {0};
    char *line = NULL;
    if (!moec_generation_is_default(generation) && moec_json_out_line(node, &line, &err) == MOEC_OK)
        cli_print(stdout, "\nGeneration\n  %s\n", line);
    free(line);
    moec_json_out_free(node);
}

static void print_sections(const struct moec_bundle *bundle)
{
    cli_print(stdout, "\nSections\n  %-16s %14s %14s %14s\n", "name", "offset", "stored", "content");
    for (uint32_t i = 0; i < moec_bundle_section_count(bundle); i++) {
        struct moec_bundle_section section = moec_bundle_section_get(bundle, i);
        cli_print(stdout, "  %-16s %14" PRIu64 " %14" PRIu64 " %14" PRIu64 "%s\n", section.name,
                  section.offset, section.stored_bytes, section.content_bytes,
                  section.is_compressed ? "  zstd" : "");
    }
}

static void print_bundle(const struct moec_bundle *bundle, const struct moec_dense *dense,
                         const struct additions *additions, const struct cli_terminal *terminal)
{
    const struct moec_config *config = &bundle->config;
    char size[24], source[24];
    cli_print(stdout, "%s: %s, %s of weights before (%.1f%%)\n", bundle->file.path,
              cli_size_text(size, bundle->file.n_bytes),
              cli_size_text(source, bundle->provenance.source_bytes),
              100 * (double)bundle->file.n_bytes / (double)bundle->provenance.source_bytes);
    char identities[64] = "";
    if (config->n_identity > 0)
        (void)snprintf(identities, sizeof identities, " and %" PRIu32 " identity experts",
                       config->n_identity);
    char stacks[64] = "";
    if (moec_config_is_encoder_decoder(config))
        (void)snprintf(stacks, sizeof stacks, ", the first %" PRIu32 " an encoder's",
                       config->n_encoder_layer);
    cli_print(stdout,
              "\nModel\n  %s: %" PRIu32 " layers%s (%" PRIu32 " with experts), hidden %" PRIu32 ", %" PRIu32
              " heads, vocabulary %" PRIu32 "\n  %" PRIu32 " experts a layer%s, top-%" PRIu32 ", %" PRIu32
              " neurons each; ",
              config->family, config->n_layer, stacks, moec_config_moe_count(config), config->n_embd,
              moec_config_attention(config)->n_head, config->n_vocab, config->n_expert, identities,
              config->top_k, config->n_ff_expert);
    if (config->n_ff_shared > 0)
        cli_print(stdout, "shared expert: %" PRIu32 " neurons\n", config->n_ff_shared);
    else
        cli_print(stdout, "no shared expert\n");
    if (bundle->paths.n_shallow > 0)
        cli_print(stdout,
                  "  MoE layers whose experts are hard to predict: the first %" PRIu32 " (--evict fate)\n",
                  bundle->paths.n_shallow);
    if (moec_provenance_orders_neurons(&bundle->provenance))
        cli_print(stdout, "  neurons of an expert that are active together stand together "
                          "(moec compile --order-neurons)\n");
    const uint32_t limit = moec_config_rope_limit(config);
    if (limit > 0)
        cli_print(stdout, "  RoPE by the length of the context: made for %s%" PRIu32 " tokens%s\n",
                  config->position.rope_context == 0 ? "up to " : "more than ", limit,
                  config->position.rope_context == 0 ? "; a larger --ctx takes other angles" : "");
    cli_print(stdout, "\nPrecision copies\n");
    for (uint32_t copy = 0; copy < bundle->n_copy; copy++) {
        struct copy_summary summary = summarise_copy(bundle, copy);
        double mean = 0, n = 0;
        for (size_t i = 0; i < MOEC_CODEC_TABLE; i++) {
            mean += moec_codec_code_bits(bundle->codecs[i]) * (double)summary.uses[i];
            n += summary.uses[i];
        }
        cli_print(stdout, "  copy %" PRIu32 ": %s, %.2f bits an expert on average%s\n", copy,
                  cli_size_text(size, summary.n_bytes), mean / n,
                  copy == 0 ? " (the compiled assignment)" : "");
    }
    cli_print_codecs(bundle);
    cli_print_dense_codecs(dense);
    print_map(bundle, terminal);
    print_certificate(&bundle->certificate,
                      additions->plan.certificate.present || additions->decisions.certificate.present);
    print_sparsity(bundle, additions);
    print_decisions(&additions->decisions);
    print_fit(additions);
    print_predictor(&additions->predictor);
    print_evict(&additions->evict);
    print_scores(bundle);
    print_provenance(&bundle->provenance);
    print_generation(&bundle->generation);
    print_sections(bundle);
}

/* ---- for programs ---- */

static struct moec_json_out *json_model(const struct moec_config *config, uint32_t n_shallow)
{
    struct moec_json_out *node = moec_json_out_object();
    moec_json_out_string(node, "family", config->family);
    moec_json_out_u64(node, "layers", config->n_layer);
    if (moec_config_is_encoder_decoder(config)) {
        moec_json_out_u64(node, "encoder_layers", config->n_encoder_layer);
        moec_json_out_u64(node, "encoder_moe_layers", moec_config_moe_encoder_count(config));
    }
    moec_json_out_u64(node, "moe_layers", moec_config_moe_count(config));
    if (n_shallow > 0)
        moec_json_out_u64(node, "shallow_moe_layers", n_shallow);
    moec_json_out_u64(node, "hidden_size", config->n_embd);
    if (moec_config_rope_limit(config) > 0) {
        moec_json_out_u64(node, "rope_limit_tokens", moec_config_rope_limit(config));
        moec_json_out_u64(node, "rope_context_tokens", config->position.rope_context);
    }
    moec_json_out_u64(node, "experts", config->n_expert);
    if (config->n_identity > 0)
        moec_json_out_u64(node, "identity_experts", config->n_identity);
    moec_json_out_u64(node, "top_k", config->top_k);
    moec_json_out_u64(node, "expert_neurons", config->n_ff_expert);
    moec_json_out_u64(node, "shared_neurons", config->n_ff_shared);
    moec_json_out_u64(node, "vocabulary", config->n_vocab);
    return node;
}

static struct moec_json_out *json_copies(const struct moec_bundle *bundle)
{
    struct moec_json_out *copies = moec_json_out_array();
    uint32_t n_layer = moec_config_moe_count(&bundle->config);
    for (uint32_t copy = 0; copy < bundle->n_copy; copy++) {
        struct moec_json_out *node = moec_json_out_object(), *rows = moec_json_out_array();
        moec_json_out_u64(node, "record_bytes", summarise_copy(bundle, copy).n_bytes);
        for (uint32_t s = 0; s < n_layer; s++) {
            struct moec_json_out *row = moec_json_out_array();
            for (uint32_t e = 0; e < bundle->config.n_expert; e++)
                cli_json_variant(row, moec_bundle_record(bundle, copy, s, e)->variant, bundle->codecs,
                                 bundle->config.mlp.plain);
            moec_json_out_node(rows, NULL, row);
        }
        moec_json_out_node(node, "bits", rows);
        moec_json_out_node(copies, NULL, node);
    }
    return copies;
}

static struct moec_json_out *json_certificate(const struct moec_certificate *certificate)
{
    struct moec_json_out *node = moec_json_out_object();
    cli_json_certificate(node, certificate, "compiled", "bundle_bytes");
    moec_json_out_bool(node, "missed", certificate->missed);
    return node;
}

static struct moec_json_out *json_provenance(const struct moec_provenance *provenance)
{
    char model[2 * MOEC_SHA256_BYTES + 1], profile[2 * MOEC_SHA256_BYTES + 1];
    moec_sha256_hex(provenance->model_digest, model);
    moec_sha256_hex(provenance->profile_digest, profile);
    struct moec_json_out *node = moec_json_out_object();
    moec_json_out_string(node, "moec_version", provenance->moec_version);
    moec_json_out_string(node, "policy", provenance->policy);
    moec_json_out_string(node, "options", provenance->options);
    moec_json_out_string(node, "source", provenance->source_name);
    moec_json_out_string(node, "model_sha256", model);
    moec_json_out_string(node, "profile_sha256", profile);
    moec_json_out_u64(node, "source_bytes", provenance->source_bytes);
    moec_json_out_u64(node, "source_expert_bytes", provenance->source_expert_bytes);
    return node;
}

static struct moec_json_out *json_sections(const struct moec_bundle *bundle)
{
    struct moec_json_out *sections = moec_json_out_array();
    for (uint32_t i = 0; i < moec_bundle_section_count(bundle); i++) {
        struct moec_bundle_section section = moec_bundle_section_get(bundle, i);
        struct moec_json_out *node = moec_json_out_object();
        moec_json_out_string(node, "name", section.name);
        moec_json_out_u64(node, "offset", section.offset);
        moec_json_out_u64(node, "stored_bytes", section.stored_bytes);
        moec_json_out_u64(node, "content_bytes", section.content_bytes);
        moec_json_out_bool(node, "compressed", section.is_compressed);
        moec_json_out_node(sections, NULL, node);
    }
    return sections;
}

static enum moec_status print_json(const struct moec_bundle *bundle, const struct moec_dense *dense,
                                   const struct additions *additions, struct moec_error *err)
{
    struct moec_json_out *root = moec_json_out_object();
    moec_json_out_string(root, "file", bundle->file.path);
    moec_json_out_u64(root, "file_bytes", bundle->file.n_bytes);
    moec_json_out_u64(root, "alignment", bundle->alignment);
    moec_json_out_node(root, "model", json_model(&bundle->config, bundle->paths.n_shallow));
    moec_json_out_node(root, "generation", json_generation(&bundle->generation));
    moec_json_out_node(root, "copies", json_copies(bundle));
    moec_json_out_node(root, "codecs", cli_json_codecs(bundle));
    moec_json_out_node(root, "dense_matrices", cli_json_dense_matrices(dense));
    moec_json_out_bool(root, "neurons_ordered", moec_provenance_orders_neurons(&bundle->provenance));
    if (bundle->certificate.present)
        moec_json_out_node(root, "certificate", json_certificate(&bundle->certificate));
    else
        moec_json_out_null(root, "certificate");
    if (additions->plan.n_layer > 0)
        moec_json_out_node(root, "sparsity", cli_json_plan(&additions->plan));
    else
        moec_json_out_null(root, "sparsity");
    if (additions->parts.n_layer > 0)
        moec_json_out_node(root, "parts", cli_json_parts(bundle, &additions->parts));
    else
        moec_json_out_null(root, "parts");
    if (moec_decision_settings_are_on(&additions->decisions.settings))
        moec_json_out_node(root, "decisions", cli_json_decisions(&additions->decisions));
    else
        moec_json_out_null(root, "decisions");
    if (additions->predictor.n_layer > 0)
        moec_json_out_node(root, "predictor", json_predictor(&additions->predictor));
    else
        moec_json_out_null(root, "predictor");
    if (moec_bundle_evict_is_there(&additions->evict))
        moec_json_out_node(root, "evict", json_evict(&additions->evict));
    else
        moec_json_out_null(root, "evict");
    if (moec_bundle_fit_is_there(&additions->fit))
        moec_json_out_node(root, "fit", json_fit(&additions->fit));
    else
        moec_json_out_null(root, "fit");
    if (bundle->paths.scores != NULL)
        moec_json_out_node(root, "expert_scores", json_scores(bundle->paths.scores));
    else
        moec_json_out_null(root, "expert_scores");
    moec_json_out_node(root, "provenance", json_provenance(&bundle->provenance));
    moec_json_out_node(root, "sections", json_sections(bundle));
    return cli_print_json(root, err);
}

static int run_inspect(const struct cli_args *args)
{
    struct moec_error err = {0};
    struct moec_bundle *bundle = NULL;
    struct moec_dense dense = {0};
    enum moec_status status = moec_bundle_open(args->positional[0], &bundle, &err);
    struct additions additions = {0};
    if (status == MOEC_OK)
        status = moec_bundle_load_dense_table(bundle, &dense, &err);
    if (status == MOEC_OK)
        status = moec_bundle_load_decisions(bundle, &additions.decisions, &err);
    if (status == MOEC_OK)
        status = moec_bundle_load_plan(bundle, &additions.plan, &err);
    if (status == MOEC_OK)
        status = moec_bundle_load_parts(bundle, &additions.parts, &err);
    if (status == MOEC_OK)
        status = moec_bundle_load_evict(bundle, &additions.evict, &err);
    if (status == MOEC_OK)
        status = moec_bundle_load_fit(bundle, &additions.fit, &err);
    if (status == MOEC_OK)
        status = moec_bundle_load_predictor(bundle, &additions.predictor, &err);
    if (status == MOEC_OK && cli_has(args, "json")) {
        status = print_json(bundle, &dense, &additions, &err);
    } else if (status == MOEC_OK) {
        const char *colour = cli_text(args, "color");
        struct cli_terminal terminal = cli_terminal_detect(colour != NULL ? colour : "auto");
        print_bundle(bundle, &dense, &additions, &terminal);
    }
    moec_sparsity_plan_release(&additions.plan);
    moec_record_parts_release(&additions.parts);
    moec_expert_predictor_release(&additions.predictor);
    moec_dense_release(&dense);
    moec_bundle_close(bundle);
    return status == MOEC_OK ? CLI_OK : cli_fail(args, &err);
}

const struct cli_command cli_command_inspect = {
    .name = "inspect",
    .model = CLI_BUNDLE,
    .summary = "show a bundle's sizes, bitwidths, certificate and provenance",
    .usage = "MODEL.moec",
    .about = "Prints the model, the bundle's precision copies, the bitwidth of every expert as a map, the "
             "certificate of the measured loss, the inputs from which the bundle was made, and its sections.",
    .examples = "moec inspect model.moec\n"
                "moec inspect --json model.moec | jq .certificate.loss",
    .n_positional_min = 1,
    .n_positional_max = 1,
    .options = options,
    .run = run_inspect,
};
