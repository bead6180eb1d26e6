/* A phase is the difference of counters between its ends; the tally runs on, and nothing is reset. Shares are
 * of threads x seconds. Waiting is derived: what processors did not spend, less the time of one thread alone
 * and of reading. It is kept within what the measured shares leave, and "other" is the rest. */
#include "profiler/common/phases.h"

#include "formats/base/clock.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

static double processor_seconds(void)
{
    struct rusage used;
    if (getrusage(RUSAGE_SELF, &used) != 0)
        return 0;
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

static void add(struct moec_phase *to, const struct moec_phase *from)
{
    to->seconds += from->seconds;
    to->processor_seconds += from->processor_seconds;
    to->alone_seconds += from->alone_seconds;
    to->multiply_adds += from->multiply_adds;
    to->fit_seconds += from->fit_seconds;
    to->fit_multiply_adds += from->fit_multiply_adds;
    to->decode_seconds += from->decode_seconds;
    to->decoded_weights += from->decoded_weights;
    to->encode_seconds += from->encode_seconds;
    to->encoded_bytes += from->encoded_bytes;
    to->read_seconds += from->read_seconds;
    to->read_bytes += from->read_bytes;
    to->receive_seconds += from->receive_seconds;
    to->received_bytes += from->received_bytes;
}

void moec_phases_end(struct moec_phases *phases)
{
    const struct moec_work_tally now = moec_work_now(), *then = &phases->begun_work;
    double ns[MOEC_WORK_COUNT], n[MOEC_WORK_COUNT];
    if (phases->current >= phases->n)
        return;
    for (int work = 0; work < MOEC_WORK_COUNT; work++) {
        ns[work] = (double)(now.ns[work] - then->ns[work]);
        n[work] = (double)(now.n[work] - then->n[work]);
    }
    const double seconds = 1e-9 * (double)(moec_now_ns() - phases->begun_ns);
    const double together = 1e-9 * ns[MOEC_WORK_TOGETHER];
    const struct moec_phase phase = {.seconds = seconds,
                                     .processor_seconds = processor_seconds() - phases->begun_processor,
                                     .alone_seconds = seconds > together ? seconds - together : 0,
                                     .multiply_adds = n[MOEC_WORK_PRODUCTS] + n[MOEC_WORK_FITTING],
                                     .fit_seconds = 1e-9 * ns[MOEC_WORK_FITTING],
                                     .fit_multiply_adds = n[MOEC_WORK_FITTING],
                                     .decode_seconds = 1e-9 * ns[MOEC_WORK_DECODING],
                                     .decoded_weights = n[MOEC_WORK_DECODING],
                                     .encode_seconds = 1e-9 * ns[MOEC_WORK_ENCODING],
                                     .encoded_bytes = n[MOEC_WORK_ENCODING],
                                     .read_seconds = 1e-9 * ns[MOEC_WORK_READING],
                                     .read_bytes = n[MOEC_WORK_READING],
                                     .receive_seconds = 1e-9 * ns[MOEC_WORK_RECEIVING],
                                     .received_bytes = n[MOEC_WORK_RECEIVING]};
    add(&phases->items[phases->current], &phase);
    phases->current = phases->n;
}

void moec_phases_begin(struct moec_phases *phases, const char *name)
{
    const size_t room = sizeof phases->items[0].name;
    if (phases->current < phases->n && strncmp(phases->items[phases->current].name, name, room - 1) == 0)
        return;
    moec_work_watch();
    moec_phases_end(phases);
    uint32_t at = 0;
    while (at < phases->n && strncmp(phases->items[at].name, name, room - 1) != 0)
        at++;
    if (at == MOEC_MAX_PHASES)
        at--;
    if (at == phases->n)
        (void)snprintf(phases->items[phases->n++].name, room, "%s", name);
    phases->current = at;
    phases->begun_ns = moec_now_ns();
    phases->begun_processor = processor_seconds();
    phases->begun_work = moec_work_now();
}

struct moec_phase moec_phases_sum(const struct moec_phases *phases)
{
    struct moec_phase sum = {.name = "all"};
    for (uint32_t i = 0; i < phases->n; i++)
        add(&sum, &phases->items[i]);
    return sum;
}

struct moec_phase_parts moec_phase_parts_of(const struct moec_phase *phase, int n_threads, double peak)
{
    struct moec_phase_parts parts = {.bound = MOEC_BOUND_OTHER};
    const double all = phase->seconds * n_threads;
    if (all <= 0)
        return parts;
    double *shares = parts.shares, left = 1;
    const double products = phase->multiply_adds - phase->fit_multiply_adds;
    shares[MOEC_BOUND_PRODUCTS] = peak > 0 ? products / peak / phase->seconds : 0;
    shares[MOEC_BOUND_FITTING] = phase->fit_seconds / all;
    shares[MOEC_BOUND_DECODING] = phase->decode_seconds / all;
    shares[MOEC_BOUND_ENCODING] = phase->encode_seconds / all;
    shares[MOEC_BOUND_READING] = phase->read_seconds / all;
    shares[MOEC_BOUND_ONE_THREAD] = phase->alone_seconds * (n_threads - 1) / all;
    for (int bound = 0; bound < MOEC_BOUND_WAITING; bound++)
        left -= shares[bound];
    left = left > 0 ? left : 0;
    const double still = 1 - phase->processor_seconds / all - shares[MOEC_BOUND_ONE_THREAD];
    const double waited = still - shares[MOEC_BOUND_READING];
    shares[MOEC_BOUND_WAITING] = waited < 0 ? 0 : waited < left ? waited : left;
    shares[MOEC_BOUND_OTHER] = left - shares[MOEC_BOUND_WAITING];
    for (int bound = 0; bound < MOEC_BOUND_COUNT; bound++)
        if (shares[bound] > shares[parts.bound])
            parts.bound = (enum moec_phase_bound)bound;
    return parts;
}

const char *moec_phase_bound_name(enum moec_phase_bound bound)
{
    static const char *const names[MOEC_BOUND_COUNT] = {"products", "fitting",    "decoding", "encoding",
                                                        "reading",  "one thread", "waiting",  "other"};
    return names[bound];
}
