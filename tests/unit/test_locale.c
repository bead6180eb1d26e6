/* What templates and policies say is read alike where the program has set a locale with a decimal comma. */
#include "tests/unit/fixture_bundle.h"

#include "formats/base/locale.h"
#include "runtime/chat/chat_template.h"
#include "runtime/moert.h"

/* A German locale for the whole program; skips the test where the machine cannot make one. */
static char *set_comma(void)
{
    char *folder = temporary_folder(), *command = NULL;
    assert_true(
        asprintf(&command, "localedef -i de_DE -f UTF-8 '%s/de_DE.utf8' >'%s/log' 2>&1", folder, folder) > 0);
    const int answer = system(command);
    free(command);
    assert_int_equal(setenv("LOCPATH", folder, 1), 0);
    if (answer != 0 || setlocale(LC_ALL, "de_DE.utf8") == NULL ||
        strcmp(localeconv()->decimal_point, ",") != 0) {
        temporary_remove(folder);
        skip();
    }
    return folder;
}

static void set_plain(char *folder)
{
    (void)setlocale(LC_ALL, "C");
    (void)unsetenv("LOCPATH");
    temporary_remove(folder);
}

static void test_locale__is_of_the_thread(void **state)
{
    (void)state;
    char *folder = set_comma();
    const locale_t before = moec_locale_enter();
    assert_string_equal(localeconv()->decimal_point, ".");
    moec_locale_leave(before);
    assert_string_equal(localeconv()->decimal_point, ",");
    set_plain(folder);
}

static void test_locale__templates(void **state)
{
    (void)state;
    static const char source[] =
        "{{ 0.5 + 1 }} {{ '2.5'|float }} {{ '%.1f' % 1.5 }} {{ [1e-7, 3.25]|tojson }}";
    static const char want[] = "1.5 2.5 1.5 [1e-07, 3.25]";
    static const struct tm date = {.tm_year = 126, .tm_mday = 1};
    char *folder = set_comma();
    struct moec_chat_arena arena = {0};
    struct moec_chat_template *chat_template = NULL;
    struct moec_chat_value variables, text;
    MUST(moec_chat_dict_make(&arena, &variables, &err));
    MUST(moec_chat_template_parse(source, sizeof source - 1, &chat_template, &err));
    MUST(moec_chat_template_render(chat_template, variables.as.dict, &date, &arena, &text, &err));
    set_plain(folder);
    assert_int_equal(text.as.string->n_bytes, sizeof want - 1);
    assert_memory_equal(text.as.string->bytes, want, sizeof want - 1);
    moec_chat_template_free(chat_template);
    moec_chat_arena_release(&arena);
}

static void test_locale__policies(void **state)
{
    (void)state;
    char *made = temporary_folder(), *path = temporary_path(made, "m.moec");
    fixture_bundle_write("tests/fixtures/families/olmoe", path, 16, false);
    char *folder = set_comma();
    struct moert_options options = moert_options_default();
    struct moert_engine *engine = NULL;
    struct moert_floor floor_bytes;
    struct moert_error err = {0};
    options.decisions.route = "cache-prior:0.5:skip:0.01";
    options.decisions.slots = "62.5%";
    const enum moert_status measured = moert_engine_floor(path, &options, &floor_bytes, &err);
    const enum moert_status opened =
        measured == MOERT_OK ? moert_engine_open(path, &options, &engine, &err) : measured;
    set_plain(folder);
    if (opened != MOERT_OK)
        fail_msg("%s", err.message);
    assert_int_equal(moert_engine_end(engine, &err), MOERT_OK);
    free(path);
    temporary_remove(made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_locale__is_of_the_thread),
        cmocka_unit_test(test_locale__templates),
        cmocka_unit_test(test_locale__policies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
