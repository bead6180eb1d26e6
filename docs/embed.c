/* Continue a text with a bundle inside 64 MiB: cc embed.c $(pkg-config --cflags --libs moert) -o embed */
#include <moert.h>
#include <stdio.h>
#include <stdlib.h>
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
    struct moert_text *text = NULL;
    uint32_t *tokens = NULL;
    size_t n_tokens = 0, n_bytes = 0;
    TRY(moert_engine_open(argv[1], &options, &engine, &err));
    TRY(moert_session_create(engine, &session, &err));
    TRY(moert_text_create(engine, &text, &err));
    TRY(moert_tokenize(engine, argv[2], strlen(argv[2]), true, &tokens, &n_tokens, &err));
    uint32_t n_vocab = moert_engine_info(engine).n_vocab;
    float *logits = malloc(n_vocab * sizeof *logits);
    struct moert_sampler sampler = moert_sampler_greedy();
    TRY(moert_session_step(session, tokens, n_tokens, logits, &err));
    for (int i = 0; i < 32; i++) {
        uint32_t token = moert_sampler_next(&sampler, logits, n_vocab);
        const char *piece = "";
        if (moert_token_is_end(engine, token))
            break;
        TRY(moert_text_push(text, token, &piece, &n_bytes, &err));
        printf("%s", piece);
        TRY(moert_session_step(session, &token, 1, logits, &err));
    }
    putchar('\n');
    free(logits);
    moert_free(tokens);
    moert_text_free(text);
    moert_session_free(session);
    moert_engine_close(engine);
    return 0;
}
