/* All copies of all tensors are sorted by name, and of each name the copy stays that the index asks for. */
#include "formats/checkpoint/shards.h"

#include "formats/base/memory.h"
#include "formats/checkpoint/folder_json.h"
#include "formats/checkpoint/folder_names.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define INDEX_MAX_BYTES ((uint64_t)256 << 20)
#define MAX_SHARDS      1000
#define NAME_BYTES      64

const char moec_shard_index_name[] = "model.safetensors.index.json";
static const char single_name[] = "model.safetensors";

/* ---- opening files ---- */

static enum moec_status open_file(struct moec_shards *shards, const char *folder, const char *name,
                                  struct moec_error *err)
{
    char *path = NULL;
    MOEC_TRY(moec_path_join(&path, folder, name, err));
    enum moec_status status = moec_safetensors_open(&shards->files[shards->n_file], path, err);
    if (status == MOEC_OK)
        shards->n_file++;
    free(path);
    return status;
}

static enum moec_status make_room(struct moec_shards *shards, uint32_t n_file, struct moec_error *err)
{
    return moec_alloc((void **)&shards->files, n_file, sizeof *shards->files, "table of shards", err);
}

static enum moec_status open_single(struct moec_shards *shards, const char *folder, struct moec_error *err)
{
    MOEC_TRY(make_room(shards, 1, err));
    return open_file(shards, folder, single_name, err);
}

/* ---- the index ---- */

/* A shard's name comes from a file that somebody sent: it must not lead out of the folder. */
static enum moec_status check_shard_name(const char *name, const char *where, struct moec_error *err)
{
    if (name[0] == '\0' || name[0] == '.' || strchr(name, '/') != NULL || strchr(name, '\\') != NULL)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s names the shard '%.200s', expected a plain file name",
                         where, name);
    return MOEC_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int compare_shards(const void *a, const void *b)
{
    return strcmp(((const struct moec_shard_name *)a)->name, ((const struct moec_shard_name *)b)->name);
}

/* Notes the distinct names of shards, sorted. */
static enum moec_status list_shards(struct moec_shards *shards, const struct moec_json *map,
                                    struct moec_error *err)
{
    const char **all = NULL;
    size_t count = 0, n_distinct = 0;
    MOEC_TRY(moec_alloc((void **)&all, moec_json_length(map), sizeof *all, "list of shards", err));
    enum moec_status status = MOEC_OK;
    for (struct moec_json_member m = moec_json_first(map); m.key != NULL; m = moec_json_next(map, m)) {
        char what[512];
        (void)snprintf(what, sizeof what, "shard of tensor '%.160s' in %.300s", m.key, shards->where);
        MOEC_TRY_OUT(moec_json_as_string(m.value, what, &all[count], NULL, err));
        MOEC_TRY_OUT(check_shard_name(all[count], shards->where, err));
        count++;
    }
    qsort(all, count, sizeof *all, compare_names);
    for (size_t i = 0; i < count; i++)
        if (n_distinct == 0 || strcmp(all[n_distinct - 1], all[i]) != 0)
            all[n_distinct++] = all[i];
    if (n_distinct == 0 || n_distinct > MAX_SHARDS) {
        status = moec_fail(err, MOEC_ERR_FORMAT, "%s names %zu shards, expected 1..%d", shards->where,
                           n_distinct, MAX_SHARDS);
        goto out;
    }
    MOEC_TRY_OUT(
        moec_alloc((void **)&shards->shards, n_distinct, sizeof *shards->shards, "list of shards", err));
    for (; shards->n_shard < n_distinct; shards->n_shard++) {
        struct moec_shard_name *shard = &shards->shards[shards->n_shard];
        MOEC_TRY_OUT(moec_strndup(&shard->name, all[shards->n_shard], strlen(all[shards->n_shard]), err));
        shard->file = UINT32_MAX;
    }
out:
    free(all);
    return status;
}

/* The shard that the index places a tensor in; NULL where it has no such tensor. */
static struct moec_shard_name *shard_of(const struct moec_shards *shards, const struct moec_json *map,
                                        const char *tensor)
{
    const struct moec_json *value = map == NULL ? NULL : moec_json_find(map, tensor);
    struct moec_shard_name wanted = {0};
    const char *name = NULL;
    if (value == NULL || moec_json_as_string(value, "", &name, NULL, NULL) != MOEC_OK)
        return NULL;
    wanted.name = (char *)(uintptr_t)name;
    return bsearch(&wanted, shards->shards, shards->n_shard, sizeof wanted, compare_shards);
}

/* The message about a shard that the folder does not have. */
static enum moec_status fail_no_shard(const struct moec_shards *shards, uint32_t shard, const char *tensor,
                                      struct moec_error *err)
{
    const char *begin = tensor[0] != '\0' ? ", which holds tensor '" : "",
               *end = tensor[0] != '\0' ? "'" : "";
    return moec_fail(
        err, MOEC_ERR_NOT_FOUND,
        "shard %" PRIu32 " of %" PRIu32 " in %s does not exist: '%.200s'%s%.200s%s; finish the download",
        shard + 1, shards->n_shard, shards->where, shards->shards[shard].name, begin, tensor, end);
}

/* Opens the shards that the folder has: others may hold nothing that the model needs. */
static enum moec_status open_shards(struct moec_shards *shards, const char *folder, struct moec_error *err)
{
    MOEC_TRY(make_room(shards, shards->n_shard, err));
    for (uint32_t i = 0; i < shards->n_shard; i++) {
        struct moec_shard_name *shard = &shards->shards[i];
        bool exists = false;
        MOEC_TRY(moec_folder_has(folder, shard->name, &exists, err));
        if (!exists)
            continue;
        shard->file = shards->n_file;
        const enum moec_status status = open_file(shards, folder, shard->name, err);
        if (status != MOEC_OK) {
            (void)moec_error_prefix(err, "shard %" PRIu32 " of %" PRIu32 " in %s", i + 1, shards->n_shard,
                                    shards->where);
            return status;
        }
    }
    return shards->n_file == 0 ? fail_no_shard(shards, 0, "", err) : MOEC_OK;
}

/* ---- one copy of each tensor ---- */

static int compare_tensors(const void *a, const void *b)
{
    const struct moec_shard_tensor *x = a, *y = b;
    const int order = strcmp(x->name, y->name);
    return order != 0 ? order : (x->file > y->file) - (x->file < y->file);
}

static int compare_absences(const void *a, const void *b)
{
    return strcmp(((const struct moec_shard_absence *)a)->tensor,
                  ((const struct moec_shard_absence *)b)->tensor);
}

static enum moec_status fail_copies(const struct moec_shards *shards, const struct moec_shard_tensor *copies,
                                    struct moec_error *err)
{
    const char *paths[2];
    for (size_t i = 0; i < 2; i++)
        paths[i] = shards->files[copies[i].file].file.path;
    return moec_fail(
        err, MOEC_ERR_MISMATCH,
        "two shards have tensor '%.200s': '%.200s' and '%.200s', and %.300s%s. Remove one copy, or name "
        "the right shard in '%s'",
        copies->name, paths[0], paths[1], shards->index != NULL ? shards->where : "there is ",
        shards->index != NULL ? " names neither" : "no index that names the right one",
        moec_shard_index_name);
}

/* Of `n` copies the one that stays, or none where the index names another file. */
static enum moec_status choose_copy(struct moec_shards *shards, const struct moec_json *map, size_t n,
                                    const struct moec_shard_tensor *copies, struct moec_error *err)
{
    const struct moec_shard_name *shard = shard_of(shards, map, copies->name);
    struct moec_shard_tensor *chosen = &shards->tensors[shards->n_tensor++];
    *chosen = copies[0];
    if (shard == NULL)
        return n > 1 ? fail_copies(shards, copies, err) : MOEC_OK;
    for (size_t i = 0; i < n; i++)
        if (copies[i].file == shard->file) {
            *chosen = copies[i];
            return MOEC_OK;
        }
    chosen->entry = NULL;
    return MOEC_OK;
}

/* Fills the table of tensors; `map` is the index's, NULL without one. */
static enum moec_status list_tensors(struct moec_shards *shards, const struct moec_json *map,
                                     struct moec_error *err)
{
    size_t n = 0, count = 0;
    for (uint32_t i = 0; i < shards->n_file; i++)
        n += shards->files[i].n_entries;
    struct moec_shard_tensor *copies = NULL;
    MOEC_TRY(moec_alloc((void **)&copies, n, sizeof *copies, "table of tensors", err));
    enum moec_status status =
        moec_alloc((void **)&shards->tensors, n, sizeof *copies, "table of tensors", err);
    for (uint32_t i = 0; i < shards->n_file; i++)
        for (size_t t = 0; t < shards->files[i].n_entries; t++) {
            const struct moec_safetensors_entry *entry = &shards->files[i].entries[t];
            copies[count++] = (struct moec_shard_tensor){entry->name, entry, i};
        }
    qsort(copies, n, sizeof *copies, compare_tensors);
    for (size_t first = 0, end = 0; first < n && status == MOEC_OK; first = end) {
        for (end = first + 1; end < n && strcmp(copies[first].name, copies[end].name) == 0;)
            end++;
        status = choose_copy(shards, map, end - first, copies + first, err);
    }
    free(copies);
    return status;
}

/* Notes the tensors that the index places in files without them. */
static enum moec_status list_absent(struct moec_shards *shards, const struct moec_json *map,
                                    struct moec_error *err)
{
    uint32_t file = 0;
    size_t n = 0;
    for (struct moec_json_member m = moec_json_first(map); m.key != NULL; m = moec_json_next(map, m))
        n += moec_shards_find(shards, m.key, &file) == NULL;
    if (n == 0)
        return MOEC_OK;
    MOEC_TRY(moec_alloc((void **)&shards->absent, n, sizeof *shards->absent, "list of tensors", err));
    for (struct moec_json_member m = moec_json_first(map); m.key != NULL; m = moec_json_next(map, m)) {
        if (moec_shards_find(shards, m.key, &file) != NULL)
            continue;
        struct moec_shard_absence *absence = &shards->absent[shards->n_absent];
        MOEC_TRY(moec_strndup(&absence->tensor, m.key, strlen(m.key), err));
        absence->shard = (uint32_t)(shard_of(shards, map, m.key) - shards->shards);
        shards->n_absent++;
    }
    qsort(shards->absent, shards->n_absent, sizeof *shards->absent, compare_absences);
    return MOEC_OK;
}

/* ---- what the folder has ---- */

static enum moec_status note_stray(struct moec_shards *shards, const char *folder, struct moec_error *err)
{
    if (asprintf(&shards->note,
                 "'%.200s' has the file '%s', but '%s' does not name this file: moec reads only '%s', like "
                 "transformers; remove the file that is not meant",
                 folder, single_name, moec_shard_index_name, single_name) >= 0)
        return MOEC_OK;
    shards->note = NULL;
    return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: no room for a note on '%s'", folder);
}

static bool names_single(const struct moec_shards *shards)
{
    for (uint32_t i = 0; i < shards->n_shard; i++)
        if (strcmp(shards->shards[i].name, single_name) == 0)
            return true;
    return false;
}

static void release_index(struct moec_shards *shards)
{
    for (uint32_t i = 0; i < shards->n_shard; i++)
        free(shards->shards[i].name);
    free(shards->shards);
    free(shards->where);
    shards->shards = NULL;
    shards->where = NULL;
    shards->n_shard = 0;
}

enum moec_status moec_shard_index_load(const char *folder, struct moec_json **root,
                                       const struct moec_json **map, char **where, struct moec_error *err)
{
    MOEC_TRY(moec_folder_load_json(folder, moec_shard_index_name, INDEX_MAX_BYTES, root, where, err));
    return moec_json_get(*root, *where, "weight_map", MOEC_JSON_OBJECT, map, err);
}

/* A single file beside an index: the index counts if it names the file and others. */
static enum moec_status open_indexed(struct moec_shards *shards, const char *folder, bool has_single,
                                     struct moec_error *err)
{
    struct moec_json *root = NULL;
    const struct moec_json *map = NULL;
    struct moec_error why = {0};
    enum moec_status status = moec_shard_index_load(folder, &root, &map, &shards->where, &why);
    if (status == MOEC_OK)
        status = list_shards(shards, map, &why);
    if (has_single && (status != MOEC_OK || !names_single(shards) || shards->n_shard == 1)) {
        const bool is_stray = status != MOEC_OK || !names_single(shards);
        release_index(shards);
        status = is_stray ? note_stray(shards, folder, err) : MOEC_OK;
        map = NULL;
        if (status == MOEC_OK)
            status = open_single(shards, folder, err);
    } else if (status == MOEC_OK) {
        shards->index = moec_shard_index_name;
        status = open_shards(shards, folder, err);
    } else {
        (void)moec_fail(err, status, "%s", why.message);
    }
    if (status == MOEC_OK)
        status = list_tensors(shards, map, err);
    if (status == MOEC_OK && map != NULL)
        status = list_absent(shards, map, err);
    moec_json_free(root);
    return status;
}

static enum moec_status fail_no_weights(const char *folder, struct moec_error *err)
{
    static const char *const pickled[] = {"pytorch_model.bin", "pytorch_model.bin.index.json"};
    for (size_t i = 0; i < 2; i++) {
        bool exists = false;
        MOEC_TRY(moec_folder_has(folder, pickled[i], &exists, err));
        if (exists)
            return moec_fail(
                err, MOEC_ERR_UNSUPPORTED,
                "the folder '%s' has its weights in the file '%s', which moec does not read, because "
                "reading such a file can run code: convert the model with transformers (load it, then "
                "save_pretrained(..., safe_serialization=True)) and give the new folder",
                folder, pickled[i]);
    }
    return moec_fail(err, MOEC_ERR_NOT_FOUND,
                     "the folder '%s' has no weights, expected 'model.safetensors' or "
                     "'model.safetensors.index.json'",
                     folder);
}

static void name_shard(uint32_t number, uint32_t n_shard, char name[static NAME_BYTES])
{
    (void)snprintf(name, NAME_BYTES, "model-%05" PRIu32 "-of-%05" PRIu32 ".safetensors", number, n_shard);
}

/* How many shards the first of them says that there are; 0 without one. */
static enum moec_status count_shards(const char *folder, uint32_t *n_shard, struct moec_error *err)
{
    struct moec_folder_names names;
    MOEC_TRY(moec_folder_list(folder, ".safetensors", &names, err));
    *n_shard = 0;
    for (size_t i = 0; i < names.n && *n_shard == 0; i++) {
        uint32_t number = 0, count = 0;
        char name[NAME_BYTES];
        if (sscanf(names.names[i], "model-%5" SCNu32 "-of-%5" SCNu32, &number, &count) != 2 || count == 0 ||
            count > MAX_SHARDS)
            continue;
        name_shard(number, count, name);
        if (strcmp(name, names.names[i]) == 0)
            *n_shard = count;
    }
    moec_folder_names_release(&names);
    return MOEC_OK;
}

/* Shards that say by their names how many they are: all must be there. */
static enum moec_status open_numbered(struct moec_shards *shards, const char *folder, uint32_t n_shard,
                                      struct moec_error *err)
{
    MOEC_TRY(make_room(shards, n_shard, err));
    for (uint32_t i = 1; i <= n_shard; i++) {
        char name[NAME_BYTES];
        bool exists = false;
        name_shard(i, n_shard, name);
        MOEC_TRY(moec_folder_has(folder, name, &exists, err));
        if (!exists)
            return moec_fail(err, MOEC_ERR_NOT_FOUND,
                             "the folder '%s' has neither '%s' nor '%s', which is one of its %" PRIu32
                             " shards: finish the download",
                             folder, moec_shard_index_name, name, n_shard);
        MOEC_TRY(open_file(shards, folder, name, err));
    }
    return list_tensors(shards, NULL, err);
}

static enum moec_status open_all(struct moec_shards *shards, const char *folder, struct moec_error *err)
{
    bool has_single = false, has_index = false;
    uint32_t n_shard = 0;
    MOEC_TRY(moec_folder_has(folder, single_name, &has_single, err));
    MOEC_TRY(moec_folder_has(folder, moec_shard_index_name, &has_index, err));
    if (has_index)
        return open_indexed(shards, folder, has_single, err);
    if (has_single) {
        MOEC_TRY(open_single(shards, folder, err));
        return list_tensors(shards, NULL, err);
    }
    MOEC_TRY(count_shards(folder, &n_shard, err));
    return n_shard > 0 ? open_numbered(shards, folder, n_shard, err) : fail_no_weights(folder, err);
}

enum moec_status moec_shards_open(const char *folder, struct moec_shards *shards, struct moec_error *err)
{
    *shards = (struct moec_shards){0};
    const enum moec_status status = open_all(shards, folder, err);
    if (status != MOEC_OK)
        moec_shards_close(shards);
    return status;
}

/* ---- finding ---- */

const struct moec_safetensors_entry *moec_shards_find(const struct moec_shards *shards, const char *name,
                                                      uint32_t *file)
{
    size_t first = 0, end = shards->n_tensor;
    while (first < end) {
        const size_t middle = first + (end - first) / 2;
        const struct moec_shard_tensor *tensor = &shards->tensors[middle];
        const int order = strcmp(name, tensor->name);
        if (order == 0) {
            *file = tensor->file;
            return tensor->entry;
        }
        if (order < 0)
            end = middle;
        else
            first = middle + 1;
    }
    return NULL;
}

enum moec_status moec_shards_explain(const struct moec_shards *shards, const char *name,
                                     struct moec_error *err)
{
    const struct moec_shard_absence wanted = {.tensor = (char *)(uintptr_t)name};
    const struct moec_shard_absence *absence =
        shards->n_absent == 0
            ? NULL
            : bsearch(&wanted, shards->absent, shards->n_absent, sizeof wanted, compare_absences);
    if (absence == NULL)
        return MOEC_OK;
    if (shards->shards[absence->shard].file == UINT32_MAX)
        return fail_no_shard(shards, absence->shard, name, err);
    return moec_fail(err, MOEC_ERR_FORMAT,
                     "%s says that tensor '%.200s' is in '%.200s', but this file has no such tensor: "
                     "download the file again",
                     shards->where, name, shards->shards[absence->shard].name);
}

void moec_shards_forget(struct moec_shards *shards)
{
    for (uint32_t i = 0; i < shards->n_file; i++)
        moec_safetensors_forget(&shards->files[i]);
    for (size_t i = 0; i < shards->n_absent; i++)
        free(shards->absent[i].tensor);
    free(shards->absent);
    free(shards->tensors);
    shards->absent = NULL;
    shards->tensors = NULL;
    shards->n_absent = shards->n_tensor = 0;
    release_index(shards);
}

void moec_shards_close(struct moec_shards *shards)
{
    moec_shards_forget(shards);
    for (uint32_t i = 0; i < shards->n_file; i++)
        moec_safetensors_close(&shards->files[i]);
    free(shards->files);
    free(shards->note);
    *shards = (struct moec_shards){0};
}
