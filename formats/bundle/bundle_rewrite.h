/* Writing a bundle anew with other sections (internal to formats/bundle): what stays keeps its bytes, which
 * are checked on the way (SHA-256); offsets and the contents table change. Thread rule: one thread. */
#ifndef MOEC_FORMATS_BUNDLE_REWRITE_H
#define MOEC_FORMATS_BUNDLE_REWRITE_H

#include "formats/bundle/bundle_format.h"

/* What changes. All zero: nothing but the note. */
struct moec_bundle_changes {
    bool drops[MOEC_MAX_COPIES]; /* precision copies to leave out, by their number in the file */
    uint32_t drop_kind;          /* of a section to leave out; 0 = none */
    const char *note;            /* added to the options in the provenance */
    /* Sections that are put in, in place of their like; kind 0 = none. */
    struct moec_bundle_put {
        uint32_t kind;
        const uint8_t *bytes; /* its content, stored as it is; borrowed */
        size_t n_bytes;
    } puts[3];
};

/* `n_bytes` is the new file's size. Errors: MOEC_ERR_LIMIT when provenance or the contents table have no
 * room, MOEC_ERR_CHECKSUM, those of the output. */
MOEC_WARN_UNUSED enum moec_status moec_bundle_rewrite(const struct moec_bundle *bundle,
                                                      const struct moec_bundle_changes *changes,
                                                      const char *out, uint64_t *n_bytes,
                                                      struct moec_error *err);

#endif
