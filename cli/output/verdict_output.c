#include "cli/output/verdict_output.h"
#include "cli/print/print.h"
#include "cli/terminal/terminal.h"
#include "profiler/profile/codes_words.h"
#include "profiler/profile/verdict.h"
#include "profiler/routing/coverage.h"

#include <inttypes.h>
#include <math.h>

void cli_print_paragraphs(const struct moec_paragraphs *paragraphs)
{
    for (uint32_t i = 0; i < paragraphs->n; i++) {
        putchar('\n');
        cli_put_wrapped(stdout, 0, paragraphs->items[i]);
        putchar('\n');
    }
}

struct moec_json_out *cli_json_paragraphs(const struct moec_paragraphs *paragraphs)
{
    struct moec_json_out *list = moec_json_out_array();
    for (uint32_t i = 0; i < paragraphs->n; i++)
        moec_json_out_string(list, NULL, paragraphs->items[i]);
    return list;
}

/* "2 bits  0.93 MB   -6.1%": a plan for all experts, and what mixing changes. */
static void print_plan(uint32_t bits, uint64_t n_bytes, double saving, const char *end)
{
    char size[24];
    if (bits == 0)
        cli_print(stdout, "%-28s%s", "none measured", end);
    else if (isnan(saving))
        cli_print(stdout, "%" PRIu32 " bits  %9s         %s", bits, cli_size_text(size, n_bytes), end);
    else
        cli_print(stdout,
                  fabs(saving) < 0.0005 ? "%" PRIu32 " bits  %9s  %6.1f%%%s"
                                        : "%" PRIu32 " bits  %9s  %+6.1f%%%s",
                  bits, cli_size_text(size, n_bytes), fabs(saving) < 0.0005 ? 0 : -100 * saving, end);
}

/* Compile's codes beside the profile's. */
static void print_columns(const struct moec_profile *profile, const struct moec_verdict *verdict)
{
    char own[MOEC_CODES_WORDS];
    if (!verdict->has_codes || !verdict->has_mixed)
        return;
    cli_print(stdout, "\n        compile's quantization         %s\n", moec_codes_words(profile, 0, own));
    cli_print(stdout, "loss    bits         size   mixing       bits         size   mixing\n");
    for (uint32_t t = 0; t < MOEC_VERDICT_TARGETS; t++) {
        const struct moec_verdict_single *single = &verdict->singles[t];
        const struct moec_verdict_target *target = &verdict->targets[t];
        cli_print(stdout, "%3.0f%%    ", 100 * target->target);
        print_plan(single->bits, single->n_bytes, single->saving, "       ");
        print_plan(target->uniform_bits, target->uniform_bytes, target->saving, "\n");
    }
}

enum moec_status cli_print_verdict(const struct moec_profile *profile, bool is_verbose,
                                   struct moec_error *err)
{
    struct moec_verdict verdict;
    struct moec_coverage coverage;
    struct moec_paragraphs text = {0};
    MOEC_TRY(moec_verdict_make(profile, &verdict, err));
    MOEC_TRY(moec_coverage_make(profile, &coverage, err));
    if (is_verbose) {
        moec_verdict_describe(profile, &verdict, &text);
        moec_coverage_describe(profile, &coverage, &text);
    } else {
        moec_verdict_conclude(profile, &verdict, &text);
    }
    print_columns(profile, &verdict);
    cli_print_paragraphs(&text);
    return MOEC_OK;
}

static struct moec_json_out *json_bits(const struct moec_verdict_bits *bits)
{
    struct moec_json_out *node = moec_json_out_object();
    moec_json_out_u64(node, "bits", bits->bits);
    moec_json_out_double(node, "effect_quantile_10", bits->low);
    moec_json_out_double(node, "effect_median", bits->median);
    moec_json_out_double(node, "effect_quantile_90", bits->high);
    moec_json_out_double(node, "effect_largest", bits->largest);
    moec_json_out_u64(node, "largest_layer", bits->largest_layer);
    moec_json_out_u64(node, "largest_expert", bits->largest_expert);
    moec_json_out_double(node, "ratio_90_10", bits->ratio);
    moec_json_out_double(node, "layer_share_of_variance", bits->layer_share);
    moec_json_out_u64(node, "most_sensitive_layer", bits->most_layer);
    moec_json_out_u64(node, "least_sensitive_layer", bits->least_layer);
    moec_json_out_double(node, "noise", bits->noise);
    moec_json_out_u64(node, "experts_worse", bits->n_worse);
    moec_json_out_u64(node, "experts_better", bits->n_better);
    moec_json_out_u64(node, "experts_unclear", bits->n_unclear);
    moec_json_out_double(node, "joint_kl", bits->joint_kl);
    moec_json_out_double(node, "sum_kl", bits->sum_kl);
    moec_json_out_double(node, "joint_loss", bits->joint_loss);
    moec_json_out_double(node, "sum_loss", bits->sum_loss);
    moec_json_out_double(node, "additivity", bits->additivity);
    return node;
}

static struct moec_json_out *json_target(const struct moec_verdict_target *target)
{
    struct moec_json_out *node = moec_json_out_object();
    moec_json_out_double(node, "target", target->target);
    moec_json_out_double(node, "loss", target->loss);
    moec_json_out_double(node, "loss_high", target->loss_high);
    moec_json_out_bool(node, "measured", target->is_measured);
    moec_json_out_bool(node, "met", target->is_met);
    moec_json_out_u64(node, "mixed_bytes", target->mixed_bytes);
    moec_json_out_u64(node, "uniform_bits", target->uniform_bits);
    moec_json_out_u64(node, "uniform_bytes", target->uniform_bytes);
    moec_json_out_double(node, "saving", target->saving);
    moec_json_out_double(node, "blind_saving", target->blind_saving);
    return node;
}

static struct moec_json_out *json_single(const struct moec_verdict *verdict, uint32_t at)
{
    const struct moec_verdict_single *single = &verdict->singles[at];
    struct moec_json_out *node = moec_json_out_object();
    moec_json_out_double(node, "target", verdict->targets[at].target);
    moec_json_out_u64(node, "bits", single->bits);
    moec_json_out_string(node, "codes", single->codes);
    moec_json_out_u64(node, "bytes", single->n_bytes);
    moec_json_out_double(node, "loss", single->loss);
    moec_json_out_double(node, "loss_high", single->loss_high);
    moec_json_out_u64(node, "predicted_mixed_bytes", single->mixed_bytes);
    moec_json_out_double(node, "predicted_saving", single->saving);
    return node;
}

static struct moec_json_out *json_verdict(const struct moec_profile *profile,
                                          const struct moec_verdict *verdict)
{
    struct moec_json_out *node = moec_json_out_object(), *list = moec_json_out_array();
    struct moec_paragraphs text = {0};
    moec_json_out_bool(node, "estimated", verdict->is_estimated);
    moec_json_out_u64(node, "experts", verdict->n_expert);
    moec_json_out_u64(node, "reached", verdict->n_reached);
    for (uint32_t b = 0; b < verdict->n_bits; b++)
        moec_json_out_node(list, NULL, json_bits(&verdict->bits[b]));
    moec_json_out_node(node, "bits", list);
    list = moec_json_out_array();
    for (uint32_t t = 0; verdict->has_mixed && t < MOEC_VERDICT_TARGETS; t++)
        moec_json_out_node(list, NULL, json_target(&verdict->targets[t]));
    moec_json_out_node(node, "mixed", list);
    char own[MOEC_CODES_WORDS];
    moec_json_out_string(node, "mixed_codes", moec_codes_words(profile, 0, own));
    list = moec_json_out_array();
    for (uint32_t t = 0; verdict->has_codes && t < MOEC_VERDICT_TARGETS; t++)
        moec_json_out_node(list, NULL, json_single(verdict, t));
    moec_json_out_node(node, "compile_codes", list);
    moec_json_out_double(node, "mixed_passes", verdict->mixed_passes);
    moec_verdict_describe(profile, verdict, &text);
    moec_json_out_node(node, "text", cli_json_paragraphs(&text));
    return node;
}

static struct moec_json_out *json_coverage(const struct moec_profile *profile,
                                           const struct moec_coverage *coverage)
{
    struct moec_json_out *node = moec_json_out_object(), *list = moec_json_out_array();
    struct moec_paragraphs text = {0};
    moec_json_out_u64(node, "windows", coverage->n_window);
    moec_json_out_u64(node, "tokens", coverage->n_token);
    moec_json_out_u64(node, "min_tokens", coverage->min_tokens);
    moec_json_out_u64(node, "median_tokens", coverage->median_tokens);
    moec_json_out_u64(node, "max_tokens", coverage->max_tokens);
    moec_json_out_u64(node, "unreached", coverage->n_unreached);
    moec_json_out_u64(node, "rare", coverage->n_rare);
    for (uint32_t i = 0; i < coverage->n_listed; i++) {
        struct moec_json_out *expert = moec_json_out_object();
        moec_json_out_u64(expert, "layer", coverage->listed[i].layer);
        moec_json_out_u64(expert, "expert", coverage->listed[i].expert);
        moec_json_out_u64(expert, "tokens", coverage->listed[i].n_token);
        moec_json_out_u64(expert, "windows", coverage->listed[i].n_window);
        moec_json_out_node(list, NULL, expert);
    }
    moec_json_out_node(node, "rarest", list);
    moec_json_out_u64(node, "windows_for_rare", coverage->windows_for_rare);
    list = moec_json_out_array();
    for (uint32_t t = 0; t < MOEC_COVERAGE_TARGETS; t++) {
        struct moec_json_out *target = moec_json_out_object();
        moec_json_out_double(target, "target", coverage->targets[t]);
        moec_json_out_u64(target, "uniform_bits", coverage->target_bits[t]);
        moec_json_out_u64(target, "windows", coverage->target_windows[t]);
        moec_json_out_node(list, NULL, target);
    }
    moec_json_out_node(node, "windows_for_targets", list);
    moec_json_out_u64(node, "windows_for_differences", coverage->windows_for_differences);
    moec_coverage_describe(profile, coverage, &text);
    moec_json_out_node(node, "text", cli_json_paragraphs(&text));
    return node;
}

enum moec_status cli_json_verdict(struct moec_json_out *node, const struct moec_profile *profile,
                                  struct moec_error *err)
{
    struct moec_verdict verdict;
    struct moec_coverage coverage;
    MOEC_TRY(moec_verdict_make(profile, &verdict, err));
    MOEC_TRY(moec_coverage_make(profile, &coverage, err));
    moec_json_out_node(node, "verdict", json_verdict(profile, &verdict));
    moec_json_out_node(node, "coverage", json_coverage(profile, &coverage));
    return MOEC_OK;
}
