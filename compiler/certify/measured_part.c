/* What the original gave outlives everything else of a part, so that another bundle can be measured
 * against it. */
#include "compiler/certify/measured_part.h"

#include "formats/base/memory.h"

#include <stdlib.h>

enum moec_status moec_measured_part_begin(struct moec_measured_part *part, uint32_t n_most,
                                          struct moec_error *err)
{
    static const char what[] = "window losses";
    part->n_window = part->windows.n_window;
    part->windows.n_window = part->n_window < n_most ? part->n_window : n_most;
    const uint64_t n = part->windows.n_window;
    if (part->reference_nll == NULL)
        MOEC_TRY(moec_alloc((void **)&part->reference_nll, n, sizeof(double), what, err));
    MOEC_TRY(moec_alloc((void **)&part->losses.nll, n, sizeof(double), what, err));
    return moec_alloc((void **)&part->losses.kl, n, sizeof(double), what, err);
}

enum moec_status moec_measured_part_loss(const struct moec_measured_part *part, double confidence,
                                         struct moec_loss *loss, struct moec_error *err)
{
    return moec_measured_part_loss_first(part, part->windows.n_window, confidence, loss, err);
}

enum moec_status moec_measured_part_loss_first(const struct moec_measured_part *part, uint32_t n,
                                               double confidence, struct moec_loss *loss,
                                               struct moec_error *err)
{
    struct moec_loss_options options = moec_loss_options_default();
    options.confidence = confidence;
    struct moec_loss_windows windows = moec_windows_loss_windows(&part->windows);
    windows.n_window = n;
    const struct moec_paired_nll nll = {part->reference_nll, part->losses.nll, part->losses.kl};
    return moec_loss_measure(&windows, &nll, &options, loss, err);
}

void moec_measured_part_forget(struct moec_measured_part *part)
{
    moec_scorer_free(part->scorer);
    moec_windows_release(&part->windows);
    free(part->losses.nll);
    free(part->losses.kl);
    part->scorer = NULL;
    part->losses = (struct moec_measure){0};
}

void moec_measured_part_release(struct moec_measured_part *part)
{
    moec_measured_part_forget(part);
    free(part->reference_nll);
    *part = (struct moec_measured_part){0};
}
