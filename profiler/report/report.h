/* The report of a profile: one self-contained HTML page, text first.
 *
 * What was measured, the verdict, what the data does not cover, then every figure with the numbers behind it,
 * what it cost and where it comes from, and what was not measured with the option that measures it. Pictures
 * are data: SVG, or PNG for heatmaps of many cells, each in a wide and a narrow drawing. No scripts. All text
 * from files is escaped. Equal profiles give equal bytes. Thread rule: pure function. */
#ifndef MOEC_PROFILER_REPORT_H
#define MOEC_PROFILER_REPORT_H

#include "profiler/report/figures.h"

/* Writes the page whole or not at all. `figures` are those of the profile.
 * Errors: MOEC_ERR_IO, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_report_write(const struct moec_profile *profile,
                                                    const struct moec_figures *figures, const char *path,
                                                    struct moec_error *err);

#endif
