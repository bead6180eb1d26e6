/* What the files of the engine share beside its public interface; not exported. */
#ifndef MOEC_RUNTIME_MOERT_INTERNAL_H
#define MOEC_RUNTIME_MOERT_INTERNAL_H

#include "runtime/moert.h"
#include "runtime/storage/record_reader.h"

/* moert_engine_open, with what `io` says beside the options:
 * those choose the way of reading and the emulated device. */
enum moert_status moert_engine_open_io(const char *path, const struct moert_options *options,
                                       const struct moec_record_io *io, struct moert_engine **out,
                                       struct moert_error *err);

/* The same on the device of an entry (runtime/cuda/gpu_library.h): tests have one of their own. NULL: as
 * always. */
struct moec_gpu_entry;
enum moert_status moert_engine_open_on(const char *path, const struct moert_options *options,
                                       const struct moec_record_io *io, const struct moec_gpu_entry *entry,
                                       struct moert_engine **out, struct moert_error *err);

struct moec_engine_chat;
struct moec_tokenizer;

/* The chat templates of a bundle, parsed. One that cannot be used is refused when it is asked for. */
MOEC_WARN_UNUSED enum moec_status moec_engine_chat_open(const struct moec_bundle *bundle,
                                                        struct moec_engine_chat **out,
                                                        struct moec_error *err);
void moec_engine_chat_free(struct moec_engine_chat *chat);

/* Of an engine, borrowed; the tokenizer may be NULL. */
const struct moec_engine_chat *moert_engine_chat(const struct moert_engine *engine);
const struct moec_tokenizer *moert_engine_tokenizer(const struct moert_engine *engine);
const char *moert_engine_path(const struct moert_engine *engine);

/* Both message types exist so that the public header stands alone; statuses are the same numbers. */
enum moert_status moert_to_public(enum moec_status status, const struct moec_error *ours,
                                  struct moert_error *err);

#endif
