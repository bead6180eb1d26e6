/* Bundles from arbitrary bytes: once as they are, once with every checksum made right, so that mutations
 * reach what stands behind the checksums. Nothing may crash, and a bundle that opens must be safe to use. */
#include "formats/bundle/bundle_format.h"

#include "formats/base/bytes.h"
#include "formats/bundle/bundle_predictor.h"
#include "formats/bundle/section_pieces.h"
#include "runtime/forward/context/learned_predictor.h"
#include "runtime/kernels/kernels.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ---- making checksums right ---- */

static void reseal_pieces(uint8_t *section, uint64_t n)
{
    for (uint64_t at = 0; n - at >= MOEC_PIECE_HEADER_BYTES;) {
        uint32_t stored = moec_get_u32(section + at) & ~MOEC_PIECE_RAW;
        if (stored > n - at - MOEC_PIECE_HEADER_BYTES)
            return;
        moec_put_u32(section + at + 4, moec_crc32c(0, section + at + MOEC_PIECE_HEADER_BYTES, stored));
        at += MOEC_PIECE_HEADER_BYTES + (uint64_t)stored;
    }
}

static void reseal_index(uint8_t *index, uint64_t n, const uint8_t *records, uint64_t n_records)
{
    const bool is_mixed = n >= MOEC_INDEX_HEADER_BYTES && moec_get_u32(index + 12) == 1;
    const uint64_t entry_bytes = is_mixed ? MOEC_INDEX_MIXED_BYTES : MOEC_INDEX_ENTRY_BYTES;
    for (uint64_t at = MOEC_INDEX_HEADER_BYTES; at <= n && n - at >= entry_bytes; at += entry_bytes) {
        uint64_t offset = moec_get_u64(index + at);
        uint32_t bytes = moec_get_u32(index + at + 8);
        if (offset <= n_records && bytes <= n_records - offset)
            moec_put_u32(index + at + 12, moec_crc32c(0, records + offset, bytes));
    }
}

/* Checksums of dense weights that are stored as they are. */
static void reseal_sums(uint8_t *bytes, size_t size, const uint8_t *table, uint64_t n, const uint8_t *dense,
                        uint64_t n_dense)
{
    for (uint64_t i = 0; i < n; i++) {
        const uint8_t *entry = table + i * MOEC_BUNDLE_SECTION_BYTES;
        const uint64_t offset = moec_get_u64(entry + 16), stored = moec_get_u64(entry + 24);
        if (moec_get_u32(entry) == MOEC_SECTION_DENSE_SUMS && offset <= size && stored <= size - offset &&
            stored == moec_section_sums_bytes(n_dense))
            moec_section_sums_encode(dense, n_dense, bytes + offset);
    }
}

static void reseal(uint8_t *bytes, size_t size)
{
    if (size < MOEC_BUNDLE_HEADER_BYTES)
        return;
    uint64_t n = moec_get_u32(bytes + MOEC_HEADER_N_SECTIONS);
    if (n > MOEC_BUNDLE_MAX_SECTIONS || n * MOEC_BUNDLE_SECTION_BYTES > size - MOEC_BUNDLE_HEADER_BYTES)
        return;
    uint8_t *table = bytes + MOEC_BUNDLE_HEADER_BYTES;
    /* Backwards: records stand behind the indices that hold their checksums. */
    for (uint64_t i = n; i-- > 0;) {
        uint8_t *entry = table + i * MOEC_BUNDLE_SECTION_BYTES;
        uint64_t offset = moec_get_u64(entry + 16), stored = moec_get_u64(entry + 24);
        if (offset > size || stored > size - offset)
            continue;
        if ((moec_get_u32(entry + 8) & MOEC_SECTION_FLAG_COMPRESSED) != 0)
            reseal_pieces(bytes + offset, stored);
        else if (moec_get_u32(entry) == MOEC_SECTION_DENSE)
            reseal_sums(bytes, size, table, n, bytes + offset, stored);
        for (uint64_t r = 0; moec_get_u32(entry) == MOEC_SECTION_RECORD_INDEX && r < n; r++) {
            const uint8_t *other = table + r * MOEC_BUNDLE_SECTION_BYTES;
            uint64_t from = moec_get_u64(other + 16), n_records = moec_get_u64(other + 24);
            if (moec_get_u32(other) == MOEC_SECTION_RECORDS &&
                moec_get_u32(other + 4) == moec_get_u32(entry + 4) && from <= size &&
                n_records <= size - from)
                reseal_index(bytes + offset, stored, bytes + from, n_records);
        }
        moec_sha256(bytes + offset, stored, entry + 40);
    }
    moec_put_u64(bytes + MOEC_HEADER_FILE_BYTES, size);
    moec_sha256(table, n * MOEC_BUNDLE_SECTION_BYTES, bytes + MOEC_HEADER_CONTENTS);
    moec_put_u32(bytes + MOEC_HEADER_CRC, moec_crc32c(0, bytes, MOEC_HEADER_CRC));
}

/* ---- using ---- */

static void use_paths(const struct moec_path_table *paths)
{
    uint16_t experts[MOEC_MAX_TOP_K];
    float weights[MOEC_MAX_TOP_K];
    float *out = calloc(paths->n_expert, sizeof *out);
    for (uint32_t i = 0; i < paths->top_k; i++) {
        experts[i] = (uint16_t)i;
        weights[i] = 1;
    }
    for (uint32_t layer = 1; out != NULL && layer < paths->n_layer; layer++)
        moec_path_table_predict(paths, layer, (struct moec_path_choices){layer > 1 ? experts : NULL, weights},
                                (struct moec_path_choices){experts, weights}, out);
    free(out);
}

static void use_predictor(const struct moec_bundle *bundle)
{
    const uint32_t none = UINT32_MAX;
    struct moec_expert_predictor predictor;
    struct moec_learned_predictor *learned_predictor = NULL;
    float *input = calloc(bundle->config.n_embd, sizeof *input);
    if (moec_bundle_load_predictor(bundle, &predictor, NULL) != MOEC_OK)
        abort(); /* the bundle has opened */
    if (input != NULL && predictor.n_layer > 0 &&
        moec_learned_predictor_create(&predictor, &learned_predictor, NULL) == MOEC_OK)
        for (uint32_t s = 0; s < predictor.n_layer; s++)
            (void)moec_learned_predictor_batch(
                learned_predictor, moec_kernels_best(), s,
                &(struct moec_predictor_batch){1, input, bundle->config.n_embd, &none, 1}, 1);
    free(learned_predictor);
    free(input);
    moec_expert_predictor_release(&predictor);
}

/* Decodes one weight row of each record: layouts must lie within what was read. */
static void use_records(const struct moec_bundle *bundle)
{
    size_t n = (size_t)moec_config_moe_count(&bundle->config) * bundle->config.n_expert;
    for (size_t i = 0; i < n * bundle->n_copy; i++) {
        uint32_t copy = (uint32_t)(i / n), ordinal = (uint32_t)(i % n / bundle->config.n_expert);
        uint32_t expert = (uint32_t)(i % bundle->config.n_expert);
        const struct moec_record_entry *entry = moec_bundle_record(bundle, copy, ordinal, expert);
        const struct moec_record_layout *layout = moec_bundle_layout(bundle, copy, ordinal, expert);
        uint8_t *record = malloc(entry->n_bytes);
        const size_t stride = moec_lanes_padded(bundle->config.n_embd);
        float *row = calloc(stride, sizeof *row);
        struct moec_mlp mlp;
        if (record != NULL && row != NULL &&
            moec_bundle_read_record(bundle, (struct moec_record_id){copy, ordinal, expert}, record, NULL) ==
                MOEC_OK) {
            moec_record_bind(layout, record, &mlp);
            moec_matrix_decode_span(&mlp.down, layout->n_ff - 1, 0, layout->n_embd, row);
            moec_kernels_best()->decode_rows(&mlp.down, layout->n_ff - 1, 1, row, stride);
        }
        free(record);
        free(row);
    }
}

static void use_bundle(const char *path)
{
    struct moec_bundle *bundle = NULL;
    struct moec_dense dense = {0};
    struct moec_error err = {0};
    if (moec_bundle_open(path, &bundle, &err) == MOEC_OK) {
        for (uint32_t i = 0; i < moec_bundle_section_count(bundle); i++)
            (void)moec_bundle_section_get(bundle, i);
        if (bundle->paths.n_layer > 0)
            use_paths(&bundle->paths);
        use_records(bundle);
        use_predictor(bundle);
        if (moec_bundle_load_dense(bundle, &dense, &err) == MOEC_OK)
            moec_dense_release(&dense);
        moec_bundle_close(bundle);
    } else if (err.status == MOEC_OK || err.message[0] == '\0') {
        abort(); /* a failure without a message */
    }
    if (moec_bundle_verify(path, NULL, NULL, NULL) == MOEC_OK &&
        moec_bundle_open(path, &bundle, NULL) == MOEC_OK)
        moec_bundle_close(bundle);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    uint8_t *copy = malloc(size + 1);
    int fd = memfd_create("bundle", MFD_CLOEXEC);
    if (copy == NULL || fd < 0)
        abort();
    memcpy(copy, data, size);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (pwrite(fd, copy, size, 0) != (ssize_t)size)
        abort();
    use_bundle(path);
    reseal(copy, size);
    if (memcmp(copy, data, size) != 0) {
        if (pwrite(fd, copy, size, 0) != (ssize_t)size)
            abort();
        use_bundle(path);
    }
    (void)close(fd);
    free(copy);
    return 0;
}
