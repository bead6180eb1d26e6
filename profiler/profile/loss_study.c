#include "profiler/profile/loss_study.h"

#include "formats/base/memory.h"
#include "profiler/evaluate/metrics.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum moec_status moec_loss_study_create(const struct moec_study *shape, struct moec_loss_study *study,
                                        struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    *study = (struct moec_loss_study){.shape = *shape, .n = moec_study_count(shape)};
    double **const arrays[] = {&study->loss, &study->kl, &study->low, &study->high};
    for (size_t a = 0; a < sizeof arrays / sizeof *arrays; a++) {
        MOEC_TRY_OUT(moec_alloc((void **)arrays[a], study->n, sizeof(double), "losses of a study", err));
        for (uint64_t i = 0; i < study->n; i++)
            (*arrays[a])[i] = NAN;
    }
out:
    if (status != MOEC_OK)
        moec_loss_study_release(study);
    return status;
}

void moec_loss_study_release(struct moec_loss_study *study)
{
    free(study->loss);
    free(study->kl);
    free(study->low);
    free(study->high);
    *study = (struct moec_loss_study){0};
}

enum moec_status moec_loss_study_set(struct moec_loss_study *study, uint64_t at,
                                     const struct moec_profile *profile, const struct moec_measure *measure,
                                     struct moec_error *err)
{
    return moec_loss_study_set_first(study, at, profile, measure, profile->n_window, err);
}

enum moec_status moec_loss_study_set_first(struct moec_loss_study *study, uint64_t at,
                                           const struct moec_profile *profile,
                                           const struct moec_measure *measure, uint32_t n_window,
                                           struct moec_error *err)
{
    const struct moec_loss_options options = moec_loss_options_default();
    struct moec_loss loss;
    struct moec_loss_windows windows = moec_profile_loss_windows(profile, MOEC_PART_ALL);
    windows.n_window = n_window;
    MOEC_TRY(moec_loss_measure(&windows,
                               &(struct moec_paired_nll){profile->reference.nll, measure->nll, measure->kl},
                               &options, &loss, err));
    study->loss[at] = loss.loss;
    study->kl[at] = loss.mean_kl;
    study->low[at] = loss.low;
    study->high[at] = loss.high;
    return MOEC_OK;
}

void moec_loss_study_repeat(struct moec_loss_study *study, uint64_t at, uint64_t from)
{
    study->loss[at] = study->loss[from];
    study->kl[at] = study->kl[from];
    study->low[at] = study->low[from];
    study->high[at] = study->high[from];
}

enum moec_status moec_loss_study_add(const struct moec_loss_study *study, struct moec_profile *profile,
                                     struct moec_error *err)
{
    const struct {
        const char *dataset, *units, *description;
        double *values;
    } parts[] = {
        {"loss", "", NULL, study->loss},
        {"kl", "nat", "mean KL(original || variant) of a scored token", study->kl},
        {"loss_low", "", "lower end of the one-sided 95 % interval of the loss", study->low},
        {"loss_high", "", "upper end of the one-sided 95 % interval of the loss", study->high},
    };
    const char *name = study->shape.name, *slash = strchr(name, '/');
    const int group = slash != NULL ? (int)(slash - name) : (int)strlen(name);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        struct moec_study part = study->shape;
        (void)snprintf(part.name, sizeof part.name, "%.*s/%s", group, name, parts[i].dataset);
        (void)snprintf(part.units, sizeof part.units, "%s", parts[i].units);
        if (parts[i].description != NULL)
            (void)snprintf(part.description, sizeof part.description, "%s", parts[i].description);
        part.values = parts[i].values;
        MOEC_TRY(moec_profile_add_study(profile, &part, NULL, err));
    }
    return MOEC_OK;
}
