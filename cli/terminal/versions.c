#include "cli/terminal/versions.h"
#include "compiler/lua/lua_host.h"
#include "formats/base/compress.h"
#include "formats/json/json.h"
#include "formats/profile/h5.h"
#include "profiler/common/openmp.h"
#include "profiler/plot/plot.h"
#include "profiler/ranks/ranks_library.h"
#include "runtime/kernels/kernels.h"
#include "runtime/text/tokenizer.h"
#include "server/serve_http.h"

void cli_print_versions(FILE *out)
{
    char hdf5[32], pcre2[64];
    moec_h5_version(hdf5);
    moec_tokenizer_pcre2_version(pcre2);
    fprintf(out, "moec %s, arithmetic canonical-f32\n", MOEC_VERSION);
    fprintf(out, "kernels   %s (this machine)\n", moec_kernels_best()->name);
    fprintf(out, "HDF5      %s\n%s\njansson   %s\nzstd      %s\n", hdf5, moec_lua_version(),
            moec_json_version(), moec_compress_version());
    fprintf(out, "PCRE2     %s\nutf8proc  %s\nCairo     %s\n", pcre2, moec_tokenizer_utf8proc_version(),
            moec_plot_version());
    fprintf(out, "microhttpd %s\n", serve_http_version());
    fprintf(out, "%s\n", moec_openmp_version());
    const char *mpi = moec_ranks_mpi();
    fprintf(out, "MPI       %s\n", mpi != NULL ? mpi : "none: several ranks need libmoec-mpi.so");
#ifdef __clang__
    fprintf(out, "compiler  clang %s\n", __clang_version__);
#else
    fprintf(out, "compiler  gcc %s\n", __VERSION__);
#endif
}
