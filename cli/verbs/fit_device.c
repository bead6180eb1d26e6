/* What is measured is kept beside the output, and taken up again where it is of the same storage. Slots are
 * counted by the largest records of each layer, so any experts have room in them. A refusal halves the
 * context until a bundle fits, or little is left of it. */
#include "cli/verbs/fit_device.h"

#include "cli/settings/engine_options.h"
#include "cli/terminal/terminal.h"
#include "formats/base/file.h"
#include "profiler/device/device_measure.h"
#include "runtime/engine/process_memory.h"
#include "runtime/experts/low_copy.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_CONTEXT_TOKENS 2048u /* as moec-run */
#define PROMPT_TOKENS          20u   /* before a text of -n tokens */
#define COMPUTE_NS             ((uint64_t)1000000000)
#define LEAST_CONTEXT_TOKENS   64u
#define LEAST_DENSE_BITS       2u /* that plans of fit may give to dense weights */

/* Usual storage of each kind (docs/fit.md names the sources): what applications see, not what a bus could
 * carry. */
static const struct {
    const char *name, *speed;
} classes[] = {{"sd", "80MB/s,500us"},
               {"emmc", "250MB/s,200us"},
               {"sata", "500MB/s,80us"},
               {"ufs", "1000MB/s,100us"},
               {"nvme", "2500MB/s,60us"}};

/* ---- memory ---- */

enum moec_status fit_read_memory(const struct cli_args *args, struct fit_memory *out, struct moec_error *err)
{
    uint32_t n_text = 0;
    *out = (struct fit_memory){.n_context = DEFAULT_CONTEXT_TOKENS};
    MOEC_TRY(cli_bytes(args, "memory", &out->request.budget_bytes, err));
    MOEC_TRY(cli_u32(args, "ctx", 1, 1u << 24, &out->n_context, err));
    MOEC_TRY(cli_u32(args, "tokens", 1, 1u << 24, &n_text, err));
    MOEC_TRY(cli_read_threads(args, &out->request.n_threads, err));
    if (n_text > 0 && n_text + PROMPT_TOKENS < out->n_context)
        out->n_context = n_text + PROMPT_TOKENS;
    if (out->request.budget_bytes > 0)
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_USAGE,
                     "option '--memory' is 0: give the memory that moec-run may take on the device");
}

/* The least that a bundle of the checkpoint takes in a context at any start of moec-run; whether one runs in
 * the memory. */
static enum moec_status least_bytes(const struct fit_memory *memory, const struct moec_checkpoint *checkpoint,
                                    uint32_t n_context, uint64_t *out, bool *runs, struct moec_error *err)
{
    struct moec_doctor_request request = memory->request;
    struct moec_doctor doctor;
    request.n_context = n_context;
    request.dense_bits = LEAST_DENSE_BITS;
    MOEC_TRY(moec_doctor_checkpoint(checkpoint, &request, &doctor, err));
    *out = UINT64_MAX;
    *runs = false;
    for (uint32_t i = 0; i < doctor.n_size; i++)
        for (uint32_t d = 0; d < doctor.n_dense; d++) {
            const struct moec_doctor_need *need = &doctor.sizes[i].plans[d].needs[MOEC_DOCTOR_MOEC_RUN];
            *out = need->least_bytes < *out ? need->least_bytes : *out;
            *runs = *runs || need->kept >= 0;
        }
    return MOEC_OK;
}

static enum moec_status refuse(const struct fit_memory *memory, const struct moec_checkpoint *checkpoint,
                               const char *path, uint64_t bytes, struct moec_error *err)
{
    char least[24], asked[24], shorter[64] = "";
    uint32_t n_context = memory->n_context;
    uint64_t n = bytes;
    bool runs = false;
    while (n > memory->request.budget_bytes && n_context >= 2 * LEAST_CONTEXT_TOKENS) {
        n_context /= 2;
        MOEC_TRY(least_bytes(memory, checkpoint, n_context, &n, &runs, err));
    }
    if (n <= memory->request.budget_bytes)
        (void)snprintf(shorter, sizeof shorter, ", or --ctx %" PRIu32, n_context);
    return moec_fail(err, MOEC_ERR_BUDGET,
                     "no bundle of '%s' runs in %s of memory: with a context of %" PRIu32
                     " tokens, moec-run takes at least %s for the smallest bundle; give --memory %s%s",
                     path, cli_memory_text(asked, memory->request.budget_bytes), memory->n_context,
                     cli_memory_text((char[24]){0}, bytes), cli_budget_text(least, bytes), shorter);
}

enum moec_status fit_check_model(const struct moec_config *config, const char *path, struct moec_error *err)
{
    if (!moec_config_is_encoder_decoder(config) && !moec_config_routes_by_token(config))
        return MOEC_OK;
    return moec_fail(
        err, MOEC_ERR_UNSUPPORTED,
        "moec fit does not support models with an encoder, or with layers that route by token, such as "
        "'%s': compile the model, then run moec tune on the bundle",
        path);
}

enum moec_status fit_admit(struct fit_memory *memory, const struct moec_checkpoint *checkpoint,
                           const char *path, struct moec_error *err)
{
    const uint32_t n_position = moec_checkpoint_config(checkpoint)->n_position;
    uint64_t n_bytes = 0, bytes = 0;
    bool runs = false;
    memory->n_context = memory->n_context < n_position ? memory->n_context : n_position;
    MOEC_TRY(moec_doctor_tokenizer_bytes(moec_checkpoint_tokenizer(checkpoint), &n_bytes, err));
    memory->request.base_bytes[MOEC_DOCTOR_MOEC_RUN] = MOEC_DOCTOR_RUN_BYTES + n_bytes;
    memory->request.base_bytes[MOEC_DOCTOR_MOEC] = memory->request.base_bytes[MOEC_DOCTOR_MOEC_RUN];
    memory->request.n_context = memory->n_context;
    MOEC_TRY(least_bytes(memory, checkpoint, memory->n_context, &bytes, &runs, err));
    return runs ? MOEC_OK : refuse(memory, checkpoint, path, bytes, err);
}

static int by_size(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

/* The most slots for which all layers' largest records have room together. */
static enum moec_status count_slots(const struct moec_bundle *bundle, uint64_t buffer_bytes, uint32_t *out,
                                    struct moec_error *err)
{
    const struct moec_config *config = &bundle->config;
    const uint32_t n_layer = moec_config_moe_count(config), n_expert = config->n_expert;
    uint64_t *bytes = NULL, sum = 0;
    uint32_t n = 0;
    MOEC_TRY(moec_copy_record_bytes(bundle, 0, &bytes, err));
    for (uint32_t layer = 0; layer < n_layer; layer++)
        qsort(bytes + (size_t)layer * n_expert, n_expert, sizeof *bytes, by_size);
    for (; n < n_expert; n++) {
        for (uint32_t layer = 0; layer < n_layer; layer++)
            sum += bytes[(size_t)layer * n_expert + n];
        if (sum > buffer_bytes)
            break;
    }
    free(bytes);
    *out = n > config->top_k ? n : config->top_k;
    return MOEC_OK;
}

enum moec_status fit_room_find(const struct fit_memory *memory, const char *path, struct fit_room *out,
                               struct moec_error *err)
{
    struct moec_bundle *bundle = NULL;
    struct moec_doctor doctor;
    enum moec_status status = MOEC_OK;
    *out = (struct fit_room){.n_slots = 0};
    MOEC_TRY(moec_bundle_open(path, &bundle, err));
    MOEC_TRY_OUT(moec_doctor_bundle(bundle, &memory->request, &doctor, err));
    const struct moec_doctor_need *need = &doctor.sizes[0].plans[0].needs[MOEC_DOCTOR_MOEC_RUN];
    const uint64_t all_bytes = moec_record_sizes_of(bundle, 0).all_bytes;
    out->buffer_bytes = need->kept > 0 ? (uint64_t)(need->kept * (double)all_bytes) : 0;
    out->least_bytes = need->least_bytes;
    out->holds_all = need->kept >= 1;
    if (out->buffer_bytes < moec_record_sizes_of(bundle, 0).largest_bytes)
        out->buffer_bytes = 0;
    else
        status = count_slots(bundle, out->buffer_bytes, &out->n_slots, err);
out:
    moec_bundle_close(bundle);
    return status;
}

/* ---- the device ---- */

/* The words of --storage. */
static enum moec_status read_storage(const char *text, struct moec_emulation *out, struct moec_error *err)
{
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (strcmp(text, classes[i].name) == 0)
            return moec_emulation_parse(classes[i].speed, out, err);
    if (moec_emulation_parse(text, out, &(struct moec_error){0}) == MOEC_OK)
        return MOEC_OK;
    return moec_fail(
        err, MOEC_ERR_USAGE,
        "cannot read --storage '%.60s', expected sd, emmc, sata, ufs, nvme, or bandwidth and latency "
        "such as 100MB/s,200us",
        text);
}

enum moec_status fit_device_check(const struct cli_args *args, struct fit_device *out,
                                  const struct moec_config *config, struct moec_error *err)
{
    const char *path = cli_text(args, "device-file");
    struct moec_emulation emulation;
    if (path == NULL)
        return read_storage(cli_text(args, "storage"), &emulation, err);
    MOEC_TRY(moec_device_load(path, &out->described, err));
    bool is_same = out->described.n_layer == config->n_layer;
    for (uint32_t layer = 0; is_same && layer < config->n_layer; layer++)
        is_same = out->described.layers[layer].is_moe == moec_config_is_moe(config, layer);
    if (is_same)
        return MOEC_OK;
    return moec_fail(
        err, MOEC_ERR_USAGE,
        "the device file '%s' was made for a model whose MoE layers differ from those of '%s': make one for "
        "this model (moec device --shape), or give --storage",
        path, args->positional[0]);
}

static enum moec_status keep(const struct fit_device *device, struct moec_error *err)
{
    struct moec_output output = {.fd = -1};
    char *text = NULL;
    MOEC_TRY(moec_device_write(&device->described, &text, err));
    enum moec_status status = moec_output_open(&output, device->path, err);
    if (status == MOEC_OK)
        status = moec_output_append(&output, text, strlen(text), err);
    if (status == MOEC_OK)
        status = moec_output_commit(&output, err);
    moec_output_abort(&output);
    free(text);
    return status;
}

/* Whether what was kept is of this storage. */
static bool take_up(struct fit_device *device, const struct moec_emulation *emulation)
{
    const struct moec_device_storage *storage = &device->described.storage;
    if (!moec_path_exists(device->path) ||
        moec_device_load(device->path, &device->described, &(struct moec_error){0}) != MOEC_OK)
        return false;
    if (storage->is_emulated && storage->bytes_per_second == emulation->bytes_per_second &&
        storage->latency_ns == emulation->latency_ns && storage->request_ns == emulation->request_ns)
        return true;
    moec_device_release(&device->described);
    return false;
}

enum moec_status fit_device_open(const struct cli_args *args, const char *path, const char *output,
                                 const struct moec_device_options *how, struct fit_device *device,
                                 struct moec_error *err)
{
    struct moec_emulation emulation;
    struct moec_bundle *bundle = NULL;
    struct moec_device_options options = *how;
    options.emulation = &emulation;
    options.compute_ns = COMPUTE_NS;
    if (!cli_has(args, "storage"))
        return MOEC_OK;
    MOEC_TRY(read_storage(cli_text(args, "storage"), &emulation, err));
    if (asprintf(&device->path, "%s.device.json", output) < 0) {
        device->path = NULL;
        return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: path of a file beside the output");
    }
    if (take_up(device, &emulation))
        return MOEC_OK;
    MOEC_TRY(moec_kernels_find("auto", &options.kernels, err));
    MOEC_TRY(moec_bundle_open(path, &bundle, err));
    const enum moec_status status = moec_device_measure(bundle, &options, &device->described, err);
    moec_bundle_close(bundle);
    return status != MOEC_OK ? status : keep(device, err);
}

void fit_device_scale(struct fit_device *device, double factor)
{
    struct moec_device_storage *storage = &device->described.storage;
    storage->bytes_per_second = (uint64_t)((double)storage->bytes_per_second * factor + 0.5);
    for (uint32_t i = 0; i < storage->n_reads; i++)
        storage->reads[i].bytes_per_second =
            (uint64_t)((double)storage->reads[i].bytes_per_second * factor + 0.5);
}

void fit_device_speed(const struct fit_device *device, uint64_t *bytes_per_second, uint64_t *latency_ns)
{
    const struct moec_device_storage *storage = &device->described.storage;
    *bytes_per_second = storage->bytes_per_second;
    *latency_ns = storage->latency_ns;
    for (uint32_t i = 0; i < storage->n_reads; i++) {
        const struct moec_device_read *read = &storage->reads[i];
        if (read->is_direct == storage->is_direct_faster && read->bytes_per_second > *bytes_per_second)
            *bytes_per_second = read->bytes_per_second;
    }
    for (uint32_t i = 0; i < storage->n_reads; i++) {
        const struct moec_device_read *read = &storage->reads[i];
        const double bytes_ns = 1e9 * (double)read->record_bytes / (double)*bytes_per_second;
        if (read->is_direct != storage->is_direct_faster || read->depth != 1)
            continue;
        *latency_ns = (double)read->latency_ns_median > bytes_ns
                          ? (uint64_t)((double)read->latency_ns_median - bytes_ns)
                          : 0;
        break;
    }
}

void fit_device_release(struct fit_device *device, bool is_finished)
{
    if (is_finished && device->path != NULL)
        (void)unlink(device->path);
    moec_device_release(&device->described);
    free(device->path);
}
