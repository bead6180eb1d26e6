/* A request at work: its sequences (a prompt and a choice each), what they have generated, and, of a stream, the
 * bytes that its client has not read yet.
 *
 * Thread rule: the thread of HTTP makes a job, hands it to the compute thread, and reads its results once it is
 * done; the compute thread alone writes them. What both touch meanwhile is behind the job's lock. It is freed
 * when the last of both has let it go. */
#ifndef MOEC_SERVER_SERVE_JOB_H
#define MOEC_SERVER_SERVE_JOB_H

#include "runtime/moert.h"
#include "server/serve_request.h"

#include <pthread.h>
#include <stdatomic.h>

#define SERVE_QUEUE_BYTES ((size_t)128 << 10) /* of a stream that its reader has not taken yet, at most */

struct MHD_Connection;

enum serve_finish { SERVE_UNFINISHED, SERVE_STOP, SERVE_LENGTH };

/* A token of a sequence with its scores: its own, then the request's n_logprobs likeliest. `is_scored` false:
 * nothing stands before it. */
struct serve_token {
    uint32_t token;
    bool is_scored;
};

enum serve_state { SERVE_WAITING, SERVE_READING, SERVE_DECODING, SERVE_DONE };

struct serve_sequence {
    struct serve_job *job;
    uint32_t index;         /* of its choice in the answer */
    const uint32_t *prompt; /* (n_prompt), the job's */
    uint32_t n_prompt;
    uint64_t seed;

    /* The compute thread's: */
    enum serve_state state;
    struct serve_slot *slot;
    struct moert_generator *generator;
    struct moert_text *text;
    struct moec_stop_texts stops;
    uint32_t n_read;        /* of the prompt, in the session */
    uint32_t n_cached;      /* of them, kept from before */
    uint32_t last;          /* token that the session has not read yet */
    uint64_t last_ns;       /* when it was chosen */
    size_t told_characters; /* of tokens that a stream has told of */
    uint32_t n_generated;   /* the one that ended the text included */
    bool is_begun;          /* the stream has told of it */

    /* Results: */
    enum serve_finish finish;
    char *answer; /* owned: the text, without the prompt */
    size_t n_answer, answer_capacity;
    struct serve_token
        *tokens; /* owned: with logprobs, of a stream those not told yet; of the prompt too with echo */
    size_t n_tokens, tokens_capacity;
    struct moert_score *scores; /* owned: (n_tokens, 1 + n_logprobs) */
    size_t scores_capacity;
};

/* One of the prompts. */
struct serve_prompt_tokens {
    uint32_t *ids; /* owned, by libmoert or malloc alike (moert_free) */
    size_t n_ids;
};

struct serve_job {
    struct serve_request request; /* owned */
    struct serve_prompt_tokens *prompts;
    size_t n_prompt;
    struct serve_sequence *sequences; /* owned */
    size_t n_sequence;
    uint64_t id;
    int64_t created_s;                   /* as clocks show it */
    uint64_t created_ns;                 /* as time passes */
    bool is_chat, is_scored;             /* is_scored: tokens of the prompt have scores */
    size_t held_bytes;                   /* counted for it in *held */
    atomic_size_t *held;                 /* borrowed */
    void (*wake)(struct serve_job *job); /* lets its connection go on; with the lock held */

    pthread_mutex_t lock;
    unsigned n_users;
    size_t n_done; /* sequences */
    bool is_done;
    bool is_cancelled;                 /* its client is gone, or does not read, or the server ends */
    bool is_cut;                       /* the stream ends without its end: its reader does not read */
    bool is_suspended;                 /* its connection waits for it */
    int socket;                        /* of the connection; -1 = it is gone */
    struct MHD_Connection *connection; /* of libmicrohttpd, known in serve_http.c alone */
    struct serve_problem problem;      /* status 0 = none */
    char *out;                         /* of a stream: bytes to send, owned */
    size_t n_out, out_capacity;
    uint64_t told_ns; /* when something was put there last */

    struct serve_job *next; /* of the server's list */
};

/* Takes over `request`; prompts are set by the caller, who then makes sequences of them. NULL: no memory, and
 * the request is released. */
struct serve_job *serve_job_create(struct serve_request *request);
/* A sequence for each prompt and choice. */
MOEC_WARN_UNUSED enum moec_status serve_job_make_sequences(struct serve_job *job, struct moec_error *err);
void serve_job_let_go(struct serve_job *job);

/* Room that a job takes at most beside its request: prompts, answers, scores and what is sent of them. */
size_t serve_job_bytes(const struct serve_job *job, uint32_t n_context);

#endif
