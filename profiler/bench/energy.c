/* Counters wrap at a range that each zone states, so differences are taken modulo it. Two readings must be
 * closer than one turn of a counter. One zone that cannot be read makes the sum unknown (NaN): a part would
 * pass for the whole. */
#include "profiler/bench/energy.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One number or word at the start of a file of the zone. */
static bool read_line(const char *folder, const char *zone, const char *name, char *text, size_t capacity)
{
    char path[512];
    if (snprintf(path, sizeof path, "%s/%s/%s", folder, zone, name) >= (int)sizeof path)
        return false;
    FILE *stream = fopen(path, "re");
    if (stream == NULL)
        return false;
    bool got = fgets(text, (int)capacity, stream) != NULL;
    (void)fclose(stream);
    if (got)
        text[strcspn(text, "\n")] = '\0';
    return got;
}

static bool read_counter(int fd, uint64_t *value)
{
    char text[32];
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    if (n <= 0)
        return false;
    text[n] = '\0';
    char *end = NULL;
    *value = strtoull(text, &end, 10);
    return end != text;
}

static void add_zone(struct moec_energy *energy, const char *folder, const char *zone)
{
    char name[64], range[32], path[512];
    if (energy->n == MOEC_ENERGY_MAX_ZONES || !read_line(folder, zone, "name", name, sizeof name) ||
        (strncmp(name, "package", 7) != 0 && strcmp(name, "dram") != 0) ||
        !read_line(folder, zone, "max_energy_range_uj", range, sizeof range) ||
        snprintf(path, sizeof path, "%s/%s/energy_uj", folder, zone) >= (int)sizeof path)
        return;
    struct moec_energy_zone new = {.fd = open(path, O_RDONLY | O_CLOEXEC),
                                   .range_uj = strtoull(range, NULL, 10)};
    if (new.fd >= 0 && read_counter(new.fd, &new.last_uj))
        energy->zones[energy->n++] = new;
    else if (new.fd >= 0)
        (void)close(new.fd);
}

void moec_energy_open(struct moec_energy *energy, const char *folder)
{
    *energy = (struct moec_energy){0};
    DIR *directory = opendir(folder);
    if (directory == NULL)
        return;
    for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory))
        if (strncmp(entry->d_name, "intel-rapl:", 11) == 0)
            add_zone(energy, folder, entry->d_name);
    (void)closedir(directory);
}

void moec_energy_close(struct moec_energy *energy)
{
    for (uint32_t i = 0; i < energy->n; i++)
        (void)close(energy->zones[i].fd);
    energy->n = 0;
}

double moec_energy_take(struct moec_energy *energy)
{
    double joules = 0;
    bool is_whole = energy->n > 0;
    for (uint32_t i = 0; i < energy->n; i++) {
        struct moec_energy_zone *zone = &energy->zones[i];
        uint64_t now = 0;
        if (!read_counter(zone->fd, &now)) {
            is_whole = false;
            continue;
        }
        uint64_t left = zone->range_uj > zone->last_uj ? zone->range_uj - zone->last_uj : 0;
        uint64_t used = now >= zone->last_uj ? now - zone->last_uj : left + now;
        joules += (double)used * 1e-6;
        zone->last_uj = now;
    }
    return is_whole ? joules : (double)NAN;
}
