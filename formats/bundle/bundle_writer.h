/* Writing a bundle: its exact size before anything is written, then the file, in one pass and all or nothing.
 *
 *     plan    small sections encoded, sizes known            moec_bundle_plan_create
 *     size    of any assignment, exact, padding included     moec_bundle_plan_bytes
 *                                                            (what a search minimises)
 *     write   records in order, one at a time                moec_bundle_writer_open, _append ..., _commit
 *
 * Memory use: the small sections and one piece of dense weights. The same inputs give the same bytes
 * (with one version of zstd). Thread rule: a plan is immutable after creation but for its dense weights and
 * codecs, and its sizes may be asked for from any thread; a writer belongs to one thread. */
#ifndef MOEC_FORMATS_BUNDLE_WRITER_H
#define MOEC_FORMATS_BUNDLE_WRITER_H

#include "formats/bundle/bundle.h"
#include "formats/model/chat_source.h"

/* What goes into a bundle besides records, certificate and provenance. Everything is borrowed until the plan
 * is freed. */
struct moec_bundle_parts {
    const struct moec_config *config;
    const struct moec_generation *generation;     /* NULL: defaults */
    const struct moec_tokenizer_model *tokenizer; /* NULL: none */
    const struct moec_chat_source *chat;          /* NULL or empty: none */
    const struct moec_path_table *paths;          /* NULL or n_layer 0: none */
    const float *router_ranges;                   /* (MoE layers), as of struct moec_path_table; or NULL */
    const float *expert_scores;                   /* (MOEC_SCORE_COUNT), likewise */
    const struct moec_routing_summary *routing;   /* NULL or activations NULL: none */
    bool has_sequence;                            /* the certificate will say how it was proven */
    const struct moec_dense *dense;
    const struct moec_codec *codecs; /* [MOEC_CODEC_TABLE] by number: those of records, of at most 16 bits */
    /* Pieces of the dense weights are cut by runs (formats/bundle/bundle_dense.h), whose stored bytes sum up
     * to dense_stored_bytes: for a search that changes single matrices. Nothing is read then to size a file.
     */
    bool cuts_dense;
    uint64_t dense_stored_bytes;
    uint32_t alignment; /* power of two, 64 to 1 MiB; moec_bundle_choose_alignment */
};

struct moec_bundle_plan;

/* Encodes and compresses the small sections and measures the dense weights (compressed here to learn their
 * size, and again when they are written, so that none of it stays in memory). Errors: MOEC_ERR_USAGE for a
 * wrong alignment or codec, those of the encoders, MOEC_ERR_MISMATCH when parts do not belong to the config.
 */
MOEC_WARN_UNUSED enum moec_status moec_bundle_plan_create(const struct moec_bundle_parts *parts,
                                                          struct moec_bundle_plan **out,
                                                          struct moec_error *err);
void moec_bundle_plan_free(struct moec_bundle_plan *plan);

/* Puts other dense weights of the same config in place of the plan's, borrowed like them; only with
 * cuts_dense. stored_bytes is as dense_stored_bytes of the parts. Not while sizes
 * are asked for. Errors: as creation. */
MOEC_WARN_UNUSED enum moec_status moec_bundle_plan_set_dense(struct moec_bundle_plan *plan,
                                                             const struct moec_dense *dense,
                                                             uint64_t stored_bytes, struct moec_error *err);

/* Puts another table of codecs in place of the plan's, as parts->codecs. Not while sizes are asked for.
 * Errors: as creation; the plan then keeps its codecs. */
MOEC_WARN_UNUSED enum moec_status moec_bundle_plan_set_codecs(struct moec_bundle_plan *plan,
                                                              const struct moec_codec *codecs,
                                                              struct moec_error *err);

/* Bytes of a record in the file with its padding; 0 where a number has no codec. The size of a file is
 * affine in these: changing one expert from a to b changes it by record_bytes(b) - record_bytes(a), except
 * that the first one whose projections differ, or the first second codec of a bitwidth, makes the entries of
 * the record index longer. */
uint64_t moec_bundle_plan_record_bytes(const struct moec_bundle_plan *plan, struct moec_variant variant);

/* Which experts a file has in which variants. */
struct moec_bundle_assignment {
    const struct moec_variant *experts; /* (MoE layers, n_expert): copy 0 */
    const uint8_t *copy_bits;           /* (n_extra): bits of each further precision copy */
    uint32_t n_extra;
};

/* Exact size of the file. Errors: MOEC_ERR_USAGE naming the first expert without a codec, or for too many
 * copies. */
MOEC_WARN_UNUSED enum moec_status moec_bundle_plan_bytes(const struct moec_bundle_plan *plan,
                                                         const struct moec_bundle_assignment *assignment,
                                                         uint64_t *n_bytes, struct moec_error *err);

/* The sections of that file in their order, one call each; names live as long as the call. Errors: the same.
 */
typedef enum moec_status moec_bundle_section_sink(void *context, const struct moec_bundle_section *section,
                                                  struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_bundle_plan_sections(const struct moec_bundle_plan *plan,
                                                            const struct moec_bundle_assignment *assignment,
                                                            moec_bundle_section_sink *sink, void *context,
                                                            struct moec_error *err);

struct moec_bundle_writer;

/* Starts the file beside `path` and writes the sections before the records. The plan is borrowed until commit
 * or abort; the assignment is copied. Errors: as moec_bundle_plan_bytes, and of the output. */
MOEC_WARN_UNUSED enum moec_status moec_bundle_writer_open(const struct moec_bundle_plan *plan,
                                                          const char *path,
                                                          const struct moec_bundle_assignment *assignment,
                                                          struct moec_bundle_writer **out,
                                                          struct moec_error *err);

/* Layout of the next record to append, and which it is: copy by copy (0 = the assignment, then the copies),
 * MoE layer by MoE layer, expert by expert. False when all are written. */
struct moec_bundle_next {
    uint32_t copy;
    uint32_t ordinal;
    uint32_t layer; /* model layer of the ordinal */
    uint32_t expert;
    struct moec_record_layout layout;
};
bool moec_bundle_writer_next(const struct moec_bundle_writer *writer, struct moec_bundle_next *next);
/* The same for the record that comes `ahead` places later, so that several can be encoded at once. */
bool moec_bundle_writer_ahead(const struct moec_bundle_writer *writer, size_t ahead,
                              struct moec_bundle_next *next);

/* Appends the next record: next.layout.n_bytes bytes. Errors: MOEC_ERR_USAGE when n_bytes differs or all are
 * written, MOEC_ERR_FORMAT when a scale or float is not finite, MOEC_ERR_IO (disk full). */
MOEC_WARN_UNUSED enum moec_status moec_bundle_writer_append(struct moec_bundle_writer *writer,
                                                            const uint8_t *record, size_t n_bytes,
                                                            struct moec_error *err);

/* Writes the rest, syncs and renames. `certificate` may be NULL (none). Frees the writer in every case; on
 * failure nothing appears under the final name. */
MOEC_WARN_UNUSED enum moec_status moec_bundle_writer_commit(struct moec_bundle_writer *writer,
                                                            const struct moec_provenance *provenance,
                                                            const struct moec_certificate *certificate,
                                                            struct moec_error *err);
/* Removes what was written and frees. NULL-safe. */
void moec_bundle_writer_abort(struct moec_bundle_writer *writer);

#endif
