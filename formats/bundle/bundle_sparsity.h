/* The thresholds and the plan of sparsity of a bundle: reading them, and putting them into a bundle that
 * exists. Thread rule: reading from several threads is fine; writing: one thread. */
#ifndef MOEC_FORMATS_BUNDLE_SPARSITY_H
#define MOEC_FORMATS_BUNDLE_SPARSITY_H

#include "formats/bundle/sparsity_plan.h"
#include "formats/tables/sparsity_table.h"

/* Leaves `table` empty where the bundle has no such section. Released with moec_sparsity_table_release.
 * Errors: those of the section. */
MOEC_WARN_UNUSED enum moec_status moec_bundle_load_sparsity(const struct moec_bundle *bundle,
                                                            struct moec_sparsity_table *table,
                                                            struct moec_error *err);

/* The same for the plan, released with moec_sparsity_plan_release. */
MOEC_WARN_UNUSED enum moec_status moec_bundle_load_plan(const struct moec_bundle *bundle,
                                                        struct moec_sparsity_plan *plan,
                                                        struct moec_error *err);

/* Writes to `out` the bundle at `path` with this table and, unless it is NULL, this plan, in place of those
 * that it may have, and with_parts with checksums of parts of its records and
 * the table's turnover of neurons; `out` may be `path`. The other
 * sections keep their bytes, provenance but for a note.
 * Errors: as moec_bundle_strip; MOEC_ERR_MISMATCH where the table is of another model. */
MOEC_WARN_UNUSED enum moec_status moec_bundle_put_sparsity(const char *path,
                                                           const struct moec_sparsity_table *table,
                                                           const struct moec_sparsity_plan *plan,
                                                           bool with_parts, const char *out,
                                                           struct moec_error *err);

#endif
