/* config.json of every family, with settings of generation, when the input starts with '{', else a bundle's
 * binary config section; and its generation section. */
#include "formats/family/family.h"
#include "formats/family/generation_json.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_section(const struct moec_config *config)
{
    struct moec_config back;
    struct moec_error err = {0};
    uint8_t *bytes = NULL;
    size_t n = 0;
    if (moec_config_encode(config, &bytes, &n, &err) != MOEC_OK ||
        moec_config_decode(bytes, n, &back, &err) != MOEC_OK || strcmp(back.family, config->family) != 0)
        abort();
    free(bytes);
}

static void check_generation(const struct moec_generation *generation, uint32_t n_vocab)
{
    struct moec_generation back;
    struct moec_error err = {0};
    uint8_t *bytes = NULL;
    size_t n = 0;
    if (moec_generation_encode(generation, &bytes, &n, &err) != MOEC_OK ||
        moec_generation_decode(bytes, n, n_vocab, &back, &err) != MOEC_OK ||
        back.suppress.n != generation->suppress.n)
        abort();
    free(bytes);
}

static void fuzz_json(const char *text, size_t size)
{
    struct moec_json *root = NULL;
    const struct moec_family *family = NULL;
    struct moec_config config;
    struct moec_generation generation = moec_generation_default();
    struct moec_error err = {0};
    if (moec_json_parse(text, size, (size_t)1 << 20, "config.json", &root, &err) == MOEC_OK &&
        moec_family_read_config(root, "'config.json'", &family, &config, &err) == MOEC_OK &&
        moec_family_read_eos(root, "'generation_config.json'", &config, &err) == MOEC_OK &&
        moec_generation_read(root, "'generation_config.json'", config.n_vocab, &generation, &err) ==
            MOEC_OK) {
        check_section(&config);
        check_generation(&generation, config.n_vocab);
    } else if (err.message[0] == '\0')
        abort();
    moec_json_free(root);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct moec_config config;
    struct moec_generation generation;
    struct moec_error err = {0};
    if (moec_generation_decode(data, size, 1u << 16, &generation, &err) == MOEC_OK)
        check_generation(&generation, 1u << 16);
    else if (err.message[0] == '\0')
        abort();
    err = (struct moec_error){0};
    if (size > 0 && data[0] == '{')
        fuzz_json((const char *)data, size);
    else if (moec_config_decode(data, size, &config, &err) == MOEC_OK)
        check_section(&config);
    else if (err.message[0] == '\0')
        abort();
    return 0;
}
