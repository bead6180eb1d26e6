/* The bundle: one `.moec` file with everything that running needs. Byte by byte in formats/bundle/FORMAT.md.
 *
 * Reading validates header, contents table and every small section when it opens; dense weights by SHA-256
 * when loaded; each expert record by CRC32C before its first use (the reader of records does it). Writing is
 * all-or-nothing and reproducible. Thread rule: an open bundle is immutable;
 * reads from several threads are fine. */
#ifndef MOEC_FORMATS_BUNDLE_H
#define MOEC_FORMATS_BUNDLE_H

#include "formats/base/digest.h"
#include "formats/base/file.h"
#include "formats/model/config.h"
#include "formats/model/dense.h"
#include "formats/model/generation.h"
#include "formats/model/record.h"
#include "formats/model/tokenizer_model.h"
#include "formats/tables/path_table.h"

/* The file's alignment field: the default, and the most and the least where experts are small. */
#define MOEC_BUNDLE_ALIGNMENT       4096
#define MOEC_BUNDLE_SMALL_ALIGNMENT 512
#define MOEC_BUNDLE_LEAST_ALIGNMENT 64

/* The alignment that a compiled bundle has, from its smallest record: an expert at 2 bits with a scale for each
 * channel. So it depends on nothing that a search changes. It is 4096 if records are padded by at most 1 % of
 * the smallest one, by half of the alignment on average. Else it is the largest of 512, 256, 128 and 64 that
 * pads the smallest record by at most 0.5 % of it, or 64. */
uint32_t moec_bundle_choose_alignment(const struct moec_config *config);
/* What a record of n bytes takes in memory, in a bundle of this alignment: whole blocks of a device, which have 512
 * bytes at least. */
uint64_t moec_bundle_slot_bytes(const struct moec_config *config, uint64_t n_bytes);
#define MOEC_MAX_COPIES 8

/* Fixed-sequence testing (Learn then Test, arXiv:2110.01052): plans in an order that is fixed before the
 * certificate part is read, each tested at the same level until the first that fails; the last that passed is
 * written. A sequence of one is a single test. */
#define MOEC_MAX_SEQUENCE 8
enum moec_sequence_result { MOEC_SEQUENCE_NOT_TESTED, MOEC_SEQUENCE_PASSED, MOEC_SEQUENCE_FAILED };
struct moec_sequence_step {
    uint64_t n_bytes;                /* of the bundle that the plan would give */
    double search_loss, search_high; /* NaN: not measured */
    /* On the certificate part; NaN: not tested. A test that ended early, as failed, has the loss on the first half
     * of the windows alone. */
    double loss, low, high, kl;
    double p_value; /* of a loss this small if the true one were the target; NaN: not tested, or of scores */
    enum moec_sequence_result result;
    bool is_chosen; /* the plan that the bundle has */
};

/* Arithmetics as certificates name them. A bundle runs in its certificate's unless told otherwise; in the
 * canonical one where this version does not know the name, where it is an earlier int8, in the first of
 * which trellises were computed canonically and in the second sums of eight products became floats, and where
 * it is bf16 and no device computes that has it. */
#define MOEC_CERTIFICATE_CANONICAL   "canonical-f32"
#define MOEC_CERTIFICATE_INT8        "int8-3"
#define MOEC_CERTIFICATE_SECOND_INT8 "int8-2"
#define MOEC_CERTIFICATE_FIRST_INT8  "int8"
#define MOEC_CERTIFICATE_BF16        "bf16"

/* The loss that the bundle promises, as measured (D6): reference and compiled are perplexities on the
 * certificate part, or mean scores of another metric on its rows. */
struct moec_certificate {
    bool present;   /* false for bundles compiled without data (`--policy uniform --bits 4`) */
    bool missed;    /* written under --accept-miss although the target was not met */
    bool is_chance; /* the original predicts the data no better than chance: written under --anyway */
    char metric[32];
    double reference;
    double compiled;
    double loss; /* (compiled - reference) / reference */
    /* Two-sided 90 % interval (`confidence` 0.95), paired; loss_high is the upper end of the one-sided 95 %
     * one. */
    double loss_low;
    double loss_high;
    double search_loss; /* the same on the search part, when the search accepted */
    double search_loss_high;
    double target;     /* NaN when only --max-size was asked */
    double confidence; /* 0.95; 0 for `point` */
    double mean_kl;    /* nats a token against the original */
    uint32_t n_window; /* windows of the certificate part, or rows */
    uint64_t n_token;  /* scored tokens; 0 of rows */
    uint32_t seq_len_tokens;
    uint8_t data_digest[MOEC_SHA256_BYTES];
    char data_name[256];
    char arithmetic[32]; /* of the compiled model's products; the reference is always canonical */
    /* How it was proven; n_sequence 0 in bundles from before there was more than one test. */
    uint32_t n_sequence;
    struct moec_sequence_step sequence[MOEC_MAX_SEQUENCE]; /* (n_sequence) from the safest to the smallest */
    /* Which windows or rows certified: bundles with the same one were certified on the same part. */
    uint8_t part_digest[MOEC_SHA256_BYTES];
};

#define MOEC_OPTION_ORDER_NEURONS "order-neurons" /* a word of the options below */

/* What the bundle was made from. */
struct moec_provenance {
    char moec_version[32];
    char policy[64];
    char options[512]; /* the compile options that shaped it, canonical spelling */
    char source_name[256];
    uint8_t model_digest[MOEC_SHA256_BYTES];
    uint8_t profile_digest[MOEC_SHA256_BYTES]; /* zero without a profile */
    uint64_t source_bytes;                     /* weights of the checkpoint as stored */
    uint64_t source_expert_bytes;
};

/* Whether neurons of each expert stand in another order than the checkpoint's, as the options say. */
bool moec_provenance_orders_neurons(const struct moec_provenance *provenance);

/* Routing summary for planning and warm starts. */
struct moec_routing_summary {
    uint64_t *activations;    /* (S, E), owned; NULL when compiled without data */
    double *mean_gate_weight; /* (S, E), owned; NULL likewise */
};

/* Where one record is in the file. */
struct moec_record_entry {
    uint64_t offset;             /* in the file, multiple of the alignment */
    uint32_t n_bytes;            /* without padding */
    uint32_t crc32c;             /* of the n_bytes */
    uint32_t layout;             /* of the bundle's layouts */
    uint8_t bits;                /* of all projections; of the widest where they differ */
    struct moec_variant variant; /* numbers in the bundle's table of codecs */
};

struct moec_bundle {
    struct moec_file file;
    uint32_t alignment;
    /* Of offsets and buffers of requests: moec_file_direct_unit where the alignment is less than 4096, else 4096. */
    uint32_t direct_unit;
    struct moec_config config;
    struct moec_generation generation;
    struct moec_tokenizer_model *tokenizer;    /* owned; NULL when the checkpoint had none */
    struct moec_path_table paths;              /* n_layer 0 when absent */
    bool has_predictor;                        /* formats/bundle/bundle_predictor.h */
    char fitted_evict[16], fitted_predict[16]; /* formats/bundle/bundle_fit.h; "" = it was not fitted */
    uint64_t fitted_memory_bytes, fitted_buffer_bytes, fitted_bytes_per_second, fitted_latency_ns;
    struct moec_routing_summary routing;
    struct moec_certificate certificate;
    struct moec_provenance provenance;
    /* By number: the first codec of a bitwidth in the file has that bitwidth as its number. */
    struct moec_codec codecs[MOEC_CODEC_TABLE];
    struct moec_record_layout *layouts; /* (n_layout), owned: one for each variant that there is */
    uint32_t n_layout;
    uint32_t n_copy;                    /* precision copies; copy 0 is the compiled assignment */
    uint8_t copy_bits[MOEC_MAX_COPIES]; /* bits of a copy whose experts share one width; 0 for copy 0 */
    struct moec_record_entry *records;  /* (n_copy, S, E), owned */
    uint64_t late_bytes; /* what dense weights with a late embedding take beside them (dense_loading.h) */
    void *sections;      /* contents table, private to bundle.c */
};

/* Opens and validates. Refuses unknown versions. */
MOEC_WARN_UNUSED enum moec_status moec_bundle_open(const char *path, struct moec_bundle **out,
                                                   struct moec_error *err);
void moec_bundle_close(struct moec_bundle *bundle);

/* Loads and checks the dense weights. Released with moec_dense_release. */
MOEC_WARN_UNUSED enum moec_status moec_bundle_load_dense(const struct moec_bundle *bundle,
                                                         struct moec_dense *dense, struct moec_error *err);

/* Loads the table of the dense weights alone: neither blob nor source. Released with moec_dense_release. */
MOEC_WARN_UNUSED enum moec_status moec_bundle_load_dense_table(const struct moec_bundle *bundle,
                                                               struct moec_dense *dense,
                                                               struct moec_error *err);

/* Bytes of the dense weights once loaded: a budget can be refused before they are read. */
uint64_t moec_bundle_dense_bytes(const struct moec_bundle *bundle);

/* Entry of (precision copy, MoE ordinal, expert). */
const struct moec_record_entry *moec_bundle_record(const struct moec_bundle *bundle, uint32_t copy,
                                                   uint32_t ordinal, uint32_t expert);

/* Layout of that record; valid as long as the bundle. */
const struct moec_record_layout *moec_bundle_layout(const struct moec_bundle *bundle, uint32_t copy,
                                                    uint32_t ordinal, uint32_t expert);

/* The precision copy (1..) whose experts all have these bits. Copy 0, the assignment, is never
 * returned. Errors: MOEC_ERR_USAGE if there is no such copy, naming those that exist. */
MOEC_WARN_UNUSED enum moec_status moec_bundle_find_copy(const struct moec_bundle *bundle, uint32_t bits,
                                                        uint32_t *copy, struct moec_error *err);

/* One record of a bundle: of a precision copy, of a MoE ordinal's expert. */
struct moec_record_id {
    uint32_t copy, ordinal, expert;
};

/* Reads one record into `buffer` (entry->n_bytes) and checks its CRC32C and that its floats are finite.
 * Errors name layer and expert. */
MOEC_WARN_UNUSED enum moec_status moec_bundle_read_record(const struct moec_bundle *bundle,
                                                          struct moec_record_id record, uint8_t *buffer,
                                                          struct moec_error *err);

/* The checks alone, for readers that fetch the bytes themselves: CRC32C, and with check_floats that scales or
 * floats are finite (needed once for each record: bytes with an unchanged CRC32C have been checked before).
 */
MOEC_WARN_UNUSED enum moec_status moec_bundle_check_record(const struct moec_bundle *bundle,
                                                           struct moec_record_id record, const uint8_t *bytes,
                                                           bool check_floats, struct moec_error *err);

/* A section as `inspect` lists it. */
struct moec_bundle_section {
    const char *name;
    uint64_t offset;
    uint64_t stored_bytes;
    uint64_t content_bytes; /* after decompression */
    bool is_compressed;
};
uint32_t moec_bundle_section_count(const struct moec_bundle *bundle);
struct moec_bundle_section moec_bundle_section_get(const struct moec_bundle *bundle, uint32_t index);

/* Reads every byte of the file and reports each damage through `report` (section or layer and expert,
 * offset). Returns MOEC_OK when there is none, MOEC_ERR_CHECKSUM with the first damage otherwise. Works on
 * files that do not open. */
typedef void moec_damage_fn(void *context, const char *place, uint64_t offset, uint64_t n_bytes);
MOEC_WARN_UNUSED enum moec_status moec_bundle_verify(const char *path, moec_damage_fn *report, void *context,
                                                     struct moec_error *err);

#endif
