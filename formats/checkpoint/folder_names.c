#include "formats/checkpoint/folder_names.h"

#include "formats/base/memory.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static enum moec_status add_name(struct moec_folder_names *names, size_t *capacity, const char *name,
                                 struct moec_error *err)
{
    MOEC_TRY(moec_grow((void **)&names->names, capacity, names->n + 1, sizeof *names->names,
                       "names of a folder", err));
    MOEC_TRY(moec_strndup(&names->names[names->n], name, strlen(name), err));
    names->n++;
    return MOEC_OK;
}

static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

enum moec_status moec_folder_list(const char *folder, const char *suffix, struct moec_folder_names *names,
                                  struct moec_error *err)
{
    const size_t n_suffix = strlen(suffix);
    size_t capacity = 0;
    enum moec_status status = MOEC_OK;
    *names = (struct moec_folder_names){0};
    DIR *entries = opendir(folder);
    if (entries == NULL)
        return moec_fail(err, MOEC_ERR_IO, "cannot list '%s': %s", folder, strerror(errno));
    for (struct dirent *entry = readdir(entries); entry != NULL && status == MOEC_OK;
         entry = readdir(entries)) {
        const size_t n_name = strlen(entry->d_name);
        if (entry->d_name[0] != '.' && n_name >= n_suffix &&
            strcmp(entry->d_name + n_name - n_suffix, suffix) == 0)
            status = add_name(names, &capacity, entry->d_name, err);
    }
    (void)closedir(entries);
    if (status != MOEC_OK)
        moec_folder_names_release(names);
    else if (names->n > 1)
        qsort(names->names, names->n, sizeof *names->names, compare);
    return status;
}

void moec_folder_names_release(struct moec_folder_names *names)
{
    for (size_t i = 0; i < names->n; i++)
        free(names->names[i]);
    free(names->names);
    *names = (struct moec_folder_names){0};
}
