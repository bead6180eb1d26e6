/* Figures have to be those of the verbs that they are about. So the constants here are the defaults of moec
 * profile and of a prompt, and follow them. What moec itself takes is measured of this process; what moec-run
 * takes is a constant and the tokenizer. */
#include "cli/options/inputs.h"
#include "cli/output/compile_forecast.h"
#include "cli/print/print.h"
#include "cli/settings/engine_options.h"
#include "cli/terminal/checkpoint_note.h"
#include "cli/terminal/json_output.h"
#include "cli/terminal/terminal.h"
#include "cli/verbs/commands.h"
#include "formats/bundle/bundle_chat.h"
#include "formats/checkpoint/checkpoint_chat.h"
#include "profiler/doctor/doctor.h"
#include "profiler/doctor/forecast.h"
#include "profiler/profile/model_check.h"
#include "profiler/ranks/ranks.h"
#include "runtime/chat/chat_template.h"
#include "runtime/engine/memory_plan.h"
#include "runtime/threads/parallel.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const struct cli_option options[] = {
    {"memory", 0, "SIZE", NULL, "Show what share of the experts stays in memory with this limit.", 0},
    {"ctx", 0, "TOKENS", NULL,
     "Count memory for a KV cache of this many tokens (default 512, or the model's limit if that is "
     "less).",
     0},
    {"tokens", 'n', "N", NULL, "Count memory for a text of N tokens after a short prompt.", 0},
    {"threads", 't', "N", NULL, "Threads to plan with and to measure with (default: all cores).", 0},
    {"ranks", 0, "N", NULL, "Show what each of N processes of mpirun would receive and keep on disk.",
     CLI_RARE},
    {"cpu", 0, "SET", CLI_CPU_CHOICES, "Instruction set: auto (default), " CLI_CPU_SETS ".", 0},
    {"json", 0, NULL, NULL, "Print everything as JSON, also the reason why a model is refused.", 0},
    {0},
};

/* Code and tables that opening a bundle touches, beside its tokenizer. */
#define OPENING_BYTES ((uint64_t)1 << 20)

#define PROMPT        "Once upon a time"
#define PROMPT_TOKENS 20u /* that it takes at most */

/* Defaults of moec profile. */
#define PROFILE_SEQ_LEN_TOKENS 256u
#define PROFILE_BITWIDTHS      4u

struct examination {
    const struct cli_args *args;
    const char *path;
    struct {
        struct moec_doctor_request doctor;
        const struct moec_kernels *kernels;
        uint32_t n_rank; /* of mpirun; 0: nobody asks */
    } asked;
    struct moec_checkpoint *checkpoint; /* one of these two */
    struct moec_bundle *bundle;
    struct {
        struct moec_doctor doctor;
        struct moec_forecast forecast; /* of a checkpoint with a tokenizer */
        struct cli_compile_forecast compile;
    } found;
    struct {
        bool weights, tokenizer;
        bool text; /* it can be compiled and run by text */
        bool chat;
        struct moec_error chat_refusal; /* of a template that moec chat cannot use */
    } has;
};

static const struct moec_config *config_of(const struct examination *x)
{
    return x->bundle != NULL ? &x->bundle->config : moec_checkpoint_config(x->checkpoint);
}

/* ---- examining ---- */

static void examine_chat(struct examination *x, const struct moec_chat_source *source)
{
    struct moec_chat_template *chat_template = NULL;
    const struct moec_chat_text *text = moec_chat_source_find(source, MOEC_CHAT_TEMPLATE);
    x->has.chat = text != NULL;
    if (text != NULL &&
        moec_chat_template_parse(text->bytes, text->n_bytes, &chat_template, &x->has.chat_refusal) == MOEC_OK)
        moec_chat_template_free(chat_template);
}

static enum moec_status check_context(const struct examination *x, struct moec_error *err)
{
    const uint32_t n_position = config_of(x)->n_position;
    if (!cli_has(x->args, "ctx") || x->asked.doctor.n_context <= n_position)
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_LIMIT,
                     "a context of %" PRIu32 " tokens is too long: the model has only %" PRIu32
                     " positions; lower --ctx",
                     x->asked.doctor.n_context, n_position);
}

/* The KV cache that --ctx or -n ask for, as moec run makes it. */
static enum moec_status read_context(struct examination *x, struct moec_error *err)
{
    uint32_t n_text = 0;
    MOEC_TRY(cli_u32(x->args, "ctx", 1, 1u << 24, &x->asked.doctor.n_context, err));
    MOEC_TRY(cli_u32(x->args, "tokens", 1, 1u << 24, &n_text, err));
    if (n_text > 0 && (x->asked.doctor.n_context == 0 || n_text + PROMPT_TOKENS < x->asked.doctor.n_context))
        x->asked.doctor.n_context = n_text + PROMPT_TOKENS;
    return MOEC_OK;
}

static enum moec_status examine_bundle(struct examination *x, struct moec_error *err)
{
    struct moec_chat_source source = {.n = 0};
    MOEC_TRY(moec_bundle_open(x->path, &x->bundle, err));
    MOEC_TRY(moec_bundle_load_chat(x->bundle, &source, err));
    examine_chat(x, &source);
    moec_chat_source_release(&source);
    MOEC_TRY(check_context(x, err));
    x->has.weights = true;
    x->has.text = x->has.tokenizer = x->bundle->tokenizer != NULL;
    uint64_t tokenizer_bytes = 0;
    MOEC_TRY(moec_memory_base_bytes(&x->asked.doctor.base_bytes[MOEC_DOCTOR_MOEC], err));
    MOEC_TRY(moec_doctor_tokenizer_bytes(x->bundle->tokenizer, &tokenizer_bytes, err));
    x->asked.doctor.base_bytes[MOEC_DOCTOR_MOEC] += tokenizer_bytes;
    x->asked.doctor.base_bytes[MOEC_DOCTOR_MOEC_RUN] = MOEC_DOCTOR_RUN_BYTES + tokenizer_bytes;
    return moec_doctor_bundle(x->bundle, &x->asked.doctor, &x->found.doctor, err);
}

static enum moec_status examine_checkpoint(struct examination *x, struct moec_error *err)
{
    uint64_t tokenizer_bytes = 0;
    struct cli_progress progress;
    MOEC_TRY(moec_memory_base_bytes(&x->asked.doctor.base_bytes[MOEC_DOCTOR_MOEC], err));
    MOEC_TRY(moec_checkpoint_open_config(x->path, &x->checkpoint, err));
    cli_progress_init(&progress, "doctor", NULL, false);
    cli_say_checkpoint(&progress, x->checkpoint);
    MOEC_TRY(moec_model_check(x->checkpoint, false, err));
    MOEC_TRY(check_context(x, err));
    x->has.weights = moec_checkpoint_has_weights(x->checkpoint);
    x->has.tokenizer = moec_checkpoint_tokenizer(x->checkpoint) != NULL;
    /* A download that has begun with config.json may get its tokenizer yet. */
    x->has.text = x->has.tokenizer || !x->has.weights;
    examine_chat(x, moec_checkpoint_chat(x->checkpoint));
    MOEC_TRY(moec_doctor_tokenizer_bytes(moec_checkpoint_tokenizer(x->checkpoint), &tokenizer_bytes, err));
    x->asked.doctor.base_bytes[MOEC_DOCTOR_MOEC] += tokenizer_bytes + OPENING_BYTES;
    x->asked.doctor.base_bytes[MOEC_DOCTOR_MOEC_RUN] = MOEC_DOCTOR_RUN_BYTES + tokenizer_bytes;
    MOEC_TRY(moec_doctor_checkpoint(x->checkpoint, &x->asked.doctor, &x->found.doctor, err));
    const struct moec_forecast_request request = {.config = config_of(x),
                                                  .kernels = x->asked.kernels,
                                                  .n_threads = x->asked.doctor.n_threads,
                                                  .seq_len_tokens = PROFILE_SEQ_LEN_TOKENS,
                                                  .n_bits = PROFILE_BITWIDTHS};
    if (!x->has.text)
        return MOEC_OK;
    MOEC_TRY(moec_forecast_make(&request, &x->found.forecast, err));
    const struct moec_compile_options defaults = {.search.offers_variants = true, .dense.is_planned = true};
    struct moec_compile_request compile = {
        .config = config_of(x), .options = &defaults, .seq_len_tokens = x->found.forecast.window_tokens};
    cli_default_parts(x->found.forecast.n_window, compile.n_part);
    x->found.compile = cli_forecast_compile(&compile, false, x->found.forecast.window);
    return MOEC_OK;
}

static enum moec_status examine(struct examination *x, struct moec_error *err)
{
    MOEC_TRY(cli_bytes(x->args, "memory", &x->asked.doctor.budget_bytes, err));
    MOEC_TRY(cli_read_threads(x->args, &x->asked.doctor.n_threads, err));
    MOEC_TRY(cli_u32(x->args, "ranks", 1, MOEC_RANKS_MAX, &x->asked.n_rank, err));
    MOEC_TRY(read_context(x, err));
    MOEC_TRY(cli_read_kernels(x->args, &x->asked.kernels, err));
    if (cli_has(x->args, "memory") && x->asked.doctor.budget_bytes == 0)
        return moec_fail(err, MOEC_ERR_USAGE, "option '--memory' is 0; leave it out for no limit");
    return cli_file_begins(x->path, "MOEC") ? examine_bundle(x, err) : examine_checkpoint(x, err);
}

/* ---- for people ---- */

static const char *count_text(char text[static 24], uint64_t n)
{
    static const struct {
        double unit;
        const char *name;
    } units[] = {{1e9, "billion"}, {1e6, "million"}};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if ((double)n >= units[i].unit) {
            (void)snprintf(text, 24, "%.*f %s", (double)n >= 100 * units[i].unit ? 0 : 1,
                           (double)n / units[i].unit, units[i].name);
            return text;
        }
    (void)snprintf(text, 24, "%" PRIu64, n);
    return text;
}

static const char *time_text(char text[static 24], double seconds)
{
    if (seconds < 100)
        (void)snprintf(text, 24, "%.0f s", seconds < 1 ? 1 : seconds);
    else if (seconds < 6000)
        (void)snprintf(text, 24, "%.0f minutes", seconds / 60);
    else if (seconds < 48 * 3600.0)
        (void)snprintf(text, 24, "%.0f hours", seconds / 3600);
    else
        (void)snprintf(text, 24, "%.0f days", seconds / 86400);
    return text;
}

static void print_model(const struct examination *x)
{
    const struct moec_config *config = config_of(x);
    const uint32_t n_moe = moec_config_moe_count(config);
    char all[24], active[24], stored[24], experts[24];
    cli_print(stdout, "%s: supported\n\n", x->path);
    cli_print(stdout, "  %s: %" PRIu32 " layers, %" PRIu32 " with experts", config->family, config->n_layer,
              n_moe);
    if (moec_config_is_encoder_decoder(config))
        cli_print(stdout, ", the first %" PRIu32 " an encoder's", config->n_encoder_layer);
    char identities[64] = "";
    if (config->n_identity > 0)
        (void)snprintf(identities, sizeof identities, " and %" PRIu32 " identity experts",
                       config->n_identity);
    cli_print(stdout, "\n  %" PRIu32 " experts a layer%s, top-%" PRIu32 ", %" PRIu32 " neurons each; ",
              config->n_expert, identities, config->top_k, config->n_ff_expert);
    if (config->n_ff_shared > 0)
        cli_print(stdout, "shared expert: %" PRIu32 " neurons\n", config->n_ff_shared);
    else
        cli_print(stdout, "no shared expert\n");
    cli_print(stdout, "  hidden %" PRIu32 ", vocabulary %" PRIu32 ", context of at most %" PRIu32 " tokens\n",
              config->n_embd, config->n_vocab, config->n_position);
    if (moec_config_rope_limit(config) > 0)
        cli_print(stdout, "  RoPE has other angles for contexts of more than %" PRIu32 " tokens (--ctx)\n",
                  moec_config_rope_limit(config));
    cli_print(stdout, "  parameters: %s, active for a token: %s%s\n",
              count_text(all, x->found.doctor.n_parameter), config->n_identity > 0 ? "at most " : "",
              count_text(active, x->found.doctor.n_active));
    if (x->bundle != NULL)
        cli_print(stdout, "  file: %s\n", cli_size_text(stored, x->bundle->file.n_bytes));
    else
        cli_print(stdout, "  weights: %s, of which experts %s\n",
                  cli_size_text(stored, moec_checkpoint_weight_bytes(x->checkpoint)),
                  cli_size_text(experts, moec_checkpoint_expert_bytes(x->checkpoint)));
    if (x->has.chat && x->has.chat_refusal.status == MOEC_OK)
        cli_print(stdout, "  chat template: yes, for moec chat\n");
    else if (x->has.chat)
        cli_print(stdout, "  chat template: refused; %s\n", x->has.chat_refusal.message);
    if (!x->has.text)
        cli_print(stdout, "  no tokenizer: compile with --policy uniform, and libmoert runs token ids\n");
}

/* "37%", or "-" where it does not run. */
static void print_kept(double kept)
{
    if (kept < 0)
        cli_print(stdout, "%6s", "-");
    else
        cli_print(stdout, "%5.0f%%", 100 * kept);
}

/* Of moec-run for each kind of dense weights, or of both programs for a bundle's. */
static uint32_t n_needs(const struct examination *x)
{
    return x->bundle != NULL ? MOEC_DOCTOR_N_PROGRAM : x->found.doctor.n_dense;
}

static const struct moec_doctor_need *need_of(const struct examination *x,
                                              const struct moec_doctor_size *size, uint32_t i)
{
    return x->bundle != NULL ? &size->plans[0].needs[i] : &size->plans[i].needs[MOEC_DOCTOR_MOEC_RUN];
}

static void print_row(const struct examination *x, const struct moec_doctor_size *size)
{
    const struct moec_doctor *doctor = &x->found.doctor;
    const uint32_t n = n_needs(x);
    char text[24];
    if (size->is_exact)
        cli_print(stdout, "%6s", "mxfp4");
    else if (size->bits > 0)
        cli_print(stdout, "%6" PRIu32, size->bits);
    else
        cli_print(stdout, "%6s", "mixed");
    cli_print(stdout, "%9s", cli_size_text(text, size->expert_bytes));
    cli_print(stdout, "%9s", cli_size_text(text, size->token_bytes));
    for (uint32_t d = 0; x->bundle == NULL && d < doctor->n_dense; d++)
        cli_print(stdout, "%9s", cli_size_text(text, size->plans[d].bundle_bytes));
    for (uint32_t i = 0; i < n; i++)
        cli_print(stdout, "%9s", cli_memory_text(text, need_of(x, size, i)->least_bytes));
    for (uint32_t i = 0; i < n; i++)
        if (x->asked.doctor.budget_bytes > 0)
            print_kept(need_of(x, size, i)->kept);
        else
            cli_print(stdout, "%9s", cli_memory_text(text, need_of(x, size, i)->whole_bytes));
    cli_print(stdout, "\n");
}

static void print_heads(const struct examination *x)
{
    const bool has_budget = x->asked.doctor.budget_bytes > 0;
    const char *const both = x->bundle != NULL ? " moec-run moec run" : " dense 16  dense 4";
    cli_print(stdout, "\n%6s%9s%9s", "expert", "all", "token's");
    if (x->bundle == NULL)
        cli_print(stdout, "%18s", "bundle, at most");
    cli_print(stdout, "%18s%*s\n%6s%9s%9s", "minimum --memory", has_budget ? 12 : 18,
              has_budget ? "kept" : "for all experts", "bits", "experts", "experts");
    if (x->bundle == NULL)
        cli_print(stdout, " dense 16  dense 4");
    cli_print(stdout, "%s%s\n", both,
              !has_budget         ? both
              : x->bundle != NULL ? "  -run   run"
                                  : "    16     4");
}

static uint64_t between_programs(const struct moec_doctor_size *size)
{
    const struct moec_doctor_need *needs = size->plans[0].needs;
    return needs[MOEC_DOCTOR_MOEC].least_bytes - needs[MOEC_DOCTOR_MOEC_RUN].least_bytes;
}

static void print_sizes(const struct examination *x)
{
    const struct moec_doctor *doctor = &x->found.doctor;
    char text[24];
    print_heads(x);
    for (uint32_t i = 0; i < doctor->n_size; i++)
        print_row(x, &doctor->sizes[i]);
    cli_print(stdout, "\n");
    cli_print(stdout, "  token's experts: those that one token uses, in all layers together\n");
    if (x->bundle == NULL)
        cli_print_wrapped(
            stdout, 4,
            "  dense 16, dense 4: with 16 or 4 bits for the weights that are not experts. By "
            "default, compile chooses bits for each expert and each of these weights, so the size of its "
            "bundle is between those of two rows.\n");
    if (x->bundle == NULL &&
        moec_codec_traits((struct moec_codec){.dtype = config_of(x)->expert_dtype})->is_exact)
        cli_print_wrapped(
            stdout, 4,
            "  mxfp4: experts as stored in the checkpoint, without loss; a plan that has enough bytes for "
            "an expert leaves it unchanged\n");
    char more[80] = "";
    if (x->bundle == NULL)
        (void)snprintf(more, sizeof more, "; the command 'moec run' needs %s more",
                       cli_memory_text(text, between_programs(doctor->sizes)));
    cli_print_wrapped(stdout, 4, "  minimum --memory: what %s needs for a context of %" PRIu32 " tokens%s\n",
                      x->bundle == NULL ? "the program moec-run" : "each program", doctor->n_context, more);
    if (x->asked.doctor.budget_bytes > 0)
        cli_print_wrapped(stdout, 4,
                          "  kept: share of the experts that stays in memory at --memory %s; '-' means that "
                          "the model does not fit\n",
                          cli_memory_text(text, x->asked.doctor.budget_bytes));
    else
        cli_print_wrapped(stdout, 4,
                          "  for all experts: the --memory at which every expert stays in memory. With less, "
                          "some are read from storage again and again. With less than the minimum plus one "
                          "token's experts, most are read again for every token, which is slow.\n");
    if (x->bundle == NULL && !x->has.tokenizer && x->has.text)
        cli_print_wrapped(
            stdout, 4,
            "  no tokenizer in this folder: add the tokenizer's memory, some MiB, to each --memory\n");
}

static const char *hours_text(char text[static 16], double hours)
{
    (void)snprintf(text, 16, "%.*f", hours < 1 ? 2 : hours < 10 ? 1 : 0, hours);
    return text;
}

static void print_forecast(const struct examination *x)
{
    const struct moec_forecast *f = &x->found.forecast;
    const uint32_t n_threads = (uint32_t)moec_pool_make(x->asked.doctor.n_threads).n_threads;
    char text[24];
    if (!x->has.text || x->bundle != NULL)
        return;
    cli_print(stdout, "\n");
    cli_print_wrapped(stdout, 2,
                      "  For a text of %" PRIu32 " windows of %" PRIu32 " tokens, on %" PRIu32
                      " threads here (together %.1f billion multiply-adds a second, measured now):\n",
                      f->n_window, f->window_tokens, n_threads, f->multiply_adds_per_second * 1e-9);
    cli_print(stdout, "    compile               %7.0f passes and fitting, about %s\n",
              x->found.compile.counted.all / f->n_window, time_text(text, x->found.compile.seconds));
    cli_print(stdout, "    profile, measured     %7.0f passes, at least %s\n", f->exact_passes,
              time_text(text, f->exact_seconds));
    if (f->fast_passes > 0)
        cli_print(stdout, "    profile, estimated    %7.0f passes, at least %s\n", f->fast_passes,
                  time_text(text, f->fast_seconds));
    const struct moec_forecast_time *window = &f->window;
    char all[16], passes[16], fitting[16], many[24];
    cli_print(stdout,
              "  compile: %s core-hours, of which passes %s, fitting quantised weights %s\n"
              "    about %s on %u idle cores like these\n",
              hours_text(all, x->found.compile.core_seconds / 3600),
              hours_text(passes, (x->found.compile.counted.all + x->found.compile.stages.others) *
                                     window->core_seconds / 3600),
              hours_text(fitting, x->found.compile.stages.weights * window->product_core_seconds / 3600),
              cli_many_cores_text(many, x->found.compile.core_seconds), CLI_MANY_THREADS);
    cli_print_compile_stages(&x->found.compile);
    cli_print_compile_ranks(&x->found.compile, x->asked.n_rank);
    cli_print_wrapped(
        stdout, 4,
        "  profile, which compile does not need, measures every expert if that takes less than 30 "
        "minutes%s. Each expert in a pass of its own would take %.0f passes.\n",
        f->fast_passes > 0 ? ", and otherwise estimates" : "", f->naive_passes);
}

/* The budget that was asked about if it is enough; else one in which a token's experts fit. */
static void budget_to_try(const struct examination *x, char text[static 24])
{
    const struct moec_doctor_size *size = &x->found.doctor.sizes[0];
    for (uint32_t i = 1; i < x->found.doctor.n_size && size->bits != 4; i++)
        size = x->bundle == NULL ? &x->found.doctor.sizes[i] : size;
    const struct moec_doctor_need *need = &size->plans[0].needs[MOEC_DOCTOR_MOEC_RUN];
    if (x->asked.doctor.budget_bytes >= need->least_bytes)
        (void)snprintf(text, 24, "%s", cli_text(x->args, "memory"));
    else
        cli_budget_text(text, need->least_bytes + size->token_bytes);
}

/* Whether some bundle runs in the memory that was asked about, but not one of 4 bits with all of its experts there. */
static bool is_for_fit(const struct examination *x)
{
    bool runs = false, holds_all = false;
    for (uint32_t i = 0; i < x->found.doctor.n_size; i++)
        for (uint32_t d = 0; d < x->found.doctor.n_dense; d++) {
            const double kept = x->found.doctor.sizes[i].plans[d].needs[MOEC_DOCTOR_MOEC_RUN].kept;
            runs = runs || kept >= 0;
            holds_all = holds_all || (x->found.doctor.sizes[i].bits == 4 && kept >= 1);
        }
    return x->has.text && cli_has(x->args, "memory") && runs && !holds_all &&
           !moec_config_is_encoder_decoder(config_of(x)) && !moec_config_routes_by_token(config_of(x));
}

static void print_compile(const struct examination *x)
{
    const bool has_encoder = moec_config_is_encoder_decoder(config_of(x));
    if (is_for_fit(x)) {
        cli_print(stdout, "    moec fit ");
        cli_print_word(stdout, x->path);
        cli_print(stdout,
                  " --data mytext.txt --max-loss 2%% --memory %s \\\n        --storage sd -o model.moec\n",
                  cli_text(x->args, "memory"));
        return;
    }
    cli_print(stdout, "    moec compile ");
    cli_print_word(stdout, x->path);
    /* A command that is copied goes on with a backslash. */
    cli_print(stdout, "%s %s -o model.moec\n", strlen(x->path) > 17 ? " \\\n       " : "",
              !x->has.text  ? "--policy uniform --bits 4"
              : has_encoder ? "--task samsum --data train.csv --max-loss 2%"
                            : "--data mytext.txt --max-loss 2%");
}

static void print_run(const struct examination *x)
{
    char memory[24];
    if (x->bundle == NULL && is_for_fit(x))
        (void)snprintf(memory, sizeof memory, "%s", cli_text(x->args, "memory"));
    else
        budget_to_try(x, memory);
    cli_print(stdout, "    moec-run ");
    cli_print_word(stdout, x->bundle != NULL ? x->path : "model.moec");
    cli_print(stdout, " -p \"" PROMPT "\"");
    if (cli_has(x->args, "tokens"))
        cli_print(stdout, " -n %s", cli_text(x->args, "tokens"));
    if (cli_has(x->args, "ctx") || !cli_has(x->args, "tokens"))
        cli_print(stdout, " --ctx %" PRIu32, x->found.doctor.n_context);
    cli_print(stdout, " --memory %s\n", memory);
}

/* Without a tokenizer nothing is run from the command line. */
static void print_next(const struct examination *x)
{
    if (x->bundle != NULL && !x->has.text)
        return;
    cli_print(stdout, "\n  Next%s:\n", x->has.weights ? "" : ", with the weights in the same folder");
    if (x->bundle == NULL)
        print_compile(x);
    if (x->has.text)
        print_run(x);
}

/* ---- for programs ---- */

static struct moec_json_out *json_need(const struct examination *x, const struct moec_doctor_need *need)
{
    struct moec_json_out *node = moec_json_out_object();
    moec_json_out_u64(node, "memory_least_bytes", need->least_bytes);
    moec_json_out_u64(node, "memory_whole_bytes", need->whole_bytes);
    if (x->asked.doctor.budget_bytes > 0) {
        moec_json_out_bool(node, "fits", need->kept >= 0);
        moec_json_out_double(node, "experts_kept", need->kept < 0 ? 0 : need->kept);
    }
    return node;
}

static struct moec_json_out *json_plan(const struct examination *x, const struct moec_doctor_size *size,
                                       uint32_t d)
{
    const struct moec_doctor_plan *plan = &size->plans[d];
    struct moec_json_out *node = moec_json_out_object();
    if (x->bundle == NULL)
        moec_json_out_u64(node, "dense_bits", x->found.doctor.dense_bits[d]);
    moec_json_out_u64(node, x->bundle == NULL ? "bundle_bytes_at_most" : "bundle_bytes", plan->bundle_bytes);
    for (int program = 0; program < MOEC_DOCTOR_N_PROGRAM; program++) {
        const char *const names[] = {"moec-run", "moec"};
        moec_json_out_node(node, names[program], json_need(x, &plan->needs[program]));
    }
    return node;
}

static struct moec_json_out *json_sizes(const struct examination *x)
{
    struct moec_json_out *rows = moec_json_out_array();
    for (uint32_t i = 0; i < x->found.doctor.n_size; i++) {
        const struct moec_doctor_size *size = &x->found.doctor.sizes[i];
        struct moec_json_out *node = moec_json_out_object(), *plans = moec_json_out_array();
        moec_json_out_u64_or_null(node, "bits", size->bits);
        moec_json_out_bool(node, "is_mxfp4", size->is_exact);
        moec_json_out_u64(node, "expert_bytes", size->expert_bytes);
        moec_json_out_u64(node, "token_expert_bytes", size->token_bytes);
        for (uint32_t d = 0; d < x->found.doctor.n_dense; d++)
            moec_json_out_node(plans, NULL, json_plan(x, size, d));
        moec_json_out_node(node, "plans", plans);
        moec_json_out_node(rows, NULL, node);
    }
    return rows;
}

static struct moec_json_out *json_model(const struct examination *x)
{
    const struct moec_config *config = config_of(x);
    struct moec_json_out *node = moec_json_out_object();
    moec_json_out_string(node, "family", config->family);
    moec_json_out_u64(node, "layers", config->n_layer);
    moec_json_out_u64(node, "encoder_layers", config->n_encoder_layer);
    moec_json_out_u64(node, "moe_layers", moec_config_moe_count(config));
    moec_json_out_u64(node, "experts", config->n_expert);
    if (config->n_identity > 0)
        moec_json_out_u64(node, "identity_experts", config->n_identity);
    moec_json_out_u64(node, "top_k", config->top_k);
    moec_json_out_u64(node, "expert_neurons", config->n_ff_expert);
    moec_json_out_u64(node, "shared_neurons", config->n_ff_shared);
    moec_json_out_u64(node, "hidden_size", config->n_embd);
    moec_json_out_u64(node, "vocabulary", config->n_vocab);
    moec_json_out_u64(node, "context_tokens", config->n_position);
    if (moec_config_rope_limit(config) > 0)
        moec_json_out_u64(node, "rope_limit_tokens", moec_config_rope_limit(config));
    moec_json_out_u64(node, "parameters", x->found.doctor.n_parameter);
    moec_json_out_u64(node, "active_parameters", x->found.doctor.n_active);
    moec_json_out_bool(node, "tokenizer", x->has.tokenizer);
    moec_json_out_bool(node, "chat_template", x->has.chat && x->has.chat_refusal.status == MOEC_OK);
    return node;
}

static struct moec_json_out *json_forecast(const struct moec_forecast *f)
{
    struct moec_json_out *node = moec_json_out_object();
    moec_json_out_u64(node, "windows", f->n_window);
    moec_json_out_u64(node, "window_tokens", f->window_tokens);
    moec_json_out_double(node, "pass_multiply_adds", f->pass_multiply_adds);
    moec_json_out_double(node, "multiply_adds_per_second", f->multiply_adds_per_second);
    moec_json_out_double(node, "exact_passes", f->exact_passes);
    moec_json_out_double(node, "exact_seconds", f->exact_seconds);
    if (f->fast_passes > 0) {
        moec_json_out_double(node, "fast_passes", f->fast_passes);
        moec_json_out_double(node, "fast_seconds", f->fast_seconds);
    }
    moec_json_out_double(node, "naive_passes", f->naive_passes);
    return node;
}

static struct moec_json_out *json_compile(const struct examination *x)
{
    struct moec_json_out *node = moec_json_out_object();
    const double n_window = x->found.compile.counted.n_drawn;
    moec_json_out_u64(node, "windows", x->found.compile.counted.n_drawn);
    moec_json_out_double(node, "passes", x->found.compile.counted.all / n_window);
    moec_json_out_double(node, "fit_passes",
                         x->found.compile.stages.weights / x->found.compile.stages.window_multiply_adds /
                             n_window);
    moec_json_out_double(node, "compile_seconds", x->found.compile.seconds);
    moec_json_out_double(node, "core_seconds", x->found.compile.core_seconds);
    moec_json_out_node(node, "forecast", cli_json_compile_forecast(&x->found.compile, x->asked.n_rank));
    return node;
}

static enum moec_status print_json(const struct examination *x, struct moec_error *err)
{
    struct moec_json_out *root = moec_json_out_object();
    moec_json_out_string(root, "model", x->path);
    moec_json_out_bool(root, "supported", true);
    moec_json_out_string(root, "kind", x->bundle != NULL ? "bundle" : "checkpoint");
    moec_json_out_node(root, "dimensions", json_model(x));
    if (x->bundle != NULL) {
        moec_json_out_u64(root, "file_bytes", x->bundle->file.n_bytes);
    } else {
        moec_json_out_bool(root, "has_weights", x->has.weights);
        moec_json_out_u64(root, "weight_bytes", moec_checkpoint_weight_bytes(x->checkpoint));
        moec_json_out_u64(root, "expert_bytes", moec_checkpoint_expert_bytes(x->checkpoint));
    }
    if (x->asked.doctor.budget_bytes > 0)
        moec_json_out_u64(root, "memory_bytes", x->asked.doctor.budget_bytes);
    moec_json_out_u64(root, "memory_context_tokens", x->found.doctor.n_context);
    moec_json_out_node(root, "sizes", json_sizes(x));
    if (x->bundle == NULL && x->has.text) {
        moec_json_out_node(root, "compile", json_compile(x));
        moec_json_out_node(root, "profile", json_forecast(&x->found.forecast));
    }
    return cli_print_json(root, err);
}

static void print_refusal(const struct examination *x, const struct moec_error *err)
{
    struct moec_json_out *root = moec_json_out_object();
    moec_json_out_string(root, "model", x->path);
    moec_json_out_bool(root, "supported", false);
    moec_json_out_string(root, "reason", err->message);
    const enum moec_status status = cli_print_json(root, NULL);
    (void)status; /* the refusal is also on standard error, and the exit status is that of a failure */
}

static int run_doctor(const struct cli_args *args)
{
    struct examination x = {.args = args, .path = args->positional[0]};
    struct moec_error err = {0};
    enum moec_status status = examine(&x, &err);
    if (status != MOEC_OK && status != MOEC_ERR_USAGE && cli_has(args, "json"))
        print_refusal(&x, &err);
    if (status == MOEC_OK && cli_has(args, "json")) {
        status = print_json(&x, &err);
    } else if (status == MOEC_OK) {
        print_model(&x);
        print_sizes(&x);
        print_forecast(&x);
        print_next(&x);
    }
    moec_bundle_close(x.bundle);
    moec_checkpoint_close(x.checkpoint);
    return status == MOEC_OK ? CLI_OK : cli_fail(args, &err);
}

const struct cli_command cli_command_doctor = {
    .name = "doctor",
    .model = CLI_BUNDLE_OR_CHECKPOINT,
    .summary = "tell whether a model is supported, and what it needs",
    .usage = "MODEL",
    .about = "Reads the headers of MODEL: a Hugging Face folder, a GGUF file or a bundle. In some seconds, "
             "doctor tells whether moec supports the model, what the model is, and how large a bundle is "
             "with experts at each bitwidth. doctor also prints the smallest --memory that runs the model, "
             "the --memory that holds every expert, the cost of compile and profile on this machine, and "
             "the next commands. If the model is not supported, doctor prints the same error as profile and "
             "compile, and the exit status is 1.",
    .details = "MODEL may be a folder without weights, or its config.json, so that you can judge a model "
               "before you download it. Sizes then follow from the dimensions. If the folder has "
               "model.safetensors.index.json, doctor also checks the names of the tensors; if it has the "
               "tokenizer, doctor counts the tokenizer's memory.\n"
               "If MODEL is not yet a bundle, its bundle may be smaller than shown, because moec compresses "
               "dense weights in the file. If MODEL is a bundle, the table has a row for each of its "
               "precisions.\n"
               "Costs are those of moec compile --data --max-loss and of moec profile with default options, "
               "for a text of 896 windows, the most that they draw. A shorter text costs less. A pass runs "
               "the model once over all windows. The number of passes of a compile depends on the data; "
               "doctor shows a typical number. Times count matrix products and quantising, on an idle "
               "machine, if all experts are used equally often. In models as small as moec's samples, all "
               "other work takes about twice as long as these two. If the weights do not fit into memory, "
               "each pass also reads them from storage; doctor does not count this.\n"
               "Memory is that of moec-run, the small program that only runs bundles, and of moec run, which "
               "needs more. The figures are enough for every start of the program: one start may take up to "
               "half a mebibyte more than another.",
    .examples = "moec doctor MODEL --memory 4GiB --ctx 4096\n"
                "moec doctor model.gguf\n"
                "hf download OWNER/NAME --include '*.json' --local-dir NAME && moec doctor NAME\n"
                "moec doctor --json MODEL | jq .dimensions.active_parameters",
    .n_positional_min = 1,
    .n_positional_max = 1,
    .options = options,
    .run = run_doctor,
    .is_offline = true,
    .takes_config = true,
};
