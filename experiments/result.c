#include "experiments/result.h"

#include "formats/base/file.h"
#include "formats/base/memory.h"
#include "profiler/plot/plot.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_JSON_BYTES (64u << 20)

enum moec_status experiment_load(const char *folder, const char *name, struct moec_json **root,
                                 struct moec_error *err)
{
    char path[1024];
    char *bytes = NULL;
    size_t n = 0;
    struct moec_error local = {0};
    *root = NULL;
    (void)snprintf(path, sizeof path, "%s/%s.json", folder, name);
    enum moec_status status = moec_file_load(path, MOST_JSON_BYTES, &bytes, &n, &local);
    if (status == MOEC_ERR_NOT_FOUND)
        return MOEC_OK;
    if (status != MOEC_OK) {
        *err = local;
        return status;
    }
    status = moec_json_parse(bytes, n, MOST_JSON_BYTES, path, root, err);
    free(bytes);
    return status;
}

static int is_result(const struct dirent *entry)
{
    const size_t n = strlen(entry->d_name);
    return n > 5 && strcmp(entry->d_name + n - 5, ".json") == 0;
}

static int by_version(const struct dirent **a, const struct dirent **b)
{
    return versionsort(a, b);
}

enum moec_status experiment_list(const char *folder, char (**names)[64], uint32_t *n, struct moec_error *err)
{
    struct dirent **entries = NULL;
    const int found = scandir(folder, &entries, is_result, by_version);
    *n = 0;
    *names = NULL;
    if (found < 0)
        return errno == ENOENT ? MOEC_OK
                               : moec_fail(err, MOEC_ERR_IO, "cannot list '%s': %s", folder, strerror(errno));
    enum moec_status status =
        moec_alloc((void **)names, (uint64_t)found + 1, sizeof **names, "names of results", err);
    for (int i = 0; i < found; i++) {
        const size_t length = strlen(entries[i]->d_name) - 5;
        if (status == MOEC_OK && length < sizeof **names)
            (void)snprintf((*names)[(*n)++], sizeof **names, "%.*s", (int)length, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    return status;
}

double experiment_number(const struct moec_json *object, const char *key)
{
    const struct moec_json *node = moec_json_find(object, key);
    double value = NAN;
    if (node == NULL || moec_json_as_double(node, key, -1e300, 1e300, &value, NULL) != MOEC_OK)
        return NAN;
    return value;
}

void experiment_text(const struct moec_json *object, const char *key, char *to, size_t capacity)
{
    const struct moec_json *node = moec_json_find(object, key);
    const char *value = NULL;
    if (node != NULL && moec_json_type(node) == MOEC_JSON_STRING &&
        moec_json_as_string(node, key, &value, NULL, NULL) == MOEC_OK)
        moec_plot_clean_text(to, capacity, value);
    else
        to[0] = '\0';
}

uint32_t experiment_whole(const struct moec_json *object, const char *key)
{
    const double value = experiment_number(object, key);
    return value >= 0 && value < 1e9 ? (uint32_t)value : 0;
}

bool experiment_truth(const struct moec_json *object, const char *key)
{
    bool value = false;
    return moec_json_get_bool_or(object, "", key, false, &value, NULL) == MOEC_OK && value;
}
