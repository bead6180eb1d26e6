#include "profiler/common/available_memory.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The number behind the first of these words in a file of "word number" lines, or alone in its file where key
 * is NULL. False where there is none, as for "max". */
static bool read_number(const char *path, const char *key, uint64_t *value)
{
    char line[256];
    bool found = false;
    const size_t n = key != NULL ? strlen(key) : 0;
    FILE *stream = fopen(path, "re");
    while (stream != NULL && !found && fgets(line, sizeof line, stream) != NULL) {
        char *at = line + n, *end = NULL;
        if (key != NULL && (strncmp(line, key, n) != 0 || (line[n] != ' ' && line[n] != ':')))
            continue;
        at += key != NULL;
        *value = strtoull(at, &end, 10);
        found = end != at;
    }
    if (stream != NULL)
        (void)fclose(stream);
    return found;
}

/* What one version calls them. */
struct group_files {
    const char *folder; /* under the mount point */
    const char *limit, *used;
    const char *files[2]; /* of memory.stat: pages of files */
};

static const struct group_files version_1 = {"/memory",
                                             "memory.limit_in_bytes",
                                             "memory.usage_in_bytes",
                                             {"total_active_file", "total_inactive_file"}};
static const struct group_files version_2 = {
    "", "memory.max", "memory.current", {"active_file", "inactive_file"}};

/* What is left of the limit of one group, or UINT64_MAX. */
static uint64_t left_of(const struct group_files *names, const char *folder)
{
    char path[1024];
    uint64_t limit = 0, used = 0, files = 0;
    (void)snprintf(path, sizeof path, "%s/%s", folder, names->limit);
    if (!read_number(path, NULL, &limit))
        return UINT64_MAX;
    (void)snprintf(path, sizeof path, "%s/%s", folder, names->used);
    if (!read_number(path, NULL, &used))
        return UINT64_MAX;
    (void)snprintf(path, sizeof path, "%s/memory.stat", folder);
    for (int i = 0; i < 2; i++)
        if (read_number(path, names->files[i], &files))
            used -= files < used ? files : used;
    return used < limit ? limit - used : 0;
}

/* The least that is left of the group's limit and of those above it. A container may see its own group as the
 * root, under a path that it cannot see. */
static uint64_t left_above(const struct group_files *names, const char *cgroup, const char *group)
{
    char folder[768];
    uint64_t least = UINT64_MAX;
    const int n = snprintf(folder, sizeof folder, "%s%s", cgroup, names->folder);
    if (n < 0 || (size_t)n + strlen(group) >= sizeof folder)
        return least;
    (void)strcpy(folder + n, strcmp(group, "/") != 0 ? group : "");
    for (;;) {
        const uint64_t left = left_of(names, folder);
        char *end = strrchr(folder + n, '/');
        least = left < least ? left : least;
        if (end == NULL)
            return least;
        *end = '\0';
    }
}

static uint64_t left_of_groups(const char *proc, const char *cgroup)
{
    char line[512], path[64];
    uint64_t least = UINT64_MAX;
    (void)snprintf(path, sizeof path, "%.40s/self/cgroup", proc);
    FILE *stream = fopen(path, "re");
    while (stream != NULL && fgets(line, sizeof line, stream) != NULL) {
        char *controllers = strchr(line, ':'), *group = NULL;
        if (controllers != NULL)
            group = strchr(++controllers, ':');
        if (group == NULL)
            continue;
        *group++ = '\0';
        group[strcspn(group, "\n")] = '\0';
        const bool is_1 = strcmp(controllers, "memory") == 0;
        if (!is_1 && *controllers != '\0')
            continue;
        const uint64_t left = left_above(is_1 ? &version_1 : &version_2, cgroup, group);
        least = left < least ? left : least;
    }
    if (stream != NULL)
        (void)fclose(stream);
    return least;
}

uint64_t moec_available_bytes(const char *proc, const char *cgroup)
{
    char path[64];
    uint64_t kib = 0;
    (void)snprintf(path, sizeof path, "%.40s/meminfo", proc);
    const bool is_known = read_number(path, "MemAvailable", &kib);
    const uint64_t left = left_of_groups(proc, cgroup), machine = is_known ? kib << 10 : UINT64_MAX;
    const uint64_t least = left < machine ? left : machine;
    return least == UINT64_MAX ? 0 : least > 0 ? least : 1;
}
