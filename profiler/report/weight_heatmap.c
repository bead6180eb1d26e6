#include "profiler/report/weight_heatmap.h"

#include "formats/base/printable.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static enum moec_status fill(const struct moec_weight_heatmap *heatmap, struct moec_chart *chart,
                             struct moec_error *err)
{
    const struct moec_config *config = heatmap->config;
    const uint32_t n_moe = moec_config_moe_count(config), n_expert = config->n_expert;
    struct moec_chart_cells *cells = &chart->cells;
    char name[128];
    MOEC_TRY(moec_chart_set_cells(chart, n_moe, n_expert, err));
    (void)moec_printable(heatmap->model, strlen(heatmap->model), false, name, sizeof name);
    (void)snprintf(chart->name, sizeof chart->name, "weight_error_int%" PRIu32, heatmap->bits);
    (void)snprintf(chart->title, sizeof chart->title,
                   "A first look: error of each expert's weights at %" PRIu32 " bits", heatmap->bits);
    (void)snprintf(
        chart->caption, sizeof chart->caption,
        "Each cell is the squared error of the expert's weights over their squares. The error says neither "
        "which experts tokens choose nor what the model loses; moec profile --data measures both.");
    (void)snprintf(chart->provenance, sizeof chart->provenance, "Model: %s (%s). Codes: %s.", name,
                   config->family, heatmap->codes);
    chart->x = (struct moec_chart_axis){.name = "expert", .label = "expert", .is_whole = true};
    chart->y = (struct moec_chart_axis){.name = "layer", .label = "layer", .is_whole = true};
    (void)snprintf(chart->value_label, sizeof chart->value_label, "error of weights, %%");
    (void)snprintf(chart->value_name, sizeof chart->value_name, "weight_error_percent");
    for (uint32_t s = 0; s < n_moe; s++)
        cells->rows[s] = moec_config_moe_layer(config, s);
    for (size_t i = 0; i < (size_t)n_moe * n_expert; i++) {
        cells->values[i] = 100 * heatmap->errors[i * heatmap->stride];
        cells->numbers.largest = fmax(cells->numbers.largest, cells->values[i]);
    }
    cells->colours.scale = MOEC_CHART_SCALE_PLAIN;
    cells->colours.mark = NAN;
    cells->numbers.decimals = 2;
    return MOEC_OK;
}

enum moec_status moec_weight_heatmap_write(const struct moec_weight_heatmap *heatmap, const char *path,
                                           struct moec_error *err)
{
    struct moec_chart chart = {.kind = MOEC_CHART_CELLS};
    enum moec_status status = fill(heatmap, &chart, err);
    if (status == MOEC_OK)
        status = moec_chart_write(&chart, path, err);
    moec_chart_release(&chart);
    return status;
}
