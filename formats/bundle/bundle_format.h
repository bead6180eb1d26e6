/* On-disk constants and parts of the bundle that its reader, checker and writer share
 * (formats/bundle/FORMAT.md has the full description). Private to formats/bundle/.
 *
 * Thread rule: pure functions over the caller's memory, and pread on an open file. */
#ifndef MOEC_FORMATS_BUNDLE_FORMAT_H
#define MOEC_FORMATS_BUNDLE_FORMAT_H

#include "formats/bundle/bundle.h"

#define MOEC_BUNDLE_VERSION 1u

#define MOEC_BUNDLE_HEADER_BYTES  128u
#define MOEC_BUNDLE_SECTION_BYTES 80u /* one entry of the contents table */
#define MOEC_BUNDLE_MAX_SECTIONS  64u

/* Offsets in the header. */
#define MOEC_HEADER_VERSION    8u
#define MOEC_HEADER_ALIGNMENT  12u
#define MOEC_HEADER_FILE_BYTES 16u
#define MOEC_HEADER_N_SECTIONS 24u
#define MOEC_HEADER_CONTENTS   32u /* SHA-256 of the contents table */
#define MOEC_HEADER_RESERVED   64u /* zero up to the CRC */
#define MOEC_HEADER_CRC        124u

#define MOEC_SECTION_ALIGNMENT 64u /* of sections other than records */
#define MOEC_MIN_ALIGNMENT     64u
#define MOEC_MAX_ALIGNMENT     (1u << 20)

/* Small sections (everything but dense weights, record indices and records) hold at most this much. */
#define MOEC_SMALL_SECTION_MAX_BYTES ((uint64_t)1 << 30)

/* Compressed sections are cut into pieces of this many content bytes, or of at most as many with
 * MOEC_SECTION_FLAG_CUT, each compressed alone: readers need one piece of memory, and damage is located. */
#define MOEC_PIECE_BYTES        ((size_t)1 << 18)
#define MOEC_PIECE_HEADER_BYTES 8u /* u32 stored bytes (bit 31: not compressed), u32 CRC32C of them */
#define MOEC_PIECE_RAW          0x80000000u

enum moec_section_kind {
    MOEC_SECTION_CONFIG = 1,
    MOEC_SECTION_TOKENIZER = 2,
    MOEC_SECTION_PATHS = 3,
    MOEC_SECTION_ROUTING = 4,
    MOEC_SECTION_CERTIFICATE = 5,
    MOEC_SECTION_PROVENANCE = 6,
    MOEC_SECTION_DENSE_TABLE = 7,
    MOEC_SECTION_DENSE = 8,
    MOEC_SECTION_RECORD_INDEX = 9, /* one for each precision copy */
    MOEC_SECTION_RECORDS = 10,     /* likewise */
    MOEC_SECTION_GENERATION = 11,
};
#define MOEC_SECTION_ANCILLARY                                                                               \
    0x8000u /* kinds from here on may be skipped by readers that do not know them */
#define MOEC_SECTION_SEQUENCE      (MOEC_SECTION_ANCILLARY + 1)
#define MOEC_SECTION_CHAT          (MOEC_SECTION_ANCILLARY + 2)
#define MOEC_SECTION_SPARSITY      (MOEC_SECTION_ANCILLARY + 3)
#define MOEC_SECTION_DECISIONS     (MOEC_SECTION_ANCILLARY + 4)
#define MOEC_SECTION_SPARSITY_PLAN (MOEC_SECTION_ANCILLARY + 5)
#define MOEC_SECTION_RECORD_PARTS  (MOEC_SECTION_ANCILLARY + 6)
#define MOEC_SECTION_PREDICTOR     (MOEC_SECTION_ANCILLARY + 7)
#define MOEC_SECTION_ROUTER_RANGES (MOEC_SECTION_ANCILLARY + 8)
#define MOEC_SECTION_EXPERT_SCORES (MOEC_SECTION_ANCILLARY + 9)
#define MOEC_SECTION_EVICT_WEIGHTS (MOEC_SECTION_ANCILLARY + 10)
#define MOEC_SECTION_DENSE_SUMS    (MOEC_SECTION_ANCILLARY + 11)
#define MOEC_SECTION_FIT           (MOEC_SECTION_ANCILLARY + 12)

#define MOEC_SECTION_FLAG_COMPRESSED 1u
#define MOEC_SECTION_FLAG_CUT        2u /* of dense weights, compressed ones: pieces may be shorter */

struct moec_section {
    uint32_t kind;
    uint32_t level; /* precision copy of record sections, 0 of others */
    uint32_t flags;
    uint64_t offset;
    uint64_t stored_bytes;
    uint64_t content_bytes;
    uint8_t digest[MOEC_SHA256_BYTES]; /* of the stored bytes */
    char name[32];
};

struct moec_contents {
    uint32_t alignment;
    uint64_t file_bytes;
    uint32_t n_sections;
    struct moec_section sections[MOEC_BUNDLE_MAX_SECTIONS];
};

/* "config", "records of copy 2", ... */
void moec_section_set_name(struct moec_section *section);

/* Reads and checks header and contents table. MOEC_ERR_UNSUPPORTED for other versions, MOEC_ERR_CHECKSUM for
 * damage, MOEC_ERR_FORMAT for content that no writer produces; on a CHECKSUM failure `place` (may be NULL)
 * says "header" or "contents". */
MOEC_WARN_UNUSED enum moec_status moec_contents_read(const struct moec_file *file,
                                                     struct moec_contents *contents, const char **place,
                                                     struct moec_error *err);
void moec_contents_encode(const struct moec_contents *contents, uint8_t *header, uint8_t *table);
/* NULL when there is none. */
const struct moec_section *moec_contents_find(const struct moec_contents *contents, uint32_t kind,
                                              uint32_t level);

/* Reads a section into `content` (content_bytes), checking its SHA-256 and decompressing it. */
MOEC_WARN_UNUSED enum moec_status moec_section_load(const struct moec_file *file,
                                                    const struct moec_section *section, uint8_t *content,
                                                    struct moec_error *err);
/* The same into new memory, owned by the caller; refuses more than limit_bytes. */
MOEC_WARN_UNUSED enum moec_status moec_section_load_alloc(const struct moec_file *file,
                                                          const struct moec_section *section,
                                                          uint64_t limit_bytes, uint8_t **content,
                                                          struct moec_error *err);

/* Loads a section of at most MOEC_SMALL_SECTION_MAX_BYTES into new memory, owned by the caller; *bytes stays
 * NULL when it is absent and not required. */
MOEC_WARN_UNUSED enum moec_status moec_bundle_load_small(const struct moec_bundle *bundle, uint32_t kind,
                                                         bool required, uint8_t **bytes, size_t *n_bytes,
                                                         struct moec_error *err);

/* Checks the table of the dense weights, and sets bundle->late_bytes by it. */
MOEC_WARN_UNUSED enum moec_status moec_bundle_open_dense_table(struct moec_bundle *bundle,
                                                               struct moec_error *err);

/* Cuts and compresses content; calls `sink` with each run of stored bytes, in order. */
typedef enum moec_status moec_section_sink(void *context, const uint8_t *bytes, size_t n,
                                           struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_pieces_encode(const uint8_t *content, uint64_t content_bytes,
                                                     moec_section_sink *sink, void *context,
                                                     struct moec_error *err);

/* The same for content that arrives in pieces: push any lengths, then finish once. */
struct moec_pieces {
    moec_section_sink *sink;
    void *context;
    uint8_t *buffer; /* MOEC_PIECE_BYTES, the caller's */
    size_t used;
};
MOEC_WARN_UNUSED enum moec_status moec_pieces_push(struct moec_pieces *pieces, const uint8_t *bytes, size_t n,
                                                   struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_pieces_finish(struct moec_pieces *pieces, struct moec_error *err);

/* Contents of sections. Fixed sizes: */
#define MOEC_CERTIFICATE_BYTES     456u
#define MOEC_PROVENANCE_BYTES      944u
#define MOEC_SEQUENCE_HEADER_BYTES 40u
#define MOEC_SEQUENCE_STEP_BYTES   72u
#define MOEC_SEQUENCE_BYTES        (MOEC_SEQUENCE_HEADER_BYTES + MOEC_MAX_SEQUENCE * MOEC_SEQUENCE_STEP_BYTES)
#define MOEC_DENSE_HEADER_BYTES    16u
#define MOEC_DENSE_ENTRY_BYTES     40u
#define MOEC_ROUTING_HEADER_BYTES  8u
#define MOEC_ROUTING_ENTRY_BYTES   16u
#define MOEC_INDEX_HEADER_BYTES    16u
#define MOEC_INDEX_ENTRY_BYTES     24u /* with one codec of all projections */
#define MOEC_INDEX_MIXED_BYTES     32u /* with one of each */

MOEC_WARN_UNUSED enum moec_status moec_certificate_encode(const struct moec_certificate *certificate,
                                                          uint8_t *bytes, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_certificate_decode(const uint8_t *bytes, size_t n_bytes,
                                                          struct moec_certificate *certificate,
                                                          struct moec_error *err);
/* The sequence and part_digest of a certificate. */
MOEC_WARN_UNUSED enum moec_status moec_sequence_encode(const struct moec_certificate *certificate,
                                                       uint8_t *bytes, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_sequence_decode(const uint8_t *bytes, size_t n_bytes,
                                                       struct moec_certificate *certificate,
                                                       struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_provenance_encode(const struct moec_provenance *provenance,
                                                         uint8_t *bytes, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_provenance_decode(const uint8_t *bytes, size_t n_bytes,
                                                         struct moec_provenance *provenance,
                                                         struct moec_error *err);

/* n = MoE layers x experts; encode writes MOEC_ROUTING_HEADER_BYTES + n * MOEC_ROUTING_ENTRY_BYTES. */
void moec_routing_encode(const struct moec_routing_summary *routing, uint32_t n_layer, uint32_t n_expert,
                         uint8_t *bytes);
MOEC_WARN_UNUSED enum moec_status moec_routing_decode(const uint8_t *bytes, size_t n_bytes, uint32_t n_layer,
                                                      uint32_t n_expert, struct moec_routing_summary *routing,
                                                      struct moec_error *err);

/* The table alone; encode writes MOEC_DENSE_HEADER_BYTES + n_entries * MOEC_DENSE_ENTRY_BYTES, decode
 * allocates the entries, checks them against the config and leaves blob NULL. */
void moec_dense_table_encode(const struct moec_dense *dense, uint8_t *bytes);
MOEC_WARN_UNUSED enum moec_status moec_dense_table_decode(const uint8_t *bytes, size_t n_bytes,
                                                          const struct moec_config *config,
                                                          struct moec_dense *dense, struct moec_error *err);

/* The records of one precision copy. */
struct moec_record_level {
    struct moec_record_entry *entries; /* (MoE layers, n_expert), with absolute offsets; the caller's */
    uint8_t bits;                      /* that all have; 0 in copy 0 */
    bool is_mixed;                     /* form 1: an entry has a codec of each projection, else of all */
};

/* Index of a copy; its offsets are relative to the records' section, and `codecs` are by
 * number (MOEC_CODEC_TABLE). */
void moec_record_index_encode(const struct moec_record_level *level, const struct moec_config *config,
                              const struct moec_codec *codecs, uint64_t records_offset, uint8_t *bytes);

/* Whose records an index lists, where they stand, and the codecs found so far (MOEC_CODEC_TABLE). */
struct moec_record_home {
    const struct moec_config *config;
    const struct moec_section *records;
    uint32_t alignment;
    struct moec_codec *codecs;
};
MOEC_WARN_UNUSED enum moec_status moec_record_index_decode(const uint8_t *bytes, size_t n_bytes,
                                                           const struct moec_record_home *home,
                                                           struct moec_record_level *level,
                                                           struct moec_error *err);

#endif
