/* The scale of a study's axis stands in one of three places. An axis that equals one in /axes uses that; one
 * that is equal in all studies of a group stands in the group. Any other stands beside its study, under a
 * name with a dot, which no study has. Reading looks in the opposite order and never lists studies by name.
 */
#include "formats/profile/profile_h5_studies.h"

#include "formats/base/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define ROOT       "/studies"
#define PATH_BYTES 128 /* "/studies/group/name.axis" */
#define AXES_BYTES (MOEC_STUDY_MAX_AXES * sizeof((struct moec_study_axis){0}.name))

/* ---- names ---- */

static void study_path(const char *name, char path[static PATH_BYTES])
{
    (void)snprintf(path, PATH_BYTES, ROOT "/%s", name);
}

/* A dot is in no study's name, so that a scale beside a study is nobody else's. */
static void own_scale_path(const char *study, const char *axis, char path[static PATH_BYTES])
{
    (void)snprintf(path, PATH_BYTES, ROOT "/%s.%s", study, axis);
}

/* One that all studies of a group share. */
static void group_scale_path(const char *study, const char *axis, char path[static PATH_BYTES])
{
    (void)snprintf(path, PATH_BYTES, ROOT "/%.*s/%s", (int)strcspn(study, "/"), study, axis);
}

static void known_scale_path(const char *axis, char path[static PATH_BYTES])
{
    (void)snprintf(path, PATH_BYTES, "/axes/%s", axis);
}

/* "" in memory is "1" in the file, as for every other dataset. */
static const char *stored_units(const char *units)
{
    return units[0] == '\0' ? "1" : units;
}

/* ---- writing ---- */

/* Whether /axes has an axis of this name and these values. */
static bool axis_is_known(const struct moec_profile *profile, const struct moec_study_axis *axis)
{
    struct moec_profile_axis known;
    uint32_t cuts[3];
    if (axis->labels != NULL || !moec_profile_find_axis(profile, axis->name, cuts, &known) ||
        known.n != axis->n)
        return false;
    for (uint64_t i = 0; i < axis->n; i++)
        if (moec_study_axis_value(axis, i) != moec_profile_axis_value(&known, i))
            return false;
    return true;
}

static bool axes_are_equal(const struct moec_study_axis *a, const struct moec_study_axis *b)
{
    if (a->n != b->n || strcmp(a->units, b->units) != 0 || (a->labels != NULL) != (b->labels != NULL))
        return false;
    for (uint64_t i = 0; i < a->n; i++)
        if (moec_study_axis_value(a, i) != moec_study_axis_value(b, i) ||
            (a->labels != NULL && strcmp(a->labels[i], b->labels[i]) != 0))
            return false;
    return true;
}

/* Where an axis's scale stands. */
enum scale_place {
    SCALE_KNOWN, /* in /axes */
    SCALE_GROUP, /* in the group: all axes of this name there are the same, and no study has the name */
    SCALE_OWN,   /* beside its study */
};

/* `*is_first`: no study before this one has the group's scale. */
static enum scale_place place_of(const struct moec_profile *profile, const struct moec_study *study,
                                 const struct moec_study_axis *axis, bool *is_first)
{
    const size_t n_group = strcspn(study->name, "/") + 1;
    *is_first = true;
    if (axis_is_known(profile, axis))
        return SCALE_KNOWN;
    for (uint32_t s = 0; s < profile->studies.n; s++) {
        const struct moec_study *other = &profile->studies.items[s];
        if (strncmp(other->name, study->name, n_group) != 0)
            continue;
        if (strcmp(other->name + n_group, axis->name) == 0)
            return SCALE_OWN;
        for (uint32_t i = 0; i < other->n_axis; i++) {
            if (&other->axes[i] == axis || strcmp(other->axes[i].name, axis->name) != 0)
                continue;
            if (other == study || !axes_are_equal(&other->axes[i], axis))
                return SCALE_OWN;
            *is_first = *is_first && other > study;
        }
    }
    return SCALE_GROUP;
}

static enum moec_status write_scale(struct moec_h5 *h5, const char *owner, const struct moec_study_axis *axis,
                                    const char *path, struct moec_error *err)
{
    char description[PATH_BYTES];
    double *values = NULL;
    (void)snprintf(description, sizeof description, "axis of %s", owner);
    MOEC_TRY(moec_alloc((void **)&values, axis->n, sizeof *values, "an axis of a study", err));
    for (uint64_t i = 0; i < axis->n; i++)
        values[i] = moec_study_axis_value(axis, i);
    const struct moec_h5_dataset scale = {.path = path,
                                          .type = MOEC_H5_F64,
                                          .rank = 1,
                                          .dims = {axis->n},
                                          .axes = {path},
                                          .units = stored_units(axis->units),
                                          .description = description};
    enum moec_status status = moec_h5_write(h5, &scale, values, err);
    free(values);
    if (status == MOEC_OK && axis->labels != NULL)
        status = moec_h5_write_texts(h5, path, "labels", axis->labels[0],
                                     (struct moec_h5_text_list){MOEC_STUDY_LABEL, axis->n}, err);
    return status;
}

/* The path of the axis's scale, which is written where it is not there yet. */
static enum moec_status write_axis(struct moec_h5 *h5, const struct moec_profile *profile,
                                   const struct moec_study *study, const struct moec_study_axis *axis,
                                   char path[static PATH_BYTES], struct moec_error *err)
{
    bool is_first = true;
    char group[PATH_BYTES];
    switch (place_of(profile, study, axis, &is_first)) {
    case SCALE_KNOWN:
        known_scale_path(axis->name, path);
        return MOEC_OK;
    case SCALE_GROUP:
        group_scale_path(study->name, axis->name, path);
        (void)snprintf(group, sizeof group, "%.*s", (int)strcspn(study->name, "/"), study->name);
        return is_first ? write_scale(h5, group, axis, path, err) : MOEC_OK;
    default:
        own_scale_path(study->name, axis->name, path);
        return write_scale(h5, study->name, axis, path, err);
    }
}

static enum moec_status write_study(struct moec_h5 *h5, const struct moec_profile *profile,
                                    const struct moec_study *study, struct moec_error *err)
{
    char path[PATH_BYTES], scales[MOEC_STUDY_MAX_AXES][PATH_BYTES], names[AXES_BYTES] = "";
    struct moec_h5_dataset dataset = {.path = path,
                                      .type = MOEC_H5_F64,
                                      .rank = study->n_axis,
                                      .units = stored_units(study->units),
                                      .description = study->description,
                                      .source = study->source[0] != '\0' ? study->source : NULL};
    size_t at = 0;
    study_path(study->name, path);
    for (uint32_t i = 0; i < study->n_axis; i++) {
        const struct moec_study_axis *axis = &study->axes[i];
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", i > 0 ? "," : "", axis->name);
        MOEC_TRY(write_axis(h5, profile, study, axis, scales[i], err));
        dataset.dims[i] = axis->n;
        dataset.axes[i] = scales[i];
    }
    MOEC_TRY(moec_h5_write(h5, &dataset, study->values, err));
    return moec_h5_write_text(h5, path, "axes", names, err);
}

enum moec_status moec_profile_h5_write_studies(struct moec_h5 *h5, const struct moec_profile *profile,
                                               struct moec_error *err)
{
    const struct moec_studies *studies = &profile->studies;
    char group[PATH_BYTES], before[PATH_BYTES] = "";
    if (studies->n == 0)
        return MOEC_OK;
    MOEC_TRY(moec_h5_write_group(h5, ROOT, err));
    for (uint32_t i = 0; i < studies->n; i++) {
        study_path(studies->items[i].name, group);
        *strrchr(group, '/') = '\0';
        if (strcmp(group, before) != 0)
            MOEC_TRY(moec_h5_write_group(h5, group, err));
        (void)snprintf(before, sizeof before, "%s", group);
        MOEC_TRY(write_study(h5, profile, &studies->items[i], err));
    }
    return MOEC_OK;
}

/* ---- reading ---- */

struct reader {
    struct moec_h5 *h5;
    struct moec_profile *profile;
    const char *subject;
    const char *group; /* name of the one that is listed */
    struct moec_study study;
};

static enum moec_status read_units(const struct reader *reader, const char *path, char *units,
                                   size_t capacity, struct moec_error *err)
{
    MOEC_TRY(moec_h5_read_text(reader->h5, path, "units", units, capacity, err));
    if (strcmp(units, "1") == 0)
        units[0] = '\0';
    return MOEC_OK;
}

/* Splits the attribute "axes" into the names of the study's axes. */
static enum moec_status read_axis_names(struct reader *reader, const char *path, struct moec_error *err)
{
    struct moec_study *study = &reader->study;
    char names[AXES_BYTES] = "";
    MOEC_TRY(moec_h5_read_text(reader->h5, path, "axes", names, sizeof names, err));
    const char *at = names;
    bool good = (names[0] == '\0') == (study->n_axis == 0);
    for (uint32_t i = 0; good && i < study->n_axis; i++) {
        const size_t length = strcspn(at, ",");
        good = length > 0 && length < sizeof study->axes[i].name &&
               (at[length] == ',') == (i + 1 < study->n_axis);
        if (good)
            memcpy(study->axes[i].name, at, length);
        at += length + 1;
    }
    if (!good)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s: attribute 'axes' of '%s' is '%s', expected %" PRIu32
                         " names separated by commas",
                         reader->subject, path, names, study->n_axis);
    return MOEC_OK;
}

static enum moec_status use_known_scale(const struct reader *reader, struct moec_study_axis *axis,
                                        struct moec_error *err)
{
    struct moec_profile_axis known;
    uint32_t cuts[3];
    if (!moec_profile_find_axis(reader->profile, axis->name, cuts, &known))
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "%s: study '%s' has an axis '%s' without a scale, and the profile has no axis of that name",
            reader->subject, reader->study.name, axis->name);
    if (known.n != axis->n)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s: axis '%s' of study '%s' has length %" PRIu64
                         ", but the profile's axis of that name has %" PRIu64,
                         reader->subject, axis->name, reader->study.name, axis->n, known.n);
    (void)snprintf(axis->units, sizeof axis->units, "%s", known.units);
    if (known.values == NULL && known.first == 0)
        return MOEC_OK;
    MOEC_TRY(moec_alloc((void **)&axis->values, axis->n, sizeof *axis->values, "an axis of a study", err));
    for (uint64_t i = 0; i < axis->n; i++)
        axis->values[i] = moec_profile_axis_value(&known, i);
    return MOEC_OK;
}

static enum moec_status read_scale(const struct reader *reader, struct moec_study_axis *axis,
                                   struct moec_error *err)
{
    char path[PATH_BYTES], known[PATH_BYTES];
    bool has_labels = false;
    own_scale_path(reader->study.name, axis->name, path);
    if (!moec_h5_has(reader->h5, path)) {
        known_scale_path(axis->name, known);
        group_scale_path(reader->study.name, axis->name, path);
        if (!moec_h5_has(reader->h5, path) || moec_h5_is_same(reader->h5, path, known))
            return use_known_scale(reader, axis, err);
    }
    const struct moec_h5_dataset scale = {
        .path = path, .type = MOEC_H5_F64, .rank = 1, .dims = {axis->n}, .axes = {path}};
    MOEC_TRY(moec_h5_check(reader->h5, &scale, err));
    MOEC_TRY(moec_alloc((void **)&axis->values, axis->n, sizeof *axis->values, "an axis of a study", err));
    MOEC_TRY(moec_h5_read(reader->h5, &scale, axis->values, err));
    MOEC_TRY(read_units(reader, path, axis->units, sizeof axis->units, err));
    MOEC_TRY(moec_h5_has_attribute(reader->h5, path, "labels", &has_labels, err));
    if (!has_labels)
        return MOEC_OK;
    if (axis->n > MOEC_STUDY_MAX_LABELS)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s: '%s' has %" PRIu64 " labels, expected at most %u",
                         reader->subject, path, axis->n, MOEC_STUDY_MAX_LABELS);
    MOEC_TRY(moec_alloc((void **)&axis->labels, axis->n, MOEC_STUDY_LABEL, "labels of a study", err));
    return moec_h5_read_texts(reader->h5, path, "labels", axis->labels[0],
                              (struct moec_h5_text_list){MOEC_STUDY_LABEL, axis->n}, err);
}

static enum moec_status read_study(struct reader *reader, struct moec_error *err)
{
    struct moec_study *study = &reader->study;
    struct moec_h5_dataset dataset = {.type = MOEC_H5_F64};
    char path[PATH_BYTES];
    bool has_source = false;
    uint64_t n = 1;
    study_path(study->name, path);
    dataset.path = path;
    MOEC_TRY(moec_h5_read_extents(reader->h5, path, &dataset.rank, dataset.dims, err));
    study->n_axis = dataset.rank;
    MOEC_TRY(read_axis_names(reader, path, err));
    for (uint32_t i = 0; i < dataset.rank; i++) {
        study->axes[i].n = dataset.dims[i];
        dataset.axes[i] = study->axes[i].name;
        if (dataset.dims[i] == 0 || __builtin_mul_overflow(n, dataset.dims[i], &n) ||
            n > MOEC_STUDY_MAX_VALUES)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "%s: '%s' has no values or too many, expected 1 to %" PRIu64, reader->subject,
                             path, MOEC_STUDY_MAX_VALUES);
    }
    MOEC_TRY(moec_h5_check(reader->h5, &dataset, err));
    for (uint32_t i = 0; i < dataset.rank; i++)
        MOEC_TRY(read_scale(reader, &study->axes[i], err));
    MOEC_TRY(read_units(reader, path, study->units, sizeof study->units, err));
    MOEC_TRY(moec_h5_read_text(reader->h5, path, "description", study->description, sizeof study->description,
                               err));
    MOEC_TRY(moec_h5_has_attribute(reader->h5, path, "source", &has_source, err));
    if (has_source)
        MOEC_TRY(moec_h5_read_text(reader->h5, path, "source", study->source, sizeof study->source, err));
    MOEC_TRY(moec_alloc((void **)&study->values, n, sizeof *study->values, "a study", err));
    return moec_h5_read(reader->h5, &dataset, study->values, err);
}

static enum moec_status visit_study(void *context, const char *name, struct moec_error *err)
{
    struct reader *reader = context;
    struct moec_study *study = &reader->study;
    struct moec_profile_axis known;
    uint32_t cuts[3];
    char path[PATH_BYTES], scale[PATH_BYTES];
    /* A scale is read with its study, or stands here as a link to the one of the whole file. */
    if (strchr(name, '.') != NULL)
        return MOEC_OK;
    (void)snprintf(path, sizeof path, ROOT "/%s/%s", reader->group, name);
    bool is_scale = false;
    MOEC_TRY(moec_h5_has_attribute(reader->h5, path, "CLASS", &is_scale, err));
    if (is_scale)
        return MOEC_OK;
    if (moec_profile_find_axis(reader->profile, name, cuts, &known)) {
        known_scale_path(name, scale);
        if (moec_h5_has(reader->h5, "/axes") && moec_h5_is_same(reader->h5, path, scale))
            return MOEC_OK;
    }
    *study = (struct moec_study){0};
    const int length = snprintf(study->name, sizeof study->name, "%s/%s", reader->group, name);
    if (length < 0 || (size_t)length >= sizeof study->name || !moec_study_name_is_valid(study->name))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s: '" ROOT "/%s/%s' cannot name a study, expected a short name of lower-case "
                         "letters, digits and underscores",
                         reader->subject, reader->group, name);
    const struct moec_studies only = {1, study};
    enum moec_status status = read_study(reader, err);
    if (status == MOEC_OK)
        status = moec_studies_check(&only, reader->subject, err);
    if (status == MOEC_OK)
        status = moec_studies_add(&reader->profile->studies, study, NULL, err);
    for (uint32_t i = 0; i < MOEC_STUDY_MAX_AXES; i++) {
        free(study->axes[i].values);
        free(study->axes[i].labels);
    }
    free(study->values);
    return status;
}

static enum moec_status visit_group(void *context, const char *name, struct moec_error *err)
{
    struct reader *reader = context;
    char path[PATH_BYTES];
    if (strlen(name) >= sizeof reader->study.name)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s: the name '" ROOT "/%s' is too long for a group of studies", reader->subject,
                         name);
    study_path(name, path);
    reader->group = name;
    return moec_h5_list(reader->h5, path, visit_study, reader, err);
}

enum moec_status moec_profile_h5_read_studies(struct moec_h5 *h5, struct moec_profile *profile,
                                              const char *subject, struct moec_error *err)
{
    struct reader reader = {.h5 = h5, .profile = profile, .subject = subject};
    if (!moec_h5_has(h5, ROOT))
        return MOEC_OK;
    return moec_h5_list(h5, ROOT, visit_group, &reader, err);
}
