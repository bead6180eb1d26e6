/* Chat templates from anywhere: parsing and rendering end, within their bounds, and a text has as many marks
 * as bytes. */
#include "runtime/chat/chat_template.h"
#include "tests/unit/chat_json.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static const char variables_json[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\" Be <|im_end|> "
    "kind\\n\"},{\"role\":\"user\",\"content\":"
    "\"W\\u00e9ather?\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"function\":{\"name\":"
    "\"f\","
    "\"arguments\":{\"a\":[1,2.5,null,true]}}}]},{\"role\":\"tool\",\"content\":\"rain\"}],\"tools\":[{"
    "\"type\":"
    "\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}],\"bos_token\":\"<s>\","
    "\"eos_token\":\"</s>\",\"add_generation_prompt\":true,\"documents\":null}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct moec_chat_template *chat_template = NULL;
    struct moec_chat_arena arena = {0};
    struct moec_chat_value variables, text;
    struct moec_json *root = NULL;
    struct moec_error err = {0};
    const struct tm date = {.tm_year = 126, .tm_mon = 10, .tm_mday = 22};
    if (moec_chat_template_parse((const char *)data, size, &chat_template, NULL) != MOEC_OK)
        return 0;
    require(moec_json_parse(variables_json, sizeof variables_json - 1, sizeof variables_json, "variables",
                            &root, &err) == MOEC_OK);
    require(chat_from_json(&arena, root, &variables, &err) == MOEC_OK);
    require(moec_chat_measure(&variables, &err) == MOEC_OK);
    if (moec_chat_template_render(chat_template, variables.as.dict, &date, &arena, &text, &err) == MOEC_OK) {
        const struct moec_chat_string *string = text.as.string;
        require(string->n_bytes <= MOEC_CHAT_MAX_OUTPUT_BYTES);
        for (size_t i = 0; i < string->n_bytes && string->marks != NULL; i++)
            require(string->marks[i] <= 1);
    } else {
        require(err.status != MOEC_OK && err.message[0] != '\0');
    }
    moec_json_free(root);
    moec_chat_template_free(chat_template);
    moec_chat_arena_release(&arena);
    return 0;
}
