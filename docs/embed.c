/* Continue a text with a bundle inside 64 MiB: cc embed.c $(pkg-config --cflags --libs moert) -o embed */
#include <moert.h>
#include <stdio.h>
#include <string.h>

#define TRY(call)                                                                                            \
    if ((call) != MOERT_OK)                                                                                  \
    return fprintf(stderr, "%s\n", err.message), 1

int main(int argc, char **argv)
{
    if (argc != 3)
        return fprintf(stderr, "usage: embed MODEL.moec PROMPT\n"), 2;
    struct moert_error err = {0};
    struct moert_options options = moert_options_default();
    options.memory_bytes = 64u << 20;
    struct moert_engine *engine = NULL;
    struct moert_session *session = NULL;
    struct moert_generator *generator = NULL;
    struct moert_text *text = NULL;
    uint32_t *tokens = NULL;
    size_t n_tokens = 0, n_bytes = 0;
    TRY(moert_engine_open(argv[1], &options, &engine, &err));
    TRY(moert_session_create(engine, &session, &err));
    TRY(moert_text_create(engine, &text, &err));
    TRY(moert_tokenize(engine, argv[2], strlen(argv[2]), true, &tokens, &n_tokens, &err));
    /* The settings of the model's generation_config.json, but at most 32 tokens. */
    struct moert_generation generation = moert_generation_default(engine);
    generation.n_tokens = 32;
    TRY(moert_generator_create(session, &generation, &generator, &err));
    TRY(moert_generator_start(generator, tokens, n_tokens, &err));
    for (;;) {
        uint32_t token = 0;
        enum moert_generated what = MOERT_GENERATED_TOKEN;
        const char *piece = "";
        TRY(moert_generator_next(generator, &token, &what, &err));
        if (what != MOERT_GENERATED_TOKEN)
            break;
        TRY(moert_text_push(text, token, &piece, &n_bytes, &err));
        printf("%s", piece);
    }
    putchar('\n');
    moert_free(tokens);
    moert_text_free(text);
    moert_generator_free(generator);
    moert_session_free(session);
    moert_engine_close(engine);
    return 0;
}
