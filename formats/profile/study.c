/* Studies are sorted by name, each name once; a study that is added again replaces the old one. A caller's
 * study and a file's pass the same checks, which differ only in the status that they give. */
#include "formats/profile/study.h"

#include "formats/base/memory.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- checking ---- */

/* What a check says when it fails: for a caller's study and for a file's. */
struct complaint {
    enum moec_status status;
    const char *subject;
    struct moec_error *err;
};

static bool word_is_valid(const char *word, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        const char c = word[i];
        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'))
            return false;
    }
    return length > 0;
}

bool moec_study_name_is_valid(const char *name)
{
    const char *slash = strchr(name, '/');
    return slash != NULL && word_is_valid(name, (size_t)(slash - name)) &&
           word_is_valid(slash + 1, strlen(slash + 1)) && strlen(name) < sizeof((struct moec_study *)0)->name;
}

static enum moec_status check_text(const char *text, size_t capacity, const char *what,
                                   const struct complaint *complaint)
{
    const size_t length = strnlen(text, capacity);
    if (length == capacity)
        return moec_fail(complaint->err, complaint->status,
                         "%s: %s is too long, expected fewer than %zu bytes", complaint->subject, what,
                         capacity);
    for (size_t i = 0; i < length; i++) {
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            return moec_fail(complaint->err, complaint->status, "%s: %s holds the control character 0x%02x",
                             complaint->subject, what, (unsigned)(unsigned char)text[i]);
    }
    return MOEC_OK;
}

static enum moec_status check_axis(const struct moec_study *study, uint32_t at,
                                   const struct complaint *complaint)
{
    const struct moec_study_axis *axis = &study->axes[at];
    MOEC_TRY(check_text(axis->name, sizeof axis->name, "the name of an axis of a study", complaint));
    MOEC_TRY(check_text(axis->units, sizeof axis->units, "the units of an axis of a study", complaint));
    if (!word_is_valid(axis->name, strlen(axis->name)))
        return moec_fail(complaint->err, complaint->status,
                         "%s: axis %" PRIu32
                         " of study '%s' is called '%s', expected lower-case letters, digits and underscores",
                         complaint->subject, at, study->name, axis->name);
    for (uint32_t other = 0; other < at; other++) {
        if (strcmp(study->axes[other].name, axis->name) == 0)
            return moec_fail(complaint->err, complaint->status, "%s: study '%s' has two axes called '%s'",
                             complaint->subject, study->name, axis->name);
    }
    if (axis->n == 0 || axis->n > MOEC_STUDY_MAX_VALUES ||
        (axis->labels != NULL && axis->n > MOEC_STUDY_MAX_LABELS))
        return moec_fail(complaint->err, complaint->status,
                         "%s: axis '%s' of study '%s' has length %" PRIu64 ", expected 1 to %" PRIu64,
                         complaint->subject, axis->name, study->name, axis->n,
                         axis->labels != NULL ? MOEC_STUDY_MAX_LABELS : MOEC_STUDY_MAX_VALUES);
    for (uint64_t i = 0; axis->values != NULL && i < axis->n; i++) {
        if (!isfinite(axis->values[i]))
            return moec_fail(complaint->err, complaint->status,
                             "%s: value %" PRIu64
                             " of axis '%s' of study '%s' is %g, expected a finite number",
                             complaint->subject, i, axis->name, study->name, axis->values[i]);
    }
    for (uint64_t i = 0; axis->labels != NULL && i < axis->n; i++)
        MOEC_TRY(check_text(axis->labels[i], MOEC_STUDY_LABEL, "a label on an axis of a study", complaint));
    return MOEC_OK;
}

static enum moec_status check_study(const struct moec_study *study, const struct complaint *complaint)
{
    MOEC_TRY(check_text(study->name, sizeof study->name, "the name of a study", complaint));
    if (!moec_study_name_is_valid(study->name))
        return moec_fail(complaint->err, complaint->status,
                         "%s: a study is called '%s', expected 'group/name' of lower-case letters, digits "
                         "and underscores",
                         complaint->subject, study->name);
    MOEC_TRY(check_text(study->units, sizeof study->units, "the units of a study", complaint));
    MOEC_TRY(
        check_text(study->description, sizeof study->description, "the description of a study", complaint));
    MOEC_TRY(check_text(study->source, sizeof study->source, "the source of a study", complaint));
    if (study->n_axis > MOEC_STUDY_MAX_AXES)
        return moec_fail(complaint->err, complaint->status,
                         "%s: study '%s' has %" PRIu32 " axes, expected at most %d", complaint->subject,
                         study->name, study->n_axis, MOEC_STUDY_MAX_AXES);
    uint64_t n = 1;
    for (uint32_t i = 0; i < study->n_axis; i++) {
        MOEC_TRY(check_axis(study, i, complaint));
        if (__builtin_mul_overflow(n, study->axes[i].n, &n) || n > MOEC_STUDY_MAX_VALUES)
            return moec_fail(complaint->err, complaint->status,
                             "%s: study '%s' has more than %" PRIu64 " values", complaint->subject,
                             study->name, MOEC_STUDY_MAX_VALUES);
    }
    for (uint64_t i = 0; study->values != NULL && i < n; i++) {
        if (isinf(study->values[i]))
            return moec_fail(complaint->err, complaint->status,
                             "%s: value %" PRIu64
                             " of study '%s' is infinite, expected a finite number, or NaN for none",
                             complaint->subject, i, study->name);
    }
    return MOEC_OK;
}

enum moec_status moec_studies_check(const struct moec_studies *studies, const char *subject,
                                    struct moec_error *err)
{
    const struct complaint complaint = {MOEC_ERR_FORMAT, subject, err};
    if (studies->n > MOEC_STUDY_MAX_COUNT)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s: the profile has %" PRIu32 " studies, expected at most %u",
                         subject, studies->n, MOEC_STUDY_MAX_COUNT);
    for (uint32_t i = 0; i < studies->n; i++) {
        MOEC_TRY(check_study(&studies->items[i], &complaint));
        if (i > 0 && strcmp(studies->items[i - 1].name, studies->items[i].name) >= 0)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "%s: study '%s' comes after '%s', expected studies sorted by name", subject,
                             studies->items[i].name, studies->items[i - 1].name);
    }
    return MOEC_OK;
}

/* ---- one study ---- */

uint64_t moec_study_count(const struct moec_study *study)
{
    uint64_t n = 1;
    for (uint32_t i = 0; i < study->n_axis; i++)
        n *= study->axes[i].n;
    return n;
}

static void study_release(struct moec_study *study)
{
    for (uint32_t i = 0; i < MOEC_STUDY_MAX_AXES; i++) {
        free(study->axes[i].values);
        free(study->axes[i].labels);
    }
    free(study->values);
    *study = (struct moec_study){0};
}

static void drop_unit_of_one(char *units)
{
    if (strcmp(units, "1") == 0)
        units[0] = '\0';
}

static enum moec_status copy_array(void **to, const void *from, uint64_t n, size_t item_bytes,
                                   struct moec_error *err)
{
    MOEC_TRY(moec_alloc(to, n, item_bytes, "a study", err));
    if (from != NULL)
        memcpy(*to, from, n * item_bytes);
    return MOEC_OK;
}

static enum moec_status study_copy(const struct moec_study *from, struct moec_study *to,
                                   struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    *to = *from;
    to->values = NULL;
    drop_unit_of_one(to->units);
    memset(to->axes, 0, sizeof to->axes);
    for (uint32_t i = 0; i < from->n_axis; i++) {
        const struct moec_study_axis *axis = &from->axes[i];
        struct moec_study_axis *copy = &to->axes[i];
        memcpy(copy->name, axis->name, sizeof copy->name);
        memcpy(copy->units, axis->units, sizeof copy->units);
        drop_unit_of_one(copy->units);
        copy->n = axis->n;
        if (axis->values != NULL)
            MOEC_TRY_OUT(copy_array((void **)&copy->values, axis->values, axis->n, sizeof(double), err));
        if (axis->labels != NULL)
            MOEC_TRY_OUT(copy_array((void **)&copy->labels, axis->labels, axis->n, MOEC_STUDY_LABEL, err));
    }
    MOEC_TRY_OUT(copy_array((void **)&to->values, from->values, moec_study_count(from), sizeof(double), err));
out:
    if (status != MOEC_OK)
        study_release(to);
    return status;
}

/* ---- many ---- */

/* Where a name stands, or belongs. */
static uint32_t place_of(const struct moec_studies *studies, const char *name, bool *is_there)
{
    uint32_t low = 0, high = studies->n;
    *is_there = false;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const int order = strcmp(studies->items[middle].name, name);
        if (order == 0) {
            *is_there = true;
            return middle;
        }
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

enum moec_status moec_studies_add(struct moec_studies *studies, const struct moec_study *study,
                                  struct moec_study **added, struct moec_error *err)
{
    const struct complaint complaint = {MOEC_ERR_USAGE, "a new study", err};
    struct moec_study copy;
    struct moec_study *items = NULL;
    bool is_there = false;
    MOEC_TRY(check_study(study, &complaint));
    const uint32_t at = place_of(studies, study->name, &is_there);
    if (!is_there && studies->n >= MOEC_STUDY_MAX_COUNT)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "study '%s' cannot be added: a profile can have at most %u studies", study->name,
                         MOEC_STUDY_MAX_COUNT);
    MOEC_TRY(study_copy(study, &copy, err));
    if (is_there) {
        study_release(&studies->items[at]);
    } else {
        enum moec_status status =
            moec_alloc((void **)&items, (uint64_t)studies->n + 1, sizeof *items, "the studies", err);
        if (status != MOEC_OK) {
            study_release(&copy);
            return status;
        }
        if (studies->n > 0) {
            memcpy(items, studies->items, at * sizeof *items);
            memcpy(items + at + 1, studies->items + at, (studies->n - at) * sizeof *items);
        }
        free(studies->items);
        studies->items = items;
        studies->n++;
    }
    studies->items[at] = copy;
    if (added != NULL)
        *added = &studies->items[at];
    return MOEC_OK;
}

const struct moec_study *moec_studies_find(const struct moec_studies *studies, const char *name)
{
    bool is_there = false;
    const uint32_t at = place_of(studies, name, &is_there);
    return is_there ? &studies->items[at] : NULL;
}

void moec_studies_release(struct moec_studies *studies)
{
    for (uint32_t i = 0; i < studies->n; i++)
        study_release(&studies->items[i]);
    free(studies->items);
    *studies = (struct moec_studies){0};
}
