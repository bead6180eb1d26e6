/* Which copy of a tensor is read from a folder of several safetensors files. */
#include "tests/unit/temporary.h"

#include "formats/checkpoint/shards.h"

#define INDEX "model.safetensors.index.json"

/* Writes a file of F32 tensors of one number each: `tensors` is "name=number,...". */
static void write_shard(const char *folder, const char *file, const char *tensors)
{
    char header[1024] = "{", copy[256];
    float numbers[16];
    size_t n = 0;
    (void)snprintf(copy, sizeof copy, "%s", tensors);
    for (char *rest = copy, *item = strtok_r(copy, ",", &rest); item != NULL;
         item = strtok_r(NULL, ",", &rest)) {
        char *equals = strchr(item, '=');
        assert_non_null(equals);
        *equals = '\0';
        numbers[n] = strtof(equals + 1, NULL);
        const size_t used = strlen(header);
        (void)snprintf(header + used, sizeof header - used,
                       "%s\"%s\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [%zu, %zu]}",
                       n > 0 ? ", " : "", item, 4 * n, 4 * n + 4);
        n++;
    }
    (void)snprintf(header + strlen(header), sizeof header - strlen(header), "}");
    uint8_t bytes[8 + sizeof header + sizeof numbers] = {(uint8_t)strlen(header),
                                                         (uint8_t)(strlen(header) >> 8)};
    memcpy(bytes + 8, header, strlen(header));
    memcpy(bytes + 8 + strlen(header), numbers, 4 * n);
    temporary_write(folder, file, bytes, 8 + strlen(header) + 4 * n);
}

static void write_text(const char *folder, const char *name, const char *text)
{
    temporary_write(folder, name, text, strlen(text));
}

static void delete_file(const char *folder, const char *name)
{
    char *path = temporary_path(folder, name);
    assert_int_equal(unlink(path), 0);
    free(path);
}

static float number_of(const struct moec_shards *shards, const char *name)
{
    uint32_t file = 0;
    float number = 0;
    struct moec_error err = {0};
    const struct moec_safetensors_entry *entry = moec_shards_find(shards, name, &file);
    assert_non_null(entry);
    assert_status(moec_file_read(&shards->files[file].file, entry->offset, &number, sizeof number, &err),
                  MOEC_OK, err);
    return number;
}

static void open_good(const char *folder, struct moec_shards *shards)
{
    struct moec_error err = {0};
    assert_status(moec_shards_open(folder, shards, &err), MOEC_OK, err);
}

static void refuse(const char *folder, enum moec_status status, const char *part)
{
    struct moec_shards shards;
    struct moec_error err = {0};
    assert_status(moec_shards_open(folder, &shards, &err), status, err);
    assert_message(err, part);
}

/* A fine-tune whose second file replaces tensors of the first, and one whose first replaces those of the
 * second. */
static void test_shards__the_index_decides(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    struct moec_shards shards;
    uint32_t file = 0;
    write_shard(folder, "a.safetensors", "one=1,two=2,six=6");
    write_shard(folder, "b.safetensors", "two=20,six=60,ten=100");
    write_text(folder, INDEX,
               "{\"weight_map\": {\"one\": \"a.safetensors\", \"two\": \"b.safetensors\", \"six\": "
               "\"a.safetensors\", \"ten\": \"b.safetensors\"}}");
    open_good(folder, &shards);
    assert_string_equal(shards.index, INDEX);
    assert_null(shards.note);
    assert_int_equal(shards.n_file, 2);
    assert_true(number_of(&shards, "one") == 1 && number_of(&shards, "two") == 20);
    assert_true(number_of(&shards, "six") == 6 && number_of(&shards, "ten") == 100);
    assert_null(moec_shards_find(&shards, "nine", &file));
    moec_shards_close(&shards);

    /* Copies of what the index does not name: no one can tell which is meant. */
    write_text(folder, INDEX,
               "{\"weight_map\": {\"one\": \"a.safetensors\", "
               "\"two\": \"b.safetensors\", \"ten\": \"b.safetensors\"}}");
    refuse(folder, MOEC_ERR_MISMATCH, "two shards have tensor 'six': '");
    refuse(folder, MOEC_ERR_MISMATCH, "/a.safetensors' and '");
    refuse(folder, MOEC_ERR_MISMATCH, "/b.safetensors', and '");
    refuse(folder, MOEC_ERR_MISMATCH,
           INDEX "' names neither. Remove one copy, or name the right shard in '" INDEX);
    temporary_remove(folder);
}

static void test_shards__numbered_files_need_no_index(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    struct moec_shards shards;
    refuse(folder, MOEC_ERR_NOT_FOUND, "no weights, expected 'model.safetensors' or '" INDEX);
    write_shard(folder, "model-1-of-2.safetensors", "one=1");
    write_shard(folder, "consolidated.safetensors", "one=1");
    refuse(folder, MOEC_ERR_NOT_FOUND, "no weights");
    write_shard(folder, "model-00002-of-00002.safetensors", "two=20,ten=100");
    refuse(folder, MOEC_ERR_NOT_FOUND,
           "neither '" INDEX
           "' nor 'model-00001-of-00002.safetensors', which is one of its 2 shards: finish the "
           "download");
    write_shard(folder, "model-00001-of-00002.safetensors", "one=1");
    open_good(folder, &shards);
    assert_null(shards.index);
    assert_int_equal(shards.n_file, 2);
    assert_true(number_of(&shards, "one") == 1 && number_of(&shards, "ten") == 100);
    moec_shards_close(&shards);

    write_shard(folder, "model-00001-of-00002.safetensors", "one=1,two=2");
    refuse(folder, MOEC_ERR_MISMATCH,
           "/model-00002-of-00002.safetensors', and there is no index that names the right one. Remove one");
    temporary_remove(folder);
}

static void assert_explained(const struct moec_shards *shards, const char *name, enum moec_status status,
                             const char *part)
{
    uint32_t file = 0;
    struct moec_error err = {0};
    assert_null(moec_shards_find(shards, name, &file));
    assert_status(moec_shards_explain(shards, name, &err), status, err);
    if (part != NULL)
        assert_message(err, part);
}

/* What is not where the index says is only missed by who needs it. */
static void test_shards__entries_without_a_tensor(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    struct moec_shards shards;
    write_shard(folder, "a.safetensors", "one=1,two=2");
    write_shard(folder, "b.safetensors", "six=6");
    write_text(folder, INDEX,
               "{\"weight_map\": {\"one\": \"a.safetensors\", \"freq\": \"a.safetensors\", \"six\": "
               "\"a.safetensors\", \"eye\": \"vision.safetensors\", \"ten\": \"b.safetensors\"}}");
    open_good(folder, &shards);
    assert_int_equal(shards.n_file, 2);
    assert_true(number_of(&shards, "one") == 1);
    assert_true(number_of(&shards, "two") == 2); /* the index does not have it, and there is one copy */
    assert_explained(&shards, "freq", MOEC_ERR_FORMAT,
                     "says that tensor 'freq' is in 'a.safetensors', but this file has no such tensor");
    assert_explained(&shards, "six", MOEC_ERR_FORMAT,
                     "'six' is in 'a.safetensors', but this file has no such tensor");
    assert_explained(&shards, "ten", MOEC_ERR_FORMAT,
                     "'ten' is in 'b.safetensors', but this file has no such tensor");
    assert_explained(&shards, "eye", MOEC_ERR_NOT_FOUND, "shard 3 of 3 in '");
    assert_explained(&shards, "eye", MOEC_ERR_NOT_FOUND,
                     "does not exist: 'vision.safetensors', which holds tensor 'eye'; finish the download");
    assert_explained(&shards, "nine", MOEC_OK, NULL);
    moec_shards_close(&shards);
    delete_file(folder, "a.safetensors");
    delete_file(folder, "b.safetensors");
    refuse(folder, MOEC_ERR_NOT_FOUND, "does not exist: 'a.safetensors'; finish the download");
    temporary_remove(folder);
}

/* transformers reads 'model.safetensors' wherever it is. */
static void test_shards__a_single_file_beside_an_index(void **state)
{
    (void)state;
    static const char *const strays[] = {"{\"weight_map\": {\"one\": \"a.safetensors\"}}",
                                         "{\"weight_map\": ", "{}"};
    char *folder = temporary_folder();
    struct moec_shards shards;
    write_shard(folder, "a.safetensors", "one=1");
    write_shard(folder, "model.safetensors", "one=10,two=20");
    for (size_t i = 0; i < sizeof strays / sizeof *strays; i++) {
        write_text(folder, INDEX, strays[i]);
        open_good(folder, &shards);
        assert_null(shards.index);
        assert_non_null(shards.note);
        assert_non_null(
            strstr(shards.note, "has the file 'model.safetensors', but '" INDEX "' does not name this file"));
        assert_true(number_of(&shards, "one") == 10);
        moec_shards_close(&shards);
    }
    /* An index that names it alone says nothing new; one that names others too is about all of them. */
    write_text(folder, INDEX, "{\"weight_map\": {\"one\": \"model.safetensors\"}}");
    open_good(folder, &shards);
    assert_true(shards.index == NULL && shards.note == NULL && shards.n_file == 1);
    assert_true(number_of(&shards, "two") == 20);
    moec_shards_close(&shards);
    write_text(folder, INDEX,
               "{\"weight_map\": {\"one\": \"a.safetensors\", \"two\": \"model.safetensors\"}}");
    open_good(folder, &shards);
    assert_true(shards.index != NULL && shards.note == NULL && shards.n_file == 2);
    assert_true(number_of(&shards, "one") == 1 && number_of(&shards, "two") == 20);
    moec_shards_close(&shards);
    temporary_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shards__the_index_decides),
        cmocka_unit_test(test_shards__numbered_files_need_no_index),
        cmocka_unit_test(test_shards__entries_without_a_tensor),
        cmocka_unit_test(test_shards__a_single_file_beside_an_index),
    };
    return cmocka_run_group_tests_name("shards", tests, NULL, NULL);
}
