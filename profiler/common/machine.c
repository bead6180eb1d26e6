#include "profiler/common/machine.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* "model name" of /proc/cpuinfo, as people call the processor. */
void moec_machine_processor(char *text, size_t capacity)
{
    char line[256];
    (void)snprintf(text, capacity, "unknown");
    FILE *stream = fopen("/proc/cpuinfo", "re");
    if (stream == NULL)
        return;
    while (fgets(line, sizeof line, stream) != NULL)
        if (strncmp(line, "model name", 10) == 0 && strchr(line, ':') != NULL) {
            line[strcspn(line, "\n")] = '\0';
            const char *name = strchr(line, ':') + 1;
            (void)snprintf(text, capacity, "%s", name + strspn(name, " "));
            break;
        }
    (void)fclose(stream);
    for (char *at = text; *at != '\0'; at++)
        if (*at < ' ' || *at > '~')
            *at = '?';
}

uint64_t moec_machine_memory_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && page_bytes > 0 ? (uint64_t)pages * (uint64_t)page_bytes : 0;
}
