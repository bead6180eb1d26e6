/* A request of OpenAI's protocol: its JSON text, read under limits into plain values. Every field is known by
 * name: one that would change the answer in a way that moec does not have is refused, unless its value is
 * neutral; a few are accepted without effect; any other is refused by its name.
 *
 * Texts are borrowed from the parsed JSON, which the request owns. Thread rule: one thread. */
#ifndef MOEC_SERVER_SERVE_REQUEST_H
#define MOEC_SERVER_SERVE_REQUEST_H

#include "formats/base/stop_texts.h"
#include "formats/json/json.h"
#include "server/serve_problem.h"

#define SERVE_MAX_STOPS       64u  /* stop texts of a request */
#define SERVE_MAX_STOP_BYTES  1024 /* of one of them */
#define SERVE_MAX_SEQUENCES   256u /* prompts x choices of a request */
#define SERVE_MAX_CHOICES     16u
#define SERVE_MAX_LOGPROBS    20u
#define SERVE_BYTES_PER_VALUE 128u /* that a value of the JSON tree takes at most, beside its text */

enum serve_kind { SERVE_CHAT, SERVE_COMPLETION, SERVE_TOKENIZE, SERVE_DETOKENIZE };

/* What a request may hold. */
struct serve_limits {
    size_t body_bytes;     /* of its JSON */
    size_t tree_values;    /* values and keys of it */
    size_t template_bytes; /* that rendering a conversation takes */
    size_t held_bytes;     /* of all bodies, prompts and answers at once */
    uint32_t n_context, n_vocab;
};

/* Text, or ids where `ids` is not NULL. */
struct serve_prompt {
    const char *text; /* borrowed */
    size_t n_bytes;
    uint32_t *ids; /* owned */
    size_t n_ids;
};

struct serve_request {
    enum serve_kind kind;
    struct moec_json *root;       /* owned; NULL once it is shed */
    char *kept;                   /* owned: texts that outlive it */
    struct serve_prompt *prompts; /* owned; of a conversation none */
    size_t n_prompt;
    const struct moec_json *messages; /* of a conversation: an array of objects */
    uint32_t n;                       /* choices */
    bool has_tokens;                  /* max_tokens is given */
    uint32_t max_tokens;
    bool is_stream, has_usage; /* of a stream: the last event tells what was used */
    bool echo, adds_special, keeps_special;
    bool has_logprobs;
    uint32_t n_logprobs; /* likeliest tokens beside the chosen one */
    double temperature, top_p, min_p, repetition_penalty;
    uint32_t top_k;
    bool has_temperature, has_penalty;
    uint64_t seed;
    struct moec_stop_text stops[SERVE_MAX_STOPS];
    size_t n_stop;
};

/* Reads body[n]. False with a problem; the request is then released. Else the caller releases it. */
bool serve_request_read(enum serve_kind kind, const char *body, size_t n, const struct serve_limits *limits,
                        struct serve_request *out, struct serve_problem *problem);
/* Frees the JSON tree, which takes many times its text; stop texts, and those of prompts that are echoed, stay.
 * Errors: MOEC_ERR_MEMORY; the tree then stays too. */
MOEC_WARN_UNUSED enum moec_status serve_request_shed(struct serve_request *request, struct moec_error *err);
void serve_request_release(struct serve_request *request);

#endif
