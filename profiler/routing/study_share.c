/* A document's windows are joined into one unit at the place of its first window. The error is that of a
 * ratio of sums, from residuals part - ratio * whole. Units whose whole is 0 say nothing and do not count. */
#include "profiler/routing/study_share.h"

#include "formats/base/memory.h"
#include "profiler/common/student.h"

#include <math.h>

/* The first window of the same document. */
static uint32_t unit_of(const struct moec_windows *windows, uint32_t w)
{
    if (!windows->by_document)
        return w;
    for (uint32_t v = 0; v < w; v++)
        if (windows->document[v] == windows->document[w])
            return v;
    return w;
}

enum moec_status moec_study_share_make(const struct moec_windows *windows, const double *parts,
                                       const double *wholes, struct moec_study_share *out,
                                       struct moec_error *err)
{
    struct sums {
        double part, whole;
    } *units = NULL;
    double part = 0, whole = 0, squares = 0;
    uint32_t n = 0;
    MOEC_TRY(moec_alloc((void **)&units, windows->n_window, sizeof *units, "units of a share", err));
    for (uint32_t w = 0; w < windows->n_window; w++) {
        const uint32_t unit = unit_of(windows, w);
        units[unit].part += parts[w];
        units[unit].whole += wholes[w];
        part += parts[w];
        whole += wholes[w];
    }
    const double value = whole > 0 ? part / whole : (double)NAN;
    for (uint32_t u = 0; u < windows->n_window; u++) {
        const double off = units[u].part - value * units[u].whole;
        n += units[u].whole > 0;
        squares += units[u].whole > 0 ? off * off : 0;
    }
    free(units);
    *out = (struct moec_study_share){value, NAN, NAN};
    if (n < 2)
        return MOEC_OK;
    const double error = sqrt(squares * n / (n - 1.0)) / whole, t = moec_student_quantile(0.95, n - 1.0);
    out->low = value - t * error;
    out->high = value + t * error;
    return MOEC_OK;
}
