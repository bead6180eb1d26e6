/* Studies: the measurements of a profile other than its sensitivities, each an array that describes itself.
 *
 * A study is a named array of F64 with named axes, units, a description and the paper it comes from. The code
 * that measures adds it, the HDF5 file keeps it under /studies, and tables, plots, reports and policies find
 * it by name; none of them has a list of all studies. formats/profile/PROFILE.md lists the names. Counts are
 * stored as F64 too (exact below 2^53). Thread rule: plain data. */
#ifndef MOEC_FORMATS_STUDY_H
#define MOEC_FORMATS_STUDY_H

#include "formats/base/error.h"

#include <stddef.h>
#include <stdint.h>

#define MOEC_STUDY_MAX_AXES   4
#define MOEC_STUDY_MAX_COUNT  256u
#define MOEC_STUDY_MAX_VALUES ((uint64_t)1 << 32)
#define MOEC_STUDY_LABEL      32
#define MOEC_STUDY_MAX_LABELS 1024u /* on one axis */

/* One axis; the axes of a study have different names. Names that PROFILE.md lists under "Axes" (moe_layer,
 * expert, bits, uniform_bits, window, rank, cut) mean what they mean there; moec_profile_add_study gives them
 * the values that they have there. */
struct moec_study_axis {
    char name[32];                    /* lower case, digits and underscores */
    char units[24];                   /* "" = none */
    uint64_t n;                       /* 1.. */
    double *values;                   /* (n), finite; NULL = 0, 1, .. n - 1 */
    char (*labels)[MOEC_STUDY_LABEL]; /* (n) words for categories ("gate"), NULL = none */
};

/* Texts hold no control characters. */
struct moec_study {
    char name[64];  /* "group/dataset": lower case, digits, underscores and one slash */
    char units[24]; /* "" = none */
    char description[240];
    char source[128]; /* paper and figure, "" = none */
    uint32_t n_axis;  /* 0 = one value */
    struct moec_study_axis axes[MOEC_STUDY_MAX_AXES];
    double *values; /* row-major, finite or NaN where there is nothing to say */
};

struct moec_studies {
    uint32_t n;
    struct moec_study *items; /* (n) by name, owned with everything in them */
};

/* Adds a copy of `study` (values NULL = zeros), replacing one of the same name; `added` (may be NULL) stays
 * valid until the next add. Units of "1" become "". Errors: MOEC_ERR_USAGE for a name, axis, text or value
 * out of range, MOEC_ERR_LIMIT, MOEC_ERR_MEMORY; then nothing has changed. */
MOEC_WARN_UNUSED enum moec_status moec_studies_add(struct moec_studies *studies,
                                                   const struct moec_study *study, struct moec_study **added,
                                                   struct moec_error *err);

/* NULL when there is none of this name. */
const struct moec_study *moec_studies_find(const struct moec_studies *studies, const char *name);

/* Product of the axes' lengths; 1 without axes. */
uint64_t moec_study_count(const struct moec_study *study);

/* Value i of an axis: values[i], or i itself. */
static inline double moec_study_axis_value(const struct moec_study_axis *axis, uint64_t i)
{
    return axis->values != NULL ? axis->values[i] : (double)i;
}

/* True for a name "group/dataset" as a study may have. */
bool moec_study_name_is_valid(const char *name);

/* Checks studies that came from a file, so that everything in them may be trusted: order and syntax of names,
 * texts, axes, values. Values may have been changed since they were added. Errors: MOEC_ERR_FORMAT. */
MOEC_WARN_UNUSED enum moec_status moec_studies_check(const struct moec_studies *studies, const char *subject,
                                                     struct moec_error *err);

/* Frees the items and zeroes the struct. */
void moec_studies_release(struct moec_studies *studies);

#endif
