#include "profiler/device/device_measure.h"

#include "formats/base/clock.h"
#include "profiler/common/machine.h"
#include "profiler/common/processor_time.h"
#include "profiler/device/device_shape.h"
#include "runtime/threads/parallel.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define DISTURBING 0.2 /* processors that are missing, on average, for times that are too long */

/* The file's name without its folder, in plain ASCII. */
static void name_bundle(const struct moec_bundle *bundle, char *name, size_t capacity)
{
    const char *slash = strrchr(bundle->file.path, '/');
    (void)snprintf(name, capacity, "%s", slash != NULL ? slash + 1 : bundle->file.path);
    for (char *at = name; *at != '\0'; at++)
        if (*at < ' ' || *at > '~')
            *at = '?';
}

/* ---- other programs ---- */

struct load {
    double busy_seconds, own_seconds; /* processor seconds */
    uint64_t ns;
};

static struct load look_at_load(void)
{
    return (struct load){moec_machine_busy_seconds("/proc"), 1e-9 * (double)moec_processor_ns(),
                         moec_now_ns()};
}

static void tell_load(const struct load *before, const struct moec_device_options *options)
{
    const struct load now = look_at_load();
    const double seconds = 1e-9 * (double)(now.ns - before->ns);
    const double n_other =
        (now.busy_seconds - before->busy_seconds - (now.own_seconds - before->own_seconds)) / seconds;
    const uint32_t n_processor = moec_machine_processor_count();
    const double n_free = fmax(0, (double)n_processor - moec_pool_make(options->n_threads).n_threads);
    if (before->busy_seconds < 0 || now.busy_seconds < 0 || n_other < n_free + DISTURBING)
        return;
    moec_progress_note(
        options->progress,
        "other programs took %.1f of this machine's %u processors while it was measured, so times are too "
        "long: measure it again when nothing else runs",
        n_other, n_processor);
}

enum moec_status moec_device_measure(const struct moec_bundle *bundle,
                                     const struct moec_device_options *options, struct moec_device *device,
                                     struct moec_error *err)
{
    const struct load before = look_at_load();
    *device = (struct moec_device){0};
    moec_machine_processor(device->processor, sizeof device->processor);
    name_bundle(bundle, device->bundle, sizeof device->bundle);
    moec_sha256_hex(bundle->provenance.model_digest, device->model_sha256);
    enum moec_status status = moec_device_measure_storage(bundle, options, &device->storage, err);
    if (status == MOEC_OK)
        status = moec_device_measure_compute(bundle, options, device, err);
    if (status == MOEC_OK && moec_device_shape_is_of(bundle))
        status = moec_device_shape_expand(bundle, device, err);
    if (status == MOEC_OK)
        tell_load(&before, options);
    else
        moec_device_release(device);
    return status;
}
