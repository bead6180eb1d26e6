/* --device and --vram: where the verbs that run a bundle, or measure a model, do so on a GPU. One spelling
 * and one meaning in all of them. */
#ifndef MOEC_CLI_DEVICE_OPTIONS_H
#define MOEC_CLI_DEVICE_OPTIONS_H

#include "cli/options/options.h"
#include "formats/base/digest.h"
#include "formats/model/config.h"
#include "runtime/cuda/gpu_place.h"
#include "runtime/kernels/arithmetic.h"
#include "runtime/moert.h"

/* clang-format off */
#define CLI_DEVICE_OPTIONS(flags)                                                                             \
    {"device", 0, "cuda[:N]", NULL,                                                                           \
     "Run on this GPU, with a pool of experts in its memory; results stay the same.",                         \
     (flags) | CLI_OF_DEVICE},                                                                                \
    {"cooperate", 0, NULL, NULL,                                                                              \
     "With --device: the processor computes an expert that the GPU's memory lacks, if computing is "          \
     "faster than copying the expert.",                                                                       \
     CLI_RARE | CLI_OF_DEVICE},                                                                               \
    {"device-file", 0, "DEVICE.json", NULL,                                                                   \
     "With --cooperate: take the times of processor and copies from this file of moec device "                \
     "(default: measure them).",                                                                              \
     CLI_RARE | CLI_INPUT | CLI_OF_DEVICE},                                                                   \
    {"whole-records", 0, NULL, NULL,                                                                          \
     "With --device and --sparsity: copy whole experts to the GPU instead of their active neurons "           \
     "alone.",                                                                                                \
     CLI_RARE | CLI_OF_DEVICE},                                                                               \
    {"vram", 0, "SIZE", NULL,                                                                                 \
     "With --device: limit on the GPU memory that moec allocates (default: most of the free memory).",        \
     (flags) | CLI_OF_DEVICE}
#define CLI_OFFLINE_DEVICE_OPTIONS(flags)                                                                     \
    {"device", 0, "cuda[:N]", NULL,                                                                           \
     "Compute on this GPU; in canonical arithmetic, results and files stay the same.",                        \
     (flags) | CLI_OF_DEVICE},                                                                                \
    {"vram", 0, "SIZE", NULL,                                                                                 \
     "With --device: limit on the GPU memory that moec allocates (default: most of the free memory).",        \
     (flags) | CLI_OF_DEVICE}
/* clang-format on */

/* Reads what --cooperate decides by from a file of moec device. Set by programs that can, as moec can; NULL:
 * the option is refused. Errors: those of moec_device_load and moec_device_expert_costs_of. */
typedef enum moec_status cli_device_file_reader(const char *path, struct moert_transfer *transfer,
                                                struct moec_error *err);
extern cli_device_file_reader *cli_device_file;
enum moec_status cli_read_device_file(const char *path, struct moert_transfer *transfer,
                                      struct moec_error *err); /* device_file.c */

/* Reads the shapes of the model that a folder or a config.json describes, for moec device --shape. Set by programs
 * that can, likewise. `digest` tells models apart. Errors: those of moec_checkpoint_open_config. */
typedef enum moec_status cli_shape_reader(const char *path, struct moec_config *config,
                                          uint8_t digest[static MOEC_SHA256_BYTES], struct moec_error *err);
extern cli_shape_reader *cli_shape;
enum moec_status cli_read_shape(const char *path, struct moec_config *config,
                                uint8_t digest[static MOEC_SHA256_BYTES],
                                struct moec_error *err); /* shape_source.c */

/* The device's name, NULL without one, the limit, 0 without one, --cooperate, and how experts come there.
 * Errors: MOEC_ERR_USAGE. */
MOEC_WARN_UNUSED enum moec_status cli_read_device(const struct cli_args *args, const char **device,
                                                  uint64_t *vram_bytes, bool *cooperates,
                                                  struct moert_transfer *transfer, struct moec_error *err);

/* The device that was read (cli_read_pass), opened; NULL without one. The caller frees it. Errors: those of
 * cli_use_arithmetic, MOEC_ERR_UNSUPPORTED for keys and values (`kv_name`, NULL: f32) that it lacks. */
MOEC_WARN_UNUSED enum moec_status cli_open_device(const struct moert_device_options *device,
                                                  const char *kv_name, enum moec_arithmetic arithmetic,
                                                  struct moec_gpu_place **out, struct moec_error *err);
/* The device of CLI_OFFLINE_DEVICE_OPTIONS, for verbs without options of an engine. Likewise. */
MOEC_WARN_UNUSED enum moec_status cli_open_place(const struct cli_args *args, enum moec_arithmetic arithmetic,
                                                 struct moec_gpu_place **out, struct moec_error *err);
/* Measurements are in this arithmetic too, on this device or without one. Errors: MOEC_ERR_UNSUPPORTED where
 * it is not computed there. */
MOEC_WARN_UNUSED enum moec_status cli_use_arithmetic(struct moec_gpu_place *place,
                                                     enum moec_arithmetic arithmetic, struct moec_error *err);

#endif
