/* A list of names is cut at commas; each word names studies by name or group. The same walk serves printing
 * and JSON, so both have the same studies in the same order. */
#include "cli/output/study_output.h"
#include "cli/options/nearest.h"
#include "cli/print/print.h"
#include "profiler/profile/study_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORD_BYTES 96

static enum moec_status unknown_study(const struct moec_studies *studies, const char *word,
                                      struct moec_error *err)
{
    struct cli_nearest nearest = cli_nearest_of(word, strlen(word));
    for (uint32_t i = 0; i < studies->n; i++) {
        const char *name = studies->items[i].name;
        cli_nearest_offer(&nearest, name, strcspn(name, "/"));
        cli_nearest_offer(&nearest, name, strlen(name));
    }
    return moec_fail(err, MOEC_ERR_USAGE,
                     "no study '%s' in this profile%s%.*s%s --study list prints the names of its studies",
                     word, nearest.best != NULL ? ": did you mean '" : "", (int)nearest.best_length,
                     nearest.best != NULL ? nearest.best : "", nearest.best != NULL ? "'?" : ";");
}

/* Calls `each` for every study that the list names. */
static enum moec_status for_each(const struct moec_studies *studies, const char *list,
                                 enum moec_status (*each)(void *context, const struct moec_study *study,
                                                          struct moec_error *err),
                                 void *context, struct moec_error *err)
{
    for (const char *at = list;; at++) {
        char word[WORD_BYTES];
        const int n = (int)strcspn(at, ",");
        bool found = false;
        (void)snprintf(word, sizeof word, "%.*s", n, at);
        for (uint32_t i = 0; i < studies->n; i++) {
            if (!moec_study_matches(&studies->items[i], word))
                continue;
            MOEC_TRY(each(context, &studies->items[i], err));
            found = true;
        }
        if (!found && studies->n == 0)
            return moec_fail(err, MOEC_ERR_USAGE, "no study '%s': this profile has no studies", word);
        if (!found)
            return unknown_study(studies, word, err);
        at += n;
        if (*at == '\0')
            return MOEC_OK;
    }
}

struct printing {
    const struct moec_studies *studies;
    uint32_t columns;
    bool is_first;
};

static enum moec_status print_one(void *context, const struct moec_study *study, struct moec_error *err)
{
    struct printing *printing = context;
    char *text = NULL;
    MOEC_TRY(moec_study_table(printing->studies, study, printing->columns, &text, err));
    cli_print(stdout, "%s%s", printing->is_first ? "" : "\n", text);
    printing->is_first = false;
    free(text);
    return MOEC_OK;
}

enum moec_status cli_print_studies(const struct moec_studies *studies, const char *list, uint32_t columns,
                                   struct moec_error *err)
{
    struct printing printing = {studies, columns, true};
    char *text = NULL;
    if (strcmp(list, "list") != 0)
        return for_each(studies, list, print_one, &printing, err);
    MOEC_TRY(moec_study_list(studies, &text, err));
    cli_put(stdout, text);
    free(text);
    return MOEC_OK;
}

static struct moec_json_out *json_axes(const struct moec_study *study)
{
    struct moec_json_out *axes = moec_json_out_array();
    for (uint32_t a = 0; a < study->n_axis; a++) {
        const struct moec_study_axis *axis = &study->axes[a];
        struct moec_json_out *node = moec_json_out_object(), *values = moec_json_out_array();
        moec_json_out_string(node, "name", axis->name);
        moec_json_out_string(node, "units", axis->units);
        for (uint64_t i = 0; i < axis->n; i++) {
            if (axis->labels != NULL)
                moec_json_out_string(values, NULL, axis->labels[i]);
            else
                moec_json_out_double(values, NULL, moec_study_axis_value(axis, i));
        }
        moec_json_out_node(node, axis->labels != NULL ? "labels" : "values", values);
        moec_json_out_node(axes, NULL, node);
    }
    return axes;
}

static enum moec_status json_one(void *context, const struct moec_study *study, struct moec_error *err)
{
    struct moec_json_out *node = moec_json_out_object(), *values = moec_json_out_array();
    const uint64_t n = moec_study_count(study);
    (void)err;
    moec_json_out_string(node, "name", study->name);
    moec_json_out_string(node, "units", study->units);
    moec_json_out_string(node, "description", study->description);
    moec_json_out_string(node, "source", study->source);
    moec_json_out_node(node, "axes", json_axes(study));
    for (uint64_t i = 0; i < n; i++)
        moec_json_out_double(values, NULL, study->values[i]);
    moec_json_out_node(node, "values", values);
    moec_json_out_node(context, NULL, node);
    return MOEC_OK;
}

enum moec_status cli_json_studies(const struct moec_studies *studies, const char *list,
                                  struct moec_json_out **out, struct moec_error *err)
{
    struct moec_json_out *array = moec_json_out_array();
    const enum moec_status status =
        for_each(studies, strcmp(list, "list") == 0 ? "all" : list, json_one, array, err);
    if (status == MOEC_OK)
        *out = array;
    else
        moec_json_out_free(array);
    return status;
}
