/* A folder is searched in a fixed order: safetensors or an index, one GGUF file, a config.json alone, a
 * snapshot in the Hub's cache. A choice is made only where one candidate is left, or where refs/main names
 * it. Otherwise the message lists the candidates: moec never chooses between models. */
#include "formats/checkpoint/model_path.h"

#include "formats/base/file.h"
#include "formats/base/memory.h"
#include "formats/checkpoint/folder_json.h"
#include "formats/checkpoint/folder_names.h"
#include "formats/checkpoint/shards.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIST_BYTES       400
#define COMMIT_MAX_BYTES 256

/* "'a', 'b', ...", as far as there is room. */
static const char *list_text(const struct moec_folder_names *names, char text[static LIST_BYTES])
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < names->n; i++) {
        const char *separator = i > 0 ? ", " : "";
        if (used + strlen(names->names[i]) + 12 > LIST_BYTES) {
            (void)snprintf(text + used, LIST_BYTES - used, "%s...", separator);
            break;
        }
        used += (size_t)snprintf(text + used, LIST_BYTES - used, "%s'%s'", separator, names->names[i]);
    }
    return text;
}

/* Takes an entry of a folder as the model; `what` the folder is. */
static enum moec_status take(const char *folder, const char *name, const char *what, char **model,
                             char **note, struct moec_error *err)
{
    MOEC_TRY(moec_path_join(model, folder, name, err));
    if (asprintf(note, "'%.300s' is %s: moec reads '%.300s' in it", folder, what, name) >= 0)
        return MOEC_OK;
    *note = NULL;
    free(*model);
    *model = NULL;
    return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: no room for the path of '%s'", name);
}

/* ---- GGUF ---- */

/* A model's own file: no later part of a split one, and no projector of pictures. */
static bool is_model(const char *name)
{
    unsigned part = 1, n_part = 1;
    const char *end = strstr(name, "-of-");
    if (end != NULL && end - name >= 6)
        (void)sscanf(end - 6, "-%5u-of-%5u.gguf", &part, &n_part);
    return part == 1 && strncmp(name, "mmproj", 6) != 0;
}

static enum moec_status choose_gguf(const char *folder, struct moec_folder_names *names, char **model,
                                    char **note, struct moec_error *err)
{
    char list[LIST_BYTES];
    struct moec_folder_names models = {.names = names->names};
    for (size_t i = 0; i < names->n; i++)
        if (is_model(names->names[i])) {
            char *name = names->names[i];
            names->names[i] = names->names[models.n];
            names->names[models.n++] = name;
        }
    if (models.n == 0)
        return MOEC_OK;
    if (models.n == 1)
        return take(folder, models.names[0], "a folder with a GGUF file", model, note, err);
    return moec_fail(
        err, MOEC_ERR_NOT_FOUND,
        "the folder '%.300s' has no safetensors but %zu GGUF files: %s; give one of these files, such as "
        "'%.300s/%.200s'",
        folder, models.n, list_text(&models, list), folder, models.names[0]);
}

static enum moec_status find_gguf(const char *folder, char **model, char **note, struct moec_error *err)
{
    struct moec_folder_names names;
    MOEC_TRY(moec_folder_list(folder, ".gguf", &names, err));
    const enum moec_status status = choose_gguf(folder, &names, model, note, err);
    moec_folder_names_release(&names);
    return status;
}

/* ---- the cache of the Hub: models--OWNER--NAME/snapshots/COMMIT ---- */

/* The commit that 'refs/main' names, which a download without a revision gets; empty without. */
static void read_main(const char *root, char commit[static COMMIT_MAX_BYTES])
{
    char *path = NULL, *text = NULL;
    size_t n = 0;
    commit[0] = '\0';
    if (moec_path_join(&path, root, "refs/main", NULL) == MOEC_OK &&
        moec_file_load(path, COMMIT_MAX_BYTES - 1, &text, &n, NULL) == MOEC_OK)
        (void)snprintf(commit, COMMIT_MAX_BYTES, "%.*s", (int)strcspn(text, "\r\n/"), text);
    free(path);
    free(text);
}

static enum moec_status choose_snapshot(const char *root, const struct moec_folder_names *names, char **model,
                                        char **note, struct moec_error *err)
{
    char commit[COMMIT_MAX_BYTES], list[LIST_BYTES], name[COMMIT_MAX_BYTES + 16];
    read_main(root, commit);
    if (names->n == 1)
        (void)snprintf(commit, sizeof commit, "%s", names->names[0]);
    for (size_t i = 0; i < names->n; i++)
        if (strcmp(names->names[i], commit) == 0) {
            (void)snprintf(name, sizeof name, "snapshots/%s", commit);
            return take(root, name, "a model in the Hub's cache", model, note, err);
        }
    if (names->n == 0)
        return moec_fail(err, MOEC_ERR_NOT_FOUND,
                         "the model '%s' in the Hub's cache has no snapshot: download the model again", root);
    return moec_fail(
        err, MOEC_ERR_NOT_FOUND,
        "the model '%.300s' in the Hub's cache has the snapshots %s, but 'refs/main' names none of them; "
        "give one snapshot, such as '%.300s/snapshots/%.200s'",
        root, list_text(names, list), root, names->names[0]);
}

static enum moec_status find_snapshot(const char *root, char **model, char **note, struct moec_error *err)
{
    struct moec_folder_names names;
    char *snapshots = NULL;
    MOEC_TRY(moec_path_join(&snapshots, root, "snapshots", err));
    enum moec_status status = MOEC_OK;
    if (moec_path_is_folder(snapshots)) {
        status = moec_folder_list(snapshots, "", &names, err);
        if (status == MOEC_OK) {
            status = choose_snapshot(root, &names, model, note, err);
            moec_folder_names_release(&names);
        }
    }
    free(snapshots);
    return status;
}

/* The folder of all models. */
static enum moec_status refuse_cache(const char *folder, struct moec_error *err)
{
    static const char prefix[] = "models--";
    struct moec_folder_names names, models = {0};
    char list[LIST_BYTES];
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_folder_list(folder, "", &names, err));
    for (size_t i = 0; i < names.n; i++)
        if (strncmp(names.names[i], prefix, strlen(prefix)) == 0) { /* they are sorted */
            models.names = models.n == 0 ? names.names + i : models.names;
            models.n++;
        }
    if (models.n > 0)
        status = moec_fail(err, MOEC_ERR_NOT_FOUND,
                           "'%.300s' is the Hub's cache, not a model: give one of its models: %s", folder,
                           list_text(&models, list));
    moec_folder_names_release(&names);
    return status;
}

/* ---- all of it ---- */

enum moec_status moec_model_path_has_weights(const char *folder, bool *has, struct moec_error *err)
{
    static const char *const others[] = {"pytorch_model.bin", "pytorch_model.bin.index.json"};
    struct moec_folder_names names;
    MOEC_TRY(moec_folder_list(folder, ".safetensors", &names, err));
    *has = names.n > 0;
    moec_folder_names_release(&names);
    for (size_t i = 0; i < sizeof others / sizeof *others && !*has; i++)
        MOEC_TRY(moec_folder_has(folder, others[i], has, err));
    return MOEC_OK;
}

static enum moec_status look_inside(const char *folder, char **model, char **note, struct moec_error *err)
{
    bool has_config = false, has_any = false;
    MOEC_TRY(moec_model_path_has_weights(folder, &has_any, err));
    if (!has_any)
        MOEC_TRY(moec_folder_has(folder, moec_shard_index_name, &has_any, err));
    if (has_any)
        return MOEC_OK;
    MOEC_TRY(find_gguf(folder, model, note, err));
    MOEC_TRY(moec_folder_has(folder, "config.json", &has_config, err));
    if (*model != NULL || has_config)
        return MOEC_OK;
    MOEC_TRY(find_snapshot(folder, model, note, err));
    return *model != NULL ? MOEC_OK : refuse_cache(folder, err);
}

/* The folder of a config.json. */
static enum moec_status take_folder(const char *path, char **model, struct moec_error *err)
{
    const char *const slash = strrchr(path, '/');
    return slash == NULL ? moec_strndup(model, ".", 1, err)
                         : moec_strndup(model, path, slash == path ? 1 : (size_t)(slash - path), err);
}

enum moec_status moec_model_path_find(const char *path, bool needs_weights, char **model, char **note,
                                      struct moec_error *err)
{
    bool is_found = false;
    *model = *note = NULL;
    if (!moec_path_exists(path)) {
        MOEC_TRY(moec_path_find(path, &is_found, err));
        return is_found ? moec_path_fail_link(path, err)
                        : moec_fail(err, MOEC_ERR_NOT_FOUND, "checkpoint '%s' does not exist", path);
    }
    const char *const slash = strrchr(path, '/');
    if (!needs_weights && strcmp(slash != NULL ? slash + 1 : path, "config.json") == 0)
        return take_folder(path, model, err);
    if (moec_path_is_folder(path))
        MOEC_TRY(look_inside(path, model, note, err));
    return *model != NULL ? MOEC_OK : moec_strndup(model, path, strlen(path), err);
}
