/* A checkpoint is told by what is there: a folder, or a file that begins as GGUF. A path that does not exist
 * is told by its spelling alone. It is a hub's name if it is two plain words with a slash, and no folder has
 * the owner's name. */
#include "cli/options/inputs.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

bool cli_file_begins(const char *path, const char *magic)
{
    char bytes[4] = "";
    FILE *file = fopen(path, "rbe");
    const bool is = file != NULL && fread(bytes, 1, sizeof bytes, file) == sizeof bytes &&
                    memcmp(bytes, magic, sizeof bytes) == 0;
    if (file != NULL)
        (void)fclose(file);
    return is;
}

/* "owner/name", as the hub spells models: one slash between two words that no path would begin with. */
static bool is_hub_name(const char *path)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    const size_t owner = strspn(path, plain);
    if (owner == 0 || path[0] == '.' || path[owner] != '/')
        return false;
    const char *name = path + owner + 1;
    return name[0] != '\0' && name[0] != '.' && strlen(name) == strspn(name, plain);
}

/* Whether a path that does not exist can be meant as such a name. A folder that exists is somebody's own,
 * with a file missing from it; a bundle says so by its ending. */
static bool is_of_hub(const char *path)
{
    struct stat info;
    char owner[256];
    const size_t n = strlen(path);
    if (!is_hub_name(path) || (n > 5 && strcmp(path + n - 5, ".moec") == 0))
        return false;
    (void)snprintf(owner, sizeof owner, "%.*s", (int)strcspn(path, "/"), path);
    return stat(owner, &info) != 0;
}

static const char *hub_folder(const char *path)
{
    return strchr(path, '/') + 1;
}

bool cli_is_checkpoint(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 &&
           (S_ISDIR(info.st_mode) || (S_ISREG(info.st_mode) && cli_file_begins(path, "GGUF")));
}

static enum moec_status expect_bundle(const char *path, struct moec_error *err)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return is_of_hub(path)
                   ? moec_fail(err, MOEC_ERR_USAGE,
                               "'%s' does not exist, expected a bundle (.moec). Download and compile "
                               "a model of the Hugging Face hub first: hf download %s --local-dir %s "
                               "&& moec compile %s --data mytext.txt --max-loss 2%% -o model.moec",
                               path, path, hub_folder(path), hub_folder(path))
                   : MOEC_OK;
    const bool is_folder = S_ISDIR(info.st_mode);
    if (!cli_is_checkpoint(path))
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_USAGE,
                     "'%s' is a %s, expected a bundle (.moec). Compile a checkpoint first: "
                     "moec compile '%s' --data mytext.txt --max-loss 2%% -o model.moec",
                     path, is_folder ? "folder" : "GGUF file", path);
}

static enum moec_status expect_checkpoint(const struct cli_command *command, const char *path,
                                          struct moec_error *err)
{
    struct stat info;
    if (stat(path, &info) == 0 || !is_of_hub(path))
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_USAGE,
                     "'%s' does not exist; if it is a model of the Hugging Face hub, download %s: "
                     "hf download %s%s --local-dir %s%s%s",
                     path, command->takes_config ? "its JSON files, which are enough" : "it first", path,
                     command->takes_config ? " --include '*.json'" : "", hub_folder(path),
                     command->takes_config ? " && moec doctor " : "",
                     command->takes_config ? hub_folder(path) : "");
}

enum moec_status cli_check_inputs(const struct cli_args *args, struct moec_error *err)
{
    const struct cli_command *command = args->command;
    struct stat info;
    if (args->n_positional > 0 && command->model == CLI_BUNDLE)
        MOEC_TRY(expect_bundle(args->positional[0], err));
    else if (args->n_positional > 0 && command->model != CLI_NO_MODEL)
        MOEC_TRY(expect_checkpoint(command, args->positional[0], err));
    for (size_t o = 0; command->options[o].name != NULL; o++)
        for (uint32_t v = 0; v < args->n_values[o]; v++) {
            const unsigned flags = command->options[o].flags;
            const char *path = args->values[o][v];
            if ((flags & CLI_INPUT) != 0 && (flags & CLI_BUILT_IN) == 0 && strcmp(path, "-") != 0 &&
                stat(path, &info) != 0)
                return moec_fail(err, MOEC_ERR_IO, "cannot open '%s' (--%s): %s", path,
                                 command->options[o].name, strerror(errno));
        }
    return MOEC_OK;
}
