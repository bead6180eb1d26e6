/* The half-width of Student's interval on n windows, foretold from an error measured on other windows: it
 * shrinks with sqrt(n). The sizes tried are a fixed ladder of doublings. Nothing here may read a loss of the
 * certificate part, or the tests lose their level. */
#include "compiler/certify/prefix.h"

#include "profiler/common/student.h"

#include <math.h>

/* Whether the first n windows are of enough documents. A document's windows are anywhere among them. */
static bool has_documents(const struct moec_prefix_request *request, uint32_t n)
{
    const uint64_t *documents = request->documents;
    double squares = 0;
    if (documents == NULL)
        return n >= MOEC_PREFIX_DOCUMENTS;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < n; j++)
            squares += documents[i] == documents[j];
    return (double)n * n >= MOEC_PREFIX_DOCUMENTS * squares;
}

/* What the interval is expected to take on n windows. */
static double half_width(const struct moec_prefix_request *request, uint32_t n)
{
    return moec_student_quantile(request->confidence, n - 1.0) * request->error *
           sqrt((double)request->n_measured / n);
}

uint32_t moec_prefix_choose(const struct moec_prefix_request *request)
{
    const uint32_t all = request->n_window < MOEC_PREFIX_MOST ? request->n_window : MOEC_PREFIX_MOST;
    if (isnan(request->target) || request->confidence == MOEC_CONFIDENCE_POINT || !(request->error > 0))
        return all;
    for (uint32_t n = MOEC_PREFIX_LEAST; n < all; n *= 2)
        if (half_width(request, n) <= MOEC_PREFIX_HALF_WIDTH * log1p(request->target) &&
            has_documents(request, n))
            return n;
    return all;
}
