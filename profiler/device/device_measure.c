#include "profiler/device/device_measure.h"

#include "profiler/common/machine.h"
#include "profiler/device/device_shape.h"

#include <stdio.h>
#include <string.h>

/* The file's name without its folder, in plain ASCII. */
static void name_bundle(const struct moec_bundle *bundle, char *name, size_t capacity)
{
    const char *slash = strrchr(bundle->file.path, '/');
    (void)snprintf(name, capacity, "%s", slash != NULL ? slash + 1 : bundle->file.path);
    for (char *at = name; *at != '\0'; at++)
        if (*at < ' ' || *at > '~')
            *at = '?';
}

enum moec_status moec_device_measure(const struct moec_bundle *bundle,
                                     const struct moec_device_options *options, struct moec_device *device,
                                     struct moec_error *err)
{
    *device = (struct moec_device){0};
    moec_machine_processor(device->processor, sizeof device->processor);
    name_bundle(bundle, device->bundle, sizeof device->bundle);
    moec_sha256_hex(bundle->provenance.model_digest, device->model_sha256);
    enum moec_status status = moec_device_measure_storage(bundle, options, &device->storage, err);
    if (status == MOEC_OK)
        status = moec_device_measure_compute(bundle, options, device, err);
    if (status == MOEC_OK && moec_device_shape_is_of(bundle))
        status = moec_device_shape_expand(bundle, device, err);
    if (status != MOEC_OK)
        moec_device_release(device);
    return status;
}
