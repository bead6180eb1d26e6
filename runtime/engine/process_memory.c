/* The base is the most that the process has held so far (VmHWM). To it comes what a share of its own code
 * takes beyond the pages that are in memory. The mapping of code is the one that has this file's functions.
 * Its pages are given back only where none was written: a written page would be lost. */
#include "runtime/engine/process_memory.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static enum moec_status read_status(const char *key, uint64_t *bytes, struct moec_error *err)
{
    char line[256];
    uint64_t kib = 0;
    bool found = false;
    FILE *status = fopen("/proc/self/status", "re");
    while (status != NULL && !found && fgets(line, sizeof line, status) != NULL) {
        found = strncmp(line, key, strlen(key)) == 0;
        kib = found ? strtoull(line + strlen(key), NULL, 10) : 0;
    }
    if (status != NULL)
        (void)fclose(status);
    if (kib == 0)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "cannot read %s in '/proc/self/status', which a memory budget needs", key);
    *bytes = kib * 1024;
    return MOEC_OK;
}

enum moec_status moec_memory_peak_bytes(uint64_t *bytes, struct moec_error *err)
{
    return read_status("VmHWM:", bytes, err);
}

/* The executable mapping that this code runs from. */
struct own_code {
    uint64_t first, end;
    uint64_t resident_bytes;
    uint64_t written_bytes; /* that are no pages of the file any more */
};

static bool read_own_code(struct own_code *code)
{
    const uintptr_t here = (uintptr_t)&moec_memory_base_bytes;
    char line[512], mode[5] = "";
    uint64_t first = 0, end = 0, kib = 0;
    bool is_own = false, is_found = false;
    FILE *smaps = fopen("/proc/self/smaps", "re");
    *code = (struct own_code){0};
    while (smaps != NULL && !is_found && fgets(line, sizeof line, smaps) != NULL) {
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s", &first, &end, mode) == 3) {
            is_own = here >= first && here < end && mode[2] == 'x';
            if (is_own)
                *code = (struct own_code){.first = first, .end = end};
        } else if (is_own && sscanf(line, "Rss: %" SCNu64 " kB", &kib) == 1) {
            code->resident_bytes = kib * 1024;
        } else if (is_own && sscanf(line, "Anonymous: %" SCNu64 " kB", &kib) == 1) {
            code->written_bytes = kib * 1024;
            is_found = true;
        }
    }
    if (smaps != NULL)
        (void)fclose(smaps);
    return is_found && code->resident_bytes <= code->end - code->first;
}

enum moec_status moec_memory_base_bytes(uint64_t *bytes, struct moec_error *err)
{
    struct own_code code;
    const bool is_known = read_own_code(&code);
    MOEC_TRY(moec_memory_peak_bytes(bytes, err));
    const uint64_t counted = (code.end - code.first) / 8 * MOEC_PLAN_CODE_EIGHTHS;
    if (is_known && counted > code.resident_bytes)
        *bytes += counted - code.resident_bytes;
    return MOEC_OK;
}

void moec_memory_give_back_code(void)
{
    struct own_code code;
    if (read_own_code(&code) && code.written_bytes == 0)
        (void)madvise((void *)(uintptr_t)code.first, code.end - code.first, MADV_DONTNEED);
}

enum moec_status moec_memory_pages_now(struct moec_memory_pages *pages, struct moec_error *err)
{
    char text[128];
    uint64_t n_resident = 0, n_file = 0;
    const int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0)
        (void)close(fd);
    text[n > 0 ? n : 0] = '\0';
    if (sscanf(text, "%*u %" SCNu64 " %" SCNu64, &n_resident, &n_file) != 2 || n_file > n_resident)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "cannot read '/proc/self/statm', which a memory budget needs");
    const uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    *pages = (struct moec_memory_pages){.resident_bytes = n_resident * page_bytes,
                                        .file_bytes = n_file * page_bytes};
    return MOEC_OK;
}

enum moec_status moec_memory_resident_bytes(uint64_t *bytes, struct moec_error *err)
{
    return read_status("VmRSS:", bytes, err);
}
