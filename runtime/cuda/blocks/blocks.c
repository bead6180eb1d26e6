#include "runtime/cuda/blocks/blocks.h"

#include "formats/base/sanitizers.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#if MOEC_HAS_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#if MOEC_HAS_TSAN
#include <sanitizer/tsan_interface.h>
#endif

#define STACK_BYTES (256u << 10)
#define MAX_WARPS   (MOEC_BLOCKS_MAX_THREADS / MOEC_BLOCKS_WARP)

MOEC_BLOCKS_LOCAL const struct moec_blocks_place *moec_blocks_here;
MOEC_BLOCKS_LOCAL uint64_t moec_blocks_epoch;

/* ---- stacks ---- */

/* Where a stack of instructions stopped. */
struct context {
#if defined(__x86_64__)
    void *stack_pointer;
#else
    ucontext_t saved;
#endif
#if MOEC_HAS_ASAN
    void *fake_stack;
    const void *bottom;
    size_t n_bytes;
#endif
#if MOEC_HAS_TSAN
    void *fiber;
#endif
};

#if defined(__x86_64__)
/* Pushes what a call must preserve, leaves the stack pointer in *from, and takes up `to` in the same way. */
void moec_blocks_change_stack(void **from, void *to);
__asm__(".text\n"
        ".p2align 4\n"
        ".hidden moec_blocks_change_stack\n"
        ".globl moec_blocks_change_stack\n"
        ".type moec_blocks_change_stack, @function\n"
        "moec_blocks_change_stack:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    retq\n"
        ".size moec_blocks_change_stack, . - moec_blocks_change_stack\n");
#endif

static void change(struct context *from, struct context *to)
{
#if MOEC_HAS_ASAN
    __sanitizer_start_switch_fiber(&from->fake_stack, to->bottom, to->n_bytes);
#endif
#if MOEC_HAS_TSAN
    __tsan_switch_to_fiber(to->fiber, 0);
#endif
#if defined(__x86_64__)
    moec_blocks_change_stack(&from->stack_pointer, to->stack_pointer);
#else
    (void)swapcontext(&from->saved, &to->saved);
#endif
#if MOEC_HAS_ASAN
    __sanitizer_finish_switch_fiber(from->fake_stack, NULL, NULL);
#endif
}

/* ---- threads of a block ---- */

enum state { READY, AT_BARRIER, AT_EXCHANGE, ENDED };

/* What a thread asks of the others of its mask: a value, a ballot, or work together. */
struct request {
    bool is_ballot;
    uint32_t value, from;   /* value is the answer afterwards */
    moec_blocks_work *work; /* NULL without */
    void *own;
};

struct thread {
    struct context context;
    struct moec_blocks_place place;
    enum state state;
    uint32_t mask; /* of an exchange */
    struct request request;
};

/* Memory that kernels share by key. */
struct shared {
    struct shared *next;
    const void *key;
    _Alignas(max_align_t) uint8_t bytes[];
};

/* The blocks of one operating system thread. */
struct runner {
    struct context context; /* of the caller */
    struct thread threads[MOEC_BLOCKS_MAX_THREADS];
    struct thread *current;
    uint32_t n_threads;
    uint64_t serial;
    moec_blocks_body *body;
    const void *arguments;
    uint8_t *stacks;
    struct shared *shared; /* owned */
};

static MOEC_BLOCKS_LOCAL struct runner *own_runner;
static pthread_key_t runner_key;
static pthread_once_t runner_once = PTHREAD_ONCE_INIT;
static moec_blocks_enqueue *diverted;

__attribute__((noreturn)) static void refuse(const char *what)
{
    const struct moec_blocks_place *here = moec_blocks_here;
    if (here != NULL)
        fprintf(stderr, "block (%u, %u, %u), thread %u: ", here->block.x, here->block.y, here->block.z,
                here->thread.x);
    fprintf(stderr, "%s\n", what);
    abort();
}

void moec_blocks_refuse_index(uint64_t index, uint64_t length)
{
    char text[96];
    (void)snprintf(text, sizeof text, "index %llu of an array of %llu", (unsigned long long)index,
                   (unsigned long long)length);
    refuse(text);
}

void moec_blocks_refuse_race(uint32_t other)
{
    char text[96];
    (void)snprintf(text, sizeof text, "thread %u used the same shared memory, and no barrier parts them",
                   other);
    refuse(text);
}

/* What every stack runs for ever: one thread's work after the other. */
static void run_thread(void)
{
    struct runner *runner = own_runner;
#if MOEC_HAS_ASAN
    __sanitizer_finish_switch_fiber(NULL, &runner->context.bottom, &runner->context.n_bytes);
#endif
    for (struct thread *self = runner->current;;) {
        runner->body(runner->arguments);
        self->state = ENDED;
        change(&self->context, &runner->context);
    }
}

static void prepare_stack(struct thread *thread, uint8_t *stack)
{
#if MOEC_HAS_ASAN
    thread->context.bottom = stack;
    thread->context.n_bytes = STACK_BYTES;
#endif
#if MOEC_HAS_TSAN
    thread->context.fiber = __tsan_create_fiber(0);
#endif
#if defined(__x86_64__)
    void (*entry)(void) = run_thread;
    void **top =
        (void **)(void *)(stack + STACK_BYTES) - 2; /* as a call leaves it: 8 below a multiple of 16 */
    memset(top - 6, 0, 8 * sizeof *top);
    memcpy(top, &entry, sizeof entry);
    thread->context.stack_pointer = top - 6;
#else
    (void)getcontext(&thread->context.saved);
    thread->context.saved.uc_stack.ss_sp = stack;
    thread->context.saved.uc_stack.ss_size = STACK_BYTES;
    makecontext(&thread->context.saved, run_thread, 0);
#endif
}

static void free_runner(void *memory)
{
    struct runner *runner = memory;
#if MOEC_HAS_TSAN
    for (uint32_t t = 0; t < MOEC_BLOCKS_MAX_THREADS; t++)
        __tsan_destroy_fiber(runner->threads[t].context.fiber);
#endif
    (void)munmap(runner->stacks, (size_t)MOEC_BLOCKS_MAX_THREADS * STACK_BYTES);
    while (runner->shared != NULL) {
        struct shared *next = runner->shared->next;
        free(runner->shared);
        runner->shared = next;
    }
    free(runner);
}

static void make_key(void)
{
    if (pthread_key_create(&runner_key, free_runner) != 0)
        refuse("cannot create a thread-specific key for the stacks of threads");
}

static struct runner *runner_of_thread(void)
{
    if (own_runner != NULL)
        return own_runner;
    (void)pthread_once(&runner_once, make_key);
    struct runner *runner = calloc(1, sizeof *runner);
    void *stacks = mmap(NULL, (size_t)MOEC_BLOCKS_MAX_THREADS * STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (runner == NULL || stacks == MAP_FAILED || pthread_setspecific(runner_key, runner) != 0)
        refuse("no memory for the stacks of a block");
    runner->stacks = stacks;
    for (uint32_t t = 0; t < MOEC_BLOCKS_MAX_THREADS; t++)
        prepare_stack(&runner->threads[t], runner->stacks + (size_t)t * STACK_BYTES);
#if MOEC_HAS_TSAN
    runner->context.fiber = __tsan_get_current_fiber();
#endif
    own_runner = runner;
    return runner;
}

/* ---- waiting ---- */

static void wait_as(enum state state)
{
    struct runner *runner = own_runner;
    runner->current->state = state;
    change(&runner->current->context, &runner->context);
}

void moec_blocks_barrier(void)
{
    wait_as(AT_BARRIER);
}

static uint32_t exchange(uint32_t mask, struct request request)
{
    struct thread *self = own_runner->current;
    if ((mask >> self->place.thread.x % MOEC_BLOCKS_WARP & 1) == 0)
        refuse("a thread exchanges values, but its own mask excludes it");
    self->mask = mask;
    self->request = request;
    wait_as(AT_EXCHANGE);
    return self->request.value;
}

uint32_t moec_blocks_exchange(uint32_t mask, uint32_t value, uint32_t from)
{
    return exchange(mask, (struct request){.value = value, .from = from});
}

uint32_t moec_blocks_ballot(uint32_t mask, uint32_t value)
{
    return exchange(mask, (struct request){.is_ballot = true, .value = value != 0});
}

void moec_blocks_together(uint32_t mask, moec_blocks_work *work, void *own)
{
    (void)exchange(mask, (struct request){.work = work, .own = own});
}

void *moec_blocks_shared(const void *key, size_t n_bytes)
{
    for (struct shared *shared = own_runner->shared; shared != NULL; shared = shared->next)
        if (shared->key == key)
            return shared->bytes;
    struct shared *made = calloc(1, sizeof *made + n_bytes);
    if (made == NULL)
        refuse("no memory for the shared memory of a block");
    made->next = own_runner->shared;
    made->key = key;
    own_runner->shared = made;
    return made->bytes;
}

/* Whether all lanes of a mask have come to the same exchange. */
static bool have_come(const struct runner *runner, uint32_t first, uint32_t mask)
{
    const struct request *asked = &runner->threads[first + (uint32_t)__builtin_ctz(mask)].request;
    for (uint32_t lane = 0; lane < MOEC_BLOCKS_WARP; lane++) {
        const struct thread *thread = &runner->threads[first + lane];
        if ((mask >> lane & 1) != 0 &&
            (first + lane >= runner->n_threads || thread->state != AT_EXCHANGE || thread->mask != mask ||
             thread->request.is_ballot != asked->is_ballot || thread->request.work != asked->work))
            return false;
    }
    return true;
}

/* Ends the exchange of a mask if all its lanes have come. */
static bool end_exchange(struct runner *runner, uint32_t first, uint32_t mask)
{
    uint32_t values[MOEC_BLOCKS_WARP] = {0}, ballot = 0;
    void *own[MOEC_BLOCKS_WARP] = {NULL};
    const struct request asked = runner->threads[first + (uint32_t)__builtin_ctz(mask)].request;
    if (!have_come(runner, first, mask))
        return false;
    for (uint32_t lane = 0; lane < MOEC_BLOCKS_WARP; lane++) {
        if ((mask >> lane & 1) == 0)
            continue;
        const struct request *request = &runner->threads[first + lane].request;
        values[lane] = request->value;
        own[lane] = request->own;
        ballot |= request->value << lane;
    }
    if (asked.work != NULL)
        asked.work(own);
    for (uint32_t lane = 0; lane < MOEC_BLOCKS_WARP; lane++) {
        struct thread *thread = &runner->threads[first + lane];
        const uint32_t from = thread->request.from;
        if ((mask >> lane & 1) == 0)
            continue;
        if (!asked.is_ballot && asked.work == NULL && (from >= MOEC_BLOCKS_WARP || (mask >> from & 1) == 0))
            refuse("a thread asks for the value of a thread that its mask excludes");
        thread->request.value = asked.is_ballot ? ballot : values[asked.work == NULL ? from : lane];
        thread->state = READY;
    }
    return true;
}

static bool end_exchanges(struct runner *runner)
{
    bool has_ended = false;
    for (uint32_t t = 0; t < runner->n_threads; t++) {
        const struct thread *thread = &runner->threads[t];
        if (thread->state == AT_EXCHANGE)
            has_ended =
                end_exchange(runner, t / MOEC_BLOCKS_WARP * MOEC_BLOCKS_WARP, thread->mask) || has_ended;
    }
    return has_ended;
}

static bool end_barrier(struct runner *runner)
{
    bool is_met = false;
    for (uint32_t t = 0; t < runner->n_threads; t++) {
        if (runner->threads[t].state != AT_BARRIER && runner->threads[t].state != ENDED)
            return false;
        is_met = is_met || runner->threads[t].state == AT_BARRIER;
    }
    moec_blocks_epoch++;
    for (uint32_t t = 0; t < runner->n_threads && is_met; t++)
        if (runner->threads[t].state == AT_BARRIER)
            runner->threads[t].state = READY;
    return is_met;
}

/* ---- blocks and grids ---- */

static void run_block(struct runner *runner)
{
    uint32_t n_left = runner->n_threads;
    while (n_left > 0) {
        for (uint32_t t = 0; t < runner->n_threads; t++) {
            struct thread *thread = &runner->threads[t];
            if (thread->state != READY)
                continue;
            runner->current = thread;
            moec_blocks_here = &thread->place;
            change(&runner->context, &thread->context);
            n_left -= thread->state == ENDED;
        }
        if (n_left > 0 && !end_exchanges(runner) && !end_barrier(runner))
            refuse("threads of this block wait for others that never arrive");
    }
    moec_blocks_here = NULL;
}

struct launch {
    struct moec_blocks_size n_blocks;
    uint32_t n_threads;
    moec_blocks_body *body;
    _Alignas(max_align_t) uint8_t arguments[];
};

static void run_grid(void *memory)
{
    const struct launch *launch = memory;
    struct runner *runner = runner_of_thread();
    runner->body = launch->body;
    runner->arguments = launch->arguments;
    runner->n_threads = launch->n_threads;
    struct moec_blocks_size block;
    for (block.z = 0; block.z < launch->n_blocks.z; block.z++)
        for (block.y = 0; block.y < launch->n_blocks.y; block.y++)
            for (block.x = 0; block.x < launch->n_blocks.x; block.x++) {
                runner->serial++;
                moec_blocks_epoch++;
                for (uint32_t t = 0; t < launch->n_threads; t++) {
                    runner->threads[t].state = READY;
                    runner->threads[t].place = (struct moec_blocks_place){
                        {t, 0, 0}, block, {launch->n_threads, 1, 1}, launch->n_blocks, runner->serial};
                }
                run_block(runner);
            }
}

void moec_blocks_divert(moec_blocks_enqueue *enqueue)
{
    diverted = enqueue;
}

void moec_blocks_launch(struct moec_gpu_stream *stream, struct moec_blocks_size n_blocks, uint32_t n_threads,
                        moec_blocks_body *body, const void *arguments, size_t n_bytes)
{
    if (n_threads == 0 || n_threads > MOEC_BLOCKS_MAX_THREADS)
        refuse("a block must have 1 to 64 threads");
    struct launch *launch = malloc(sizeof *launch + n_bytes);
    if (launch == NULL)
        refuse("no memory for a kernel's arguments");
    launch->n_blocks = n_blocks;
    launch->n_threads = n_threads;
    launch->body = body;
    memcpy(launch->arguments, arguments, n_bytes);
    if (diverted != NULL)
        diverted(stream, run_grid, launch, sizeof *launch + n_bytes);
    else
        run_grid(launch);
    free(launch);
}
