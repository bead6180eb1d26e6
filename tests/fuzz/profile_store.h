/* A plain store in memory in the place of formats/profile/h5.c, with its rules, for fuzz targets: HDF5 takes
 * milliseconds for an archive, and what it stores is not what they doubt. A program that includes this links
 * no HDF5 for profiles; there is one store, which moec_h5_create empties. fuzz_profile_archive goes through
 * HDF5 itself. */
#ifndef MOEC_TESTS_FUZZ_PROFILE_STORE_H
#define MOEC_TESTS_FUZZ_PROFILE_STORE_H

#include "formats/base/memory.h"
#include "formats/profile/h5.h"
#include "formats/profile/profile_h5.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ITEMS  1024
#define N_BUCKET   4096
#define PATH_BYTES 128
#define NAME_BYTES 32

enum kind { GROUP, DATASET, LINK, NUMBER_U64, NUMBER_F64, TEXT, TEXTS };

/* A group, a dataset, another name of one (whose bytes are its path), or an attribute. */
struct item {
    char path[PATH_BYTES], name[NAME_BYTES]; /* the name is empty but for attributes */
    enum kind kind;
    enum moec_h5_type type;
    uint32_t rank;
    uint64_t dims[MOEC_H5_MAX_RANK];
    uint8_t *bytes;
    size_t n_bytes, text_bytes; /* of each text */
    bool is_gone;
};

struct moec_h5 {
    const char *subject;
};

static struct item items[MAX_ITEMS];
static size_t n_item;
static uint16_t buckets[N_BUCKET]; /* number of the item and 1, 0 = none */

static size_t bucket_of(const char *path, const char *name)
{
    uint32_t hash = 2166136261u;
    for (; *path != '\0'; path++)
        hash = (hash ^ (uint8_t)*path) * 16777619u;
    for (; *name != '\0'; name++)
        hash = (hash ^ (uint8_t)*name) * 16777619u;
    return hash % N_BUCKET;
}

static struct item *find(const char *path, const char *name)
{
    for (size_t at = bucket_of(path, name); buckets[at] != 0; at = (at + 1) % N_BUCKET) {
        struct item *item = &items[buckets[at] - 1];
        if (strcmp(item->path, path) == 0 && strcmp(item->name, name) == 0)
            return item->is_gone ? NULL : item;
    }
    return NULL;
}

static inline enum moec_status add(struct item item, const char *path, const char *name, const void *bytes,
                                   size_t n_bytes)
{
    size_t at = bucket_of(path, name);
    if (n_item == MAX_ITEMS || find(path, name) != NULL || strlen(path) >= PATH_BYTES ||
        strlen(name) >= NAME_BYTES)
        abort();
    while (buckets[at] != 0)
        at = (at + 1) % N_BUCKET;
    (void)snprintf(item.path, sizeof item.path, "%s", path);
    (void)snprintf(item.name, sizeof item.name, "%s", name);
    item.n_bytes = n_bytes;
    item.bytes = malloc(n_bytes > 0 ? n_bytes : 1);
    if (item.bytes == NULL)
        abort();
    memcpy(item.bytes, bytes, n_bytes);
    items[n_item++] = item;
    buckets[at] = (uint16_t)n_item;
    return MOEC_OK;
}

/* What a name of a dataset leads to; NULL where that is nothing. */
static const struct item *find_data(const char *path)
{
    const struct item *item = find(path, "");
    if (item != NULL && item->kind == LINK)
        item = memchr(item->bytes, '\0', item->n_bytes) != NULL ? find((const char *)item->bytes, "") : NULL;
    return item != NULL && item->kind == DATASET ? item : NULL;
}

/* A scale has a name beside each dataset that it is an axis of. */
static void link_scale(const char *dataset, const char *scale)
{
    const char *name = strrchr(scale, '/');
    const int n_folder = (int)(strrchr(dataset, '/') - dataset);
    char path[PATH_BYTES];
    (void)snprintf(path, sizeof path, "%.*s%s", n_folder, dataset, name);
    if (find(path, "") == NULL)
        (void)add((struct item){.kind = LINK}, path, "", scale, strlen(scale) + 1);
}

static enum moec_status refuse(const char *path, const char *name, struct moec_error *err)
{
    return moec_fail(err, MOEC_ERR_FORMAT, "'%s' '%s' is missing or another", path, name);
}

/* ---- formats/profile/h5.h ---- */

size_t moec_h5_type_bytes(enum moec_h5_type type)
{
    static const uint8_t bytes[] = {1, 2, 2, 4, 8, 8, 2};
    return bytes[type];
}

bool moec_h5_has_signature(const uint8_t *bytes, size_t n_bytes)
{
    (void)bytes;
    return n_bytes > 0;
}

void moec_h5_version(char text[static 32])
{
    text[0] = '\0';
}

static enum moec_status open_store(struct moec_h5 **out)
{
    static struct moec_h5 store;
    *out = &store;
    return MOEC_OK;
}

enum moec_status moec_h5_create(uint64_t user_block_bytes, struct moec_h5 **out, struct moec_error *err)
{
    (void)user_block_bytes;
    (void)err;
    while (n_item > 0)
        free(items[--n_item].bytes);
    memset(buckets, 0, sizeof buckets);
    return open_store(out);
}

enum moec_status moec_h5_open(uint8_t *bytes, size_t n_bytes, const char *subject, struct moec_h5 **out,
                              struct moec_error *err)
{
    (void)bytes;
    (void)n_bytes;
    (void)subject;
    (void)err;
    return open_store(out);
}

enum moec_status moec_h5_take_bytes(struct moec_h5 *h5, uint8_t **bytes, size_t *n_bytes,
                                    struct moec_error *err)
{
    (void)h5;
    *n_bytes = MOEC_PROFILE_USER_BLOCK_BYTES;
    return moec_alloc((void **)bytes, *n_bytes, 1, "bytes", err);
}

void moec_h5_close(struct moec_h5 *h5)
{
    (void)h5;
}

enum moec_status moec_h5_write_group(struct moec_h5 *h5, const char *path, struct moec_error *err)
{
    (void)h5;
    (void)err;
    return add((struct item){.kind = GROUP}, path, "", "", 0);
}

enum moec_status moec_h5_write(struct moec_h5 *h5, const struct moec_h5_dataset *dataset, const void *data,
                               struct moec_error *err)
{
    struct item item = {.kind = DATASET, .type = dataset->type, .rank = dataset->rank};
    size_t n_bytes = moec_h5_type_bytes(dataset->type);
    for (uint32_t i = 0; i < dataset->rank; i++) {
        item.dims[i] = dataset->dims[i];
        n_bytes *= dataset->dims[i];
    }
    MOEC_TRY(add(item, dataset->path, "", data, n_bytes));
    MOEC_TRY(moec_h5_write_text(h5, dataset->path, "units", dataset->units, err));
    MOEC_TRY(moec_h5_write_text(h5, dataset->path, "description", dataset->description, err));
    if (dataset->rank == 1 && dataset->axes[0] != NULL && strcmp(dataset->axes[0], dataset->path) == 0)
        return moec_h5_write_text(h5, dataset->path, "CLASS", "DIMENSION_SCALE", err);
    for (uint32_t i = 0; i < dataset->rank; i++)
        if (dataset->axes[i] != NULL)
            link_scale(dataset->path, dataset->axes[i]);
    return dataset->source != NULL ? moec_h5_write_text(h5, dataset->path, "source", dataset->source, err)
                                   : MOEC_OK;
}

enum moec_status moec_h5_check(struct moec_h5 *h5, const struct moec_h5_dataset *dataset,
                               struct moec_error *err)
{
    (void)h5;
    const struct item *item = find_data(dataset->path);
    if (item == NULL || item->type != dataset->type || item->rank != dataset->rank)
        return refuse(dataset->path, "", err);
    uint64_t n_bytes = moec_h5_type_bytes(dataset->type);
    for (uint32_t i = 0; i < item->rank; i++)
        if (item->dims[i] != dataset->dims[i] || __builtin_mul_overflow(n_bytes, item->dims[i], &n_bytes))
            return refuse(dataset->path, "", err);
    return n_bytes <= item->n_bytes ? MOEC_OK : refuse(dataset->path, "", err);
}

enum moec_status moec_h5_read(struct moec_h5 *h5, const struct moec_h5_dataset *dataset, void *data,
                              struct moec_error *err)
{
    MOEC_TRY(moec_h5_check(h5, dataset, err));
    size_t n_bytes = moec_h5_type_bytes(dataset->type);
    for (uint32_t i = 0; i < dataset->rank; i++)
        n_bytes *= dataset->dims[i];
    memcpy(data, find_data(dataset->path)->bytes, n_bytes);
    return MOEC_OK;
}

enum moec_status moec_h5_read_extents(struct moec_h5 *h5, const char *path, uint32_t *rank,
                                      uint64_t dims[static MOEC_H5_MAX_RANK], struct moec_error *err)
{
    (void)h5;
    const struct item *item = find_data(path);
    if (item == NULL)
        return refuse(path, "", err);
    *rank = item->rank;
    memcpy(dims, item->dims, item->rank * sizeof *dims);
    return MOEC_OK;
}

bool moec_h5_has(struct moec_h5 *h5, const char *path)
{
    (void)h5;
    return find(path, "") != NULL;
}

bool moec_h5_is_same(struct moec_h5 *h5, const char *path, const char *other)
{
    (void)h5;
    const struct item *item = find_data(path);
    return item != NULL && item == find_data(other);
}

static int by_path(const void *a, const void *b)
{
    return strcmp((*(struct item *const *)a)->path, (*(struct item *const *)b)->path);
}

enum moec_status moec_h5_list(struct moec_h5 *h5, const char *path, moec_h5_visit *visit, void *context,
                              struct moec_error *err)
{
    const struct item *group = find(path, ""), *found[MAX_ITEMS];
    const size_t length = strlen(path);
    size_t n = 0;
    (void)h5;
    if (group == NULL || group->kind != GROUP)
        return refuse(path, "", err);
    for (size_t i = 0; i < n_item; i++)
        if (!items[i].is_gone && items[i].name[0] == '\0' && strncmp(items[i].path, path, length) == 0 &&
            items[i].path[length] == '/' && strchr(items[i].path + length + 1, '/') == NULL)
            found[n++] = &items[i];
    qsort(found, n, sizeof found[0], by_path);
    for (size_t i = 0; i < n; i++)
        MOEC_TRY(visit(context, found[i]->path + length + 1, err));
    return MOEC_OK;
}

enum moec_status moec_h5_write_text(struct moec_h5 *h5, const char *path, const char *name, const char *text,
                                    struct moec_error *err)
{
    (void)h5;
    (void)err;
    return add((struct item){.kind = TEXT}, path, name, text, strlen(text) + 1);
}

enum moec_status moec_h5_write_u64(struct moec_h5 *h5, const char *path, const char *name, uint64_t value,
                                   struct moec_error *err)
{
    (void)h5;
    (void)err;
    return add((struct item){.kind = NUMBER_U64}, path, name, &value, sizeof value);
}

enum moec_status moec_h5_write_f64(struct moec_h5 *h5, const char *path, const char *name, double value,
                                   struct moec_error *err)
{
    (void)h5;
    (void)err;
    return add((struct item){.kind = NUMBER_F64}, path, name, &value, sizeof value);
}

enum moec_status moec_h5_write_texts(struct moec_h5 *h5, const char *path, const char *name,
                                     const char *texts, struct moec_h5_text_list list, struct moec_error *err)
{
    (void)h5;
    (void)err;
    return add((struct item){.kind = TEXTS, .text_bytes = list.text_bytes}, path, name, texts,
               list.n * list.text_bytes);
}

enum moec_status moec_h5_has_attribute(struct moec_h5 *h5, const char *path, const char *name, bool *has,
                                       struct moec_error *err)
{
    (void)h5;
    (void)err;
    *has = find(path, name) != NULL;
    return MOEC_OK;
}

enum moec_status moec_h5_read_text(struct moec_h5 *h5, const char *path, const char *name, char *text,
                                   size_t capacity, struct moec_error *err)
{
    (void)h5;
    const struct item *item = find(path, name);
    if (item == NULL || item->kind != TEXT || item->n_bytes > capacity ||
        memchr(item->bytes, '\0', item->n_bytes) == NULL)
        return refuse(path, name, err);
    memset(text, 0, capacity);
    memcpy(text, item->bytes, item->n_bytes);
    return MOEC_OK;
}

enum moec_status moec_h5_read_texts(struct moec_h5 *h5, const char *path, const char *name, char *texts,
                                    struct moec_h5_text_list list, struct moec_error *err)
{
    (void)h5;
    const struct item *item = find(path, name);
    if (item == NULL || item->kind != TEXTS || item->text_bytes != list.text_bytes ||
        list.n != item->n_bytes / list.text_bytes)
        return refuse(path, name, err);
    memcpy(texts, item->bytes, item->n_bytes);
    for (uint64_t i = 0; i < list.n; i++)
        if (memchr(texts + i * list.text_bytes, '\0', list.text_bytes) == NULL)
            return refuse(path, name, err);
    return MOEC_OK;
}

static enum moec_status read_number(const char *path, const char *name, enum kind kind, void *value,
                                    struct moec_error *err)
{
    const struct item *item = find(path, name);
    if (item == NULL || item->kind != kind)
        return refuse(path, name, err);
    memcpy(value, item->bytes, sizeof(uint64_t));
    return MOEC_OK;
}

enum moec_status moec_h5_read_u64(struct moec_h5 *h5, const char *path, const char *name, uint64_t *value,
                                  struct moec_error *err)
{
    (void)h5;
    return read_number(path, name, NUMBER_U64, value, err);
}

enum moec_status moec_h5_read_f64(struct moec_h5 *h5, const char *path, const char *name, double *value,
                                  struct moec_error *err)
{
    (void)h5;
    return read_number(path, name, NUMBER_F64, value, err);
}

#endif
