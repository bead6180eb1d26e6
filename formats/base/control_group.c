/* /proc/self/cgroup names a group for each controller (version 1) or one for all (version 2). From that
 * group the walk goes up by cutting the path, to where the controller is mounted. A limit above holds too,
 * so the least of all counts; a file that is missing limits nothing. */
#include "formats/base/control_group.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool moec_control_group_number(const char *path, const char *key, int64_t *value)
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
        *value = strtoll(at, &end, 10);
        found = end != at;
    }
    if (stream != NULL)
        (void)fclose(stream);
    return found;
}

/* ---- groups ---- */

struct visit {
    const char *cgroup, *controller;
    moec_control_group_visitor *visitor;
    void *context;
};

/* The group and those above it, up to where the controller is mounted. */
static void visit_above(const struct visit *visit, int version, const char *group)
{
    char folder[768];
    const int n = snprintf(folder, sizeof folder, "%s%s%s", visit->cgroup, version == 1 ? "/" : "",
                           version == 1 ? visit->controller : "");
    if (n < 0 || (size_t)n + strlen(group) >= sizeof folder)
        return;
    (void)strcpy(folder + n, strcmp(group, "/") != 0 ? group : "");
    for (;;) {
        char *end = strrchr(folder + n, '/');
        visit->visitor(visit->context, version, folder);
        if (end == NULL)
            return;
        *end = '\0';
    }
}

/* Whether a list "cpu,cpuacct" has the word. */
static bool has_word(const char *list, const char *word)
{
    const size_t n = strlen(word);
    for (; *list != '\0'; list += list[strcspn(list, ",")] == ',' ? strcspn(list, ",") + 1 : strlen(list))
        if (strcspn(list, ",") == n && strncmp(list, word, n) == 0)
            return true;
    return false;
}

/* Lines "4:cpu,cpuacct:/group" of version 1, "0::/group" of version 2. */
void moec_control_groups_visit(const char *proc, const char *cgroup, const char *controller,
                               moec_control_group_visitor *visitor, void *context)
{
    const struct visit visit = {cgroup, controller, visitor, context};
    char line[512], path[64];
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
        const bool is_1 = has_word(controllers, controller);
        if (is_1 || *controllers == '\0')
            visit_above(&visit, is_1 ? 1 : 2, group);
    }
    if (stream != NULL)
        (void)fclose(stream);
}

/* ---- processors ---- */

static void take_cpus(void *context, int version, const char *folder)
{
    int *least = context;
    char path[1024];
    int64_t quota = 0, period = 100000;
    if (version == 2) {
        char line[64] = "";
        (void)snprintf(path, sizeof path, "%s/cpu.max", folder);
        FILE *stream = fopen(path, "re");
        const bool is_there = stream != NULL && fgets(line, sizeof line, stream) != NULL;
        if (stream != NULL)
            (void)fclose(stream);
        char *end = line;
        quota = strtoll(line, &end, 10);
        if (!is_there || end == line) /* "max" */
            return;
        if (*end == ' ')
            period = strtoll(end, NULL, 10);
    } else {
        (void)snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
        if (!moec_control_group_number(path, NULL, &quota))
            return;
        (void)snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
        (void)moec_control_group_number(path, NULL, &period);
    }
    if (quota <= 0 || period <= 0)
        return;
    const int64_t cpus = (quota - 1) / period + 1;
    if (cpus < INT_MAX && (*least == 0 || cpus < *least))
        *least = (int)cpus;
}

int moec_control_group_cpus(const char *proc, const char *cgroup)
{
    int least = 0;
    moec_control_groups_visit(proc, cgroup, "cpu", take_cpus, &least);
    return least;
}
