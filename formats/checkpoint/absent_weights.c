/* Names come from the index, which says of each tensor in which file it would be. Found ones are empty, and
 * reading fails with the advice to download the weights. */
#include "formats/checkpoint/absent_weights.h"

#include "formats/base/memory.h"
#include "formats/checkpoint/folder_json.h"
#include "formats/checkpoint/shards.h"

#include <stdlib.h>

struct absent_weights {
    struct moec_tensor_source source; /* first: this is what others see */
    struct moec_json *root;           /* of the index; NULL without one */
    const struct moec_json *map;      /* in it: tensors and their files */
    char *where;                      /* path of the index in quotes */
};

static bool find_tensor(const struct moec_tensor_source *self, const char *name, struct moec_tensor *tensor)
{
    const struct moec_json *map = ((const struct absent_weights *)self)->map;
    *tensor = (struct moec_tensor){0};
    return map != NULL && moec_json_find(map, name) != NULL;
}

static enum moec_status explain_missing(const struct moec_tensor_source *self, const char *name,
                                        struct moec_error *err)
{
    const struct absent_weights *absent = (const struct absent_weights *)self;
    return moec_fail(err, MOEC_ERR_FORMAT, "%s lists no tensor '%s', which this model needs", absent->where,
                     name);
}

static enum moec_status read_nothing(const struct moec_tensor_source *self, uint32_t file, uint64_t offset,
                                     void *bytes, size_t n, struct moec_error *err)
{
    (void)self, (void)file, (void)offset, (void)bytes, (void)n;
    return moec_fail(err, MOEC_ERR_NOT_FOUND, "the folder of the model has no weights: download them");
}

static const struct moec_file *no_file(const struct moec_tensor_source *self, uint32_t file)
{
    (void)self, (void)file;
    return NULL;
}

static void forget_names(struct moec_tensor_source *self)
{
    struct absent_weights *absent = (struct absent_weights *)self;
    moec_json_free(absent->root);
    absent->root = NULL;
    absent->map = NULL;
}

static void free_source(struct moec_tensor_source *self)
{
    forget_names(self);
    free(((struct absent_weights *)self)->where);
    free(self);
}

enum moec_status moec_absent_weights_open(const char *folder, struct moec_tensor_source **out,
                                          struct moec_error *err)
{
    struct absent_weights *made = NULL;
    bool has_index = false;
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_folder_has(folder, moec_shard_index_name, &has_index, err));
    MOEC_TRY(moec_alloc((void **)&made, 1, sizeof *made, "a source of tensors", err));
    made->source = (struct moec_tensor_source){.index = has_index ? moec_shard_index_name : NULL,
                                               .find = find_tensor,
                                               .explain = explain_missing,
                                               .read = read_nothing,
                                               .file = no_file,
                                               .forget = forget_names,
                                               .free = free_source};
    if (has_index)
        MOEC_TRY_OUT(moec_shard_index_load(folder, &made->root, &made->map, &made->where, err));
    *out = &made->source;
    made = NULL;
out:
    if (made != NULL)
        free_source(&made->source);
    return status;
}
