/* Studies as tables of text, for terminals and logs: any study that a profile holds, whatever measured it.
 *
 * The last axis with more than one value runs across, in bands where it is wider than the terminal; all
 * others run down, each with a column of its own. A study with one such axis has its siblings beside it
 * (X/loss with X/loss_low, X/loss_high and X/kl). Losses are shown in percent, what was not measured as "-".
 * Thread rule: pure functions. */
#ifndef MOEC_PROFILER_STUDY_TABLE_H
#define MOEC_PROFILER_STUDY_TABLE_H

#include "formats/profile/study.h"

/* One study of `studies`, under a line that says what it is. `columns`: width, taken as 60 when less. `text`
 * is NUL-terminated, ends in a newline and is owned by the caller. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_study_table(const struct moec_studies *studies,
                                                   const struct moec_study *study, uint32_t columns,
                                                   char **text, struct moec_error *err);

/* A line for each study: its name, axes and description. `text` as above. */
MOEC_WARN_UNUSED enum moec_status moec_study_list(const struct moec_studies *studies, char **text,
                                                  struct moec_error *err);

/* Whether `what` asks for the study: "all", its name, or its group (what stands before the slash). */
bool moec_study_matches(const struct moec_study *study, const char *what);

/* The study that stands beside "X/loss" as "X/`dataset`", with the same axes; NULL when there is none. */
const struct moec_study *moec_study_sibling(const struct moec_studies *studies,
                                            const struct moec_study *study, const char *dataset);

/* Text of value i of an axis: its label or its number. */
const char *moec_study_axis_text(const struct moec_study_axis *axis, uint64_t i,
                                 char text[static MOEC_STUDY_LABEL]);

#endif
