/* Products of rows of H or of its factor with what a tile has of many outputs, and what is measured by them.
 *
 * A matrix of 2048 x 2048 is read again for every tile: tiles are as wide as leaves one for every thread, and
 * products are the kernels' weighted sums (runtime/kernels/kernels.h), which have the same bits in every set. */
#include "compiler/fit/gptq_internal.h"
#include "formats/base/memory.h"

#include <string.h>

void moec_gptq_multiply(const struct moec_gptq_product *product, float *out)
{
    const struct moec_gptq_product *p = product;
    for (uint32_t row = 0; row < p->shape.n_row; row += MOEC_SUM_CHUNK) {
        const uint32_t n_row = p->shape.n_row - row < MOEC_SUM_CHUNK ? p->shape.n_row - row : MOEC_SUM_CHUNK;
        for (uint32_t at = 0; at < p->shape.n; at += MOEC_SUM_CHUNK) {
            const uint32_t n = p->shape.n - at < MOEC_SUM_CHUNK ? p->shape.n - at : MOEC_SUM_CHUNK;
            p->kernels->sum_chunk(p->rows + row * p->stride + at, p->stride, n_row, p->values + at * p->pitch,
                                  p->pitch, n, p->shape.width, p->room, p->shape.width);
            for (uint32_t r = 0; r < n_row; r++)
                p->kernels->add(p->room + (size_t)r * p->shape.width, p->shape.width,
                                out + (row + r) * p->pitch);
        }
    }
}

uint32_t moec_gptq_width(uint32_t n_output, int n_threads)
{
    uint32_t width = GPTQ_WIDTH;
    while (width > LANES && n_output / width < 2 * (uint32_t)n_threads)
        width /= 2;
    return width;
}

/* ---- errors ---- */

struct measuring {
    const struct moec_gptq *gptq;
    const struct moec_kernels *kernels;
    const struct moec_gptq_matrix *matrix;
    const float *decoded;
    uint32_t n_output, width;
    float *scratch; /* (threads, K + 2 MOEC_SUM_CHUNK, width): errors, products and room for them */
    double *sums;   /* (outputs, padded to tiles) */
};

/* What `output` errs by, in order, one value in `width`. */
static void list_errors(const struct measuring *m, size_t output, float *errors)
{
    const bool by_input = m->matrix->by_input;
    const size_t columns = m->matrix->columns;
    for (uint32_t i = 0; i < m->gptq->n; i++, errors += m->width) {
        const size_t input = m->gptq->order[i],
                     at = by_input ? input * columns + output : output * columns + input;
        *errors = output < m->n_output ? m->matrix->weights[at] : 0;
        if (m->decoded != NULL && output < m->n_output)
            *errors -= m->decoded[at];
    }
}

/* The sum of (R' d)^2 for each of `width` outputs, d their errors in order. */
GPTQ_CLONES static void measure_outputs(void *context, size_t item, int thread)
{
    const struct measuring *m = context;
    const uint32_t n = m->gptq->n;
    float *errors = m->scratch + (size_t)thread * (n + 2 * MOEC_SUM_CHUNK) * m->width;
    float *made = errors + (size_t)n * m->width;
    double *sums = m->sums + item * m->width;
    struct moec_gptq_product product = {.kernels = m->kernels,
                                        .stride = row_stride(n),
                                        .pitch = m->width,
                                        .shape.width = m->width,
                                        .values = errors,
                                        .room = made + (size_t)MOEC_SUM_CHUNK * m->width};
    for (uint32_t o = 0; o < m->width; o++)
        list_errors(m, item * m->width + o, errors + o);
    for (uint32_t i = 0; i < n; i += MOEC_SUM_CHUNK) {
        product.rows = unit_row(m->gptq, i);
        product.shape.n_row = n - i < MOEC_SUM_CHUNK ? n - i : MOEC_SUM_CHUNK;
        product.shape.n = i + product.shape.n_row;
        memset(made, 0, (size_t)product.shape.n_row * m->width * sizeof *made);
        moec_gptq_multiply(&product, made);
        for (uint32_t r = 0; r < product.shape.n_row; r++)
            for (uint32_t from = 0; from < m->width; from += LANES)
                for (uint32_t lane = 0; lane < LANES; lane++) {
                    const double value = (double)made[r * m->width + from + lane];
                    sums[from + lane] += m->gptq->costs[i + r] * value * value;
                }
    }
}

enum moec_status moec_gptq_error(const struct moec_gptq *gptq, const struct moec_pool *pool,
                                 const struct moec_gptq_matrix *matrix, const float *decoded, double *error,
                                 struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const char *what = "errors of a matrix";
    struct measuring m = {.gptq = gptq,
                          .kernels = moec_kernels_best(),
                          .matrix = matrix,
                          .decoded = decoded,
                          .n_output = matrix->by_input ? matrix->columns : matrix->n_row};
    *error = 0;
    if (gptq->unit == NULL)
        return MOEC_OK;
    m.width = moec_gptq_width(m.n_output, pool->n_threads);
    const uint32_t n_item = (m.n_output + m.width - 1) / m.width;
    MOEC_TRY_OUT(moec_alloc_aligned((void **)&m.scratch,
                                    (uint64_t)pool->n_threads * (gptq->n + 2 * MOEC_SUM_CHUNK),
                                    m.width * sizeof *m.scratch, what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&m.sums, (uint64_t)n_item * m.width, sizeof *m.sums, what, err));
    moec_gptq_for(pool, n_item, measure_outputs, &m, (uint64_t)m.n_output * gptq->n * gptq->n / 2);
    for (uint32_t o = 0; o < m.n_output; o++)
        *error += m.sums[o];
out:
    free(m.scratch);
    free(m.sums);
    return status;
}
