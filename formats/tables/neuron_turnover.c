/* Between two measured shares the ratio turnover / share is interpolated, not the turnover. So a share that
 * was not measured keeps the measured clustering, and a share of 0 has a turnover of 0. */
#include "formats/tables/neuron_turnover.h"

static double ratio_of(const struct moec_neuron_turnover *turnover, uint32_t i)
{
    return (double)turnover->turnover[i] / (turnover->shares[i] * 1e-3);
}

double moec_neuron_turnover_at(const struct moec_neuron_turnover *turnover, double share)
{
    const uint32_t n = turnover->n_share;
    uint32_t above = 0;
    if (n == 0)
        return share;
    while (above < n && turnover->shares[above] * 1e-3 < share)
        above++;
    double ratio = ratio_of(turnover, above < n ? above : n - 1);
    if (above > 0 && above < n) {
        const double from = turnover->shares[above - 1] * 1e-3, to = turnover->shares[above] * 1e-3;
        const double before = ratio_of(turnover, above - 1);
        ratio = before + (ratio - before) * (share - from) / (to - from);
    }
    const double at = ratio * share;
    return at < 1 ? at : 1;
}
