/* The safetensors files of a folder and which of them each tensor is read from (internal to formats/).
 *
 * 'model.safetensors' alone, as transformers prefers it; or the shards that 'model.safetensors.index.json'
 * names; or, without either, all of 'model-00001-of-0000N.safetensors'. The index decides: a tensor that two
 * shards hold, as an overlay of a fine-tune has it, is read from the one that the index names. Where no index
 * names one, two copies are refused. What the index places in a file that does not have it counts as absent,
 * and is only missed by a model that needs it.
 *
 * Thread rule: immutable after opening. */
#ifndef MOEC_FORMATS_SHARDS_H
#define MOEC_FORMATS_SHARDS_H

#include "formats/checkpoint/safetensors.h"
#include "formats/json/json.h"

/* One copy of a tensor. */
struct moec_shard_tensor {
    const char *name;                           /* borrowed from the entry */
    const struct moec_safetensors_entry *entry; /* NULL: the index places it elsewhere */
    uint32_t file;
};

/* A file that the index names. */
struct moec_shard_name {
    char *name;    /* owned */
    uint32_t file; /* UINT32_MAX: the folder does not have it */
};

/* A tensor that the index places in a file without it. */
struct moec_shard_absence {
    char *tensor; /* owned */
    uint32_t shard;
};

struct moec_shards {
    struct moec_safetensors *files; /* (n_file) sorted by name; owned */
    uint32_t n_file;
    const char *index;              /* name of the index's file, a static string; NULL without one */
    char *where;                    /* its path in quotes, for messages; owned */
    struct moec_shard_name *shards; /* (n_shard) of the index, sorted by name; owned */
    uint32_t n_shard;
    struct moec_shard_tensor *tensors; /* (n_tensor) one for each name, sorted by it; owned */
    size_t n_tensor;
    struct moec_shard_absence *absent; /* (n_absent) sorted by tensor; owned */
    size_t n_absent;
    char *note; /* what the user should hear of these files, a sentence; NULL without; owned */
};

/* The file that lists the tensors of all shards. */
extern const char moec_shard_index_name[];

/* Loads the folder's index: `*map` has each tensor's file, in `*root` (moec_json_free); `*where` is its path
 * in quotes. Both are the caller's, also after an error. Errors: MOEC_ERR_FORMAT, MOEC_ERR_IO,
 * MOEC_ERR_LIMIT, MOEC_ERR_MEMORY, MOEC_ERR_NOT_FOUND. */
MOEC_WARN_UNUSED enum moec_status moec_shard_index_load(const char *folder, struct moec_json **root,
                                                        const struct moec_json **map, char **where,
                                                        struct moec_error *err);

/* Opens the files and checks their tables. A folder with only pytorch_model.bin is refused with advice.
 * Errors: MOEC_ERR_NOT_FOUND without weights, MOEC_ERR_MISMATCH for two copies of a tensor, MOEC_ERR_IO,
 * MOEC_ERR_FORMAT, MOEC_ERR_UNSUPPORTED, MOEC_ERR_LIMIT. On failure nothing is left to close. */
MOEC_WARN_UNUSED enum moec_status moec_shards_open(const char *folder, struct moec_shards *shards,
                                                   struct moec_error *err);

/* NULL when there is no tensor of this name. Borrowed until they are forgotten. */
const struct moec_safetensors_entry *moec_shards_find(const struct moec_shards *shards, const char *name,
                                                      uint32_t *file);

/* Why a tensor is not found that the index has; MOEC_OK where the index does not have it. */
MOEC_WARN_UNUSED enum moec_status moec_shards_explain(const struct moec_shards *shards, const char *name,
                                                      struct moec_error *err);

/* Releases the tables of names; the files stay open. */
void moec_shards_forget(struct moec_shards *shards);
void moec_shards_close(struct moec_shards *shards);

#endif
