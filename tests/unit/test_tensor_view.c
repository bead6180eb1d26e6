/* Matrices in tensors: however a container holds experts, the same matrices are read. */
#include "tests/unit/temporary.h"

#include "formats/base/half.h"
#include "formats/checkpoint/safetensors_source.h"
#include "formats/checkpoint/tensor_view.h"

#include <math.h>

enum { E = 3, FF = 70, EMBD = 36 }; /* more neurons than are decoded at a time */

/* Any number that every float dtype holds exactly. */
static float weight(uint32_t projection, uint32_t expert, uint32_t row, uint32_t column)
{
    uint32_t x = ((projection * E + expert) * 128 + row) * 128 + column + 1;
    x = (x ^ x >> 7) * 2654435761u;
    return ldexpf((float)(x >> 25) - 64, (int)(x & 3) - 3);
}

enum { GATE, UP, DOWN };

/* One way to hold the experts of a layer: for each projection the tensor, and its layout. */
struct way {
    const char *names[3]; /* {E} is the expert's digit */
    struct moec_tensor_layout layouts[3];
};

static const struct way ways[] = {
    {{"{E}.gate", "{E}.up", "{E}.down"}, {{0}, {0}, {0}}},
    {{"halves", "halves", "down"},
     {{.is_stacked = true, .n_part = 2}, {.is_stacked = true, .n_part = 2, .part = 1}, {.is_stacked = true}}},
    {{"turns", "turns", "down"},
     {{.is_stacked = true, .n_part = 2, .is_interleaved = true},
      {.is_stacked = true, .n_part = 2, .part = 1, .is_interleaved = true},
      {.is_stacked = true}}},
    {{"halves_T", "halves_T", "down_T"},
     {{.is_stacked = true, .is_transposed = true, .n_part = 2},
      {.is_stacked = true, .is_transposed = true, .n_part = 2, .part = 1},
      {.is_stacked = true, .is_transposed = true}}},
    {{"turns_T", "turns_T", "down_T"},
     {{.is_stacked = true, .is_transposed = true, .n_part = 2, .is_interleaved = true},
      {.is_stacked = true, .is_transposed = true, .n_part = 2, .part = 1, .is_interleaved = true},
      {.is_stacked = true, .is_transposed = true}}},
};
#define N_WAYS (sizeof ways / sizeof *ways)

/* ---- a file with all of them ---- */

struct file {
    enum moec_dtype dtype;
    size_t item;
    uint8_t *data;
    size_t n_data;
    char header[8192];
    size_t n_header;
};

static void begin_tensor(struct file *file, const char *name, const char *shape, size_t n)
{
    static const char *const names[] = {"F32", "F16", "BF16"};
    file->n_header += (size_t)snprintf(file->header + file->n_header, sizeof file->header - file->n_header,
                                       "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
                                       file->n_header == 0 ? "{" : ",", name, names[file->dtype], shape,
                                       file->n_data, file->n_data + n * file->item);
    file->data = realloc(file->data, file->n_data + n * file->item);
    assert_non_null(file->data);
}

static void put(struct file *file, float value)
{
    struct moec_codec codec = {.dtype = (uint8_t)file->dtype};
    MUST(moec_codec_encode_row(codec, &value, 1, file->data + file->n_data, &err));
    file->n_data += file->item;
}

static void put_alone(struct file *file)
{
    for (uint32_t e = 0; e < E; e++) {
        static const char *const names[] = {"gate", "up", "down"};
        for (uint32_t p = GATE; p <= DOWN; p++) {
            char name[16], shape[32];
            const uint32_t rows = p == DOWN ? EMBD : FF, columns = p == DOWN ? FF : EMBD;
            (void)snprintf(name, sizeof name, "%u.%s", e, names[p]);
            (void)snprintf(shape, sizeof shape, "[%u,%u]", rows, columns);
            begin_tensor(file, name, shape, (size_t)rows * columns);
            for (uint32_t r = 0; r < rows; r++)
                for (uint32_t c = 0; c < columns; c++)
                    put(file, weight(p, e, r, c));
        }
    }
}

/* Gate and up in one tensor. */
static void put_fused(struct file *file, const char *name, bool is_transposed, bool is_interleaved)
{
    char shape[32];
    (void)snprintf(shape, sizeof shape, "[%d,%d,%d]", E, is_transposed ? EMBD : 2 * FF,
                   is_transposed ? 2 * FF : EMBD);
    begin_tensor(file, name, shape, (size_t)E * EMBD * 2 * FF);
    for (uint32_t e = 0; e < E; e++)
        for (uint32_t i = 0; i < 2 * FF * EMBD; i++) {
            const uint32_t output = is_transposed ? i % (2 * FF) : i / EMBD;
            const uint32_t input = is_transposed ? i / (2 * FF) : i % EMBD;
            const uint32_t p = is_interleaved ? output % 2 : output / FF;
            put(file, weight(p, e, is_interleaved ? output / 2 : output % FF, input));
        }
}

static void put_down(struct file *file, const char *name, bool is_transposed)
{
    char shape[32];
    (void)snprintf(shape, sizeof shape, "[%d,%d,%d]", E, is_transposed ? FF : EMBD,
                   is_transposed ? EMBD : FF);
    begin_tensor(file, name, shape, (size_t)E * EMBD * FF);
    for (uint32_t e = 0; e < E; e++)
        for (uint32_t i = 0; i < FF * EMBD; i++)
            put(file, is_transposed ? weight(DOWN, e, i % EMBD, i / EMBD) : weight(DOWN, e, i / FF, i % FF));
}

/* A folder with the file of this dtype. */
static char *write_folder(enum moec_dtype dtype)
{
    struct file file = {.dtype = dtype, .item = dtype == MOEC_DTYPE_F32 ? 4 : 2};
    put_alone(&file);
    put_fused(&file, "halves", false, false);
    put_fused(&file, "turns", false, true);
    put_fused(&file, "halves_T", true, false);
    put_fused(&file, "turns_T", true, true);
    put_down(&file, "down", false);
    put_down(&file, "down_T", true);
    begin_tensor(&file, "bias", "[3,70]", (size_t)E * FF);
    for (uint32_t e = 0; e < E; e++)
        for (uint32_t i = 0; i < FF; i++)
            put(&file, weight(GATE, e, i, 0));
    file.header[file.n_header++] = '}';
    char *folder = temporary_folder();
    uint8_t *bytes = calloc(8 + file.n_header + file.n_data, 1);
    assert_non_null(bytes);
    for (size_t i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(file.n_header >> (8 * i));
    memcpy(bytes + 8, file.header, file.n_header);
    memcpy(bytes + 8 + file.n_header, file.data, file.n_data);
    temporary_write(folder, "model.safetensors", bytes, 8 + file.n_header + file.n_data);
    free(bytes);
    free(file.data);
    return folder;
}

static struct moec_tensor_view view_of(const struct moec_tensor_source *source, const struct way *way,
                                       uint32_t p, uint32_t expert)
{
    char name[16];
    struct moec_tensor tensor;
    struct moec_tensor_view view;
    const char *pattern = way->names[p];
    if (pattern[0] == '{')
        (void)snprintf(name, sizeof name, "%u%s", expert, pattern + 3);
    else
        (void)snprintf(name, sizeof name, "%s", pattern);
    assert_true(source->find(source, name, &tensor));
    MUST(moec_tensor_view_make(
        &tensor, way->layouts[p],
        (struct moec_tensor_wanted){p == DOWN ? EMBD : FF, p == DOWN ? FF : EMBD, expert, E}, "the tensor",
        &view, &err));
    return view;
}

/* Every way of reading gives the weights: all rows at once, some of them, columns as rows, stored bytes. */
static void check_view(const struct moec_tensor_source *source, const struct moec_tensor_view *view,
                       uint32_t p, uint32_t expert, bool is_turned)
{
    const size_t rows = view->rows, columns = view->columns, some = rows < 9 ? rows : 9;
    float *all = malloc(rows * columns * sizeof *all), *few = malloc(some * columns * sizeof *few);
    struct moec_tensor_reader reader = {.source = source, .view = *view, .name = "x"};
    assert_true(all != NULL && few != NULL);
    MUST(moec_tensor_read_matrix(&reader, all, &err));
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = 0; c < columns; c++)
            assert_true(all[r * columns + c] ==
                        (is_turned ? weight(p, expert, c, r) : weight(p, expert, r, c)));
    reader.scratch = malloc(moec_tensor_scratch_bytes(view));
    assert_non_null(reader.scratch);
    for (size_t first = 5; first + some <= rows; first += 17) {
        MUST(moec_tensor_read_rows(&reader, first, some, few, &err));
        assert_memory_equal(few, all + first * columns, some * columns * sizeof *few);
    }
    if (moec_tensor_view_has_rows(view) && view->tensor.coding->dtype != MOEC_DTYPE_COUNT) {
        const size_t row_bytes = columns * view->tensor.coding->block_bytes, stride = row_bytes + 3;
        uint8_t *stored = malloc(rows * stride);
        assert_non_null(stored);
        MUST(moec_tensor_read_stored(&reader, 1, rows - 1, stored, stride, &err));
        for (size_t r = 1; r < rows; r++) {
            view->tensor.coding->decode(stored + (r - 1) * stride, columns, few);
            assert_memory_equal(few, all + r * columns, columns * sizeof *few);
        }
        MUST(moec_tensor_read_stored(&reader, 0, rows, stored, row_bytes, &err));
        view->tensor.coding->decode(stored + (rows - 1) * row_bytes, columns, few);
        assert_memory_equal(few, all + (rows - 1) * columns, columns * sizeof *few);
        free(stored);
    }
    free(reader.scratch);
    free(all);
    free(few);
}

static void test_tensor_view__experts_are_the_same_in_every_layout(void **state)
{
    (void)state;
    for (int dtype = MOEC_DTYPE_F32; dtype <= MOEC_DTYPE_BF16; dtype++) {
        char *folder = write_folder((enum moec_dtype)dtype);
        struct moec_tensor_source *source = NULL;
        MUST(moec_safetensors_source_open(folder, &source, &err));
        for (size_t w = 0; w < N_WAYS; w++)
            for (uint32_t expert = 0; expert < E; expert++)
                for (uint32_t p = GATE; p <= DOWN; p++) {
                    const struct moec_tensor_view view = view_of(source, &ways[w], p, expert);
                    const struct moec_tensor_view turned = moec_tensor_view_transpose(&view);
                    assert_int_equal(moec_tensor_view_dtype(&view), dtype);
                    assert_int_equal(moec_tensor_view_bytes(&view),
                                     FF * EMBD * (dtype == MOEC_DTYPE_F32 ? 4 : 2));
                    assert_int_equal(moec_tensor_view_has_rows(&view), !ways[w].layouts[p].is_transposed);
                    check_view(source, &view, p, expert, false);
                    check_view(source, &turned, p, expert, true);
                }
        source->free(source);
        temporary_remove(folder);
    }
}

static void test_tensor_view__stacked_vectors(void **state)
{
    (void)state;
    char *folder = write_folder(MOEC_DTYPE_BF16);
    struct moec_tensor_source *source = NULL;
    struct moec_tensor bias;
    MUST(moec_safetensors_source_open(folder, &source, &err));
    assert_true(source->find(source, "bias", &bias));
    for (uint32_t expert = 0; expert < E; expert++) {
        struct moec_tensor_reader reader = {.source = source, .name = "bias"};
        float values[FF];
        MUST(moec_tensor_view_make(&bias, (struct moec_tensor_layout){.is_stacked = true},
                                   (struct moec_tensor_wanted){1, FF, expert, E}, "b", &reader.view, &err));
        MUST(moec_tensor_read_matrix(&reader, values, &err));
        for (uint32_t i = 0; i < FF; i++)
            assert_true(values[i] == weight(GATE, expert, i, 0));
    }
    assert_false(source->find(source, "biases", &bias));
    source->free(source);
    temporary_remove(folder);
}

/* Heads of ten outputs, of which six from the third on stand in pairs. */
static const uint32_t pair_order[10] = {0, 1, 2, 4, 6, 3, 5, 7, 8, 9};

static void test_tensor_view__pairs_are_split(void **state)
{
    (void)state;
    char *folder = write_folder(MOEC_DTYPE_F16);
    struct moec_tensor_source *source = NULL;
    MUST(moec_safetensors_source_open(folder, &source, &err));
    for (size_t w = 0; w < N_WAYS; w++) {
        const struct moec_tensor_view plain = view_of(source, &ways[w], UP, 1);
        struct moec_tensor_reader reader = {
            .source = source, .view = moec_tensor_view_split_pairs(&plain, 10, 2, 6), .name = "x"};
        float all[FF * EMBD], few[9 * EMBD];
        MUST(moec_tensor_read_matrix(&reader, all, &err));
        for (uint32_t r = 0; r < FF; r++)
            for (uint32_t c = 0; c < EMBD; c++)
                assert_true(all[r * EMBD + c] == weight(UP, 1, r - r % 10 + pair_order[r % 10], c));
        reader.scratch = malloc(moec_tensor_scratch_bytes(&reader.view));
        assert_non_null(reader.scratch);
        MUST(moec_tensor_read_rows(&reader, 13, 9, few, &err));
        assert_memory_equal(few, all + 13 * EMBD, sizeof few);
        if (moec_tensor_view_has_rows(&reader.view)) {
            uint8_t stored[FF * EMBD * 2];
            MUST(moec_tensor_read_stored(&reader, 0, FF, stored, EMBD * 2, &err));
            reader.view.tensor.coding->decode(stored + 13 * EMBD * 2, 9 * EMBD, few);
            assert_memory_equal(few, all + 13 * EMBD, sizeof few);
        }
        free(reader.scratch);
    }
    struct moec_tensor bias;
    struct moec_tensor_reader reader = {.source = source, .name = "bias"};
    float values[FF];
    assert_true(source->find(source, "bias", &bias));
    MUST(moec_tensor_view_make(&bias, (struct moec_tensor_layout){.is_stacked = true},
                               (struct moec_tensor_wanted){1, FF, 2, E}, "b", &reader.view, &err));
    reader.view = moec_tensor_view_split_pairs(&reader.view, 10, 2, 6);
    assert_false(moec_tensor_view_has_rows(&reader.view));
    MUST(moec_tensor_read_matrix(&reader, values, &err));
    for (uint32_t i = 0; i < FF; i++)
        assert_true(values[i] == weight(GATE, 2, i - i % 10 + pair_order[i % 10], 0));
    source->free(source);
    temporary_remove(folder);
}

/* From the fourth number on three groups of two heads each, of five numbers, are stored in turns: the first
 * head of each group, then the second ones. */
static const struct moec_tensor_tiles tiles = {.first = 4, .head = 5, .n_group = 3, .n_each = 2};
static const uint32_t tile_order[] = {0, 3, 1, 4, 2, 5}; /* of heads */

static uint32_t stored_in_turns(uint32_t number)
{
    if (number < 4 || number >= 34)
        return number;
    return 4 + tile_order[(number - 4) / 5] * 5 + (number - 4) % 5;
}

static void test_tensor_view__heads_that_take_turns(void **state)
{
    (void)state;
    enum { N = 34 };
    char *folder = write_folder(MOEC_DTYPE_F16);
    struct moec_tensor_source *source = NULL;
    MUST(moec_safetensors_source_open(folder, &source, &err));
    for (size_t w = 0; w < N_WAYS; w++)
        for (int are_inputs = 0; are_inputs < 2; are_inputs++) {
            struct moec_tensor_reader reader = {
                .source = source, .view = view_of(source, &ways[w], UP, 1), .name = "x"};
            float all[N * N], few[9 * N];
            const bool has_rows = moec_tensor_view_has_rows(&reader.view);
            reader.view.rows = reader.view.columns = N;
            reader.view.tiles = tiles;
            reader.view.tiles.are_inputs = are_inputs != 0;
            assert_int_equal(moec_tensor_view_has_rows(&reader.view), has_rows && are_inputs == 0);
            MUST(moec_tensor_read_matrix(&reader, all, &err));
            for (uint32_t r = 0; r < N; r++)
                for (uint32_t c = 0; c < N; c++)
                    assert_true(all[r * N + c] == weight(UP, 1, are_inputs ? r : stored_in_turns(r),
                                                         are_inputs ? stored_in_turns(c) : c));
            reader.scratch = malloc(moec_tensor_scratch_bytes(&reader.view));
            assert_non_null(reader.scratch);
            MUST(moec_tensor_read_rows(&reader, 13, 9, few, &err));
            assert_memory_equal(few, all + 13 * N, sizeof few);
            free(reader.scratch);
        }
    source->free(source);
    temporary_remove(folder);
}

/* A matrix whose outputs stand in several dimensions. */
static void test_tensor_view__further_dimensions(void **state)
{
    (void)state;
    char *folder = write_folder(MOEC_DTYPE_BF16);
    struct moec_tensor_source *source = NULL;
    struct moec_tensor tensor;
    struct moec_tensor_reader reader = {.name = "x"};
    float matrix[E * EMBD * FF];
    MUST(moec_safetensors_source_open(folder, &source, &err));
    reader.source = source;
    assert_true(source->find(source, "down", &tensor));
    MUST(moec_tensor_view_make(&tensor, (struct moec_tensor_layout){.is_flat = true},
                               (struct moec_tensor_wanted){E * EMBD, FF, 0, 1}, "x", &reader.view, &err));
    MUST(moec_tensor_read_matrix(&reader, matrix, &err));
    for (uint32_t r = 0; r < E * EMBD; r++)
        for (uint32_t c = 0; c < FF; c++)
            assert_true(matrix[r * FF + c] == weight(DOWN, r / EMBD, r % EMBD, c));
    struct moec_error err = {0};
    assert_status(moec_tensor_view_make(&tensor, (struct moec_tensor_layout){.is_flat = true},
                                        (struct moec_tensor_wanted){EMBD, E * FF, 0, 1}, "x", &reader.view,
                                        &err),
                  MOEC_ERR_FORMAT, err);
    assert_message(err, "has shape [108, 70], expected [36, 210]");
    source->free(source);
    temporary_remove(folder);
}

/* ---- a container of blocks ---- */

enum { BLOCK = 4, BLOCK_BYTES = 5 };

/* A power of two, then integers. */
static void decode_blocks(const uint8_t *blocks, size_t n, float *weights)
{
    for (size_t i = 0; i < n; i++) {
        const uint8_t *block = blocks + i / BLOCK * BLOCK_BYTES;
        weights[i] = ldexpf((float)(int8_t)block[1 + i % BLOCK], (int8_t)block[0]);
    }
}

static const struct moec_tensor_coding block_coding = {
    BLOCK, BLOCK_BYTES, MOEC_DTYPE_COUNT, false, decode_blocks, false, NULL};

/* Two stacked tensors in memory, "up" (E, FF, EMBD) and "down_T" (E, FF, EMBD). */
struct blocks {
    struct moec_tensor_source source;
    struct moec_file file;
    uint8_t bytes[2 * E * FF * EMBD / BLOCK * BLOCK_BYTES];
};

static bool find_blocks(const struct moec_tensor_source *self, const char *name, struct moec_tensor *tensor)
{
    const uint64_t half = sizeof((const struct blocks *)self)->bytes / 2;
    *tensor = (struct moec_tensor){.dtype_name = "BLOCKS",
                                   .coding = &block_coding,
                                   .n_dims = 3,
                                   .shape = {E, FF, EMBD},
                                   .offset = strcmp(name, "up") == 0 ? 0 : half,
                                   .n_bytes = half};
    return true;
}

static enum moec_status read_blocks(const struct moec_tensor_source *self, uint32_t file, uint64_t offset,
                                    void *bytes, size_t n, struct moec_error *err)
{
    const struct blocks *blocks = (const struct blocks *)self;
    (void)err;
    assert_int_equal(file, 0);
    assert_true(offset <= sizeof blocks->bytes && n <= sizeof blocks->bytes - offset);
    memcpy(bytes, blocks->bytes + offset, n);
    return MOEC_OK;
}

static const struct moec_file *file_of_blocks(const struct moec_tensor_source *self, uint32_t file)
{
    (void)file;
    return &((const struct blocks *)self)->file;
}

static void fill_blocks(struct blocks *blocks)
{
    uint8_t *next = blocks->bytes;
    for (uint32_t p = UP; p <= DOWN; p++)
        for (uint32_t i = 0; i < E * FF * EMBD; i += BLOCK, next += BLOCK_BYTES) {
            next[0] = (uint8_t)-3;
            for (uint32_t j = i; j < i + BLOCK; j++) {
                const uint32_t expert = j / (FF * EMBD), r = j / EMBD % FF, c = j % EMBD;
                const float value = p == UP ? weight(p, expert, r, c) : weight(p, expert, c, r);
                /* Larger weights do not fit into eight bits of eighths. */
                next[1 + j - i] = (uint8_t)(int8_t)fmaxf(-128, fminf(127, value * 8));
            }
        }
}

static void test_tensor_view__blocks_are_decoded(void **state)
{
    (void)state;
    static const struct moec_tensor_layout up_layout = {.is_stacked = true},
                                           down_layout = {.is_stacked = true, .is_transposed = true};
    struct blocks *blocks = calloc(1, sizeof *blocks);
    struct moec_tensor tensor;
    float matrix[FF * EMBD], turned[FF * EMBD];
    assert_non_null(blocks);
    blocks->source = (struct moec_tensor_source){
        .n_file = 1, .find = find_blocks, .read = read_blocks, .file = file_of_blocks};
    blocks->file.path = (char *)(uintptr_t) "blocks";
    fill_blocks(blocks);
    for (uint32_t p = UP; p <= DOWN; p++)
        for (uint32_t expert = 0; expert < E; expert++) {
            struct moec_tensor_reader reader = {.source = &blocks->source, .name = "x"};
            const uint32_t rows = p == UP ? FF : EMBD, columns = p == UP ? EMBD : FF;
            assert_true(find_blocks(&blocks->source, p == UP ? "up" : "down_T", &tensor));
            MUST(moec_tensor_view_make(&tensor, p == UP ? up_layout : down_layout,
                                       (struct moec_tensor_wanted){rows, columns, expert, E}, "x",
                                       &reader.view, &err));
            assert_int_equal(moec_tensor_view_dtype(&reader.view), MOEC_DTYPE_F32);
            assert_int_equal(moec_tensor_view_bytes(&reader.view), FF * EMBD / BLOCK * BLOCK_BYTES);
            assert_int_equal(moec_tensor_view_has_rows(&reader.view), p == UP);
            MUST(moec_tensor_read_matrix(&reader, matrix, &err));
            reader.view = moec_tensor_view_transpose(&reader.view);
            assert_int_equal(moec_tensor_view_has_rows(&reader.view), p == DOWN);
            MUST(moec_tensor_read_matrix(&reader, turned, &err));
            for (uint32_t r = 0; r < rows; r++)
                for (uint32_t c = 0; c < columns; c++) {
                    const float value = fmaxf(-128, fminf(127, 8 * weight(p, expert, r, c))) / 8;
                    assert_true(matrix[r * columns + c] == value);
                    assert_true(turned[c * rows + r] == value);
                }
        }
    /* Inputs that take turns, which cut through blocks. */
    struct moec_tensor_reader reader = {.source = &blocks->source, .name = "down_T"};
    assert_true(find_blocks(&blocks->source, "up", &tensor));
    MUST(moec_tensor_view_make(&tensor, up_layout, (struct moec_tensor_wanted){FF, EMBD, 1, E}, "x",
                               &reader.view, &err));
    reader.view.tiles = tiles;
    reader.view.tiles.are_inputs = true;
    MUST(moec_tensor_read_matrix(&reader, matrix, &err));
    for (uint32_t i = 0; i < FF * EMBD; i++)
        if (i % EMBD < 34)
            assert_true(matrix[i] ==
                        fmaxf(-128, fminf(127, 8 * weight(UP, 1, i / EMBD, stored_in_turns(i % EMBD)))) / 8);
    assert_true(find_blocks(&blocks->source, "down_T", &tensor));
    /* A scale past what a float holds, in the last expert. */
    struct moec_error err = {0};
    uint8_t *last = blocks->bytes + sizeof blocks->bytes - BLOCK_BYTES;
    last[0] = 127;
    last[1] = 64;
    assert_ok(moec_tensor_view_make(&tensor, down_layout, (struct moec_tensor_wanted){EMBD, FF, E - 1, E},
                                    "x", &reader.view, &err),
              err);
    assert_status(moec_tensor_read_matrix(&reader, matrix, &err), MOEC_ERR_FORMAT, err);
    assert_message(err, "tensor 'down_T' in 'blocks' has infinity at [209, 32]");
    free(blocks);
}

/* ---- what is refused ---- */

static void test_tensor_view__wrong_tensors_are_refused(void **state)
{
    (void)state;
    const struct moec_tensor_coding *bf16 = moec_tensor_coding_of(MOEC_DTYPE_BF16);
    static const struct moec_tensor_layout alone = {0}, stacked = {.is_stacked = true, .n_part = 2},
                                           turned = {.is_stacked = true, .is_transposed = true, .n_part = 2};
    const struct {
        struct moec_tensor tensor;
        struct moec_tensor_layout layout;
        uint32_t rows, columns, n_expert;
        enum moec_status status;
        const char *part;
    } cases[] = {
        {{.dtype_name = "I8", .n_dims = 2, .shape = {4, 6}, .n_bytes = 24},
         alone,
         4,
         6,
         1,
         MOEC_ERR_UNSUPPORTED,
         "x at offset 0 has dtype I8, expected BF16, F16 or F32"},
        {{.coding = bf16, .n_dims = 2, .shape = {6, 4}, .offset = 8, .n_bytes = 48},
         alone,
         4,
         6,
         1,
         MOEC_ERR_FORMAT,
         "x at offset 8 has shape [6, 4], expected [4, 6]"},
        {{.coding = bf16, .n_dims = 1, .shape = {24}, .n_bytes = 48},
         alone,
         4,
         6,
         1,
         MOEC_ERR_FORMAT,
         "has shape [24], expected [4, 6]"},
        {{.coding = bf16, .n_dims = 1, .shape = {7}, .n_bytes = 14},
         alone,
         1,
         6,
         1,
         MOEC_ERR_FORMAT,
         "has shape [7], expected [6]"},
        {{.coding = bf16, .n_dims = 3, .shape = {2, 8, 6}, .n_bytes = 192},
         stacked,
         4,
         6,
         3,
         MOEC_ERR_FORMAT,
         "has shape [2, 8, 6], expected [3, 8, 6]"},
        {{.coding = bf16, .n_dims = 3, .shape = {3, 8, 6}, .n_bytes = 288},
         turned,
         4,
         6,
         3,
         MOEC_ERR_FORMAT,
         "has shape [3, 8, 6], expected [3, 6, 8]"},
        {{.coding = bf16, .n_dims = 2, .shape = {4, 6}, .n_bytes = 47},
         alone,
         4,
         6,
         1,
         MOEC_ERR_FORMAT,
         "has 47 bytes, fewer than its shape needs"},
        {{.coding = bf16, .n_dims = 3, .shape = {UINT32_MAX, 2ull * UINT32_MAX, UINT32_MAX}, .n_bytes = 96},
         stacked,
         UINT32_MAX,
         UINT32_MAX,
         UINT32_MAX,
         MOEC_ERR_FORMAT,
         "has 96 bytes, fewer than its shape needs"},
        {{.dtype_name = "BLOCKS", .coding = &block_coding, .n_dims = 2, .shape = {4, 6}, .n_bytes = 30},
         alone,
         4,
         6,
         1,
         MOEC_ERR_FORMAT,
         "has 6 weights in its last dimension, expected a multiple of 4, the block size of BLOCKS"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct moec_tensor_view view;
        struct moec_error err = {0};
        assert_status(moec_tensor_view_make(
                          &cases[i].tensor, cases[i].layout,
                          (struct moec_tensor_wanted){cases[i].rows, cases[i].columns, 0, cases[i].n_expert},
                          "x", &view, &err),
                      cases[i].status, err);
        assert_message(err, cases[i].part);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensor_view__experts_are_the_same_in_every_layout),
        cmocka_unit_test(test_tensor_view__stacked_vectors),
        cmocka_unit_test(test_tensor_view__pairs_are_split),
        cmocka_unit_test(test_tensor_view__heads_that_take_turns),
        cmocka_unit_test(test_tensor_view__further_dimensions),
        cmocka_unit_test(test_tensor_view__blocks_are_decoded),
        cmocka_unit_test(test_tensor_view__wrong_tensors_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
