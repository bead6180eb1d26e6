/* For people: the answer first, then tables whose columns fit the line. Policies that do not fit stand in a
 * further table, and bounds behind the last. For programs: every row of the sweep with all its numbers. */
#include "cli/output/simulate_output.h"

#include "cli/output/verdict_output.h"
#include "cli/print/print.h"
#include "cli/terminal/json_output.h"
#include "cli/terminal/terminal.h"
#include "profiler/simulate/simulate_text.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static double share(const struct moec_simulation *simulation, uint64_t bytes)
{
    return 100 * (double)bytes / (double)simulation->sweep.model->slots.all_bytes;
}

static double per_token(const struct moec_simulation *simulation, double amount)
{
    return amount / (double)simulation->sweep.recording->counted.n_decoded;
}

/* ---- for people ---- */

static void print_head(const struct moec_simulation *simulation, const char *source, const char *note)
{
    const struct moec_recording *recording = simulation->sweep.recording;
    const struct moec_simulated_model *model = simulation->sweep.model;
    char size[24];
    cli_print_wrapped(stdout, 2,
                      "%s: %" PRIu64 " tokens, %" PRIu64 " of them decoded one by one; %" PRIu32
                      " MoE layers, %" PRIu32 " experts, top-%" PRIu32 "\n",
                      source, recording->counted.n_token, recording->counted.n_decoded, model->shape.n_layer,
                      model->shape.n_expert, model->shape.top_k);
    cli_print_wrapped(stdout, 2, "Records: %s; all experts %s\n", model->sizes,
                      cli_memory_text(size, model->slots.all_bytes));
    if (note[0] != '\0')
        cli_print_wrapped(stdout, 2, "%s\n", note);
}

static void print_buffer(const struct moec_simulation *simulation, uint32_t budget)
{
    char size[24];
    cli_print(stdout, "  %5.1f %% %10s", share(simulation, simulation->sweep.budgets.bytes[budget]),
              cli_memory_text(size, simulation->sweep.budgets.bytes[budget]));
}

/* A name and width that fit it, so that columns stand under their heads. */
static int column(const char *name)
{
    int n = 0;
    while (name[n] != '\0')
        n++;
    return n < 7 ? 9 : n + 2;
}

static void print_bounds(const struct moec_simulation *simulation, uint32_t budget)
{
    const struct moec_belady *belady = &simulation->belady[budget];
    cli_print(stdout, "%9.1f", 100 * (double)belady->hits / (double)belady->asked);
    if (!simulation->sweep.model->slots.is_equal)
        cli_print(stdout, "%9.1f", 100 * belady->most_hits / (double)belady->asked);
}

#define BUFFER_COLUMNS 20
#define BOUND_COLUMNS  18 /* of both */

/* The policies from `first` on that one table has room for: the first after them. */
static uint32_t end_of_table(const struct moec_simulate_sweep *sweep, uint32_t first)
{
    uint32_t p = first;
    int n = BUFFER_COLUMNS + BOUND_COLUMNS;
    while (p < sweep->evict.n && (p == first || n + column(sweep->evict.all[p].word) <= CLI_COLUMNS))
        n += column(sweep->evict.all[p++].word);
    return p;
}

static void print_table(const struct moec_simulation *simulation, uint32_t predictor, bool of_times,
                        uint32_t first, uint32_t end)
{
    const struct moec_simulate_sweep *sweep = &simulation->sweep;
    const bool has_bounds = !of_times && end == sweep->evict.n;
    cli_print(stdout, "  %-18s", "buffer");
    for (uint32_t p = first; p < end; p++)
        cli_print(stdout, "%*s", column(sweep->evict.all[p].word), sweep->evict.all[p].word);
    if (has_bounds)
        cli_print(stdout, "%9s%s", sweep->model->slots.is_equal ? "Belady" : "farthest",
                  sweep->model->slots.is_equal ? "" : "    bound");
    putchar('\n');
    for (uint32_t b = 0; b < sweep->budgets.n; b++) {
        print_buffer(simulation, b);
        for (uint32_t p = first; p < end; p++) {
            const struct moec_simulated_result *result = moec_simulation_at(simulation, predictor, p, b);
            const double value = of_times ? result->tpot_ns_median / 1e6
                                          : 100 * moec_simulated_hit_rate(&result->decode, false);
            cli_print(stdout, "%*.*f", column(sweep->evict.all[p].word), of_times ? 3 : 1, value);
        }
        if (has_bounds)
            print_bounds(simulation, b);
        putchar('\n');
    }
}

static void print_matrix(const struct moec_simulation *simulation, uint32_t predictor, bool of_times)
{
    const struct moec_simulate_sweep *sweep = &simulation->sweep;
    cli_print(stdout, "\n%s, predictor '%s'\n",
              of_times ? "Median ms a decoded token" : "Hits of 100 experts",
              sweep->preload.predictors[predictor]->name);
    for (uint32_t first = 0, end = 0; first < sweep->evict.n; first = end) {
        end = end_of_table(sweep, first);
        print_table(simulation, predictor, of_times, first, end);
    }
}

static void print_pair_hits(const struct moec_simulation *simulation)
{
    const struct moec_simulate_sweep *sweep = &simulation->sweep;
    cli_print(stdout,
              "\nEviction '%s', predictor '%s': of 100 experts asked for while decoding\n"
              "  %-18s%8s%8s%8s%8s%9s%9s\n",
              sweep->evict.all[0].word, sweep->preload.predictors[0]->name, "buffer", "hits", "late",
              "misses", sweep->model->slots.is_equal ? "Belady" : "bound", "useful", "wasted");
    for (uint32_t b = 0; b < sweep->budgets.n; b++) {
        const struct moec_simulated_counts *counts = &moec_simulation_at(simulation, 0, 0, b)->decode;
        const double asked = (double)counts->asked / 100;
        print_buffer(simulation, b);
        cli_print(stdout, "%8.1f%8.1f%8.1f%8.1f%9.1f%9.1f\n", (double)counts->hits / asked,
                  (double)counts->late / asked, (double)counts->misses / asked,
                  100 * simulation->belady[b].most_hits / (double)simulation->belady[b].asked,
                  (double)counts->useful / asked, (double)counts->wasted / asked);
    }
}

static void print_pair_costs(const struct moec_simulation *simulation)
{
    const bool has_times = simulation->sweep.has_times;
    cli_print(stdout, "  %-18s%17s%14s%s\n", "buffer", "an expert stays", "read a token",
              has_times ? "   median ms   95 % ms" : "");
    for (uint32_t b = 0; b < simulation->sweep.budgets.n; b++) {
        const struct moec_simulated_result *result = moec_simulation_at(simulation, 0, 0, b);
        char size[24];
        print_buffer(simulation, b);
        if (isnan(result->lifetime_tokens))
            cli_print(stdout, "%10s tokens", "-");
        else
            cli_print(stdout, "%10.1f tokens", result->lifetime_tokens);
        cli_print(stdout, "%14s",
                  cli_memory_text(size, (uint64_t)per_token(simulation, (double)result->decode.read_bytes)));
        if (has_times)
            cli_print(stdout, "%12.3f%10.3f", result->tpot_ns_median / 1e6, result->tpot_ns_p95 / 1e6);
        putchar('\n');
    }
}

static void print_pair(const struct moec_simulation *simulation)
{
    print_pair_hits(simulation);
    print_pair_costs(simulation);
}

/* As --evict takes it. */
static void weights_word(const float *weights, char text[static MOEC_EVICT_WORD_BYTES])
{
    (void)snprintf(text, MOEC_EVICT_WORD_BYTES, "hobbit:%g:%g:%g:%g", (double)weights[MOEC_EVICT_LRU],
                   (double)weights[MOEC_EVICT_LFU], (double)weights[MOEC_EVICT_LHU],
                   (double)weights[MOEC_EVICT_FLD]);
}

static void print_found(const struct moec_simulation *simulation)
{
    char word[MOEC_EVICT_WORD_BYTES], bytes[24];
    const bool has_times = simulation->sweep.has_times;
    cli_print(stdout, "\nFound --evict hobbit\n  %-18s%9s%16s", "buffer", "hits %", "read a token");
    if (has_times)
        cli_print(stdout, "%14s%14s", "lost ms", "by lru ms");
    cli_print(stdout, "   %s\n", "--evict");
    for (uint32_t b = 0; b < simulation->sweep.budgets.n; b++) {
        const struct moec_found_weights *found = &simulation->found[b];
        weights_word(found->weights, word);
        print_buffer(simulation, b);
        cli_print(stdout, "%9.1f%16s", 100 * found->hit_rate,
                  cli_memory_text(bytes, (uint64_t)per_token(simulation, (double)found->read_bytes)));
        if (has_times)
            cli_print(stdout, "%14.3f%14.3f", 1e-6 * per_token(simulation, found->lost_ns),
                      1e-6 * per_token(simulation, found->lost_by_lru_ns));
        cli_print(stdout, "   %s\n", word);
    }
}

static void print_phase(const char *phase, const struct moec_route_counts *counts, uint32_t n_layer)
{
    const double n_taken = (double)counts->n_taken / 100, n = n_taken + (double)counts->n_skipped / 100;
    char size[24];
    if (counts->n_taken > 0)
        cli_print_wrapped(
            stdout, 12,
            "  %-10s%8.1f %% of the experts taken miss the logical cache, %s a token; of those chosen "
            "%.1f %% are low, %.1f %% skipped\n",
            phase, (double)counts->n_missed / n_taken,
            cli_memory_text(size, (uint64_t)moec_route_token_bytes(counts, n_layer)),
            (double)counts->n_low / n, (double)counts->n_skipped / n);
}

static void print_decided(const struct moec_simulated_decisions *decided)
{
    cli_print(stdout, "What the recorded tokens decide:\n");
    print_phase("prompts", &decided->prompt, decided->replay.n_layer);
    print_phase("decoding", &decided->decode, decided->replay.n_layer);
    if (decided->n_changed == 0) {
        cli_print(stdout,
                  "All recorded choices stay the same: these settings decide like the recorded run.\n\n");
        return;
    }
    cli_print_wrapped(
        stdout, 2,
        "%.1f %% of the recorded choices are dropped, or run in a copy of another precision. A real run "
        "with these settings would have other hidden states after its first MoE layer, and write another "
        "text. So the result is an estimate; --against shows how accurate it is.\n\n",
        100 * (double)decided->n_changed / (double)decided->n_choice);
}

void cli_print_simulation(const struct moec_simulation *simulation, const char *source,
                          const struct moec_paragraphs *text, const char *note,
                          const struct moec_simulated_decisions *decided)
{
    const struct moec_simulate_sweep *sweep = &simulation->sweep;
    struct moec_paragraphs answer = {0};
    moec_simulation_answer(simulation, &answer);
    for (uint32_t i = 0; i < answer.n; i++)
        cli_print_wrapped(stdout, 2, "%s\n", answer.items[i]);
    putchar('\n');
    if (decided != NULL)
        print_decided(decided);
    print_head(simulation, source, note);
    cli_print_paragraphs(text);
    const bool is_pair = sweep->evict.n == 1 && sweep->preload.n_predictor == 1;
    if (is_pair)
        print_pair(simulation);
    if (simulation->found != NULL)
        print_found(simulation);
    for (uint32_t p = 0; p < sweep->preload.n_predictor && !is_pair; p++) {
        print_matrix(simulation, p, false);
        if (sweep->has_times)
            print_matrix(simulation, p, true);
    }
    if (!sweep->model->slots.is_equal && !is_pair)
        cli_print_wrapped(
            stdout, 2,
            "\n"
            "farthest: evicts the expert whose next use is farthest away; a good choice, but not a bound if "
            "experts differ in size\n"
            "bound: no schedule has more hits than this, counted by space times time\n");
}

/* ---- for programs ---- */

static struct moec_json_out *json_counts(const struct moec_simulated_counts *counts)
{
    struct moec_json_out *node = moec_json_out_object();
    moec_json_out_u64(node, "asked", counts->asked);
    moec_json_out_u64(node, "hits", counts->hits);
    moec_json_out_u64(node, "late", counts->late);
    moec_json_out_u64(node, "misses", counts->misses);
    moec_json_out_u64(node, "evictions", counts->evictions);
    moec_json_out_u64(node, "preloads", counts->preloads);
    moec_json_out_u64(node, "useful_preloads", counts->useful);
    moec_json_out_u64(node, "wasted_preloads", counts->wasted);
    moec_json_out_u64(node, "read_bytes", counts->read_bytes);
    return node;
}

static struct moec_json_out *json_row(const struct moec_simulation *simulation, uint32_t predictor,
                                      uint32_t policy, uint32_t budget)
{
    const struct moec_simulate_sweep *sweep = &simulation->sweep;
    const struct moec_simulated_result *result = moec_simulation_at(simulation, predictor, policy, budget);
    const struct moec_simulated_counts *decode = &result->decode;
    struct moec_json_out *row = moec_json_out_object();
    moec_json_out_string(row, "evict", sweep->evict.all[policy].word);
    moec_json_out_string(row, "predict", sweep->preload.predictors[predictor]->name);
    moec_json_out_u64(row, "buffer_bytes", sweep->budgets.bytes[budget]);
    moec_json_out_double(row, "buffer_share",
                         (double)sweep->budgets.bytes[budget] / (double)sweep->model->slots.all_bytes);
    moec_json_out_double(row, "hit_rate", moec_simulated_hit_rate(decode, false));
    moec_json_out_double(row, "hit_or_late_rate", moec_simulated_hit_rate(decode, true));
    moec_json_out_double(row, "bytes_per_token", per_token(simulation, (double)decode->read_bytes));
    moec_json_out_double(row, "lifetime_tokens", result->lifetime_tokens);
    if (sweep->has_times) {
        moec_json_out_double(row, "tpot_ms_median", result->tpot_ns_median / 1e6);
        moec_json_out_double(row, "tpot_ms_p95", result->tpot_ns_p95 / 1e6);
        moec_json_out_double(row, "tpot_ms_mean", result->tpot_ns_mean / 1e6);
        moec_json_out_double(row, "stall_ms", per_token(simulation, decode->stall_ns / 1e6));
        moec_json_out_double(row, "compute_ms", per_token(simulation, decode->compute_ns / 1e6));
    }
    moec_json_out_node(row, "decode", json_counts(decode));
    moec_json_out_node(row, "prefill", json_counts(&result->prefill));
    return row;
}

static struct moec_json_out *json_bounds(const struct moec_simulation *simulation)
{
    const struct moec_simulate_sweep *sweep = &simulation->sweep;
    struct moec_json_out *list = moec_json_out_array();
    for (uint32_t b = 0; b < sweep->budgets.n; b++) {
        const struct moec_belady *belady = &simulation->belady[b];
        struct moec_json_out *node = moec_json_out_object();
        moec_json_out_u64(node, "buffer_bytes", sweep->budgets.bytes[b]);
        moec_json_out_double(node, "hit_rate_bound", belady->most_hits / (double)belady->asked);
        moec_json_out_double(node, "farthest_hit_rate", (double)belady->hits / (double)belady->asked);
        moec_json_out_double(node, "farthest_bytes_per_token",
                             per_token(simulation, (double)belady->read_bytes));
        moec_json_out_node(list, NULL, node);
    }
    return list;
}

static struct moec_json_out *json_found(const struct moec_simulation *simulation)
{
    struct moec_json_out *list = moec_json_out_array();
    for (uint32_t b = 0; b < simulation->sweep.budgets.n; b++) {
        const struct moec_found_weights *found = &simulation->found[b];
        struct moec_json_out *node = moec_json_out_object();
        char word[MOEC_EVICT_WORD_BYTES];
        weights_word(found->weights, word);
        moec_json_out_u64(node, "buffer_bytes", simulation->sweep.budgets.bytes[b]);
        moec_json_out_string(node, "evict", word);
        moec_json_out_string(node, "evict_weights", strchr(word, ':') + 1);
        moec_json_out_double(node, "hit_rate", found->hit_rate);
        moec_json_out_double(node, "bytes_per_token", per_token(simulation, (double)found->read_bytes));
        if (simulation->sweep.has_times) {
            moec_json_out_double(node, "lost_ms_per_token", 1e-6 * per_token(simulation, found->lost_ns));
            moec_json_out_double(node, "lost_by_lru_ms_per_token",
                                 1e-6 * per_token(simulation, found->lost_by_lru_ns));
        }
        moec_json_out_node(list, NULL, node);
    }
    return list;
}

static struct moec_json_out *json_lru(const struct moec_simulate_lru *lru)
{
    struct moec_json_out *node = moec_json_out_object(), *curve = moec_json_out_array();
    for (uint32_t i = 0; i < lru->n; i++) {
        struct moec_json_out *point = moec_json_out_object();
        moec_json_out_u64(point, "buffer_bytes", lru->budgets[i]);
        moec_json_out_double(point, "hit_rate", lru->rates[i]);
        moec_json_out_node(curve, NULL, point);
    }
    moec_json_out_node(node, "curve", curve);
    if (lru->n > 1) {
        moec_json_out_u64(node, "cliff_from_bytes", lru->budgets[lru->cliff]);
        moec_json_out_u64(node, "cliff_to_bytes", lru->budgets[lru->cliff + 1]);
    }
    return node;
}

static struct moec_json_out *json_recording(const struct moec_simulation *simulation, const char *source)
{
    const struct moec_recording *recording = simulation->sweep.recording;
    const struct moec_simulated_model *model = simulation->sweep.model;
    struct moec_json_out *node = moec_json_out_object();
    moec_json_out_string(node, "source", source);
    moec_json_out_u64(node, "tokens", recording->counted.n_token);
    moec_json_out_u64(node, "decoded_tokens", recording->counted.n_decoded);
    moec_json_out_u64(node, "moe_layers", model->shape.n_layer);
    moec_json_out_u64(node, "experts", model->shape.n_expert);
    moec_json_out_u64(node, "top_k", model->shape.top_k);
    moec_json_out_string(node, "records", model->sizes);
    moec_json_out_bool(node, "records_of_one_size", model->slots.is_equal);
    moec_json_out_u64(node, "all_experts_bytes", model->slots.all_bytes);
    moec_json_out_u64(node, "working_set_bytes", model->slots.token_bytes);
    moec_json_out_double(node, "next_token_share", simulation->reuse.next_token_share);
    moec_json_out_u64(node, "median_reuse_tokens", simulation->reuse.median_tokens);
    return node;
}

static struct moec_json_out *json_phase(const struct moec_route_counts *counts, uint32_t n_layer)
{
    struct moec_json_out *node = moec_json_out_object();
    moec_json_out_u64(node, "experts_taken", counts->n_taken);
    moec_json_out_u64(node, "experts_missed", counts->n_missed);
    moec_json_out_u64(node, "experts_low", counts->n_low);
    moec_json_out_u64(node, "experts_low_missed", counts->n_low_missed);
    moec_json_out_u64(node, "experts_skipped", counts->n_skipped);
    moec_json_out_double(node, "missed_bytes_per_token", moec_route_token_bytes(counts, n_layer));
    return node;
}

static struct moec_json_out *json_decided(const struct moec_simulated_decisions *decided)
{
    struct moec_json_out *node = moec_json_out_object();
    moec_json_out_u64(node, "choices", decided->n_choice);
    moec_json_out_u64(node, "choices_changed", decided->n_changed);
    moec_json_out_node(node, "prompt", json_phase(&decided->prompt, decided->replay.n_layer));
    moec_json_out_node(node, "decode", json_phase(&decided->decode, decided->replay.n_layer));
    return node;
}

enum moec_status cli_print_simulation_json(const struct moec_simulation *simulation, const char *source,
                                           const struct moec_paragraphs *text, const char *note,
                                           const struct moec_simulated_decisions *decided,
                                           struct moec_error *err)
{
    const struct moec_simulate_sweep *sweep = &simulation->sweep;
    struct moec_json_out *root = moec_json_out_object(), *rows = moec_json_out_array();
    moec_json_out_node(root, "recording", json_recording(simulation, source));
    if (decided != NULL)
        moec_json_out_node(root, "decided", json_decided(decided));
    moec_json_out_u64(root, "preload_count", sweep->preload.count);
    moec_json_out_u64(root, "preload_ahead", sweep->preload.ahead);
    moec_json_out_node(root, "lru", json_lru(&simulation->lru));
    moec_json_out_node(root, "text", cli_json_paragraphs(text));
    moec_json_out_string(root, "note", note);
    moec_json_out_node(root, "bounds", json_bounds(simulation));
    if (simulation->found != NULL)
        moec_json_out_node(root, "tuned_evict", json_found(simulation));
    for (uint32_t p = 0; p < sweep->preload.n_predictor; p++)
        for (uint32_t e = 0; e < sweep->evict.n; e++)
            for (uint32_t b = 0; b < sweep->budgets.n; b++)
                moec_json_out_node(rows, NULL, json_row(simulation, p, e, b));
    moec_json_out_node(root, "rows", rows);
    return cli_print_json(root, err);
}

/* ---- beside a bench ---- */

/* Two figures side by side; a bar where there is none. */
static void print_both(double measured, double predicted, int n_digits, int width)
{
    if (isnan(measured))
        cli_print(stdout, "%*s%*s", width, "-", width, "-");
    else
        cli_print(stdout, "%*.*f%*.*f", width, n_digits, measured, width, n_digits, predicted);
}

static void print_times(double measured_ms, double predicted_ms)
{
    print_both(measured_ms, predicted_ms, 3, 11);
    if (isnan(measured_ms))
        cli_print(stdout, "%9s", "-");
    else
        cli_print(stdout, "%+8.1f%%", 100 * (predicted_ms / measured_ms - 1));
}

static void print_agreed_times(const struct moec_agreement *agreement)
{
    cli_print(stdout, "%-44s%11s%11s%9s%11s%11s%9s%12s%12s\n", "row", "median ms", "predicted", "differs",
              "mean ms", "predicted", "differs", "waiting ms", "predicted");
    for (uint32_t i = 0; i < agreement->n; i++) {
        const struct moec_agreement_row *row = &agreement->rows[i];
        const double difference =
            moec_agreement_time(&row->predicted_ms) / moec_agreement_time(&row->measured_ms) - 1;
        cli_print(stdout, "%-44s", row->name);
        print_times(row->measured_ms.median, row->predicted_ms.median);
        print_times(row->measured_ms.mean, row->predicted_ms.mean);
        print_both(row->measured_ms.stall, row->predicted_ms.stall, 3, 12);
        cli_print(stdout, "%s\n", fabs(difference) <= MOEC_AGREEMENT_MARGIN ? "" : "  *");
    }
    cli_print(stdout, "%" PRIu32 " of %" PRIu32 " rows within %.0f %%", agreement->n_within, agreement->n,
              100 * MOEC_AGREEMENT_MARGIN);
    if (agreement->n_failed > 0)
        cli_print(stdout, "; %" PRIu32 " rows failed in the bench and are left out", agreement->n_failed);
    putchar('\n');
}

static void print_agreed_counts(const struct moec_agreement *agreement, bool decides)
{
    cli_print(stdout, "\n%-44s%11s%11s%12s%12s", "row", "hits %", "predicted", "kB a token", "predicted");
    if (decides)
        cli_print(stdout, "%11s%11s%11s%11s%11s%11s", "missed %", "predicted", "low %", "predicted",
                  "skipped %", "predicted");
    putchar('\n');
    for (uint32_t i = 0; i < agreement->n; i++) {
        const struct moec_agreement_row *row = &agreement->rows[i];
        cli_print(stdout, "%-44s", row->name);
        print_both(100 * row->measured_hits, 100 * row->predicted_hits, 1, 11);
        print_both(row->measured_bytes / 1e3, row->predicted_bytes / 1e3, 1, 12);
        if (decides) {
            print_both(100 * row->measured.missed, 100 * row->predicted.missed, 1, 11);
            print_both(100 * row->measured.low, 100 * row->predicted.low, 1, 11);
            print_both(100 * row->measured.skipped, 100 * row->predicted.skipped, 1, 11);
        }
        putchar('\n');
    }
}

void cli_print_agreement(const struct moec_agreement *agreement, bool decides)
{
    print_agreed_times(agreement);
    print_agreed_counts(agreement, decides);
    if (decides)
        cli_print(stdout,
                  "missed: share of the experts taken; low, skipped: shares of the experts chosen.\n"
                  "Predictions use the recorded router scores; the measured run decided as it ran.\n");
}

static struct moec_json_out *json_shares(const struct moec_agreement_decided *decided)
{
    struct moec_json_out *node = moec_json_out_object();
    moec_json_out_double(node, "miss_rate", decided->missed);
    moec_json_out_double(node, "low_rate", decided->low);
    moec_json_out_double(node, "skip_rate", decided->skipped);
    return node;
}

enum moec_status cli_print_agreement_json(const struct moec_agreement *agreement, bool decides,
                                          struct moec_error *err)
{
    struct moec_json_out *root = moec_json_out_object(), *rows = moec_json_out_array();
    moec_json_out_double(root, "margin", MOEC_AGREEMENT_MARGIN);
    moec_json_out_u64(root, "compared", agreement->n);
    moec_json_out_u64(root, "within", agreement->n_within);
    moec_json_out_u64(root, "failed", agreement->n_failed);
    for (uint32_t i = 0; i < agreement->n; i++) {
        const struct moec_agreement_row *row = &agreement->rows[i];
        struct moec_json_out *node = moec_json_out_object();
        moec_json_out_string(node, "name", row->name);
        moec_json_out_double(node, "measured_tpot_ms", moec_agreement_time(&row->measured_ms));
        moec_json_out_double(node, "predicted_tpot_ms", moec_agreement_time(&row->predicted_ms));
        moec_json_out_double(node, "measured_tpot_ms_mean", row->measured_ms.mean);
        moec_json_out_double(node, "predicted_tpot_ms_mean", row->predicted_ms.mean);
        moec_json_out_double(node, "measured_stall_ms", row->measured_ms.stall);
        moec_json_out_double(node, "predicted_stall_ms", row->predicted_ms.stall);
        moec_json_out_double(node, "measured_hit_rate", row->measured_hits);
        moec_json_out_double(node, "predicted_hit_rate", row->predicted_hits);
        moec_json_out_double(node, "measured_bytes_per_token", row->measured_bytes);
        moec_json_out_double(node, "predicted_bytes_per_token", row->predicted_bytes);
        if (decides) {
            moec_json_out_node(node, "measured_decided", json_shares(&row->measured));
            moec_json_out_node(node, "predicted_decided", json_shares(&row->predicted));
        }
        moec_json_out_node(rows, NULL, node);
    }
    moec_json_out_node(root, "rows", rows);
    return cli_print_json(root, err);
}
