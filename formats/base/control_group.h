/* Control groups (cgroups) that this process is in, of version 1 and 2: a container is one, and what it may
 * take of memory and processors stands in files. A limit of a group above holds too, so all are visited.
 * Thread rule: pure functions. */
#ifndef MOEC_FORMATS_CONTROL_GROUP_H
#define MOEC_FORMATS_CONTROL_GROUP_H

#include <stdbool.h>
#include <stdint.h>

/* `folder` has the group's files, if it is there at all. */
typedef void moec_control_group_visitor(void *context, int version, const char *folder);

/* Visits the groups of a controller ("memory", "cpu"), each with those above it. A container may see its own
 * group as the root, under a path that it cannot see. `proc` and `cgroup` are the folders "/proc" and
 * "/sys/fs/cgroup". */
void moec_control_groups_visit(const char *proc, const char *cgroup, const char *controller,
                               moec_control_group_visitor *visit, void *context);

/* The number behind the first of these words in a file of "word number" lines, or at the begin of its file
 * where key is NULL. False where there is none, as for "max". */
bool moec_control_group_number(const char *path, const char *key, int64_t *value);

/* Processors that the time limits of the groups come to (cpu.max, or cpu.cfs_quota_us by cpu.cfs_period_us),
 * rounded up: the least of all; 0 = no limit. */
int moec_control_group_cpus(const char *proc, const char *cgroup);

#endif
