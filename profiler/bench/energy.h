/* Energy that the machine has used, where the processor counts it (RAPL through Linux' powercap).
 *
 * Packages and their memory are added up; the number covers everything that runs on the machine, not only
 * this process. Reading needs permission (root on most systems since CVE-2020-8694); without it, or without
 * such counters, there are none and nothing is made up. Thread rule: one thread. */
#ifndef MOEC_PROFILER_ENERGY_H
#define MOEC_PROFILER_ENERGY_H

#include "formats/base/error.h"

#define MOEC_ENERGY_FOLDER    "/sys/class/powercap"
#define MOEC_ENERGY_MAX_ZONES 16

struct moec_energy_zone {
    int fd;
    uint64_t range_uj; /* the counter goes back to 0 after this */
    uint64_t last_uj;
};

struct moec_energy {
    uint32_t n; /* 0: not available */
    struct moec_energy_zone zones[MOEC_ENERGY_MAX_ZONES];
};

/* Opens the counters under `folder` (MOEC_ENERGY_FOLDER) that can be read. */
void moec_energy_open(struct moec_energy *energy, const char *folder);
void moec_energy_close(struct moec_energy *energy);

/* Joules since the last call, or since opening; NaN where there are no counters. Call at least once a minute:
 * a counter that wrapped around twice looks like one that wrapped once. */
double moec_energy_take(struct moec_energy *energy);

#endif
