/* Profiles in memory whose values were edited: what passes the check can be shown, and survives writing and
 * reading. */
#include "tests/fuzz/profile_store.h"
#include "tests/fuzz/use_profile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A byte that was changed, and what stood there. */
struct edit {
    uint8_t *at;
    uint8_t before;
};

#define MAX_EDITS 256

/* Makes up to MAX_EDITS changes; returns how many. */
static size_t edit_values(struct moec_profile *p, struct input *input, struct edit edits[static MAX_EDITS])
{
    const struct {
        void *array;
        size_t n_bytes;
    } arrays[] = {
        {&p->seed, sizeof p->seed},
        {&p->baseline_bits, sizeof p->baseline_bits},
        {&p->scheme, sizeof p->scheme},
        {&p->group, sizeof p->group},
        {p->task, sizeof p->task},
        {p->data_name, sizeof p->data_name},
        {p->bits, 2 * sizeof *p->bits},
        {p->uniform_bits, 2 * sizeof *p->uniform_bits},
        {p->moe_layers, 2 * sizeof *p->moe_layers},
        {p->window_length, 3 * sizeof *p->window_length},
        {p->window_scored, 3 * sizeof *p->window_scored},
        {p->window_index, 3 * sizeof *p->window_index},
        {p->window_tokens, 3 * 6 * sizeof *p->window_tokens},
        {p->reference.nll, 3 * sizeof(double)},
        {p->baseline.nll, 3 * sizeof(double)},
        {p->uniform[1].nll, 3 * sizeof(double)},
        {p->expert_nll, sizeof(double) * 2 * 4 * 2 * 3},
        {p->expert_kl, sizeof(double) * 2 * 4 * 2 * 3},
        {p->activations, 8 * sizeof *p->activations},
        {p->mean_gate_weight, 8 * sizeof(double)},
        {p->trace_experts, p->n_trace_token * 4 * sizeof(uint16_t)},
        {p->trace_weights, p->n_trace_token * 4 * sizeof(uint16_t)},
        {p->paths.keys, 3 * sizeof *p->paths.keys},
        {p->paths.values, 3 * 4 * sizeof *p->paths.values},
        {p->paths.frequency, 8 * sizeof *p->paths.frequency},
        {p->path_recall, 6 * sizeof(double)},
        {&p->cost_passes, sizeof p->cost_passes},
        {p->studies.items[1].name, sizeof p->studies.items[1].name},
        {p->studies.items[1].description, sizeof p->studies.items[1].description},
        {p->studies.items[1].values, 2 * 3 * 3 * sizeof(double)},
        {p->studies.items[1].axes[1].name, sizeof p->studies.items[1].axes[1].name},
        {p->studies.items[1].axes[1].labels, 3 * sizeof *p->studies.items[1].axes[1].labels},
        {p->studies.items[3].axes[0].values, 2 * sizeof(double)},
        {p->studies.items[3].axes[1].values, 4 * sizeof(double)},
        {p->studies.items[3].units, sizeof p->studies.items[3].units},
    };
    size_t n = 0;
    for (; input->left > 0 && n < MAX_EDITS; n++) {
        const size_t which = take(input, 1) % (sizeof arrays / sizeof *arrays);
        const size_t at = take(input, 2) % arrays[which].n_bytes;
        uint8_t *byte = (uint8_t *)arrays[which].array + at;
        edits[n] = (struct edit){byte, *byte};
        *byte = (uint8_t)take(input, 1);
    }
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct moec_profile profile;
    struct edit edits[MAX_EDITS];
    struct moec_error err = {0};
    if (profile.n_window == 0 && synthetic_profile(&fuzz_shape, &profile) != MOEC_OK)
        abort();
    struct input input = {data, size};
    size_t n = edit_values(&profile, &input, edits);
    if (moec_profile_check(&profile, "p", &err) == MOEC_OK) {
        write_and_read(&profile);
    } else if (err.message[0] == '\0') {
        abort();
    }
    while (n-- > 0)
        *edits[n].at = edits[n].before;
    return 0;
}
