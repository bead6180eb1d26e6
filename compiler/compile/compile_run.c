/* The lowest module of a compile: it calls no other. While the original is measured, variants are encoded
 * in the checkpoint's order of neurons; otherwise by the last fit, or in the order that was found. */
#include "compiler/compile/compile_run.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

void moec_compile_say(const struct moec_compile_run *run, const char *format, ...)
{
    if (run->hooks == NULL || run->hooks->log == NULL)
        return;
    char line[512];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    run->hooks->log(run->hooks->context, line);
}

void moec_compile_tell(const struct moec_compile_run *run, const char *line)
{
    if (run->hooks != NULL && run->hooks->note != NULL)
        run->hooks->note(run->hooks->context, line);
}

bool moec_compile_is_cancelled(const struct moec_compile_run *run)
{
    return run->hooks != NULL && run->hooks->cancelled != NULL && run->hooks->cancelled(run->hooks->context);
}

enum moec_status moec_compile_check_chance(struct moec_compile_run *run, const struct moec_chance *chance,
                                           struct moec_error *err)
{
    char line[MOEC_CHANCE_NOTE_BYTES];
    MOEC_TRY(moec_chance_check(chance, run->options->target.goes_on_by_chance, line, err));
    if (line[0] == '\0')
        return MOEC_OK;
    run->is_chance = true;
    moec_compile_tell(run, line);
    return MOEC_OK;
}

bool moec_compile_meets(const struct moec_compile_run *run, const struct moec_loss *loss)
{
    return isnan(run->options->target.max_loss) || loss->loss <= run->options->target.max_loss;
}

const struct moec_expert_encoder *moec_compile_encoder(const struct moec_compile_run *run)
{
    if (run->offer.n_fit > 0)
        return moec_expert_fit_encoder(run->offer.experts[run->offer.n_fit - 1]);
    return run->order.n_neuron > 0 ? &run->ordered.encoder : NULL;
}

void moec_compile_order_leave(struct moec_compile_run *run)
{
    if (run->order.n_neuron > 0)
        moec_variants_set_encoder(run->variants, NULL);
}

void moec_compile_order_return(struct moec_compile_run *run)
{
    if (run->order.n_neuron > 0)
        moec_variants_set_encoder(run->variants, moec_compile_encoder(run));
}
