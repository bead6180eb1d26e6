/* Parts: which windows search, which select and which certify (design D5, D16).
 *
 * By default half of all windows, at most 512, certify: only their number makes a promise narrow, and each
 * costs one evaluation. Of the rest two thirds, at most 256, search and one third selects, at most 128; fewer
 * than MOEC_MIN_SELECT_WINDOWS go to the search.
 *
 * Windows of one document (a row of the data: running text is one) are alike, so where there are documents
 * enough, parts are drawn by document and no document has windows in two parts: documents come in a drawn
 * order, each goes to the part that is furthest from its share, and windows are drawn within each part. Where
 * there are fewer, or where one of them is most of a part, windows are drawn from all and parts may be
 * neighbours in the text. Thread rule: pure functions. */
#ifndef MOEC_PROFILER_PARTS_H
#define MOEC_PROFILER_PARTS_H

#include "formats/base/error.h"
#include "formats/profile/profile.h"

#define MOEC_MIN_PART_WINDOWS   16 /* of search and certificate; fewer are refused */
#define MOEC_MIN_SELECT_WINDOWS 8  /* fewer are not worth a part */
#define MOEC_MIN_DOCUMENTS      32 /* from which on parts are drawn by document */
#define MOEC_MIN_EFFECTIVE_DOCUMENTS                                                                         \
    8 /* that certify: square of their windows' sum over sum of squares (Kish) */

#define MOEC_DEFAULT_SEARCH_WINDOWS      256
#define MOEC_DEFAULT_SELECT_WINDOWS      128
#define MOEC_DEFAULT_CERTIFICATE_WINDOWS 512

/* What is asked for. */
struct moec_part_request {
    uint32_t n_window;                /* in all; 0 = all that there are, within the default's limits */
    uint32_t n_part[MOEC_PART_COUNT]; /* windows of a part; 0 = its share of all */
    bool no_select;                   /* leave the select part empty */
    uint32_t min_part_windows;        /* of search and certificate */
};

/* Windows of each part when there are n_available. Errors: MOEC_ERR_USAGE (a part would have too few),
 * MOEC_ERR_LIMIT when more are asked for than there are. */
MOEC_WARN_UNUSED enum moec_status moec_parts_size(const struct moec_part_request *request,
                                                  uint64_t n_available, uint32_t sizes[MOEC_PART_COUNT],
                                                  struct moec_error *err);

/* Windows that were drawn: the search part's first, then those that select, then those that certify. */
struct moec_part_draw {
    uint64_t *index; /* (n_window): which of the available windows, owned */
    uint8_t *parts;  /* (n_window): enum moec_part, owned */
    uint32_t n_window;
    bool by_document;
};

/* The documents that windows are of: d has the windows starts[d] .. starts[d + 1] - 1, the last one up to
 * n_window - 1. Borrowed. */
struct moec_part_documents {
    const uint64_t *starts; /* (n) */
    uint64_t n, n_window;
};

/* Draws windows for parts of these sizes. By document a part may come out smaller than asked where its
 * documents have fewer windows. The caller releases `draw`. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_parts_draw(const struct moec_part_documents *all,
                                                  const uint32_t sizes[MOEC_PART_COUNT], uint64_t seed,
                                                  struct moec_part_draw *draw, struct moec_error *err);
void moec_part_draw_release(struct moec_part_draw *draw);

/* Tokens of the part that chose each expert, and their mean gate weight, 0 where there are none: (S, E) each.
 * From the routing trace; a profile without one gives those of all windows. */
void moec_part_routing(const struct moec_profile *profile, enum moec_part part, uint64_t *activations,
                       double *mean_gate_weight);

/* What predictions of routing are taught and tested on: the search part teaches, and the part below tests it. Of
 * a profile that leaves the certificate part unmeasured that is the selection, else the certificate part; where
 * there is no such window, even windows of the search teach and odd ones test. */
struct moec_part_split {
    const uint8_t *parts;  /* (n_window), borrowed; NULL as in moec_part_has */
    enum moec_part tested; /* MOEC_PART_ALL: odd windows */
};
struct moec_part_split moec_part_split_make(const uint8_t *parts, uint32_t n_window);
bool moec_part_split_teaches(const struct moec_part_split *split, uint32_t w);
bool moec_part_split_tests(const struct moec_part_split *split, uint32_t w);

/* "search", "certificate", "select". */
const char *moec_part_name(enum moec_part part);

#endif
