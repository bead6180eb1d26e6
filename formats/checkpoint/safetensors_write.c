/* The header comes first and says where each tensor's bytes stand, by the shapes alone. Bytes follow in
 * that order. A file whose size is not what its header says is never committed. */
#include "formats/checkpoint/safetensors_write.h"

#include "formats/base/bytes.h"
#include "formats/base/memory.h"
#include "formats/checkpoint/safetensors.h"
#include "formats/json/json_write.h"

#include <inttypes.h>
#include <string.h>

#define HEADER_ALIGNMENT 8

uint64_t moec_safetensors_tensor_bytes(const struct moec_safetensors_tensor *tensor)
{
    uint64_t n_bytes = tensor->is_integer ? sizeof(int64_t) : tensor->dtype == MOEC_DTYPE_F32 ? 4 : 2;
    for (uint32_t i = 0; i < tensor->n_dims; i++)
        n_bytes *= tensor->shape[i];
    return n_bytes;
}

static void put_tensor(struct moec_json_out *root, const struct moec_safetensors_tensor *tensor,
                       uint64_t begin)
{
    static const char *const names[] = {
        [MOEC_DTYPE_F32] = "F32", [MOEC_DTYPE_F16] = "F16", [MOEC_DTYPE_BF16] = "BF16"};
    struct moec_json_out *node = moec_json_out_object(), *shape = moec_json_out_array(),
                         *range = moec_json_out_array();
    moec_json_out_string(node, "dtype", tensor->is_integer ? "I64" : names[tensor->dtype]);
    for (uint32_t i = 0; i < tensor->n_dims; i++)
        moec_json_out_u64(shape, NULL, tensor->shape[i]);
    moec_json_out_node(node, "shape", shape);
    moec_json_out_u64(range, NULL, begin);
    moec_json_out_u64(range, NULL, begin + moec_safetensors_tensor_bytes(tensor));
    moec_json_out_node(node, "data_offsets", range);
    moec_json_out_node(root, tensor->name, node);
}

static enum moec_status write_header(struct moec_safetensors_writer *writer, const char *json,
                                     struct moec_error *err)
{
    static const char spaces[HEADER_ALIGNMENT] = "        ";
    uint8_t length[8];
    size_t n = strlen(json), padding = (HEADER_ALIGNMENT - n % HEADER_ALIGNMENT) % HEADER_ALIGNMENT;
    if (n + padding > MOEC_SAFETENSORS_MAX_HEADER_BYTES)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "the header of the safetensors file '%s' would have %zu bytes, more than the "
                         "limit of %" PRIu64,
                         writer->output.path, n + padding, MOEC_SAFETENSORS_MAX_HEADER_BYTES);
    moec_put_u64(length, n + padding);
    MOEC_TRY(moec_output_append(&writer->output, length, sizeof length, err));
    MOEC_TRY(moec_output_append(&writer->output, json, n, err));
    MOEC_TRY(moec_output_append(&writer->output, spaces, padding, err));
    writer->file_bytes += sizeof length + n + padding;
    return MOEC_OK;
}

enum moec_status moec_safetensors_writer_open(struct moec_safetensors_writer *writer, const char *path,
                                              const struct moec_safetensors_tensor *tensors, size_t n,
                                              struct moec_error *err)
{
    struct moec_json_out *root = moec_json_out_object(), *metadata = moec_json_out_object();
    char *json = NULL;
    enum moec_status status = MOEC_OK;
    *writer = (struct moec_safetensors_writer){.output = {.fd = -1}};
    moec_json_out_string(metadata, "format", "pt");
    moec_json_out_node(root, "__metadata__", metadata);
    for (size_t i = 0; i < n; i++) {
        put_tensor(root, &tensors[i], writer->file_bytes);
        writer->file_bytes += moec_safetensors_tensor_bytes(&tensors[i]);
    }
    MOEC_TRY_OUT(moec_json_out_line(root, &json, err));
    MOEC_TRY_OUT(moec_output_open(&writer->output, path, err));
    status = write_header(writer, json, err);
    if (status != MOEC_OK)
        moec_safetensors_writer_abort(writer);
out:
    moec_json_out_free(root);
    free(json);
    return status;
}

enum moec_status moec_safetensors_writer_append(struct moec_safetensors_writer *writer, const void *bytes,
                                                size_t n, struct moec_error *err)
{
    return moec_output_append(&writer->output, bytes, n, err);
}

enum moec_status moec_safetensors_writer_commit(struct moec_safetensors_writer *writer,
                                                struct moec_error *err)
{
    if (writer->output.n_bytes == writer->file_bytes)
        return moec_output_commit(&writer->output, err);
    enum moec_status status = moec_fail(err, MOEC_ERR_USAGE,
                                        "the safetensors file '%s' has %" PRIu64 " bytes, but its table "
                                        "of tensors says %" PRIu64,
                                        writer->output.path, writer->output.n_bytes, writer->file_bytes);
    moec_safetensors_writer_abort(writer);
    return status;
}

void moec_safetensors_writer_abort(struct moec_safetensors_writer *writer)
{
    moec_output_abort(&writer->output);
}
