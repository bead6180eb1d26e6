/* The device and the output are opened before anything is measured. Progress counts by a table of about what
 * each phase takes; one that is missing there moves nothing. A probe that nobody wants to keep stands beside
 * the output and is removed. */
#include "cli/print/print.h"
#include "cli/settings/device_options.h"
#include "cli/settings/engine_options.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/progress_line.h"
#include "cli/terminal/terminal.h"
#include "cli/verbs/commands.h"
#include "formats/base/file.h"
#include "formats/base/memory.h"
#include "profiler/device/device_measure.h"
#include "profiler/device/device_shape.h"
#include "profiler/device/gpu_measure.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct cli_option options[] = {
    {"output", 'o', "FILE", NULL, "Write the description as JSON, for moec simulate and moec fit.",
     CLI_OUTPUT | CLI_OF_OUTPUT},
    {"file", 0, "FILE", NULL, "The bundle to measure with; the same as the argument.", CLI_RARE | CLI_INPUT},
    {"shape", 0, "MODEL", NULL,
     "Needs no bundle: measure the shapes of the model that this folder or config.json describes, "
     "with made-up weights.",
     CLI_INPUT},
    {"probe", 0, "PROBE.moec", NULL,
     "With --shape: keep the probe, the small bundle that is measured, in this file on the storage to be "
     "measured. To measure another device, give the probe to moec-run --describe-device there. Without "
     "-o, nothing is measured here.",
     CLI_OUTPUT | CLI_OF_OUTPUT},
    {"emulate-storage", 0, "RATE,LATENCY,REQUEST", NULL,
     "Describe this storage instead of measuring: bandwidth, latency, and the time that each "
     "request takes besides the time of its bytes (default 10us), such as 550MB/s,80us.",
     0},
    {"device", 0, "cuda[:N]", NULL, "Measure this GPU too: copies, launches, products, whole tokens.", 0},
    {"read-time", 0, "SECONDS", NULL,
     "Time for each measurement of storage (default 0.1). Give more if the device's speed varies or "
     "falls with time.",
     0},
    {"compute-time", 0, "SECONDS", NULL,
     "Time to measure decoding, and again decoding with waits (default 3).", 0},
    {"threads", 't', "N", NULL, "Threads that compute (default: all cores).", 0},
    {"cpu", 0, "SET", CLI_CPU_CHOICES, "Instruction set: auto (default), " CLI_CPU_SETS ".", 0},
    {"quiet", 'q', NULL, NULL, "Show no progress.", 0},
    {0},
};

/* Parts of the time that measuring takes, about. */
static const struct {
    const char *phase;
    double share;
    bool is_gpu;
} phases[] = {{"storage", 10, false},   {"loading", 5, false},  {"decoding", 20, false},
              {"tokens", 15, false},    {"experts", 10, false}, {"waiting", 40, false},
              {"copies", 15, true},     {"products", 5, true},  {"gathering", 2, true},
              {"GPU experts", 3, true}, {"GPU tokens", 5, true}};

static double whole_job(bool has_gpu)
{
    double sum = 0;
    for (size_t i = 0; i < sizeof phases / sizeof *phases; i++)
        sum += phases[i].is_gpu && !has_gpu ? 0 : phases[i].share;
    return sum;
}

static enum moec_status show_progress(void *context, const char *phase, double done, double total)
{
    double share = 0;
    for (size_t i = 0; i < sizeof phases / sizeof *phases; i++)
        share = strcmp(phases[i].phase, phase) == 0 ? phases[i].share : share;
    cli_progress_show(context, phase, total > 0 ? share * done / total : 0, share);
    return cli_interrupt_status();
}

static void show_note(void *context, const char *line)
{
    cli_progress_note(context, line);
}

/* ---- for people ---- */

static double microseconds(uint64_t ns)
{
    return (double)ns * 1e-3;
}

static const struct moec_device_read *find_read(const struct moec_device_storage *storage, bool is_direct,
                                                uint64_t record_bytes, uint32_t depth)
{
    for (uint32_t i = 0; i < storage->n_reads; i++) {
        const struct moec_device_read *read = &storage->reads[i];
        if (read->is_direct == is_direct && read->record_bytes == record_bytes && read->depth == depth)
            return read;
    }
    return NULL;
}

static void print_reads(const struct moec_device *device, const struct moec_device_expert *expert)
{
    char size[24];
    cli_print(stdout, "\n  Records of %" PRIu32 " bits, %s    direct                          cached, cold\n",
              expert->bits, cli_size_text(size, expert->record_bytes));
    cli_print(stdout, "  at once        MB/s   median us     p95 us        MB/s   median us     p95 us\n");
    for (uint32_t depth = 1; depth <= MOEC_DEVICE_DEPTH; depth *= 2) {
        cli_print(stdout, "  %7" PRIu32, depth);
        for (int way = 0; way < 2; way++) {
            const struct moec_device_read *read =
                find_read(&device->storage, way == 0, expert->record_bytes, depth);
            if (read == NULL)
                cli_print(stdout, "%12s%12s%11s", "-", "-", "-");
            else
                cli_print(stdout, "%12.1f%12.1f%11.1f", (double)read->bytes_per_second * 1e-6,
                          microseconds(read->latency_ns_median), microseconds(read->latency_ns_p95));
        }
        putchar('\n');
    }
}

static void print_storage(const struct moec_device *device)
{
    cli_print(stdout, "\nStorage\n  %s\n", device->storage.description);
    if (device->storage.is_emulated)
        return;
    for (uint32_t i = 0; i < device->n_expert_widths; i++)
        print_reads(device, &device->experts[i]);
}

/* Two products of each codec stand side by side. */
static void print_products(const struct moec_device *device)
{
    cli_print(stdout,
              "\nOne projection of an expert by itself, us\n  codec                          up, gate "
              "     down\n");
    for (uint32_t i = 0; i + 1 < device->n_products; i += 2)
        cli_print(stdout, "  %-28s %10.1f %9.1f\n", device->products[i].codec,
                  microseconds(device->products[i].ns), microseconds(device->products[i + 1].ns));
    if (device->decide_ns > 0)
        cli_print(stdout, "  a router that looks at a logical cache takes %.1f us longer\n",
                  microseconds(device->decide_ns));
    if (device->predict_ns > 0)
        cli_print(stdout, "  to predict the next layer's experts by its router takes %.1f us\n",
                  microseconds(device->predict_ns));
}

static void print_compute(const struct moec_device *device)
{
    double attention = 0, slope = 0, router = 0, experts = 0, shared = 0, dense = 0;
    for (uint32_t i = 0; i < device->n_layer; i++) {
        const struct moec_device_layer *layer = &device->layers[i];
        attention += microseconds(layer->attention_ns);
        slope += layer->attention_ns_per_position * 1e-3;
        router += microseconds(layer->router_ns);
        shared += microseconds(layer->shared_ns);
        if (layer->is_moe)
            experts += microseconds(layer->mlp_ns);
        else
            dense += microseconds(layer->mlp_ns);
    }
    cli_print(stdout, "\nOne token with everything in memory, us (%s, %" PRIu32 " thread%s)\n",
              device->instruction_set, device->n_threads, device->n_threads == 1 ? "" : "s");
    cli_print(stdout, "  attention, all layers        %10.1f   and %.3f for each token before it\n",
              attention, slope);
    cli_print(stdout, "  routers                      %10.1f\n", router);
    cli_print(stdout, "  experts and weighted sums    %10.1f   shared experts alone %.1f\n", experts, shared);
    cli_print(stdout, "  layers without experts       %10.1f\n", dense);
    cli_print(stdout, "  embedding, head              %10.1f\n",
              microseconds(device->embed_ns + device->head_ns));
    double sum = attention + slope * device->token_position + router + experts + dense +
                 microseconds(device->embed_ns + device->head_ns);
    cli_print(stdout, "  all of these                 %10.1f   at once: %.1f (position %" PRIu32 ")\n", sum,
              microseconds(device->token_ns), device->token_position);
    const double products = microseconds(device->products_ns), token = microseconds(device->token_ns);
    if (products > 0)
        cli_print(stdout,
                  "  matrix products alone        %10.1f   a token takes %.0f%% longer, or\n"
                  "                                     %.0f%% without attention to earlier tokens\n",
                  products, 100 * (token / products - 1),
                  100 * ((token - slope * device->token_position) / products - 1));
    cli_print(stdout, "\nOne expert by itself\n  bits        record   compute us     check us\n");
    for (uint32_t i = 0; i < device->n_expert_widths; i++) {
        char size[24];
        cli_print(stdout, "  %4" PRIu32 "  %12s %12.1f %12.1f\n", device->experts[i].bits,
                  cli_size_text(size, device->experts[i].record_bytes),
                  microseconds(device->experts[i].compute_ns), microseconds(device->experts[i].check_ns));
    }
    cli_print(stdout, "  a check takes %.3f ns a byte, a move in the buffer %.3f\n",
              device->check_ns_per_byte, device->move_ns_per_byte);
    print_products(device);
    if (device->n_waits > 0)
        cli_print(stdout, "\nExtra time for each expert that is waited for, us\n      wait  first of a layer "
                          " alone in two  each further\n");
    for (uint32_t i = 0; i < device->n_waits; i++)
        cli_print(stdout, "  %8.1f %17.1f %13.1f %13.1f\n", microseconds(device->waits[i].stall_ns),
                  microseconds(device->waits[i].first_ns), microseconds(device->waits[i].lone_ns),
                  microseconds(device->waits[i].next_ns));
    if (device->n_waits > 0)
        cli_print(stdout, "  a record that is read beside computing costs it %.1f us\n",
                  microseconds(device->preload_ns));
}

/* MB/s of a copy, or a dash where it was not measured. */
static void print_copy(const struct moec_gpu_description *gpu, bool is_to_device, bool is_pinned,
                       uint64_t n_bytes)
{
    for (uint32_t i = 0; i < gpu->n_copies; i++) {
        const struct moec_gpu_copy_time *copy = &gpu->copies[i];
        if (copy->is_to_device != is_to_device || copy->is_pinned != is_pinned || copy->n_bytes != n_bytes)
            continue;
        cli_print(stdout, "%14.1f", copy->ns > 0 ? (double)n_bytes * 1e3 / (double)copy->ns : 0);
        return;
    }
    cli_print(stdout, "%14s", "-");
}

static void print_gpu(const struct moec_gpu_description *gpu)
{
    char size[24];
    cli_print(stdout, "\n%s, %s\n  a launch takes %.1f us, %.1f until its end is known\n", gpu->name,
              cli_size_text(size, gpu->memory_bytes), microseconds(gpu->launch_ns),
              microseconds(gpu->answer_ns));
    cli_print(stdout, "  a token takes %.1f us, and %.3f more for each token before it\n",
              microseconds(gpu->token_ns), gpu->ns_per_position * 1e-3);
    cli_print(stdout, "\n  Copies, MB/s   to it, pinned       pageable  from it, pinned      pageable\n");
    for (uint32_t i = 0; i < gpu->n_copies; i++) {
        const uint64_t n_bytes = gpu->copies[i].n_bytes;
        if (!gpu->copies[i].is_to_device || !gpu->copies[i].is_pinned)
            continue;
        cli_print(stdout, "  %12s", cli_size_text(size, n_bytes));
        print_copy(gpu, true, true, n_bytes);
        print_copy(gpu, true, false, n_bytes);
        print_copy(gpu, false, true, n_bytes);
        print_copy(gpu, false, false, n_bytes);
        putchar('\n');
    }
    cli_print(stdout, "\n  Products with one token\n  codec                               us         MB/s\n");
    for (uint32_t i = 0; i < gpu->n_products; i++) {
        const struct moec_gpu_product_time *product = &gpu->products[i];
        cli_print(stdout, "  %-28s%10.1f%13.1f\n", product->codec, microseconds(product->ns),
                  product->ns > 0 ? (double)product->n_bytes * 1e3 / (double)product->ns : 0);
    }
    cli_print(stdout, "\n  One expert by itself\n  bits        record   compute us\n");
    for (uint32_t i = 0; i < gpu->n_experts; i++)
        cli_print(stdout, "  %4" PRIu32 "  %12s %12.1f\n", gpu->experts[i].bits,
                  cli_size_text(size, gpu->experts[i].record_bytes),
                  microseconds(gpu->experts[i].compute_ns));
    cli_print(stdout, "\n  Pieces gathered into pinned memory\n     piece         MB/s\n");
    for (uint32_t i = 0; i < gpu->n_gathers; i++)
        cli_print(stdout, "  %8s%13.1f\n", cli_size_text(size, gpu->gathers[i].piece_bytes),
                  gpu->gathers[i].ns > 0 ? (double)gpu->gathers[i].n_bytes * 1e3 / (double)gpu->gathers[i].ns
                                         : 0);
}

/* ---- the verb ---- */

static enum moec_status write_description(const struct moec_device *device, struct moec_output *output,
                                          struct moec_error *err)
{
    char *text = NULL;
    MOEC_TRY(moec_device_write(device, &text, err));
    enum moec_status status = moec_output_append(output, text, strlen(text), err);
    free(text);
    return status == MOEC_OK ? moec_output_commit(output, err) : status;
}

static enum moec_status read_seconds(const struct cli_args *args, const char *name, uint64_t *ns,
                                     struct moec_error *err)
{
    double seconds = 0;
    MOEC_TRY(cli_double(args, name, 0.001, 3600, &seconds, err));
    *ns = (uint64_t)(seconds * 1e9);
    return MOEC_OK;
}

static enum moec_status parse(const struct cli_args *args, struct moec_device_options *measure,
                              struct moec_emulation *emulation, const char **path, struct moec_error *err)
{
    *path = args->n_positional > 0 ? args->positional[0] : cli_text(args, "file");
    const int n_named =
        (args->n_positional > 0) + (cli_has(args, "file") ? 1 : 0) + (cli_has(args, "shape") ? 1 : 0);
    if (n_named != 1)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "name one bundle, as MODEL.moec or with --file, or a model with --shape");
    if (cli_has(args, "probe") && !cli_has(args, "shape"))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--probe keeps what --shape makes: name the model with --shape MODEL");
    if (!cli_has(args, "output") && !cli_has(args, "probe"))
        return moec_fail(err, MOEC_ERR_USAGE, "name the file to write with -o DEVICE.json");
    MOEC_TRY(read_seconds(args, "read-time", &measure->read_ns, err));
    MOEC_TRY(read_seconds(args, "compute-time", &measure->compute_ns, err));
    MOEC_TRY(cli_read_threads(args, &measure->n_threads, err));
    if (cli_has(args, "emulate-storage")) {
        MOEC_TRY(moec_emulation_parse(cli_text(args, "emulate-storage"), emulation, err));
        measure->emulation = emulation;
    }
    return cli_read_kernels(args, &measure->kernels, err);
}

/* Whether there is such a device is known before anything is measured. */
static enum moec_status find_gpu(const struct cli_args *args, const struct moec_device_options *measure,
                                 struct moec_gpu_measure_options *gpu, struct moec_error *err)
{
    struct moec_gpu *opened = NULL;
    if (!cli_has(args, "device"))
        return MOEC_OK;
    MOEC_TRY(moec_gpu_number_read(cli_text(args, "device"), &gpu->number, err));
    MOEC_TRY(moec_gpu_library_open(&gpu->entry, err));
    MOEC_TRY(gpu->entry->open(gpu->number, &opened, err));
    opened->ops->close(opened);
    gpu->n_threads = measure->n_threads;
    return MOEC_OK;
}

/* Makes the bundle that has a model's shapes, in *path: the caller's, and where nobody asked for it to be
 * removed. */
static enum moec_status make_probe(const struct cli_args *args, char **path, struct moec_error *err)
{
    const char *model = cli_text(args, "shape"), *kept = cli_text(args, "probe"),
               *slash = strrchr(model, '/');
    struct moec_device_shape *shape = NULL;
    struct moec_config *config = NULL;
    uint8_t digest[MOEC_SHA256_BYTES];
    enum moec_status status = MOEC_OK;
    if (cli_shape == NULL)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "moec-run cannot read a config.json: write a probe with 'moec device --shape %s "
                         "--probe PROBE.moec', and give that",
                         model);
    if (asprintf(path, kept != NULL ? "%s" : "%s.shape", kept != NULL ? kept : cli_text(args, "output")) <
        0) {
        *path = NULL;
        return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: path of a file beside the output");
    }
    MOEC_TRY_OUT(moec_alloc((void **)&config, 1, sizeof *config, "a config", err));
    MOEC_TRY_OUT(moec_alloc((void **)&shape, 1, sizeof *shape, "the shapes of a model", err));
    MOEC_TRY_OUT(cli_shape(model, config, digest, err));
    moec_device_shape_make(config, shape);
    status = moec_device_shape_write(shape, digest, slash != NULL ? slash + 1 : model, *path, err);
out:
    free(config);
    free(shape);
    return status;
}

static enum moec_status measure_device(const struct cli_args *args, struct cli_progress *progress,
                                       struct moec_error *err)
{
    const struct moec_progress report = {.report = show_progress, .note = show_note, .context = progress};
    struct moec_device_options measure = {.progress = &report};
    struct moec_gpu_measure_options gpu = {.progress = &report};
    struct moec_emulation emulation;
    struct moec_output output = {.fd = -1};
    struct moec_bundle *bundle = NULL;
    struct moec_device device = {0};
    const char *path = NULL;
    char *probe = NULL;
    enum moec_status status = MOEC_OK;
    MOEC_TRY(parse(args, &measure, &emulation, &path, err));
    MOEC_TRY(find_gpu(args, &measure, &gpu, err));
    if (cli_has(args, "output")) /* before the work, not after */
        MOEC_TRY_OUT(moec_output_open(&output, cli_text(args, "output"), err));
    if (cli_has(args, "shape")) {
        MOEC_TRY_OUT(make_probe(args, &probe, err));
        path = probe;
    }
    if (!cli_has(args, "output")) {
        cli_print(stdout, "wrote '%s'; on the device: moec-run --describe-device %s -o DEVICE.json\n", probe,
                  probe);
        goto out;
    }
    MOEC_TRY_OUT(moec_bundle_open(path, &bundle, err));
    MOEC_TRY_OUT(moec_device_measure(bundle, &measure, &device, err));
    if (gpu.entry != NULL)
        MOEC_TRY_OUT(moec_gpu_measure(bundle, &gpu, &device.gpu, err));
    MOEC_TRY_OUT(write_description(&device, &output, err));
    cli_progress_end(progress);
    cli_print(stdout, "%s with %s: %s\n", device.processor, device.bundle, cli_text(args, "output"));
    print_storage(&device);
    print_compute(&device);
    if (gpu.entry != NULL)
        print_gpu(&device.gpu);
out:
    moec_device_release(&device);
    moec_output_abort(&output);
    moec_bundle_close(bundle);
    if (probe != NULL && !cli_has(args, "probe"))
        (void)unlink(probe);
    free(probe);
    return status;
}

static int run_device(const struct cli_args *args)
{
    struct moec_error err = {0};
    struct cli_progress progress;
    cli_interrupt_catch();
    cli_progress_init(&progress, "device", NULL, cli_has(args, "quiet"));
    cli_progress_expect(&progress, whole_job(cli_has(args, "device")));
    enum moec_status status = measure_device(args, &progress, &err);
    cli_progress_end(&progress);
    return status == MOEC_OK ? CLI_OK : cli_interrupt_fail(args, &err);
}

const struct cli_command cli_command_device = {
    .name = "device",
    .summary = "measure how fast this machine reads and computes",
    .usage = "[MODEL.moec]",
    .about = "Measures how fast this machine reads the bundle's records (stored experts) and computes each "
             "part of a token. moec simulate predicts the time per token from the result. The measured "
             "storage is the one that holds the bundle, so first copy the bundle to the right device. Other "
             "programs that run at the same time make every figure worse.",
    .details =
        "Storage: records are read in random order and at their real sizes, 1 to 32 at once, with "
        "O_DIRECT and through the page cache (emptied before). The result has bandwidth, median "
        "latency and its 95th percentile.\n"
        "Computing: with every expert in memory, the times of attention, routers, experts at each "
        "bitwidth, shared experts, the head and the check of a record. The result also says how much "
        "longer computing takes with waits for records, and while reading.\n"
        "GPU: copies to and from the GPU by size, from pinned and other memory; launches of kernels; "
        "products of one token in each codec; an expert at each bitwidth; whole tokens; and gathering "
        "the pieces of a copy.\n"
        "Without a bundle: --shape takes a model's folder or config.json, without weights. The command "
        "makes a probe, a small bundle with made-up weights, beside the file of -o or at the path of "
        "--probe. The command measures the probe and describes the whole model. moec fit --device-file "
        "takes either description.\n"
        "formats/trace/DEVICE.md describes every member of the file.",
    .examples = "moec device model.moec -o device.json\n"
                "moec device /mnt/card/model.moec -o card.json --read-time 1",
    .more_examples = "moec device model.moec -o gpu.json --device cuda\n"
                     "moec device --shape config.json -o here.json             # no bundle, no weights\n"
                     "moec device --shape config.json --probe probe.moec       # for moec-run on a device\n"
                     "# the paper's disks, with this machine's processor\n"
                     "moec device model.moec -o ssd.json --emulate-storage 550MB/s,80us\n"
                     "moec device model.moec -o hdd.json --emulate-storage 50MB/s",
    .n_positional_min = 0,
    .n_positional_max = 1,
    .options = options,
    .run = run_device,
};
