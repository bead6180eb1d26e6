/* The least of the kernel's MemAvailable and of what every control group on the way up leaves. A file that is
 * missing is no limit. 0 means that nothing is known, so known to be none is 1 byte. */
#include "profiler/common/available_memory.h"

#include "formats/base/control_group.h"

#include <stdio.h>

/* What one version calls its files. */
struct group_files {
    const char *limit, *used;
    const char *files[2]; /* of memory.stat: pages of files */
};

static const struct group_files version_1 = {
    "memory.limit_in_bytes", "memory.usage_in_bytes", {"total_active_file", "total_inactive_file"}};
static const struct group_files version_2 = {
    "memory.max", "memory.current", {"active_file", "inactive_file"}};

static bool read_bytes(const char *path, const char *key, uint64_t *bytes)
{
    int64_t value = 0;
    if (!moec_control_group_number(path, key, &value) || value < 0)
        return false;
    *bytes = (uint64_t)value;
    return true;
}

/* Lowers the uint64_t at `context` to what is left of the limit of one group. */
static void take_left(void *context, int version, const char *folder)
{
    const struct group_files *names = version == 1 ? &version_1 : &version_2;
    char path[1024];
    uint64_t *least = context, limit = 0, used = 0, files = 0;
    (void)snprintf(path, sizeof path, "%s/%s", folder, names->limit);
    if (!read_bytes(path, NULL, &limit))
        return;
    (void)snprintf(path, sizeof path, "%s/%s", folder, names->used);
    if (!read_bytes(path, NULL, &used))
        return;
    (void)snprintf(path, sizeof path, "%s/memory.stat", folder);
    for (int i = 0; i < 2; i++)
        if (read_bytes(path, names->files[i], &files))
            used -= files < used ? files : used;
    const uint64_t left = used < limit ? limit - used : 0;
    *least = left < *least ? left : *least;
}

uint64_t moec_available_bytes(const char *proc, const char *cgroup)
{
    char path[64];
    uint64_t kib = 0, left = UINT64_MAX;
    (void)snprintf(path, sizeof path, "%.40s/meminfo", proc);
    const bool is_known = read_bytes(path, "MemAvailable", &kib);
    moec_control_groups_visit(proc, cgroup, "memory", take_left, &left);
    const uint64_t machine = is_known ? kib << 10 : UINT64_MAX;
    const uint64_t least = left < machine ? left : machine;
    return least == UINT64_MAX ? 0 : least > 0 ? least : 1;
}
