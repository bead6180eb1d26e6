/* A search from a table of starts by bitwidth, each refined by least squares in turns. A candidate replaces
 * the best only if its error is strictly less, so the first of equals stays. Rounding adds and subtracts 1.5
 * x 2^23, half to even, and needs the default rounding mode. Lanes share sums only where one group lies over
 * all of them. */
#include "compiler/fit/gptq_range.h"
#include "compiler/fit/gptq_internal.h"

#include <math.h>

#define ROUND 0x1.8p23f /* adding and subtracting it rounds to an integer, half to even */

/* Lengths of the extremes' range from which the search begins, and how often codes and scale are found in
 * turn from each: fewer bits clip more. */
struct starts {
    float lengths[4];
    uint32_t n_length;
    uint32_t n_turn;
    uint32_t zeros_around; /* zero points on either side of the extremes' */
};

static const struct starts starts_at[] = {
    [2] = {{1, 0.8f, 0.65f, 0.5f}, 4, 2, 1},
    [3] = {{1, 0.85f, 0.7f}, 3, 2, 1},
    [4] = {{1, 0.9f, 0.8f}, 3, 2, 1},
    [5] = {{1, 0.92f}, 2, 1, 0},
    [6] = {{1, 0.95f}, 2, 1, 0},
    [7] = {{1}, 1, 1, 0},
    [8] = {{1}, 1, 1, 0},
};

struct sums {
    float error[LANES];   /* of v (w - s c)^2, c = q - z */
    float product[LANES]; /* of v w c */
    float square[LANES];  /* of v c^2 */
};

static void share(float values[static LANES])
{
    float sum = 0;
    for (uint32_t lane = 0; lane < LANES; lane++)
        sum += values[lane];
    for (uint32_t lane = 0; lane < LANES; lane++)
        values[lane] = sum;
}

GPTQ_CLONES static void measure(const struct moec_range_task *task, const float scales[static LANES],
                                const float zeros[static LANES], struct sums *sums)
{
    const float levels = (float)((1u << task->bits) - 1);
    float inverse[LANES];
    struct sums made = {0};
    for (uint32_t lane = 0; lane < LANES; lane++)
        inverse[lane] = scales[lane] > 0 ? 1 / scales[lane] : 0;
    for (size_t j = 0; j < task->n; j++) {
        const float *w = task->w + j * LANES;
        const float v = task->v != NULL ? task->v[j] : 1;
        for (uint32_t lane = 0; lane < LANES; lane++) {
            float q = w[lane] * inverse[lane] + zeros[lane];
            q = q < 0 ? 0 : q;
            q = q > levels ? levels : q;
            const float c = ((q + ROUND) - ROUND) - zeros[lane];
            const float error = w[lane] - c * scales[lane], vc = v * c;
            made.error[lane] += v * error * error;
            made.product[lane] += vc * w[lane];
            made.square[lane] += vc * c;
        }
    }
    if (task->is_shared) {
        share(made.error);
        share(made.product);
        share(made.square);
    }
    *sums = made;
}

void moec_range_extremes(const struct moec_range_task *task, float scales[static LANES],
                         float zeros[static LANES])
{
    float most[LANES] = {0}, least[LANES] = {0};
    const float levels = (float)((1u << task->bits) - 1), middle = (float)(1u << (task->bits - 1));
    for (size_t j = 0; j < task->n; j++)
        for (uint32_t lane = 0; lane < LANES; lane++) {
            const float w = task->w[j * LANES + lane];
            most[lane] = w > most[lane] ? w : most[lane];
            least[lane] = w < least[lane] ? w : least[lane];
        }
    for (uint32_t lane = 1; lane < LANES && task->is_shared; lane++) {
        most[0] = most[lane] > most[0] ? most[lane] : most[0];
        least[0] = least[lane] < least[0] ? least[lane] : least[0];
    }
    for (uint32_t lane = 0; lane < LANES; lane++) {
        const uint32_t from = task->is_shared ? 0 : lane;
        const float top = most[from], bottom = least[from], size = top > -bottom ? top : -bottom;
        scales[lane] = task->has_zeros ? (top - bottom) / levels : size / (middle - 1);
        zeros[lane] = middle;
        if (task->has_zeros) {
            const float zero = scales[lane] > 0 ? rintf(-bottom / scales[lane]) : 0;
            zeros[lane] = zero > levels ? levels : zero;
        }
    }
}

void moec_range_search(const struct moec_range_task *task, float scales[static LANES],
                       float zeros[static LANES])
{
    const struct starts *starts = &starts_at[task->bits];
    const float levels = (float)((1u << task->bits) - 1);
    const int around = task->has_zeros ? (int)starts->zeros_around : 0;
    float first_scales[LANES], first_zeros[LANES], least[LANES];
    moec_range_extremes(task, first_scales, first_zeros);
    for (uint32_t lane = 0; lane < LANES; lane++) {
        scales[lane] = first_scales[lane];
        zeros[lane] = first_zeros[lane];
        least[lane] = INFINITY;
    }
    for (int step = -around; step <= around; step++)
        for (uint32_t length = 0; length < starts->n_length; length++) {
            float s[LANES], z[LANES];
            for (uint32_t lane = 0; lane < LANES; lane++) {
                const float zero = first_zeros[lane] + (float)step;
                z[lane] = zero < 0 ? 0 : zero > levels ? levels : zero;
                s[lane] = first_scales[lane] * starts->lengths[length];
            }
            for (uint32_t turn = 0; turn <= starts->n_turn; turn++) {
                struct sums sums;
                measure(task, s, z, &sums);
                for (uint32_t lane = 0; lane < LANES; lane++) {
                    if (sums.error[lane] < least[lane]) {
                        least[lane] = sums.error[lane];
                        scales[lane] = s[lane];
                        zeros[lane] = z[lane];
                    }
                    s[lane] = sums.product[lane] > 0 ? sums.product[lane] / sums.square[lane] : s[lane];
                }
            }
        }
}
