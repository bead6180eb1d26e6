#include "profiler/common/machine.h"

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

uint64_t moec_machine_memory_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && page_bytes > 0 ? (uint64_t)pages * (uint64_t)page_bytes : 0;
}
