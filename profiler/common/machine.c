#include "profiler/common/machine.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The value of the first line "key : value" of /proc/cpuinfo. */
static bool find_in_cpuinfo(const char *key, char *text, size_t capacity)
{
    char line[256];
    bool is_found = false;
    FILE *stream = fopen("/proc/cpuinfo", "re");
    if (stream == NULL)
        return false;
    while (!is_found && fgets(line, sizeof line, stream) != NULL) {
        const char *colon = strchr(line, ':');
        is_found = strncmp(line, key, strlen(key)) == 0 && colon != NULL;
        if (is_found)
            (void)snprintf(text, capacity, "%s", colon + 1 + strspn(colon + 1, " "));
    }
    (void)fclose(stream);
    return is_found;
}

/* The board as the firmware names it. */
static bool find_in_device_tree(char *text, size_t capacity)
{
    FILE *stream = fopen("/proc/device-tree/model", "re");
    const bool is_found = stream != NULL && fgets(text, (int)capacity, stream) != NULL;
    if (stream != NULL)
        (void)fclose(stream);
    return is_found && text[0] != '\0';
}

/* x86-64 has a model name; phones name their chip as hardware, boards themselves. */
void moec_machine_processor(char *text, size_t capacity)
{
    if (!find_in_cpuinfo("model name", text, capacity) && !find_in_cpuinfo("Hardware", text, capacity) &&
        !find_in_device_tree(text, capacity))
        (void)snprintf(text, capacity, "unknown");
    text[strcspn(text, "\n")] = '\0';
    for (char *at = text; *at != '\0'; at++)
        if (*at < ' ' || *at > '~')
            *at = '?';
}

uint32_t moec_machine_processor_count(void)
{
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (uint32_t)n : 1;
}

/* cpu  user nice system idle iowait irq softirq steal ...: in ticks, and of all processors. */
double moec_machine_busy_seconds(const char *proc)
{
    enum { USER, NICE, SYSTEM, IDLE, IOWAIT, IRQ, SOFTIRQ, STEAL, N_COLUMN };
    char path[1024];
    uint64_t ticks[N_COLUMN] = {0};
    const long per_second = sysconf(_SC_CLK_TCK);
    (void)snprintf(path, sizeof path, "%s/stat", proc);
    FILE *stream = fopen(path, "re");
    if (stream == NULL)
        return -1;
    const int n = fscanf(stream,
                         "cpu %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64
                         " %" SCNu64 " %" SCNu64,
                         &ticks[USER], &ticks[NICE], &ticks[SYSTEM], &ticks[IDLE], &ticks[IOWAIT],
                         &ticks[IRQ], &ticks[SOFTIRQ], &ticks[STEAL]);
    (void)fclose(stream);
    if (n <= IDLE || per_second <= 0)
        return -1;
    const uint64_t busy =
        ticks[USER] + ticks[NICE] + ticks[SYSTEM] + ticks[IRQ] + ticks[SOFTIRQ] + ticks[STEAL];
    return (double)busy / (double)per_second;
}

uint64_t moec_machine_memory_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && page_bytes > 0 ? (uint64_t)pages * (uint64_t)page_bytes : 0;
}
