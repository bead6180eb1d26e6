/* Files that exist are compared by device and inode, others by their folder's and their name. Terminals and
 * pipes may be read and written. What stood under each output's name is kept from the start. Outputs are
 * renamed into place, so one that is another file at the end was written. */
#include "cli/options/outputs.h"

#include "cli/print/print.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FOLDER_BYTES 4096

/* ---- the same file ---- */

/* The folder in which a path stands; false if its name is too long. */
static bool folder_of(const char *path, char folder[static FOLDER_BYTES])
{
    const char *slash = strrchr(path, '/');
    const int length =
        slash == NULL ? snprintf(folder, FOLDER_BYTES, ".")
                      : snprintf(folder, FOLDER_BYTES, "%.*s", (int)(slash - path) + (slash == path), path);
    return length > 0 && (size_t)length < FOLDER_BYTES;
}

/* Where a path that does not exist yet would stand. */
static bool place_of(const char *path, struct stat *info, const char **name)
{
    char folder[FOLDER_BYTES];
    const char *slash = strrchr(path, '/');
    *name = slash != NULL ? slash + 1 : path;
    return folder_of(path, folder) && stat(folder, info) == 0;
}

static bool is_same_entry(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static bool is_same_file(const char *a, const char *b)
{
    struct stat first, second;
    const char *first_name, *second_name;
    const bool has_first = stat(a, &first) == 0, has_second = stat(b, &second) == 0;
    if (has_first || has_second) /* a terminal or a pipe may be both read and written */
        return has_first && has_second && is_same_entry(&first, &second) &&
               (S_ISREG(first.st_mode) || S_ISDIR(first.st_mode));
    return place_of(a, &first, &first_name) && place_of(b, &second, &second_name) &&
           is_same_entry(&first, &second) && strcmp(first_name, second_name) == 0;
}

static bool ends_with(const char *path, const char *ending)
{
    const size_t n = strlen(path), m = strlen(ending);
    return n > m && strcmp(path + n - m, ending) == 0;
}

static bool is_checkpoint_name(const char *name)
{
    static const char *const endings[] = {".safetensors", ".gguf", ".json", ".model"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (ends_with(name, endings[i]))
            return true;
    return false;
}

/* Whether an existing file is one of a checkpoint's in `folder`, maybe through a link there. */
static bool is_in_checkpoint(const char *path, const char *folder)
{
    struct stat file, entry_file;
    DIR *entries = stat(path, &file) == 0 && S_ISREG(file.st_mode) ? opendir(folder) : NULL;
    bool found = false;
    if (entries == NULL)
        return false;
    for (struct dirent *entry = readdir(entries); entry != NULL && !found; entry = readdir(entries))
        found = is_checkpoint_name(entry->d_name) &&
                fstatat(dirfd(entries), entry->d_name, &entry_file, 0) == 0 &&
                is_same_entry(&file, &entry_file);
    (void)closedir(entries);
    return found;
}

/* ---- inputs and outputs ---- */

/* `subject`: "--profile", or "the input". What does not exist (the name of a built-in policy) is no file. */
static enum moec_status check_against(const char *option, const char *path, const char *input,
                                      const char *subject, struct moec_error *err)
{
    struct stat info;
    if (stat(input, &info) != 0)
        return MOEC_OK;
    const bool is_part = is_in_checkpoint(path, input);
    if (!is_part && !is_same_file(path, input))
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_USAGE, "--%s would overwrite '%s', which is %s %s '%s': name another file",
                     option, path, is_part ? "part of" : "the same file as", subject, input);
}

static enum moec_status check_inputs(const struct cli_args *args, const struct cli_option *output,
                                     const char *path, struct moec_error *err)
{
    const struct cli_option *options = args->command->options;
    for (uint32_t p = 0; p < args->n_positional && (output->flags & CLI_IN_PLACE) == 0; p++)
        MOEC_TRY(check_against(output->name, path, args->positional[p], "the input", err));
    for (size_t o = 0; options[o].name != NULL; o++)
        for (uint32_t v = 0; v < args->n_values[o] && (options[o].flags & CLI_INPUT) != 0; v++) {
            char subject[64];
            (void)snprintf(subject, sizeof subject, "--%s", options[o].name);
            MOEC_TRY(check_against(output->name, path, args->values[o][v], subject, err));
        }
    return MOEC_OK;
}

/* That a file can be made there is found out before hours of work, not after them. */
static enum moec_status check_folder(const char *option, const char *path, struct moec_error *err)
{
    char folder[FOLDER_BYTES];
    struct stat info;
    const size_t length = strlen(path);
    if (length > 0 && path[length - 1] == '/')
        return MOEC_OK; /* a folder, which its verb judges */
    if (!folder_of(path, folder))
        return MOEC_OK;                                     /* so long that opening it says so */
    if (stat(folder, &info) == 0 && !S_ISDIR(info.st_mode)) /* in which access finds nothing wrong */
        errno = ENOTDIR;
    else if (access(folder, W_OK | X_OK) == 0)
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_IO, "cannot write '%s' (--%s): folder '%s': %s", path, option, folder,
                     strerror(errno));
}

enum moec_status cli_check_folder(const char *option, const char *path, struct moec_error *err)
{
    char name[FOLDER_BYTES];
    struct stat info;
    size_t length = strlen(path);
    if (length >= sizeof name)
        return MOEC_OK; /* making it says so */
    if (stat(path, &info) == 0 && !S_ISDIR(info.st_mode))
        return moec_fail(err, MOEC_ERR_IO,
                         "--%s writes into a folder, but '%s' is not a folder: name another folder", option,
                         path);
    if (stat(path, &info) == 0 && access(path, W_OK | X_OK) != 0)
        return moec_fail(err, MOEC_ERR_IO, "cannot write into folder '%s' (--%s): %s", path, option,
                         strerror(errno));
    if (stat(path, &info) == 0)
        return MOEC_OK;
    while (length > 1 && path[length - 1] == '/')
        length--;
    memcpy(name, path, length);
    name[length] = '\0';
    return check_folder(option, name, err);
}

/* A profile named p.pdf is a mistake, and so is whatever else ends like another kind of file. The option's
 * placeholder has the ending of its own kind; without one any name will do, but for a folder that of a file.
 */
static enum moec_status check_ending(const struct cli_option *option, const char *path,
                                     struct moec_error *err)
{
    static const char *const endings[] = {".h5",  ".moec", ".html", ".json", ".pdf",         ".png",
                                          ".svg", ".csv",  ".lua",  ".txt",  ".safetensors", ".gguf"};
    const char *own = strrchr(option->argument, '.');
    const bool is_folder = strcmp(option->argument, "FOLDER") == 0;
    if ((own == NULL && !is_folder) || (own != NULL && ends_with(path, own)))
        return MOEC_OK;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        if (!ends_with(path, endings[i]))
            continue;
        if (is_folder)
            return moec_fail(err, MOEC_ERR_USAGE,
                             "--%s writes a folder, but '%s' ends with %s like a file: choose another name",
                             option->name, path, endings[i]);
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--%s writes %s, but '%s' ends with %s: choose a name that ends with %s",
                         option->name, option->argument, path, endings[i], own);
    }
    return MOEC_OK;
}

enum moec_status cli_check_output(const struct cli_args *args, const char *option, const char *path,
                                  struct moec_error *err)
{
    const struct cli_option *options = args->command->options, *at = options;
    while (strcmp(at->name, option) != 0)
        at++;
    MOEC_TRY(check_inputs(args, at, path, err));
    for (size_t o = 0; options[o].name != NULL; o++)
        for (uint32_t v = 0; v < args->n_values[o] && (options[o].flags & CLI_OUTPUT) != 0; v++)
            if (&options[o] != at && is_same_file(path, args->values[o][v]))
                return moec_fail(err, MOEC_ERR_USAGE,
                                 "--%s would overwrite '%s', which --%s writes too: name another file",
                                 option, path, options[o].name);
    return MOEC_OK;
}

enum moec_status cli_check_outputs(const struct cli_args *args, struct cli_outputs *outputs,
                                   struct moec_error *err)
{
    const struct cli_option *options = args->command->options;
    *outputs = (struct cli_outputs){0};
    for (size_t o = 0; options[o].name != NULL; o++)
        for (uint32_t v = 0; v < args->n_values[o] && (options[o].flags & CLI_OUTPUT) != 0; v++) {
            const char *path = args->values[o][v];
            MOEC_TRY(check_inputs(args, &options[o], path, err));
            for (uint32_t i = 0; i < outputs->n; i++)
                if (is_same_file(path, outputs->paths[i]))
                    return moec_fail(err, MOEC_ERR_USAGE,
                                     "--%s names '%s', which is already an output ('%s'): name another file",
                                     options[o].name, path, outputs->paths[i]);
            MOEC_TRY(check_ending(&options[o], path, err));
            MOEC_TRY(check_folder(options[o].name, path, err));
            if (outputs->n == CLI_MAX_OUTPUTS)
                return moec_fail(err, MOEC_ERR_USAGE, "too many files to write, expected at most %d",
                                 CLI_MAX_OUTPUTS);
            outputs->existed[outputs->n] = stat(path, &outputs->before[outputs->n]) == 0;
            outputs->paths[outputs->n++] = path;
        }
    return MOEC_OK;
}

/* ---- what is there already ---- */

static bool asks_person(const char *path)
{
    char answer[16] = "";
    cli_print(stderr, "'%s' exists. Overwrite it? [y/N] ", path);
    (void)fflush(stderr);
    return fgets(answer, sizeof answer, stdin) != NULL && (answer[0] == 'y' || answer[0] == 'Y');
}

enum moec_status cli_check_overwriting(const struct cli_args *args, const struct cli_outputs *outputs,
                                       struct moec_error *err)
{
    if (args->is_forced || (cli_offers(args, "dry-run") && cli_has(args, "dry-run")))
        return MOEC_OK;
    for (uint32_t i = 0; i < outputs->n; i++) {
        const struct stat *before = &outputs->before[i];
        if (!outputs->existed[i] || !S_ISREG(before->st_mode) || before->st_size == 0)
            continue;
        if (isatty(STDIN_FILENO) && isatty(STDERR_FILENO)) {
            if (!asks_person(outputs->paths[i]))
                return moec_fail(err, MOEC_ERR_USAGE, "'%s' was not overwritten", outputs->paths[i]);
        } else {
            return moec_fail(err, MOEC_ERR_USAGE,
                             "'%s' exists: give --force to overwrite it, or another name", outputs->paths[i]);
        }
    }
    return MOEC_OK;
}

enum moec_status cli_output_or_input(const struct cli_args *args, const char **path, struct moec_error *err)
{
    const char *input = args->positional[0];
    *path = cli_has(args, "output") ? cli_text(args, "output") : input;
    if (cli_has(args, "output") || args->is_forced)
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_USAGE,
                     "name the new bundle with -o OUT.moec, or give --force to write into '%s' itself",
                     input);
}

/* Outputs are renamed into place, so what was written is another file than what stood there. */
static void tell_written(const struct cli_outputs *outputs)
{
    struct stat now;
    for (uint32_t i = 0; i < outputs->n; i++)
        if (stat(outputs->paths[i], &now) == 0 && (S_ISREG(now.st_mode) || S_ISDIR(now.st_mode)) &&
            !(outputs->existed[i] && is_same_entry(&now, &outputs->before[i])))
            cli_print(stderr, "'%s' was written and is complete\n", outputs->paths[i]);
}

int cli_finish(const char *program, const struct cli_outputs *outputs, int status)
{
    errno = 0;
    if (fflush(stdout) != 0 || ferror(stdout)) {
        cli_print(stderr, "%s: cannot write to standard output%s%s\n", program, errno != 0 ? ": " : "",
                  errno != 0 ? strerror(errno) : "");
        status = status != CLI_OK ? status : CLI_FAILED;
    }
    if (status != CLI_OK)
        tell_written(outputs);
    return status;
}
