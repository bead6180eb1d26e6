#include "experiments/paper_claim.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct experiment_claim *experiment_claim_add(struct experiment_claims *claims, const char *figure,
                                              const char *paper)
{
    static struct experiment_claim spare;
    struct experiment_claim *claim = claims->n < EXPERIMENT_MAX_CLAIMS ? &claims->items[claims->n++] : &spare;
    *claim = (struct experiment_claim){.figure = figure};
    (void)snprintf(claim->paper, sizeof claim->paper, "%s", paper);
    (void)snprintf(claim->ours, sizeof claim->ours, "not measured");
    return claim;
}

void experiment_claim_decide(struct experiment_claim *claim, bool is_so)
{
    claim->verdict = is_so ? EXPERIMENT_YES : EXPERIMENT_NO;
}

void experiment_claim_say(struct experiment_claim *claim, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    (void)vsnprintf(claim->ours, sizeof claim->ours, format, list);
    va_end(list);
}

void experiment_claim_explain(struct experiment_claim *claim, const char *format, ...)
{
    size_t used = strlen(claim->why);
    va_list list;
    va_start(list, format);
    (void)vsnprintf(claim->why + used, sizeof claim->why - used, format, list);
    va_end(list);
}
