/* A small bundle with the shapes of a model and without its weights, so that a device can be described before
 * there is a bundle of the model: it has the first layers of each kind, as many as do not stay in a processor's
 * caches, and all experts of these, in turn in each codec that moec compile's search stores experts in. Numbers
 * are made up: times depend on shapes and codecs, not on values. moec_device_measure lets the layers that are
 * there stand for those of their kind.
 *
 * Limits: a model whose order of layers does not fit into the bundle's provenance keeps all of them. Thread
 * rule: one thread. */
#ifndef MOEC_PROFILER_DEVICE_SHAPE_H
#define MOEC_PROFILER_DEVICE_SHAPE_H

#include "formats/bundle/bundle.h"
#include "formats/trace/device_description.h"

#define MOEC_DEVICE_SHAPE_POLICY      "shape" /* of the bundle's provenance */
#define MOEC_DEVICE_SHAPE_ORDER_BYTES 400

struct moec_device_shape {
    struct moec_config config; /* with the layers that are kept */
    /* Kinds of the whole model's layers in their order, "0x1 1x31": in the kinds of `config`. */
    char order[MOEC_DEVICE_SHAPE_ORDER_BYTES];
};

/* A function of the model's config alone. */
void moec_device_shape_make(const struct moec_config *whole, struct moec_device_shape *out);

/* Writes the bundle; `digest` says of which model it is, `source_name` is its name for people. Errors: of the
 * output, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_device_shape_write(const struct moec_device_shape *shape,
                                                          const uint8_t digest[static MOEC_SHA256_BYTES],
                                                          const char *source_name, const char *path,
                                                          struct moec_error *err);

/* Whether the bundle is one of these. */
bool moec_device_shape_is_of(const struct moec_bundle *bundle);

/* What was measured of such a bundle becomes a description of the whole model: each layer has the mean times of
 * those of its kind, and token_ns grows by what the added layers take. Errors: MOEC_ERR_FORMAT for an order of
 * layers that is none, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_device_shape_expand(const struct moec_bundle *bundle,
                                                           struct moec_device *device,
                                                           struct moec_error *err);

#endif
