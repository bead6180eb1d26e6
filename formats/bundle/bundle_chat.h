/* The chat section of a bundle. Thread rule: reading from several threads is fine. */
#ifndef MOEC_FORMATS_BUNDLE_CHAT_H
#define MOEC_FORMATS_BUNDLE_CHAT_H

#include "formats/bundle/bundle.h"
#include "formats/model/chat_source.h"

/* Fills an empty source, which stays empty where the bundle has no such section.
 * Released with moec_chat_source_release. Errors: those of the section. */
MOEC_WARN_UNUSED enum moec_status moec_bundle_load_chat(const struct moec_bundle *bundle,
                                                        struct moec_chat_source *source,
                                                        struct moec_error *err);

#endif
