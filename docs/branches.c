/* Continue a prompt in three ways, reading it once:
 * cc branches.c $(pkg-config --cflags --libs moert) -o branches */
#include <moert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY(call)                                                                                            \
    if ((call) != MOERT_OK)                                                                                  \
    return fprintf(stderr, "%s\n", err.message), 1

/* Draws up to 24 tokens in a copy of the session that has read the prompt; `logits` are those after the prompt. */
static int branch(struct moert_engine *engine, const struct moert_session *prompt, float *logits,
                  uint64_t seed)
{
    struct moert_error err = {0};
    struct moert_sampler sampler = {.temperature = 0.8f, .top_p = 0.95f, .state = seed};
    struct moert_session *session = NULL;
    struct moert_text *text = NULL;
    const uint32_t n_vocab = moert_engine_info(engine).model.n_vocab, end = moert_session_length(prompt) + 24;
    const char *piece = "";
    size_t n_bytes = 0;
    TRY(moert_session_fork(prompt, &session, &err));
    TRY(moert_text_create(engine, &text, &err));
    while (moert_session_length(session) < end) {
        const uint32_t token = moert_sampler_next(&sampler, logits, n_vocab);
        if (moert_token_is_end(engine, token))
            break;
        TRY(moert_text_push(text, token, &piece, &n_bytes, &err));
        printf("%s", piece);
        TRY(moert_session_step(session, &token, 1, logits, &err));
    }
    putchar('\n');
    moert_text_free(text);
    moert_session_free(session);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return fprintf(stderr, "usage: branches MODEL.moec PROMPT\n"), 2;
    struct moert_error err = {0};
    struct moert_options options = moert_options_default();
    options.memory_bytes = 64u << 20;
    options.sessions.n_sessions = 2; /* the prompt's and a copy */
    struct moert_engine *engine = NULL;
    struct moert_session *prompt = NULL;
    uint32_t *tokens = NULL;
    size_t n_tokens = 0;
    TRY(moert_engine_open(argv[1], &options, &engine, &err));
    TRY(moert_session_create(engine, &prompt, &err));
    TRY(moert_tokenize(engine, argv[2], strlen(argv[2]), true, &tokens, &n_tokens, &err));
    const size_t n_vocab = moert_engine_info(engine).model.n_vocab;
    float *after = calloc(2 * n_vocab, sizeof *after), *logits = after + n_vocab;
    if (after == NULL)
        return fprintf(stderr, "no memory for logits\n"), 1;
    TRY(moert_session_step(prompt, tokens, n_tokens, after, &err));
    for (uint64_t seed = 1; seed <= 3; seed++) {
        memcpy(logits, after, n_vocab * sizeof *logits);
        if (branch(engine, prompt, logits, seed) != 0)
            return 1;
    }
    free(after);
    moert_free(tokens);
    moert_session_free(prompt);
    moert_engine_close(engine);
    return 0;
}
