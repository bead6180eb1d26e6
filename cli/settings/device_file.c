#include "cli/settings/device_options.h"
#include "formats/trace/device_description.h"

enum moec_status cli_read_device_file(const char *path, struct moert_transfer *transfer,
                                      struct moec_error *err)
{
    struct moec_device device = {0};
    struct moec_device_expert_costs costs = {0};
    MOEC_TRY(moec_device_load(path, &device, err));
    const enum moec_status status = moec_device_expert_costs_of(&device, path, &costs, err);
    moec_device_release(&device);
    transfer->cpu_byte_ns = costs.cpu_byte_ns;
    transfer->copy_byte_ns = costs.copy_byte_ns;
    transfer->gpu_byte_ns = costs.gpu_byte_ns;
    return status;
}
