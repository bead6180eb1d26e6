#include "cli/output/routing_report.h"

#include "profiler/routing/routing_summary.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static void print_recalls(const struct moec_routing_summary *summary)
{
    printf("  %-36s %7s %7s %7s\n", "recall of the experts activated", "k", "k + 1", "2k");
    for (enum moec_predictor p = MOEC_BY_PATH; p < MOEC_N_PREDICTOR; p++) {
        const double *recall = summary->recall[p];
        if (!isnan(recall[0]))
            printf("    predicted by %-21s %6.1f%% %6.1f%% %6.1f%%\n", moec_predictor_name(p),
                   100 * recall[0], 100 * recall[1], 100 * recall[2]);
    }
}

void cli_print_routing(const struct moec_profile *profile, const char *before)
{
    struct moec_routing_summary summary;
    if (!moec_routing_summary_make(profile, &summary))
        return;
    printf("%srouting of the original, means over %" PRIu32 " MoE layers:\n", before, profile->n_moe_layer);
    printf("  entropy of the load, 1 = even          %6.3f\n", summary.entropy);
    printf("  margin of rank k over k + 1, median    %6.4f   1 in 20 below %.4f\n", summary.margin_median,
           summary.margin_small);
    if (summary.n_path > 0) {
        char label[64];
        (void)snprintf(label, sizeof label, "paths of %" PRIu64 " tokens", summary.n_token);
        printf("  %-38s %6" PRIu64 "   20%% of them carry %.1f%%\n", label, summary.n_path,
               100 * summary.top_fifth);
    }
    if (!isnan(summary.cosine))
        printf("  cosine of neighbouring gate inputs     %6.3f   least %.3f, layer %" PRIu32 "\n",
               summary.cosine, summary.cosine_lowest, summary.cosine_lowest_layer);
    printf("  gate weight and what the expert adds   %6.3f   (correlation)\n", summary.weight_correlation);
    print_recalls(&summary);
}

/* JSON knows no NaN: what is unknown is left out. */
static void add_number(struct moec_json_out *node, const char *name, double value)
{
    if (isfinite(value))
        moec_json_out_double(node, name, value);
}

struct moec_json_out *cli_json_routing(const struct moec_profile *profile)
{
    static const char *const predictors[] = {"path_table", "frequency", "next_layer_gate"};
    static const char *const cuts[] = {"k", "k_plus_1", "2k"};
    struct moec_routing_summary summary;
    if (!moec_routing_summary_make(profile, &summary))
        return NULL;
    struct moec_json_out *node = moec_json_out_object(), *recalls = moec_json_out_object();
    add_number(node, "entropy", summary.entropy);
    add_number(node, "margin_median", summary.margin_median);
    add_number(node, "margin_5_percent", summary.margin_small);
    moec_json_out_u64(node, "paths", summary.n_path);
    add_number(node, "share_of_top_20_percent_paths", summary.top_fifth);
    add_number(node, "share_of_top_10_paths", summary.top_ten);
    add_number(node, "cosine", summary.cosine);
    add_number(node, "cosine_least", summary.cosine_lowest);
    add_number(node, "gate_top1", summary.gate_top1);
    add_number(node, "gate_correlation", summary.weight_correlation);
    add_number(node, "gate_output_correlation", summary.output_correlation);
    for (uint32_t p = 0; p < MOEC_N_PREDICTOR; p++) {
        struct moec_json_out *recall = moec_json_out_object();
        for (uint32_t c = 0; c < 3; c++)
            add_number(recall, cuts[c], summary.recall[p][c]);
        moec_json_out_node(recalls, predictors[p], recall);
    }
    moec_json_out_node(node, "recall", recalls);
    return node;
}
