/* The device that `moec fit` fits a bundle for: what its memory leaves to experts, and the speed of its
 * storage and of computing. Thread rule: main thread. */
#ifndef MOEC_CLI_FIT_DEVICE_H
#define MOEC_CLI_FIT_DEVICE_H

#include "cli/options/options.h"
#include "formats/trace/device_description.h"
#include "profiler/device/device_measure.h"
#include "profiler/doctor/doctor.h"
#include "runtime/storage/reader.h"

/* --memory, --ctx and -n, and what moec-run has beside the weights. */
struct fit_memory {
    struct moec_doctor_request request;
    uint32_t n_context; /* tokens of the KV cache */
};

/* Errors: MOEC_ERR_USAGE. */
MOEC_WARN_UNUSED enum moec_status fit_read_memory(const struct cli_args *args, struct fit_memory *out,
                                                  struct moec_error *err);

/* Refuses a model whose decisions cannot be foretold. Errors: MOEC_ERR_UNSUPPORTED. */
MOEC_WARN_UNUSED enum moec_status fit_check_model(const struct moec_config *config, const char *path,
                                                  struct moec_error *err);

/* Refuses a memory that no bundle of the checkpoint fits into, with one that would do and a context that
 * would. Errors: MOEC_ERR_BUDGET, MOEC_ERR_LIMIT; those of moec_doctor_checkpoint. */
MOEC_WARN_UNUSED enum moec_status fit_admit(struct fit_memory *memory,
                                            const struct moec_checkpoint *checkpoint, const char *path,
                                            struct moec_error *err);

/* What the memory leaves to a bundle's experts. */
struct fit_room {
    uint64_t buffer_bytes; /* 0: the bundle does not run in it */
    uint64_t least_bytes;  /* of memory, with which it runs at any start of moec-run */
    uint32_t n_slots;      /* of a layer, whose largest experts have room; at least those of a token, 0 where
                            * the bundle does not run */
    bool holds_all;
};

MOEC_WARN_UNUSED enum moec_status fit_room_find(const struct fit_memory *memory, const char *path,
                                                struct fit_room *out, struct moec_error *err);

struct fit_device {
    struct moec_device described; /* owned */
    char *path; /* owned: where what was measured is kept while the work lasts; NULL = nowhere */
};

/* Whether --storage or --device-file is of a device for this model: before any work. Loads --device-file.
 * Errors: MOEC_ERR_USAGE, those of moec_device_load. */
MOEC_WARN_UNUSED enum moec_status fit_device_check(const struct cli_args *args, struct fit_device *out,
                                                   const struct moec_config *config, struct moec_error *err);

/* With --storage: measures computing with the bundle at `path`, with the threads and the progress of `how`,
 * or takes up what an interrupted run of the same output measured. Errors: those of moec_device_measure. */
MOEC_WARN_UNUSED enum moec_status fit_device_open(const struct cli_args *args, const char *path,
                                                  const char *output, const struct moec_device_options *how,
                                                  struct fit_device *device, struct moec_error *err);
/* Its storage from now on is so many times as fast. */
void fit_device_scale(struct fit_device *device, double factor);
/* Of its storage: where it was measured the best bandwidth, and what one read takes beyond its bytes. */
void fit_device_speed(const struct fit_device *device, uint64_t *bytes_per_second, uint64_t *latency_ns);
/* Removes what was kept, where the work is finished. */
void fit_device_release(struct fit_device *device, bool is_finished);

#endif
