#include "cli/output/predictor_output.h"

#include "cli/print/print.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static void print_share(const struct moec_study_share *share)
{
    if (isnan(share->low))
        cli_print(stdout, " %5.1f%%              ", 100 * share->value);
    else
        cli_print(stdout, " %5.1f%% (%4.1f to %4.1f)", 100 * share->value, 100 * share->low,
                  100 * share->high);
}

static void print_shares(const struct moec_predictor_study *study, bool is_precision)
{
    cli_print(stdout, "  %-10s", is_precision ? "precision" : "recall");
    for (uint32_t c = 0; c < MOEC_STUDY_WIDTHS; c++)
        cli_print(stdout, "%*" PRIu32 " predicted", c == 0 ? 4 : 11, study->widths[c]);
    cli_print(stdout, "\n");
    for (uint32_t p = 0; p < MOEC_STUDY_PREDICTORS; p++) {
        const struct moec_studied_predictor *predictor = &study->predictors[p];
        if (predictor->ops == NULL)
            continue;
        cli_print(stdout, "  %-10s", predictor->ops->name);
        for (uint32_t c = 0; c < MOEC_STUDY_WIDTHS; c++)
            print_share(is_precision ? &predictor->precision[c] : &predictor->recall[c]);
        cli_print(stdout, "\n");
    }
}

void cli_print_predictors(const struct moec_predictor_study *study)
{
    double cosine = 0;
    uint32_t n = 0;
    for (uint32_t s = 0; s < study->n_layer; s++)
        if (!isnan(study->cosine[s])) {
            cosine += study->cosine[s];
            n++;
        }
    cli_print_wrapped(stdout, 2,
                      "experts of the next layer that each predictor names, of the %" PRIu32
                      " that a token takes, on %" PRIu64 " tokens of %" PRIu32 " windows (90%% "
                      "intervals):\n",
                      study->top_k, study->n_token, study->n_window);
    print_shares(study, false);
    print_shares(study, true);
    cli_print(stdout, "  inputs of neighbouring routers have a mean cosine similarity of %.3f\n", cosine / n);
}

void cli_print_predictor_verdict(const struct moec_predictor_study *study)
{
    const struct moec_study_share *gain = &study->gain[0];
    if (isnan(gain->value))
        return;
    char interval[48] = "";
    if (!isnan(gain->low))
        (void)snprintf(interval, sizeof interval, " (%.1f to %.1f)", 100 * gain->low, 100 * gain->high);
    cli_print_wrapped(stdout, 2,
                      "with %" PRIu32 " predicted experts, 'learned' finds %.1f percentage points %s of "
                      "the experts than 'gate'%s: %s\n",
                      study->widths[0], 100 * fabs(gain->value), gain->value < 0 ? "less" : "more", interval,
                      gain->low > 0     ? "a significant gain"
                      : gain->value > 0 ? "no significant gain"
                                        : "no gain");
}

/* ---- JSON ---- */

static void json_share(struct moec_json_out *array, const struct moec_study_share *share)
{
    struct moec_json_out *node = moec_json_out_object();
    moec_json_out_double(node, "value", share->value);
    moec_json_out_double(node, "low", share->low);
    moec_json_out_double(node, "high", share->high);
    moec_json_out_node(array, NULL, node);
}

static void json_shares(struct moec_json_out *node, const char *key, const struct moec_study_share *shares)
{
    struct moec_json_out *array = moec_json_out_array();
    for (uint32_t c = 0; c < MOEC_STUDY_WIDTHS; c++)
        json_share(array, &shares[c]);
    moec_json_out_node(node, key, array);
}

static void json_layers(struct moec_json_out *node, const char *key, const struct moec_predictor_study *study,
                        const double *values)
{
    struct moec_json_out *layers = moec_json_out_array();
    for (uint32_t s = 0; s < study->n_layer; s++) {
        struct moec_json_out *row = moec_json_out_array();
        for (uint32_t c = 0; c < MOEC_STUDY_WIDTHS; c++)
            moec_json_out_double(row, NULL, values[s * MOEC_STUDY_WIDTHS + c]);
        moec_json_out_node(layers, NULL, row);
    }
    moec_json_out_node(node, key, layers);
}

struct moec_json_out *cli_json_predictors(const struct moec_predictor_study *study,
                                          const struct moec_config *config)
{
    struct moec_json_out *root = moec_json_out_object(), *list = moec_json_out_array(),
                         *cosines = moec_json_out_array(), *layers = moec_json_out_array(),
                         *widths = moec_json_out_array();
    moec_json_out_u64(root, "windows", study->n_window);
    moec_json_out_u64(root, "tokens", study->n_token);
    for (uint32_t c = 0; c < MOEC_STUDY_WIDTHS; c++)
        moec_json_out_u64(widths, NULL, study->widths[c]);
    for (uint32_t s = 0; s < study->n_layer; s++) {
        moec_json_out_u64(layers, NULL, moec_config_moe_layer(config, s));
        moec_json_out_double(cosines, NULL, study->cosine[s]);
    }
    moec_json_out_node(root, "widths", widths);
    moec_json_out_node(root, "layers", layers);
    moec_json_out_node(root, "cosine", cosines);
    for (uint32_t p = 0; p < MOEC_STUDY_PREDICTORS; p++) {
        const struct moec_studied_predictor *predictor = &study->predictors[p];
        if (predictor->ops == NULL)
            continue;
        struct moec_json_out *node = moec_json_out_object();
        moec_json_out_string(node, "name", predictor->ops->name);
        json_shares(node, "recall", predictor->recall);
        json_shares(node, "precision", predictor->precision);
        json_layers(node, "layer_recall", study, predictor->layer_recall);
        json_layers(node, "layer_precision", study, predictor->layer_precision);
        moec_json_out_node(list, NULL, node);
    }
    moec_json_out_node(root, "predictors", list);
    json_shares(root, "gain", study->gain);
    return root;
}

/* ---- neurons ---- */

void cli_print_neurons(const struct moec_neuron_study *study)
{
    if (study->n_layer == 0)
        return;
    cli_print(stdout, "active neurons of the next layer's experts, named by their up projections "
                      "on this layer's input:\n"
                      "  left out    recall, same thresholds  precision               recall of as many\n");
    for (uint32_t l = 0; l < MOEC_NEURON_LEVELS; l++) {
        cli_print(stdout, "  %3.0f%%      ", 100 * study->levels[l]);
        print_share(&study->recall[MOEC_NEURON_SAME][l]);
        cli_print(stdout, " ");
        print_share(&study->precision[MOEC_NEURON_SAME][l]);
        print_share(&study->recall[MOEC_NEURON_OWN][l]);
        cli_print(stdout, "\n");
    }
}

struct moec_json_out *cli_json_neurons(const struct moec_neuron_study *study)
{
    struct moec_json_out *list = moec_json_out_array();
    for (uint32_t l = 0; study->n_layer > 0 && l < MOEC_NEURON_LEVELS; l++) {
        struct moec_json_out *node = moec_json_out_object();
        moec_json_out_double(node, "sparsity", study->levels[l]);
        for (uint32_t i = 0; i < MOEC_NEURON_THRESHOLDS; i++) {
            struct moec_json_out *of = moec_json_out_object(), *layers = moec_json_out_array();
            struct moec_json_out *recall = moec_json_out_array(), *precision = moec_json_out_array();
            json_share(recall, &study->recall[i][l]);
            json_share(precision, &study->precision[i][l]);
            moec_json_out_node(of, "recall", recall);
            moec_json_out_node(of, "precision", precision);
            for (uint32_t s = 0; s < study->n_layer; s++)
                moec_json_out_double(
                    layers, NULL,
                    study->layer_recall[(s * MOEC_NEURON_THRESHOLDS + i) * MOEC_NEURON_LEVELS + l]);
            moec_json_out_node(of, "layer_recall", layers);
            moec_json_out_node(node, i == MOEC_NEURON_SAME ? "same_thresholds" : "as_many", of);
        }
        moec_json_out_node(list, NULL, node);
    }
    return list;
}
