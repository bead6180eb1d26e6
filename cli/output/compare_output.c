#include "cli/output/compare_output.h"
#include "cli/output/figure_output.h"
#include "cli/output/verdict_output.h"
#include "cli/terminal/json_output.h"
#include "formats/profile/profile_h5.h"
#include "profiler/report/compare.h"

#include <stdlib.h>

static struct moec_json_out *json_profile(const struct moec_profile *profile, const char *path,
                                          const char *name)
{
    char digest[2 * MOEC_SHA256_BYTES + 1];
    struct moec_json_out *node = moec_json_out_object();
    moec_json_out_string(node, "file", path);
    moec_json_out_string(node, "name", name);
    moec_json_out_string(node, "data", profile->data_name);
    moec_sha256_hex(profile->data_digest, digest);
    moec_json_out_string(node, "data_sha256", digest);
    moec_sha256_hex(profile->model_digest, digest);
    moec_json_out_string(node, "model_sha256", digest);
    return node;
}

static void json_layers(struct moec_json_out *node, const char *key, const double *values, uint32_t n)
{
    struct moec_json_out *layers = moec_json_out_array();
    for (uint32_t s = 0; s < n; s++)
        moec_json_out_double(layers, NULL, values[s]);
    moec_json_out_node(node, key, layers);
}

static struct moec_json_out *json_bits(const struct moec_compare *compare,
                                       const struct moec_compare_bits *bits)
{
    struct moec_json_out *node = moec_json_out_object();
    moec_json_out_u64(node, "bits", bits->bits);
    moec_json_out_double(node, "pooled", bits->pooled);
    moec_json_out_double(node, "halves_a", bits->halves_a);
    moec_json_out_double(node, "halves_b", bits->halves_b);
    json_layers(node, "layers", bits->layers, compare->a->n_moe_layer);
    json_layers(node, "layer_halves_a", bits->layer_halves_a, compare->a->n_moe_layer);
    json_layers(node, "layer_halves_b", bits->layer_halves_b, compare->a->n_moe_layer);
    return node;
}

static struct moec_json_out *json_cross(const struct moec_compare_cross *crosses)
{
    struct moec_json_out *list = moec_json_out_array();
    for (uint32_t t = 0; t < MOEC_MIXED_TARGETS; t++) {
        struct moec_json_out *node = moec_json_out_object();
        moec_json_out_double(node, "target", crosses[t].target);
        moec_json_out_double(node, "own_loss", crosses[t].own_loss);
        moec_json_out_double(node, "loss", crosses[t].loss);
        moec_json_out_double(node, "planned_loss", crosses[t].planned_loss);
        moec_json_out_double(node, "blind_loss", crosses[t].blind_loss);
        moec_json_out_node(list, NULL, node);
    }
    return list;
}

static struct moec_json_out *json_experts(const struct moec_compare *compare)
{
    struct moec_json_out *list = moec_json_out_array();
    for (uint32_t i = 0; i < compare->n_listed; i++) {
        const struct moec_compare_expert *expert = &compare->listed[i];
        struct moec_json_out *node = moec_json_out_object();
        moec_json_out_u64(node, "layer", expert->layer);
        moec_json_out_u64(node, "expert", expert->expert);
        moec_json_out_double(node, "rank_a", expert->rank_a);
        moec_json_out_double(node, "rank_b", expert->rank_b);
        moec_json_out_double(node, "effect_a", expert->effect_a);
        moec_json_out_double(node, "effect_b", expert->effect_b);
        moec_json_out_node(list, NULL, node);
    }
    return list;
}

static enum moec_status print_json(const struct cli_args *args, const struct moec_compare *compare,
                                   const struct moec_paragraphs *text, struct moec_error *err)
{
    struct moec_json_out *root = moec_json_out_object(), *ranks = moec_json_out_array();
    moec_json_out_node(root, "a", json_profile(compare->a, cli_text(args, "compare"), compare->name_a));
    moec_json_out_node(root, "b", json_profile(compare->b, args->positional[0], compare->name_b));
    moec_json_out_bool(root, "same_model", compare->same_model);
    moec_json_out_bool(root, "same_data", compare->same_data);
    moec_json_out_bool(root, "same_quantizer", compare->same_quantizer);
    moec_json_out_bool(root, "same_sensitivity", compare->same_mode);
    moec_json_out_u64(root, "experts", compare->n_expert);
    moec_json_out_u64(root, "reached", compare->n_reached);
    for (uint32_t i = 0; i < compare->n_bits; i++)
        moec_json_out_node(ranks, NULL, json_bits(compare, &compare->bits[i]));
    moec_json_out_node(root, "rank_correlation", ranks);
    moec_json_out_double(root, "activation_rank_correlation", compare->activation_rank);
    moec_json_out_double(root, "activation_overlap", compare->activation_overlap);
    moec_json_out_double(root, "path_coverage", compare->path_coverage);
    moec_json_out_double(root, "path_overlap", compare->path_overlap);
    moec_json_out_node(root, "a_on_b", json_cross(compare->a_on_b));
    moec_json_out_node(root, "b_on_a", json_cross(compare->b_on_a));
    moec_json_out_node(root, "different_experts", json_experts(compare));
    moec_json_out_node(root, "text", cli_json_paragraphs(text));
    return cli_print_json(root, err);
}

static enum moec_status report(const struct cli_args *args, const struct moec_compare *compare,
                               struct moec_error *err)
{
    struct moec_paragraphs text = {0};
    struct moec_figures figures = {0};
    const bool is_json = cli_has(args, "json");
    moec_compare_describe(compare, &text);
    if (is_json)
        MOEC_TRY(print_json(args, compare, &text, err));
    else
        cli_print_paragraphs(&text);
    if (!cli_has(args, "plots"))
        return MOEC_OK;
    MOEC_TRY(moec_compare_figures(compare, &figures, err));
    const enum moec_status status = cli_write_plots(args, &figures, is_json, err);
    moec_figures_release(&figures);
    return status;
}

enum moec_status cli_compare_profiles(const struct cli_args *args, struct moec_error *err)
{
    struct moec_profile a = {0}, b = {0};
    struct moec_compare compare = {0};
    uint8_t digest[MOEC_SHA256_BYTES];
    const bool trust = cli_has(args, "trust-profile");
    enum moec_status status = MOEC_OK;
    if (args->n_positional != 1)
        return moec_fail(err, MOEC_ERR_USAGE, "--compare takes two profiles: --compare A.h5 B.h5");
    if (cli_has(args, "data") || cli_has(args, "output") || cli_has(args, "show") || cli_has(args, "heatmap"))
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "--compare takes two profiles and nothing else: leave out --data, -o, --show and --heatmap");
    MOEC_TRY_OUT(moec_profile_read(cli_text(args, "compare"), trust, &a, digest, err));
    MOEC_TRY_OUT(moec_profile_read(args->positional[0], trust, &b, digest, err));
    MOEC_TRY_OUT(moec_compare_make(&a, &b, &compare, err));
    status = report(args, &compare, err);
    moec_compare_release(&compare);
out:
    moec_profile_release(&a);
    moec_profile_release(&b);
    return status;
}
