/* The clock of the simulator: what a device takes to read and to compute.
 *
 * Storage is one queue, as runtime/storage/reader.h describes a slower device: done = max(issue + latency,
 * previous done) + bytes / bandwidth, in the order of issue. Each read is then checked by the loader's
 * thread. A step computes layer by layer: everything up to the router's answer, then the experts. Thread
 * rule: immutable after creation. */
#ifndef MOEC_PROFILER_SIMULATED_DEVICE_H
#define MOEC_PROFILER_SIMULATED_DEVICE_H

#include "formats/trace/device_description.h"
#include "profiler/simulate/simulated_model.h"
#include "runtime/storage/reader.h"

/* Arrays of one token's times, owned. */
struct moec_simulated_device {
    bool begins_in_turn;         /* as struct moec_reader has it */
    double latency_ns;           /* of a read */
    double *read_ns;             /* (S, F, E): transfer of a record */
    double *check_ns;            /* (S, F, E): its CRC32C */
    double *compute_ns;          /* (S, F, E): the expert */
    double *gap_ns;              /* (S): from the experts of the MoE layer before to this router's answer */
    double *gap_ns_per_position; /* (S): and more for each token of the context */
    double *shared_ns;           /* (S): shared expert and sum */
    double last_ns;              /* after the last MoE layer: dense layers, head */
    double last_ns_per_position;
    bool is_recorded;        /* computing takes what the trace says that it took */
    double move_ns_per_byte; /* in the buffer, by the computing thread */
    double predict_ns;       /* that a layer takes to predict the next one's experts by its router */
    double preload_ns;       /* of computing, lost to each read that the loader's thread begins */
    uint32_t n_waits;
    struct moec_device_wait waits[MOEC_DEVICE_WAITS];
};

/* Waits of a layer. */
enum moec_simulated_wait {
    MOEC_WAIT_FIRST,
    MOEC_WAIT_LONE, /* the first, where the next layer has none, or there is none in this step */
    MOEC_WAIT_NEXT, /* any other */
};

/* What a wait of this length costs in addition to itself. */
double moec_simulated_wait_cost(const struct moec_simulated_device *device, double stall_ns,
                                enum moec_simulated_wait which);

/* What is simulated. All may be NULL. */
struct moec_simulated_hardware {
    const struct moec_device *device;
    /* The sizes that the device was measured with, those of the compiled assignment; NULL: the model's. */
    const struct moec_simulated_model *described;
    const struct moec_emulation *storage; /* instead of the device's own */
};

/* Times of a described device, whose storage may be replaced by an emulated one. Without a
 * device computing takes what it took in the recording, where that is a trace; without an emulated storage
 * either nothing takes any time. Errors: MOEC_ERR_USAGE when it describes a model
 * of other layers, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_simulated_device_make(const struct moec_simulated_hardware *hardware,
                                                             const struct moec_recording *recording,
                                                             const struct moec_simulated_model *model,
                                                             struct moec_simulated_device *out,
                                                             struct moec_error *err);
void moec_simulated_device_release(struct moec_simulated_device *device);

#endif
