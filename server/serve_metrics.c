#include "server/serve_metrics.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

void serve_histogram_add(struct serve_histogram *histogram, double least, uint64_t ns)
{
    const double seconds = (double)ns / 1e9;
    unsigned bucket = 0;
    for (double bound = least; bucket < SERVE_BUCKETS && seconds > bound; bound *= 2)
        bucket++;
    atomic_fetch_add(&histogram->counts[bucket], 1);
    atomic_fetch_add(&histogram->sum_us, ns / 1000);
}

static unsigned long long read_counter(atomic_ullong *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

static void print_value(FILE *out, const char *name, const char *type, const char *help,
                        unsigned long long value)
{
    fprintf(out, "# HELP moec_%s %s\n# TYPE moec_%s %s\nmoec_%s %llu\n", name, help, name, type, name, value);
}

static void print_histogram(FILE *out, const char *name, const char *help, struct serve_histogram *histogram,
                            double least)
{
    unsigned long long sum = 0;
    double bound = least;
    fprintf(out, "# HELP moec_%s %s\n# TYPE moec_%s histogram\n", name, help, name);
    for (unsigned i = 0; i < SERVE_BUCKETS; i++, bound *= 2) {
        sum += read_counter(&histogram->counts[i]);
        fprintf(out, "moec_%s_bucket{le=\"%g\"} %llu\n", name, bound, sum);
    }
    sum += read_counter(&histogram->counts[SERVE_BUCKETS]);
    fprintf(out, "moec_%s_bucket{le=\"+Inf\"} %llu\nmoec_%s_sum %.6f\nmoec_%s_count %llu\n", name, sum, name,
            (double)read_counter(&histogram->sum_us) / 1e6, name, sum);
}

static void print_engine(FILE *out, const struct moert_engine *engine)
{
    const struct moert_stats stats = moert_engine_stats(engine);
    print_value(out, "expert_hits_total", "counter",
                "Experts that were in memory when a router asked for them.", stats.hits);
    print_value(out, "expert_late_total", "counter",
                "Experts that were still being read when a router asked for them.", stats.late);
    print_value(out, "expert_misses_total", "counter",
                "Experts that were neither in memory nor being read when a router asked for them.",
                stats.misses);
    print_value(out, "read_bytes_total", "counter", "Bytes of experts that were read from storage.",
                stats.read_bytes);
}

char *serve_metrics_text(struct serve_metrics *metrics, const struct moert_engine *engine)
{
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    if (out == NULL)
        return NULL;
    const struct {
        const char *name, *help;
        atomic_ullong *counter;
    } counters[] = {
        {"requests_total", "Requests for text that were accepted.", &metrics->requests},
        {"requests_refused_total", "Requests that were refused.", &metrics->refused},
        {"requests_cancelled_total", "Requests whose client disconnected or stopped reading.",
         &metrics->cancelled},
        {"requests_failed_total", "Requests that failed while they ran.", &metrics->failed},
        {"prompt_tokens_total", "Tokens of prompts.", &metrics->prompt_tokens},
        {"cached_tokens_total", "Tokens of prompts that were kept from earlier requests.",
         &metrics->cached_tokens},
        {"generated_tokens_total", "Tokens that were generated.", &metrics->generated_tokens},
        {"scored_tokens_total", "Tokens of prompts that were scored.", &metrics->scored_tokens},
        {"steps_total", "Steps in which sessions generated a token each.", &metrics->steps},
    };
    for (size_t i = 0; i < sizeof counters / sizeof *counters; i++)
        print_value(out, counters[i].name, "counter", counters[i].help, read_counter(counters[i].counter));
    print_value(out, "sequences_waiting", "gauge", "Sequences that wait for a session.",
                atomic_load(&metrics->n_waiting));
    print_value(out, "sequences_running", "gauge", "Sequences that have a session.",
                atomic_load(&metrics->n_running));
    print_engine(out, engine);
    print_histogram(out, "first_token_seconds", "Time from a request to its first token.",
                    &metrics->first_token, SERVE_LEAST_FIRST);
    print_histogram(out, "next_token_seconds", "Time from a token to the next.", &metrics->next_token,
                    SERVE_LEAST_NEXT);
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}
