/* Coroutines without a scheduler: a thread that waits gives its turn to the next ready one of its block.
 * When all have had theirs, exchanges end whose lanes have all come, then the barrier. If nothing can end,
 * the block would hang on a GPU, and it is refused here. The order of threads is fixed, so a failure
 * repeats. On x86-64 a change of stacks saves nothing but the stack pointer; the compiler saves what is
 * live. */
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
/* From a stack to the next: at a power of two apart their tops would share a few lines of the caches. */
#define STACK_STRIDE (STACK_BYTES + 33 * 64)
#define MAX_WARPS    (MOEC_BLOCKS_MAX_THREADS / MOEC_BLOCKS_WARP)

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
/* Leaves the stack pointer in *from and takes up `to`, with the address to go on at on top of either. Neither calls
 * nor returns, which processors predict by pairs: the return of whoever waited is predicted by that of the thread
 * before it, which waited at the same place. Below the stack pointer leaf functions have 128 bytes. */
static inline __attribute__((always_inline)) void change_stack(void **from, void *to)
{
    __asm__ volatile("leaq -128(%%rsp), %%rsp\n\t"
                     "pushq %%rbp\n\t"
                     "leaq 1f(%%rip), %%rax\n\t"
                     "pushq %%rax\n\t"
                     "movq %%rsp, (%0)\n\t"
                     "movq %1, %%rsp\n\t"
                     "popq %%rax\n\t"
                     "jmpq *%%rax\n"
                     "1:\n\t"
                     "popq %%rbp\n\t"
                     "leaq 128(%%rsp), %%rsp\n\t"
                     : "+D"(from), "+S"(to)
                     :
                     : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "cc",
                       "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
                       "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
}
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
    change_stack(&from->stack_pointer, to->stack_pointer);
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
    uint32_t n_threads, n_left; /* that have not ended */
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
    (void)snprintf(text, sizeof text, "thread %u used the same shared memory, with no barrier between",
                   other);
    refuse(text);
}

/* The thread whose turn it is behind `self`, which waits or has ended, or the runner, when all have had theirs. */
static void take_turns(struct runner *runner, struct thread *self)
{
    struct context *next = &runner->context;
    for (struct thread *thread = self + 1; thread < runner->threads + runner->n_threads; thread++)
        if (thread->state == READY) {
            runner->current = thread;
            moec_blocks_here = &thread->place;
            next = &thread->context;
            break;
        }
    change(&self->context, next);
}

/* What every stack runs for ever: one thread's work after the other. */
static void run_thread(void)
{
    struct runner *runner = own_runner;
#if MOEC_HAS_ASAN
    /* The very first begins behind the runner, whose stack this is how one learns. */
    const void *bottom;
    size_t n_bytes;
    __sanitizer_finish_switch_fiber(NULL, &bottom, &n_bytes);
    if (runner->context.bottom == NULL) {
        runner->context.bottom = bottom;
        runner->context.n_bytes = n_bytes;
    }
#endif
    for (struct thread *self = runner->current;;) {
        runner->body(runner->arguments);
        self->state = ENDED;
        runner->n_left--;
        take_turns(runner, self);
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
    void **top = (void **)(void *)(stack + STACK_BYTES) -
                 2; /* above it as a call leaves it: 8 below a multiple of 16 */
    memcpy(top, &entry, sizeof entry);
    thread->context.stack_pointer = top;
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
    (void)munmap(runner->stacks, (size_t)MOEC_BLOCKS_MAX_THREADS * STACK_STRIDE);
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
    void *stacks = mmap(NULL, (size_t)MOEC_BLOCKS_MAX_THREADS * STACK_STRIDE, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (runner == NULL || stacks == MAP_FAILED || pthread_setspecific(runner_key, runner) != 0)
        refuse("no memory for the stacks of a block");
    runner->stacks = stacks;
    for (uint32_t t = 0; t < MOEC_BLOCKS_MAX_THREADS; t++)
        prepare_stack(&runner->threads[t], runner->stacks + (size_t)t * STACK_STRIDE);
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
    take_turns(runner, runner->current);
}

void moec_blocks_barrier(void)
{
    wait_as(AT_BARRIER);
}

/* Of the thread at work; its fields are written one by one, since copies of whole requests wait for such writes. */
static struct request *request_of(uint32_t mask)
{
    struct thread *self = own_runner->current;
    if ((mask >> self->place.thread.x % MOEC_BLOCKS_WARP & 1) == 0)
        refuse("a thread exchanges values, but its own mask excludes it");
    self->mask = mask;
    return &self->request;
}

uint32_t moec_blocks_exchange(uint32_t mask, uint32_t value, uint32_t from)
{
    struct request *request = request_of(mask);
    request->is_ballot = false;
    request->value = value;
    request->from = from;
    request->work = NULL;
    wait_as(AT_EXCHANGE);
    return request->value;
}

uint32_t moec_blocks_ballot(uint32_t mask, uint32_t value)
{
    struct request *request = request_of(mask);
    request->is_ballot = true;
    request->value = value != 0;
    request->work = NULL;
    wait_as(AT_EXCHANGE);
    return request->value;
}

void moec_blocks_together(uint32_t mask, moec_blocks_work *work, void *own)
{
    struct request *request = request_of(mask);
    request->is_ballot = false;
    request->work = work;
    request->own = own;
    wait_as(AT_EXCHANGE);
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

/* Lanes of a mask, from the lowest. */
#define EACH_LANE(lane, mask)                                                                                \
    for (uint32_t left_ = (mask), lane; left_ != 0 && (lane = (uint32_t)__builtin_ctz(left_), true);         \
         left_ &= left_ - 1)

/* Whether all lanes of a mask have come to the same exchange. */
static bool have_come(const struct runner *runner, uint32_t first, uint32_t mask)
{
    const struct request *asked = &runner->threads[first + (uint32_t)__builtin_ctz(mask)].request;
    EACH_LANE(lane, mask)
    {
        const struct thread *thread = &runner->threads[first + lane];
        if (first + lane >= runner->n_threads || thread->state != AT_EXCHANGE || thread->mask != mask ||
            thread->request.is_ballot != asked->is_ballot || thread->request.work != asked->work)
            return false;
    }
    return true;
}

/* What each lane of a mask gave, which is then the answer of those that ask for it. */
static void end_exchange_of_values(struct thread *threads, uint32_t mask)
{
    uint32_t values[MOEC_BLOCKS_WARP];
    EACH_LANE(lane, mask) values[lane] = threads[lane].request.value;
    EACH_LANE(lane, mask)
    {
        const uint32_t from = threads[lane].request.from;
        if (from >= MOEC_BLOCKS_WARP || (mask >> from & 1) == 0)
            refuse("a thread asks for the value of a thread that its mask excludes");
        threads[lane].request.value = values[from];
    }
}

static void end_ballot(struct thread *threads, uint32_t mask)
{
    uint32_t ballot = 0;
    EACH_LANE(lane, mask) ballot |= threads[lane].request.value << lane;
    EACH_LANE(lane, mask) threads[lane].request.value = ballot;
}

/* Ends the exchange of a mask if all its lanes have come. */
static bool end_exchange(struct runner *runner, uint32_t first, uint32_t mask)
{
    struct thread *threads = runner->threads + first;
    const struct request *asked = &threads[__builtin_ctz(mask)].request;
    if (!have_come(runner, first, mask))
        return false;
    if (asked->work != NULL) {
        void *own[MOEC_BLOCKS_WARP] = {NULL};
        EACH_LANE(lane, mask) own[lane] = threads[lane].request.own;
        asked->work(own);
    } else if (asked->is_ballot) {
        end_ballot(threads, mask);
    } else {
        end_exchange_of_values(threads, mask);
    }
    EACH_LANE(lane, mask) threads[lane].state = READY;
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

/* The first thread that is ready has its turn, and gives the next its own. */
static void run_block(struct runner *runner)
{
    runner->n_left = runner->n_threads;
    while (runner->n_left > 0) {
        struct thread *first = runner->threads;
        while (first->state != READY)
            first++;
        runner->current = first;
        moec_blocks_here = &first->place;
        change(&runner->context, &first->context);
        if (runner->n_left > 0 && !end_exchanges(runner) && !end_barrier(runner))
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
