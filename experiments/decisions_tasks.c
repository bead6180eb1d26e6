#include "experiments/decisions_tasks.h"

#include "experiments/result.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *file, *name;
} sides[TASK_N_SIDE] = {
    {"int8", "all experts INT8"},
    {"int4", "all experts INT4"},
    {"int2", "all experts INT2"},
    {"fate-high", "Fate, faster machine"},
    {"fate-low", "Fate, slower machine"},
    {"hobbit-16-4", "HOBBIT, 16 bits and INT4"},
    {"hobbit-8-2", "HOBBIT, INT8 and INT2"},
};

/* What guessing gets. */
static double chance(const struct decisions_task *task)
{
    static const struct {
        const char *name;
        double share;
    } known[] = {{"line", 0.25}, {"mmlu", 0.25}, {"hellaswag", 0.25}, {"piqa", 0.5}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(task->name, known[i].name) == 0)
            return known[i].share;
    return 0;
}

static bool is_done(const struct decisions_task *task)
{
    return task->reference - 2 * task->deviation > chance(task);
}

/* ---- reading ---- */

/* The task of that name, added where it is new; NULL where there is no room. */
static struct decisions_task *take_task(struct decisions_tasks *tasks, const char *name, size_t n)
{
    for (uint32_t t = 0; t < tasks->n; t++)
        if (strlen(tasks->items[t].name) == n && strncmp(tasks->items[t].name, name, n) == 0)
            return &tasks->items[t];
    if (tasks->n == DECISIONS_MAX_TASKS || n >= sizeof tasks->items[0].name)
        return NULL;
    struct decisions_task *task = &tasks->items[tasks->n++];
    *task = (struct decisions_task){.n_row = 0};
    (void)snprintf(task->name, sizeof task->name, "%.*s", (int)n, name);
    for (int side = 0; side < TASK_N_SIDE; side++)
        task->sides[side] = (struct decisions_score){NAN, NAN, NAN, NAN};
    return task;
}

static void take_score(struct decisions_tasks *tasks, const char *file, const struct moec_json *root)
{
    const size_t n = strlen(file);
    for (int side = 0; side < TASK_N_SIDE; side++) {
        const size_t n_side = strlen(sides[side].file);
        if (n < n_side + 2 || file[n - n_side - 1] != '-' || strcmp(file + n - n_side, sides[side].file) != 0)
            continue;
        struct decisions_task *task = take_task(tasks, file, n - n_side - 1);
        if (task == NULL)
            return;
        task->reference = experiment_number(root, "reference");
        task->deviation = experiment_number(root, "standard_error");
        task->n_row = experiment_whole(root, "samples");
        task->sides[side] = (struct decisions_score){
            .value = experiment_number(root, "value"),
            .loss = experiment_number(root, "loss"),
            .low = experiment_number(root, "loss_low"),
            .high = experiment_number(root, "loss_high"),
        };
    }
}

enum moec_status decisions_tasks_read(const char *folder, struct decisions_tasks *tasks,
                                      struct moec_error *err)
{
    char(*names)[64] = NULL;
    uint32_t n = 0;
    tasks->n = 0;
    enum moec_status status = experiment_list(folder, &names, &n, err);
    for (uint32_t i = 0; i < n && status == MOEC_OK; i++) {
        struct moec_json *root = NULL;
        status = experiment_load(folder, names[i], &root, err);
        if (root != NULL)
            take_score(tasks, names[i], root);
        moec_json_free(root);
    }
    free(names);
    return status;
}

/* ---- claims ---- */

/* Means over the tasks that the checkpoint can do, of a side's loss and of its loss in points. */
struct mean {
    uint32_t n;
    double loss, points;
    double most_points;
};

static struct mean mean_of(const struct decisions_tasks *tasks, enum decisions_task_side side)
{
    struct mean mean = {.most_points = -INFINITY};
    for (uint32_t t = 0; t < tasks->n; t++) {
        const struct decisions_task *task = &tasks->items[t];
        const struct decisions_score *score = &task->sides[side];
        if (!is_done(task) || !isfinite(score->value) || !isfinite(score->loss))
            continue;
        const double points = task->reference - score->value;
        mean.n++;
        mean.loss += score->loss;
        mean.points += points;
        mean.most_points = fmax(mean.most_points, points);
    }
    mean.loss /= mean.n > 0 ? mean.n : 1;
    mean.points /= mean.n > 0 ? mean.n : 1;
    return mean;
}

/* "line 71.9 instead of 72.6 %, word ..." */
static void list_scores(const struct decisions_tasks *tasks, enum decisions_task_side side,
                        char text[static 160])
{
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t t = 0; t < tasks->n && used < 160; t++) {
        const struct decisions_task *task = &tasks->items[t];
        if (is_done(task) && isfinite(task->sides[side].value))
            used += (size_t)snprintf(
                text + used, 160 - used, "%s%s %.1f instead of %.1f %%", used > 0 ? ", " : "", task->name,
                experiment_percent(task->sides[side].value), experiment_percent(task->reference));
    }
}

static void find_bits(const struct decisions_tasks *tasks, struct experiment_claims *claims)
{
    const struct mean int8 = mean_of(tasks, TASK_INT8), int4 = mean_of(tasks, TASK_INT4),
                      int2 = mean_of(tasks, TASK_INT2);
    if (int8.n == 0 || int4.n == 0 || int2.n == 0)
        return;
    struct experiment_claim *claim =
        experiment_claim_add(claims, "Fate, Table 2",
                             "all experts at INT8 lose 0, at INT4 0.2 and at INT2 4.5 points of 59.6 % of "
                             "MMLU; here mean of tasks");
    experiment_claim_say(claim, "INT8 %.1f, INT4 %.1f and INT2 %.1f points, mean of %u tasks",
                         experiment_percent(int8.points), experiment_percent(int4.points),
                         experiment_percent(int2.points), int2.n);
    claim->verdict = EXPERIMENT_SHOWN;
}

static void find_machines(const struct decisions_tasks *tasks, struct experiment_claims *claims)
{
    char text[160];
    const struct mean high = mean_of(tasks, TASK_FATE_HIGH), low = mean_of(tasks, TASK_FATE_LOW);
    if (high.n > 0) {
        struct experiment_claim *claim = experiment_claim_add(
            claims, "Fate, Table 3", "an average accuracy loss of less than 1 % on the faster machine");
        list_scores(tasks, TASK_FATE_HIGH, text);
        experiment_claim_say(claim, "%.2f %%: %s", experiment_percent(high.loss), text);
        experiment_claim_decide(claim, high.loss < 0.01);
    }
    if (low.n > 0) {
        struct experiment_claim *claim = experiment_claim_add(
            claims, "Fate, Table 3",
            "on the slower machine the actual score falls by less than 2 points (there a loss of over "
            "3 %)");
        list_scores(tasks, TASK_FATE_LOW, text);
        experiment_claim_say(claim, "%.2f %%, %.2f points: %s", experiment_percent(low.loss),
                             experiment_percent(low.points), text);
        experiment_claim_decide(claim, low.points < 0.02);
    }
}

static void find_hobbit(const struct decisions_tasks *tasks, struct experiment_claims *claims)
{
    char text[160];
    for (enum decisions_task_side side = TASK_HOBBIT_16; side <= TASK_HOBBIT_8; side++) {
        const struct mean mean = mean_of(tasks, side);
        if (mean.n == 0)
            continue;
        struct experiment_claim *claim = experiment_claim_add(
            claims, "HOBBIT, Table 3",
            side == TASK_HOBBIT_16
                ? "accuracy falls by no more than 1 % (point) on both tasks, 16 bits and INT4"
                : "accuracy falls by no more than 1 % (point) on both tasks, INT8 and INT2");
        list_scores(tasks, side, text);
        experiment_claim_say(claim, "by at most %.2f points: %s", experiment_percent(mean.most_points), text);
        experiment_claim_decide(claim, mean.most_points <= 0.01);
    }
}

void decisions_task_findings(const struct decisions_tasks *tasks, struct experiment_claims *claims)
{
    find_bits(tasks, claims);
    find_machines(tasks, claims);
    find_hobbit(tasks, claims);
}

/* ---- page ---- */

static void put_row(struct experiment_table *table, const struct decisions_task *task, const char *side,
                    const struct decisions_score *score)
{
    experiment_table_cell(table, "%s", task->name);
    experiment_table_cell(table, "%u", task->n_row);
    experiment_table_cell(table, "%s", side);
    experiment_table_number(table, score->value, 100, 1);
    experiment_table_number(table, score->value - task->reference, 100, 1);
    experiment_table_number(table, score->loss, 100, 2);
    experiment_table_interval(table, score->low, score->high);
    experiment_table_end_row(table);
}

static void put_paper(struct experiment_table *table)
{
    static const char *const rows[][4] = {
        {"MMLU, the paper's Qwen1.5-MoE", "original", "59.6", "–"},
        {"", "all experts INT8", "59.6", "0"},
        {"", "all experts INT4", "59.4", "-0.2"},
        {"", "all experts INT2", "55.1", "-4.5"},
        {"", "Fate, faster machine", "59.7", "0.1"},
        {"", "Fate, slower machine", "58.4", "-1.2"},
        {"GSM8K, the paper's Qwen1.5-MoE", "original", "62.4", "–"},
        {"", "Fate, faster machine", "60.2", "-2.2"},
        {"", "Fate, slower machine", "59.9", "-2.5"},
        {"GSM8K, the paper's Mixtral-8x7B", "original", "52", "–"},
        {"", "HOBBIT, 16 bits and INT4", "51", "-1"},
        {"", "HOBBIT, INT8 and INT2", "51", "-1"},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        const char *const cells[] = {rows[r][0], "", rows[r][1], rows[r][2], rows[r][3], "–", "–"};
        for (size_t c = 0; c < sizeof cells / sizeof *cells; c++)
            experiment_table_cell(table, "%s", cells[c]);
        experiment_table_end_row(table);
    }
}

enum moec_status decisions_page_tasks(const struct experiment_page *page, const struct decisions_tasks *tasks,
                                      struct moec_error *err)
{
    static const char *const headings[] = {"task",   "rows",    "experts",        "score, %",
                                           "points", "loss, %", "its interval, %"};
    struct experiment_table table;
    char name[64];
    if (tasks->n == 0)
        return MOEC_OK;
    experiment_page_heading(page, "Fate, Tables 2 and 3, and HOBBIT, Table 3: tasks");
    experiment_page_paragraph(
        page,
        "line: which of four lines of the test text follows six others (by likelihood for each token; "
        "guessing gets 25 %). word: which word comes next in the middle of a line (exact match). Others "
        "are published data. Against the checkpoint; a task that it does no better than by chance is not "
        "judged. Fate: INT4, of each layer the quarter of the experts INT2 that calibration and a "
        "prompt's tokens before its block of 64 took least, on the slower machine mispredicted ones, "
        "too. HOBBIT: half of the experts cached, thresholds of the bundle.");
    MOEC_TRY(experiment_page_begin(page, &table, name, "tasks", headings, sizeof headings / sizeof *headings,
                                   err));
    for (uint32_t t = 0; t < tasks->n; t++) {
        const struct decisions_task *task = &tasks->items[t];
        const struct decisions_score original = {task->reference, 0, NAN, NAN};
        put_row(&table, task, is_done(task) ? "original" : "original, no better than by chance", &original);
        for (int side = 0; side < TASK_N_SIDE; side++)
            if (isfinite(task->sides[side].value))
                put_row(&table, task, sides[side].name, &task->sides[side]);
    }
    put_paper(&table);
    return experiment_page_end(page, &table, err);
}
