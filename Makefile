# moec: `make help` lists the targets.
# User settings; all can be given on the command line.
CC       ?= gcc
PREFIX   ?= /usr/local
DESTDIR  ?=
SANITIZE ?=
DEV      ?= 0
JOBS     ?= $(shell nproc 2>/dev/null || echo 2)
CFLAGS   ?= -O2 -g
# Kernels for a GPU: auto where nvcc is, 1 (refuses to build without), 0. Developers' builds do without: nvcc takes minutes.
CUDA     ?= $(if $(filter 1,$(DEV)),0,auto)
NVCC     ?= nvcc
# The library by which ranks of mpirun and srun reach each other: auto where Open MPI is, 1 (refuses to build without), 0.
MPI      ?= auto
VERSION  := 0.1.0

ifeq ($(origin CC),default)
CC := gcc
endif
# C++ is for tests alone: the kernels of a GPU, compiled for the processor.
ifeq ($(origin CXX),default)
CXX := $(if $(findstring clang,$(CC)),clang++,g++)
endif

# What was compiled before comes from ccache where it is installed; CCACHE= compiles it again.
CCACHE ?= $(shell command -v ccache 2>/dev/null)

# Sanitized and clang builds live beside the plain one, so that switching rebuilds nothing.
comma := ,
BUILD := build$(if $(SANITIZE),/sanitize-$(subst $(comma),-,$(SANITIZE)))$(if $(findstring clang,$(CC)),/clang)$(if $(findstring aarch64,$(CC)),/aarch64)

# The folder above those, or BUILD of the command line.
TOP := $(if $(filter command,$(firstword $(origin BUILD))),$(BUILD),build)

# What building and the demo need, and what tests and checks need on top.
PACKAGES := gcc make pkg-config libhdf5-dev libzstd-dev liblua5.4-dev libjansson-dev libpcre2-dev libutf8proc-dev \
            libedit-dev liburing-dev libcairo2-dev fonts-dejavu-core nettle-dev libmicrohttpd-dev
PACKAGES_TEST  := libcmocka-dev hdf5-tools zstd curl g++ clang libclang-rt-dev libomp-dev libsimde-dev mandoc chromium zsh fish \
                  libopenmpi-dev openmpi-bin
PACKAGES_CHECK := clang-format shellcheck
PACKAGES_ARM   := gcc-aarch64-linux-gnu $(addsuffix :arm64,libzstd-dev libpcre2-dev libutf8proc-dev nettle-dev liburing-dev)
PACKAGES_TEST_ARM := qemu-user-static libcmocka-dev:arm64
PACKAGES_CHECK_ALL := clang-tidy slurm-wlm

# Without the development packages (before the first `make deps`) pkg-config answers nothing; the compiler then
# names the missing header and `make deps` installs it.
pc = $(shell pkg-config $(1) 2>/dev/null)
RUNTIME_PC := libzstd libpcre2-8 libutf8proc nettle liburing
TOOL_PC    := $(shell packaging/pc_names.sh hdf5 lua5.4) jansson cairo libmicrohttpd

WARNINGS := -Wall -Wextra -Wconversion -Wshadow -Wvla -Wmissing-prototypes -Wstrict-prototypes -Wundef
# -ffp-contract=off: a fused multiply-add appears where the source says fma and nowhere else (canonical arithmetic).
BASE_FLAGS := -std=gnu11 -pthread -I. -D_GNU_SOURCE -DMOEC_VERSION='"$(VERSION)"' -ffp-contract=off -fno-math-errno -fPIC \
              -fvisibility=hidden $(WARNINGS) $(if $(filter 1,$(DEV)),-Werror)
ifneq ($(SANITIZE),)
SAN_FLAGS := -fsanitize=$(SANITIZE) -fno-omit-frame-pointer
ifneq ($(findstring undefined,$(SANITIZE)),)
SAN_FLAGS += -fno-sanitize-recover=undefined
endif
ifeq ($(SANITIZE),fuzz)
SAN_FLAGS := -fsanitize=fuzzer-no-link,address,undefined -fno-omit-frame-pointer
endif
endif
ALL_CFLAGS := $(BASE_FLAGS) $(CFLAGS) $(SAN_FLAGS) $(call pc,--cflags $(RUNTIME_PC) $(TOOL_PC))
RUNTIME_LIBS := $(call pc,--libs $(RUNTIME_PC)) -lm -pthread
# Offline work runs on OpenMP (gcc's libgomp, clang's libomp); ThreadSanitizer cannot see into either.
OPENMP := $(if $(findstring thread,$(SANITIZE)),,-fopenmp)
# hdf5_hl (dimension scales) has no pkg-config file of its own in Debian; hdf5's names its folder.
TOOL_LIBS    := $(OPENMP) -lhdf5_hl $(call pc,--libs $(TOOL_PC) libedit) $(RUNTIME_LIBS)

# Every C file of a folder, wherever in it.
c_files = $(sort $(foreach folder,$(1),$(wildcard $(folder)/*.c $(folder)/*/*.c)))

# libmoert: the runtime and the formats that it may include (tests/rooms.tab): no JSON, no HDF5.
RUNTIME_ROOMS := runtime $(addprefix runtime/,kernels policy forward)
MOERT_SRC := $(call c_files,$(addprefix formats/,base codec model tables bundle decisions) $(RUNTIME_ROOMS)) $(wildcard runtime/cuda/kernels/*.c)
CLI_SRC   := $(call c_files,cli/options cli/settings cli/terminal cli/output cli/print cli/verbs)
TOOL_SRC  := $(filter-out $(MOERT_SRC),$(call c_files,formats profiler compiler server))

obj = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
# Kernels take most of the time to compile, and so begin first.
KERNEL_SRC := $(filter runtime/kernels/%,$(MOERT_SRC))
MOERT_OBJ := $(call obj,$(KERNEL_SRC) $(filter-out $(KERNEL_SRC),$(MOERT_SRC)))
TOOL_OBJ  := $(call obj,$(TOOL_SRC))
CLI_OBJ   := $(call obj,$(CLI_SRC))
UNIT_SRC  := $(sort $(wildcard tests/unit/test_*.c))
UNIT_BIN  := $(patsubst tests/unit/%.c,$(BUILD)/tests/%,$(UNIT_SRC))

Q := $(if $(V),,@)
# What is being made, a line each; V=1 shows the commands instead.
say = $(if $(V),,@echo '$(1) $(2)')
.PHONY: all help deps deps-test demo experiment-edgemoe experiment-decisions experiment-floe bandwidth large live kill-test test test-programs fuzz fuzz-programs check check-sources check-all format install uninstall clean
all: $(BUILD)/libmoert.a $(BUILD)/moec $(BUILD)/moec-run $(BUILD)/libmoert.so

# One file per instruction set, each with its own flags; everything else is plain x86-64 (or any other machine).
ARCH := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine 2>/dev/null)))
CPU_FLAGS := $(shell sed -n '/^flags/{p;q}' /proc/cpuinfo 2>/dev/null)
# cpu_has FLAGS: whether this processor has them all.
cpu_has = $(if $(filter-out $(CPU_FLAGS),$(1)),,has)
ifeq ($(ARCH),x86_64)
KERNEL_FLAGS := -O3 -mavx2 -mfma -mf16c $(if $(filter thread,$(SANITIZE)),-fno-sanitize=thread -DMOEC_KERNELS_TSAN)
# Beside parsers only decoding is fuzzed; more than the checks of memory, and a body of each function for each codec, would
# take minutes to compile.
KERNEL_FLAGS += $(if $(filter fuzz,$(SANITIZE)),-O1 -fno-sanitize=fuzzer-no-link -fno-sanitize=undefined '-DINLINE=static inline' -Wno-pass-failed)
# Of thousands of inlined functions lines alone: the rest of debugging information takes as long as compiling.
KERNEL_FLAGS += $(if $(filter -g,$(CFLAGS)),-g1)
$(BUILD)/obj/runtime/%_avx2.o:   ALL_CFLAGS += $(KERNEL_FLAGS)
$(BUILD)/obj/runtime/%_avx2_gfni.o: ALL_CFLAGS += $(KERNEL_FLAGS) -mgfni
$(BUILD)/obj/runtime/%_avx2_vnni.o: ALL_CFLAGS += $(KERNEL_FLAGS) -mgfni -mavxvnni
AVX512 := -mavx512f -mavx512bw -mavx512dq -mavx512vl
$(BUILD)/obj/runtime/%_avx512.o: ALL_CFLAGS += $(KERNEL_FLAGS) $(AVX512)
$(BUILD)/obj/runtime/%_avx512_vbmi.o: ALL_CFLAGS += $(KERNEL_FLAGS) $(AVX512) -mavx512vbmi -mgfni
$(BUILD)/obj/runtime/%_avx512_vnni.o: ALL_CFLAGS += $(KERNEL_FLAGS) $(AVX512) -mavx512vbmi -mgfni -mavx512vnni
$(BUILD)/obj/runtime/%_avx512_amx.o: ALL_CFLAGS += $(KERNEL_FLAGS) $(AVX512) -mavx512vbmi -mgfni -mavx512vnni -mamx-tile -mamx-int8
# The AVX-512 source translated to AVX2, for the tests alone, where the processor has none; 512-bit arguments then have
# no ABI to keep. One body of each function for all codecs compiles in half a minute instead of five.
ifeq ($(call cpu_has,avx512f),)
$(BUILD)/obj/tests/unit/%.o: ALL_CFLAGS += -DMOEC_TESTS_SIMDE
$(BUILD)/obj/tests/unit/%_simde.o: ALL_CFLAGS += -O1 -g0 '-DINLINE=static inline' -mavx2 -mfma -mf16c -Wno-psabi \
    $(if $(findstring clang,$(CC)),-Wno-pass-failed,-Wno-maybe-uninitialized) \
    $(if $(SANITIZE),-fno-sanitize=all) # SIMDe's thousands of inlined functions take an instrumenting compiler forever
TEST_PARTS += $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard tests/unit/*_simde.c))
endif
endif
$(BUILD)/obj/runtime/%_neon.o: ALL_CFLAGS += -O3
$(BUILD)/obj/runtime/%_neon_dot.o: ALL_CFLAGS += -O3 $(if $(filter aarch64,$(ARCH)),-march=armv8.2-a+dotprod)
$(BUILD)/obj/runtime/%_neon_i8mm.o: ALL_CFLAGS += -O3 $(if $(filter aarch64,$(ARCH)),-march=armv8.2-a+dotprod+i8mm)

# A simulation asks them millions of times: a tenth of its time.
$(BUILD)/obj/profiler/simulate/%.o $(BUILD)/obj/runtime/policy/%.o $(BUILD)/obj/runtime/experts/%.o: \
    ALL_CFLAGS += $(if $(SANITIZE),,$(if $(filter -O2,$(CFLAGS)),-O3))

$(BUILD)/obj/profiler/common/openmp.o: ALL_CFLAGS += $(OPENMP)

# Ranks of mpirun and srun, in a library of its own: moec links nothing of MPI.
MPI_FLAGS := $(if $(filter 0,$(MPI))$(SANITIZE),,$(call pc,--cflags ompi-c))
ifeq ($(MPI)$(MPI_FLAGS),1)
$(error MPI=1, but pkg-config knows no ompi-c: install libopenmpi-dev)
endif
ifneq ($(MPI_FLAGS),)
all: $(BUILD)/libmoec-mpi.so
$(BUILD)/obj/profiler/ranks/mpi/%.o: ALL_CFLAGS += $(MPI_FLAGS)
$(BUILD)/libmoec-mpi.so: $(call obj,profiler/ranks/mpi/mpi_transport.c formats/base/error.c formats/base/printable.c)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_CFLAGS) -shared -Wl,--exclude-libs,ALL $^ -o $@ $(call pc,--libs ompi-c)
endif

# Tests spend their time in the library: compiling them without optimisation takes a quarter of the time. Not where
# sanitizers or qemu make each operation dear.
$(UNIT_SRC:%.c=$(BUILD)/obj/%.o): ALL_CFLAGS += $(if $(SANITIZE)$(filter aarch64,$(ARCH)),,-O0)
# But for those of kernels, which make and compare millions of numbers themselves.
$(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard $(addprefix tests/unit/test_,kernels*.c cuda_*.c int8.c mxfp4.c))): \
    ALL_CFLAGS += $(if $(SANITIZE),,-O2)
# The linkers that take half of the time of GNU's, where one is there, for the two hundred programs that only tests need.
ifeq ($(SANITIZE),)
TEST_LINKER := $(firstword $(foreach linker,lld gold,$(if $(shell command -v ld.$(linker) 2>/dev/null),-fuse-ld=$(linker))))
# make links as many at once as there are cores.
TEST_LINKER += $(if $(filter -fuse-ld=lld,$(TEST_LINKER)),-Wl$(comma)--threads=1)
endif

$(BUILD)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CCACHE) $(CC) $(ALL_CFLAGS) -MMD -MP -c $< -o $@

# The kernels of a GPU for the processor, with runtime/cuda/blocks in CUDA's place; without the C++ library, so that
# the C compiler links them. fmaf is a call where the compiler may not use the instruction; the bits are the same.
CXX_FLAGS = -x c++ -std=gnu++17 -fno-exceptions -fno-rtti -fno-threadsafe-statics -Wno-unknown-pragmas \
            $(filter-out -std=% -Wmissing-prototypes -Wstrict-prototypes,$(BASE_FLAGS)) $(CFLAGS) $(SAN_FLAGS) \
            $(if $(call cpu_has,fma),-mfma)
TEST_PARTS += $(patsubst %,$(BUILD)/obj/%.o,$(basename $(wildcard runtime/cuda/blocks/*.c runtime/cuda/kernels/*.cu tests/unit/*.cu)))
$(BUILD)/obj/%.o: %.cu
	@mkdir -p $(@D)
	$(call say,C++,$<)
	$(Q)$(CCACHE) $(CXX) $(CXX_FLAGS) -MMD -MP -c $< -o $@

# And for a GPU. A product is fused with a sum where the source says fma and nowhere else, as above; the PTX is kept
# for tests/cli/cuda_ptx.sh.
ifeq ($(filter 0,$(CUDA))$(SANITIZE),)
NVCC_FOUND := $(shell command -v $(NVCC) 2>/dev/null)
ifeq ($(CUDA)$(NVCC_FOUND),1)
$(error CUDA=1, but there is no '$(NVCC)' on the PATH; NVCC=/usr/local/cuda/bin/nvcc names one elsewhere)
endif
endif
ifneq ($(NVCC_FOUND),)
NVCC_FLAGS := -std=c++17 -O3 -I. -DMOEC_VERSION='"$(VERSION)"' -fmad=false -ftz=false -prec-div=true -prec-sqrt=true \
              -cudart static -gencode 'arch=compute_80,code=[compute_80,sm_80,sm_90]' -Wno-deprecated-gpu-targets -Xcompiler -fPIC
CUDA_OBJ := $(patsubst %.cu,$(BUILD)/cuda/%.o,$(wildcard runtime/cuda/kernels/*.cu runtime/cuda/cudart/*.cu))
all: $(BUILD)/libmoert-cuda.so
$(BUILD)/libmoert-cuda.so: $(CUDA_OBJ) $(call obj,formats/base/error.c formats/base/printable.c)
	$(call say,LD,$@)
	$(Q)$(NVCC) $(NVCC_FLAGS) -shared -Xlinker --exclude-libs,ALL,--as-needed,--no-undefined $^ -o $@
$(BUILD)/cuda/%.o: %.cu
	@mkdir -p $(@D) $(BUILD)/cuda/ptx $(BUILD)/cuda/kept/$(*F)
	$(call say,NVCC,$<)
	$(Q)$(NVCC) $(NVCC_FLAGS) -MMD -MF $(@:.o=.d) --keep --keep-dir $(BUILD)/cuda/kept/$(*F) -c $< -o $@ && \
	    cp $(BUILD)/cuda/kept/$(*F)/$(*F).ptx $(BUILD)/cuda/ptx && rm -r $(BUILD)/cuda/kept/$(*F)

# Tests for a real device (tests/gpu/README.md): those of the kernels with memory that it reaches, those of whole models
# with it in the stand-in's place. gpu-programs puts them into one folder, with what they need on another machine.
CUDA_HOME := $(patsubst %/bin/nvcc,%,$(realpath $(NVCC_FOUND)))
CUDART    := -L$(CUDA_HOME)/lib64 -lcudart_static -lstdc++ -ldl -lrt
GPU_KERNEL_TESTS := $(patsubst tests/unit/%.c,$(BUILD)/gpu/%,$(wildcard tests/unit/test_cuda_*.c))
GPU_MODEL_TESTS  := $(addprefix $(BUILD)/gpu/,test_engine_gpu test_gpu_forward test_gpu_neurons test_gpu_place)
$(BUILD)/obj/tests/gpu/pinned/%.o: tests/unit/%.c tests/gpu/pinned.h
	@mkdir -p $(@D)
	$(Q)$(CCACHE) $(CC) $(ALL_CFLAGS) -include tests/gpu/pinned.h -MMD -MP -c $< -o $@
$(GPU_KERNEL_TESTS): $(BUILD)/gpu/%: $(BUILD)/obj/tests/gpu/pinned/%.o $(BUILD)/cuda/tests/gpu/pinned.o
$(GPU_MODEL_TESTS): $(BUILD)/gpu/%: $(BUILD)/obj/tests/unit/%.o $(BUILD)/obj/tests/gpu/real_gpu.o
$(BUILD)/cuda/kernels.a: $(CUDA_OBJ)
	$(Q)rm -f $@ && $(AR) rcs $@ $^
$(GPU_KERNEL_TESTS) $(GPU_MODEL_TESTS): $(BUILD)/cuda/kernels.a $(BUILD)/libcli.a $(BUILD)/libmoec.a $(BUILD)/libmoert.a
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(filter %.o,$^) $(filter %.a,$^) -o $@ -lcmocka $(CUDART) $(TOOL_LIBS)
$(BUILD)/gpu/peak: $(BUILD)/cuda/tests/gpu/peak.o
	@mkdir -p $(@D)
	$(Q)$(CC) $^ -o $@ $(CUDART) -lpthread

$(BUILD)/gpu/speeds: $(BUILD)/obj/tests/gpu/speeds.o $(BUILD)/libmoec.a $(BUILD)/libmoert.a
	@mkdir -p $(@D)
	$(Q)$(CC) $^ -o $@ $(TOOL_LIBS)

.PHONY: gpu-programs
gpu-programs: all $(GPU_KERNEL_TESTS) $(GPU_MODEL_TESTS) $(BUILD)/gpu/peak $(BUILD)/gpu/speeds \
    $(BUILD)/tools/make_random_checkpoint
	@tests/gpu/pack.sh $(BUILD)/gpu-programs $(BUILD)/moec $(BUILD)/libmoert-cuda.so \
	    $(filter-out all,$^)
endif

$(BUILD)/libmoert.a: $(MOERT_OBJ)
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$(BUILD)/libmoert.so: $(MOERT_OBJ)
	$(Q)$(CC) -shared -Wl,-soname,libmoert.so.0 -Wl,-z,nodelete $(SAN_FLAGS) $^ -o $@ $(RUNTIME_LIBS)

# Lua modules, policies and tasks become part of the program.
LUA_FILES := $(sort $(wildcard lua/modules/*.lua lua/policies/*.lua lua/decisions/*.lua datasets/tasks/*.lua))
$(BUILD)/obj/lua_library.c: compiler/lua/embed_lua.sh $(LUA_FILES)
	@mkdir -p $(@D)
	$(Q)compiler/lua/embed_lua.sh > $@.new && mv $@.new $@
$(BUILD)/obj/lua_library.o: $(BUILD)/obj/lua_library.c
	$(Q)$(CCACHE) $(CC) $(ALL_CFLAGS) -MMD -MP -c $< -o $@

# Formats, profiler and compiler as one archive, so that the program and every test link the same objects.
$(BUILD)/libmoec.a: $(TOOL_OBJ) $(BUILD)/obj/lua_library.o
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$(BUILD)/libcli.a: $(CLI_OBJ)
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$(BUILD)/moec: $(BUILD)/obj/cli/main.o $(BUILD)/libcli.a $(BUILD)/libmoec.a $(BUILD)/libmoert.a
	$(call say,LD,$@)
	$(Q)$(CC) $(SAN_FLAGS) $^ -o $@ $(TOOL_LIBS)

# The same for this processor alone, in a third of the time: of the sets of kernels only the one that it runs. The text
# and the bundles are the same.
ifeq ($(ARCH),x86_64)
SETS := kernels_avx2 kernels_avx2_gfni kernels_avx512 kernels_avx512_vbmi int8_avx2 int8_avx2_vnni int8_avx512_vnni \
    int8_avx512_amx
SETS_HERE := $(if $(call cpu_has,avx512f avx512bw avx512dq avx512vl avx512vbmi gfni avx512_vnni),\
    kernels_avx512_vbmi int8_avx512_vnni $(if $(call cpu_has,amx_tile amx_int8),int8_avx512_amx),\
    $(if $(call cpu_has,avx512f avx512bw avx512dq avx512vl fma f16c),kernels_avx512 int8_avx2,\
        $(if $(call cpu_has,avx2 fma f16c gfni avx_vnni),kernels_avx2_gfni int8_avx2_vnni,\
            $(if $(call cpu_has,avx2 fma f16c),kernels_avx2 int8_avx2))))
SETS_ABSENT := $(filter-out $(SETS_HERE),$(SETS))
endif
NATIVE_OBJ := $(patsubst %/obj/runtime/kernels/kernels_absent.o,%/obj/native/runtime/kernels/kernels_absent.o,\
    $(filter-out $(foreach set,$(SETS_ABSENT),%/$(set).o),$(MOERT_OBJ)))
$(BUILD)/obj/native/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(Q)$(CCACHE) $(CC) $(ALL_CFLAGS) $(SETS_ABSENT:%=-DMOEC_ABSENT_%) -MMD -MP -c $< -o $@
$(BUILD)/native/moec: $(NATIVE_OBJ) $(BUILD)/obj/cli/main.o $(BUILD)/libcli.a $(BUILD)/libmoec.a
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(SAN_FLAGS) $(filter-out %.a,$^) $(filter %.a,$^) -o $@ $(TOOL_LIBS)
.PHONY: native
native: deps
	@$(MAKE) --no-print-directory -j$(JOBS) $(BUILD)/native/moec

# What measures a device, and the writer of its description: that needs none of moec's own libraries either.
$(BUILD)/libmeasure.a: $(call obj,$(wildcard profiler/device/*.c) \
    $(addprefix profiler/common/,machine.c phases.c quantiles.c) profiler/ranks/ranks.c \
    formats/json/json_write.c $(wildcard formats/trace/*_description.c))
	$(Q)rm -f $@ && $(AR) rcs $@ $^

# The run command alone: what it takes of libcli needs neither HDF5 nor Lua, Cairo and jansson.
$(BUILD)/moec-run: $(BUILD)/obj/cli/run_main.o $(BUILD)/libcli.a $(BUILD)/libmeasure.a $(BUILD)/libmoert.a
	$(call say,LD,$@)
	$(Q)$(CC) $(SAN_FLAGS) $^ -o $@ $(RUNTIME_LIBS)

# The same without any library to install beside it, for a device. It cannot open the one of GPUs either.
$(BUILD)/obj/static/%.o: %.c
	@mkdir -p $(@D)
	$(Q)$(CCACHE) $(CC) $(ALL_CFLAGS) -DMOEC_STATIC -MMD -MP -c $< -o $@
$(BUILD)/moec-run-static: $(BUILD)/obj/cli/run_main.o $(BUILD)/obj/static/runtime/cuda/gpu_library.o $(BUILD)/libcli.a \
    $(BUILD)/libmeasure.a $(BUILD)/libmoert.a
	$(call say,LD,$@)
	$(Q)$(CC) -static -s $^ -o $@ $(call pc,--static --libs $(RUNTIME_PC)) -lm -pthread

# The stand-in for a GPU is no part of libmoert.
TEST_PARTS += $(call obj,$(wildcard runtime/cuda/host/*.c))

# As the library that programs open, for tests of the command line (tests/cli/gpu_offline.sh).
STANDIN_OBJ := $(call obj,tests/standin/standin.c $(wildcard runtime/cuda/host/*.c runtime/cuda/blocks/*.c)) \
               $(patsubst %.cu,$(BUILD)/obj/%.o,$(wildcard runtime/cuda/kernels/*.cu))
$(BUILD)/standin/libmoert-cuda.so: $(STANDIN_OBJ) $(BUILD)/libmoert.a
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) -shared $(SAN_FLAGS) $^ -o $@ -lm -pthread

# What tests share, linked into those that use it.
$(BUILD)/libtests.a: $(TEST_PARTS)
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$(BUILD)/tests/%: $(BUILD)/obj/tests/unit/%.o $(BUILD)/libtests.a $(BUILD)/libcli.a $(BUILD)/libmoec.a $(BUILD)/libmoert.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(SAN_FLAGS) $(TEST_LINKER) $^ -o $@ -lcmocka $(TOOL_LIBS)

# Tests of what libmoert is made of, which need none of moec's own libraries: those that a device is tested with.
RUNTIME_TESTS := $(addprefix test_,arena codec digest evict int8 kernels kernels_dense kernels_encoded kernels_packed mxfp4 \
                 parallel path_table predict preload reader record residency sampler section_hash trellis)
$(BUILD)/device-tests/%: $(BUILD)/obj/tests/unit/%.o $(BUILD)/libtests.a $(BUILD)/libmoert.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(SAN_FLAGS) $^ -o $@ -lcmocka $(RUNTIME_LIBS)

# Programs for measuring and comparing by hand; tests need those that make something (test-programs).
$(BUILD)/tools/make_bundle_seeds $(BUILD)/tools/make_refused_bundle: TOOL_LIBS += -lcmocka
$(BUILD)/tools/%: $(BUILD)/obj/tests/tools/%.o $(BUILD)/libmoec.a $(BUILD)/libmoert.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(SAN_FLAGS) $^ -o $@ $(TOOL_LIBS)

# Reads what experiments/*.sh measured and writes the report.
$(BUILD)/tools/paper_report: $(call obj,$(sort $(wildcard experiments/*.c))) $(BUILD)/libmoec.a $(BUILD)/libmoert.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(SAN_FLAGS) $^ -o $@ $(TOOL_LIBS)

# ---- tests ----

CLI_TESTS  := $(sort $(wildcard tests/cli/*.sh))
FUZZ_SRC   := $(sort $(wildcard tests/fuzz/fuzz_*.c))
FUZZ_BUILD := $(TOP)/fuzz
FUZZ_BIN   := $(patsubst tests/fuzz/%.c,$(FUZZ_BUILD)/%,$(FUZZ_SRC))
FUZZ_RUNS  ?= 20000

deps:
	@tests/install_packages.sh $(PACKAGES)

deps-test: deps
	@tests/install_packages.sh $(PACKAGES_TEST)

# Which tests: all, or those that T names, as in make test T='route test_evict'.
FUZZ_TEST := $(if $(SANITIZE),,tests/fuzz/run.sh)
TESTS := $(if $(T),$(wildcard $(patsubst %,tests/cli/%.sh,$(T))) $(filter $(T:%=$(BUILD)/tests/%),$(UNIT_BIN)) \
             $(if $(filter fuzz,$(T)),$(FUZZ_TEST)),tests/check_rooms.sh $(CLI_TESTS) $(UNIT_BIN) $(FUZZ_TEST))
UNKNOWN_TESTS = $(filter-out $(basename $(notdir $(TESTS))) $(if $(FUZZ_TEST),fuzz),$(T))

# Packages first, then everything else in a make of its own, so that pkg-config is asked when they are there.
test: deps-test
	$(if $(UNKNOWN_TESTS),$(error T: there is no '$(firstword $(UNKNOWN_TESTS))'; tests are tests/cli/NAME.sh, tests/unit/test_NAME.c, and fuzz))
	@$(MAKE) --no-print-directory -j$(JOBS) test-programs
	@MOEC_BUILD=$(BUILD) FUZZ_BUILD=$(FUZZ_BUILD) $(if $(SANITIZE),TEST_TIMEOUT_SECONDS=$${TEST_TIMEOUT_SECONDS:-3600}) \
	    JOBS=$(JOBS) tests/run.sh $(TESTS)

# What these tests run: tests of the command line all programs.
CLI_PROGRAMS := all $(BUILD)/native/moec $(BUILD)/standin/libmoert-cuda.so $(addprefix $(BUILD)/tools/,make_random_checkpoint make_refused_bundle \
                logits paper_report read_bench)
test-programs: $(filter $(UNIT_BIN),$(TESTS)) $(if $(filter tests/cli/%,$(TESTS)),$(CLI_PROGRAMS)) \
    $(if $(filter tests/fuzz/%,$(TESTS)),fuzz-programs)

# 64-bit ARM, built by Debian's cross compiler and run by qemu-user: tests of the runtime, and moec-run beside moec.
# ARM_TESTS= leaves the former out; ARM_MISSING=skip leaves all out, with the reason, where packages are not to be had.
ARM_TESTS   ?= $(RUNTIME_TESTS)
ARM_MISSING ?= fail
ARM_BUILD   := $(TOP)/aarch64
# Of the libraries that only moec has, the headers of this machine do: moec-run is linked with none of them.
HERE            = $(shell gcc -print-multiarch 2>/dev/null)
ARM_PKG_CONFIG  = /usr/lib/aarch64-linux-gnu/pkgconfig:/usr/lib/$(HERE)/pkgconfig:/usr/share/pkgconfig
ARM_MAKE     = PKG_CONFIG_LIBDIR=$(ARM_PKG_CONFIG) $(MAKE) --no-print-directory -j$(JOBS) \
               CC=aarch64-linux-gnu-gcc BUILD=$(ARM_BUILD) CFLAGS='-O2 -g -idirafter /usr/include/$(HERE)'
deps-arm: deps
	@tests/install_packages.sh $(PACKAGES_ARM)

.PHONY: deps-arm test-arm dist-aarch64
test-arm: deps
	@if tests/install_packages.sh $(PACKAGES_ARM) $(PACKAGES_TEST_ARM); then $(MAKE) --no-print-directory test-arm-built; \
	elif [ $(ARM_MISSING) = skip ]; then echo 'skipped: the packages for 64-bit ARM cannot be installed here'; else exit 1; fi
test-arm-built:
	@$(MAKE) --no-print-directory -j$(JOBS) $(BUILD)/moec
	@$(ARM_MAKE) $(ARM_BUILD)/moec-run-static $(ARM_TESTS:%=$(ARM_BUILD)/device-tests/%)
	@MOEC_BUILD=$(BUILD) ARM_TESTS='$(ARM_TESTS)' ARM_BUILD=$(ARM_BUILD) tests/run.sh tests/arm/runtime.sh

dist-aarch64: deps-arm
	@$(ARM_MAKE) $(ARM_BUILD)/moec-run-static
	@cp $(ARM_BUILD)/moec-run-static $(BUILD)/moec-run-$(VERSION)-aarch64 && echo $(BUILD)/moec-run-$(VERSION)-aarch64

# The fuzz targets are built with clang, libFuzzer, ASan and UBSan, and with them what they need of the library.
FUZZ_OBJ  := $(patsubst tests/fuzz/%.c,$(FUZZ_BUILD)/obj/tests/fuzz/%.o,$(FUZZ_SRC))
FUZZ_MAKE  = $(MAKE) --no-print-directory CC=clang SANITIZE=fuzz BUILD=$(FUZZ_BUILD) FUZZ_BUILD=$(FUZZ_BUILD)
fuzz-programs: $(BUILD)/libmoec.a $(BUILD)/libmoert.a
	+@$(FUZZ_MAKE) $(FUZZ_OBJ)
	@tests/fuzz/needed.sh $(BUILD) $(FUZZ_OBJ) >$(FUZZ_BUILD)/needed.new
	@cmp -s $(FUZZ_BUILD)/needed.new $(FUZZ_BUILD)/needed || cp $(FUZZ_BUILD)/needed.new $(FUZZ_BUILD)/needed
	+@$(FUZZ_MAKE) $(FUZZ_BIN)

$(FUZZ_BUILD)/libneeded.a: $(call obj,$(shell cat $(FUZZ_BUILD)/needed 2>/dev/null)) $(FUZZ_BUILD)/needed
	$(Q)rm -f $@ && $(AR) rcs $@ $(filter %.o,$^)

$(FUZZ_BUILD)/fuzz_%: $(FUZZ_BUILD)/obj/tests/fuzz/fuzz_%.o $(FUZZ_BUILD)/libneeded.a
	$(Q)$(CC) $(SAN_FLAGS) -fsanitize=fuzzer $^ -o $@ $(TOOL_LIBS)

# The tests of the three experiments, measured anew: minutes.
.PHONY: test-experiments
test-experiments: deps-test
	@WHOLE=1 $(MAKE) --no-print-directory T='experiment decisions floe' test

# Faults of tests/planted/, one at a time, in a copy of the tree: each must be caught by the test that it names.
.PHONY: planted
planted: deps-test
	@JOBS=$(JOBS) tests/planted.sh

# In a bare root of each system that README.md names, by its compilers: half an hour, and 3 GB of disk while it runs.
.PHONY: test-distributions
test-distributions:
	@JOBS=$(JOBS) tests/distributions.sh

# Long runs by hand, which keep what they find in tests/fuzz/found/: make fuzz FUZZ_RUNS=10000000
fuzz: deps-test
	@$(MAKE) --no-print-directory -j$(JOBS) fuzz-programs
	@FUZZ_BUILD=$(FUZZ_BUILD) FUZZ_RUNS=$(FUZZ_RUNS) FUZZ_SECONDS=0 FUZZ_KEEP=1 tests/fuzz/run.sh

# moec profile ended at random moments (kill -9, Ctrl-C, kill) and resumed, against an uninterrupted run.
KILLS ?= 50
kill-test: deps
	@$(MAKE) --no-print-directory -j$(JOBS) $(BUILD)/moec
	@MOEC_BUILD=$(BUILD) tests/kill_profile.sh $(KILLS) 1 --seq-len 32 --samples 32 --bits 2,4 --study ranks

# Against transformers and tokenizers, where PYTHON has them: fresh random models and texts, no fixtures.
PYTHON ?= python3
live: deps
	@$(MAKE) --no-print-directory -j$(JOBS) $(BUILD)/moec $(BUILD)/tools/logits $(BUILD)/tools/tokenize $(BUILD)/tools/rouge $(BUILD)/tools/render_chat
	@for script in tests/live/*.py; do \
	    $(PYTHON) $$script; status=$$?; \
	    if [ $$status -eq 77 ]; then echo "skipped: $$script, for want of what it names above"; \
	    elif [ $$status -ne 0 ]; then exit $$status; fi; done

# Needs an hour, 25 GB of disk and no data: a checkpoint larger than memory from end to end.
large: deps
	@$(MAKE) --no-print-directory -j$(JOBS) $(BUILD)/moec $(BUILD)/tools/make_random_checkpoint
	@MOEC_BUILD=$(BUILD) tests/large/run.sh

# The runtime's reader beside fio, the same requests; needs fio, and without BUNDLE= half an hour and 20 GB of disk.
bandwidth: deps
	@$(MAKE) --no-print-directory -j$(JOBS) $(BUILD)/moec $(BUILD)/tools/make_random_checkpoint $(BUILD)/tools/read_bench
	@MOEC_BUILD=$(BUILD) tests/large/bandwidth.sh $(BUNDLE)

# EdgeMoE's evaluation on the samples: a quarter of an hour, build/experiment-edgemoe/report.html and tables beside it.
experiment-edgemoe: deps
	@$(MAKE) --no-print-directory -j$(JOBS) $(BUILD)/moec $(BUILD)/tools/paper_report
	@MOEC_BUILD=$(BUILD) experiments/edgemoe.sh $(BUILD)/experiment-edgemoe

# Decisions per token on the sample, or on MODEL with the texts CALIBRATION and TEST.
experiment-decisions: deps
	@$(MAKE) --no-print-directory -j$(JOBS) $(BUILD)/moec $(BUILD)/tools/paper_report
	@MOEC_BUILD=$(BUILD) experiments/decisions.sh $(BUILD)/experiment-decisions \
	    $(if $(MODEL),'$(MODEL)' '$(CALIBRATION)' '$(TEST)')

# Sparsity inside experts, likewise.
experiment-floe: deps
	@$(MAKE) --no-print-directory -j$(JOBS) $(BUILD)/moec $(BUILD)/tools/paper_report $(BUILD)/tools/read_bench
	@MOEC_BUILD=$(BUILD) experiments/floe.sh $(BUILD)/experiment-floe \
	    $(if $(MODEL),'$(MODEL)' '$(CALIBRATION)' '$(TEST)')

# ---- quality ----

SOURCES := $(wildcard $(foreach folder,formats runtime profiler compiler server cli experiments tests docs,\
           $(folder)/*.[ch] $(folder)/*/*.[ch])) $(wildcard runtime/*/*/*.[ch] runtime/cuda/*/*.cu runtime/cuda/*/*.cuh tests/unit/*.cu tests/gpu/*.cu profiler/ranks/mpi/*.[ch])
SCRIPTS := $(wildcard tests/*.sh tests/*/*.sh tests/gpu/steps/*.sh packaging/*.sh compiler/*/*.sh datasets/*.sh experiments/*.sh) .ci/run
EVERY_ISA := $(if $(filter x86_64,$(ARCH)),-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vbmi -mavx512vnni -mgfni -mavxvnni -mavx2 -mfma -mf16c)

# Two minutes: what every change is held to beside the tests.
check: deps-test
	@tests/install_packages.sh $(PACKAGES_CHECK)
	@$(MAKE) --no-print-directory check-sources
check-sources:
	@echo 'format' && tests/format.sh $(SOURCES)
	@echo 'comments' && tests/check_comments.sh $(SOURCES)
	@echo 'rooms' && tests/check_rooms.sh
	@echo 'commits' && tests/check_commits.sh
	@echo 'scripts' && shellcheck -x $(SCRIPTS) && for script in $(CLI_TESTS); do \
	    [ -x $$script ] || { echo "$$script cannot be run: chmod +x"; exit 1; }; done
	@echo 'clang' && printf '%s\n' $(filter-out docs/%,$(filter %.c,$(SOURCES))) | xargs -P$(JOBS) -n8 \
	    clang -fsyntax-only -Werror $(filter-out -D%,$(ALL_CFLAGS)) -D_GNU_SOURCE -DMOEC_VERSION='"$(VERSION)"' $(EVERY_ISA) $(OPENMP) $(call pc,--cflags ompi-c)

# Hours: clang-tidy over everything, a clang build, and the tests in it and under the sanitizers, those of memory and of
# undefined behaviour in one build.
check-all: check
	@tests/install_packages.sh $(PACKAGES_CHECK_ALL)
	@mkdir -p $(BUILD)/tidy
	@printf '%s\n' $(filter-out -Werror -I.,$(ALL_CFLAGS)) -I$(CURDIR) $(EVERY_ISA) $(OPENMP) > $(BUILD)/tidy/compile_flags.txt
	@echo 'clang-tidy' && printf '%s\n' $(call c_files,formats $(RUNTIME_ROOMS) profiler compiler server cli experiments) | \
	    xargs -P$(JOBS) -n4 clang-tidy --quiet -p $(BUILD)/tidy
	@$(MAKE) --no-print-directory CC=clang DEV=1 test
	@for sanitizer in address,undefined thread; do \
	    $(MAKE) --no-print-directory SANITIZE=$$sanitizer DEV=1 test || exit 1; done
	@MOEC_BUILD=$(BUILD) tests/run.sh tests/large/slurm.sh
	@$(MAKE) --no-print-directory test-experiments
	@$(MAKE) --no-print-directory planted
	@$(MAKE) --no-print-directory test-distributions

format:
	@tests/format.sh -i $(SOURCES)

# ---- the sample job, installing, help ----

demo: deps
	@$(MAKE) --no-print-directory -j$(JOBS) $(BUILD)/native/moec
	@MOEC=$(BUILD)/native/moec datasets/demo.sh $(BUILD)/demo

VERBS := $(patsubst cli/verbs/cmd_%.c,%,$(wildcard cli/verbs/cmd_*.c))

# What help texts and man pages refer to, under the same names.
DOCUMENTS := README.md LICENSE lua/README.md formats/bundle/FORMAT.md experiments/README.md tests/race/README.md \
             datasets/switch-sample/README.md $(wildcard formats/profile/[A-Z]*.md formats/trace/[A-Z]*.md CONTRIBUTING.md docs/*.md \
             docs/*.png docs/*.c docs/notebook.py docs/measured/*.md lua/modules/*.lua lua/policies/*.lua lua/decisions/*.lua \
             datasets/tasks/*.lua datasets/tasks/*.md)

# Either may hold spaces. STRIP= leaves symbols in what is installed; build/ keeps its own.
ROOT  = "$(DESTDIR)$(PREFIX)"
STRIP ?= strip
# Characters that mean something to sed, in a replacement.
escaped_prefix = $(subst |,\|,$(subst &,\&,$(subst \,\\,$(PREFIX))))

install: all
	install -d $(addprefix $(ROOT)/,bin lib/pkgconfig include share/man/man1 share/bash-completion/completions \
	    share/zsh/site-functions share/fish/vendor_completions.d)
	install -m 755 $(BUILD)/moec $(BUILD)/moec-run $(ROOT)/bin
	install -m 644 $(BUILD)/libmoert.a $(ROOT)/lib
	@# The libraries of a GPU and of MPI go along where they were built.
	if [ -f $(BUILD)/libmoert-cuda.so ]; then install -m 755 $(BUILD)/libmoert-cuda.so $(ROOT)/lib; fi
	if [ -f $(BUILD)/libmoec-mpi.so ]; then install -m 755 $(BUILD)/libmoec-mpi.so $(ROOT)/lib; fi
	install -m 755 $(BUILD)/libmoert.so $(ROOT)/lib/libmoert.so.0
	$(if $(STRIP),$(STRIP) $(addprefix $(ROOT)/,bin/moec bin/moec-run))
	$(if $(STRIP),$(STRIP) --strip-unneeded $(ROOT)/lib/libmoert.so.0)
	$(if $(STRIP),$(STRIP) --strip-debug $(ROOT)/lib/libmoert.a)
	ln -sf libmoert.so.0 $(ROOT)/lib/libmoert.so
	install -m 644 runtime/moert.h $(ROOT)/include
	sed -e 's|@PREFIX@|$(escaped_prefix)|' -e 's|@VERSION@|$(VERSION)|' runtime/moert.pc.in > $(ROOT)/lib/pkgconfig/moert.pc
	$(BUILD)/moec manual > $(ROOT)/share/man/man1/moec.1
	for verb in $(VERBS); do $(BUILD)/moec manual $$verb > $(ROOT)/share/man/man1/moec-$$verb.1; done
	$(BUILD)/moec completion bash > $(ROOT)/share/bash-completion/completions/moec
	$(BUILD)/moec completion zsh > $(ROOT)/share/zsh/site-functions/_moec
	$(BUILD)/moec completion fish > $(ROOT)/share/fish/vendor_completions.d/moec.fish
	@# moec-run may be installed without moec. Links of earlier versions would be written through.
	rm -f $(addprefix $(ROOT)/share/,bash-completion/completions/moec-run fish/vendor_completions.d/moec-run.fish)
	$(BUILD)/moec completion bash moec-run > $(ROOT)/share/bash-completion/completions/moec-run
	$(BUILD)/moec completion zsh moec-run > $(ROOT)/share/zsh/site-functions/_moec-run
	$(BUILD)/moec completion fish moec-run > $(ROOT)/share/fish/vendor_completions.d/moec-run.fish
	for file in $(DOCUMENTS); do install -D -m 644 $$file $(ROOT)/share/doc/moec/$$file; done
	@# The loader finds a new library in its cache. Into a DESTDIR nothing is to be loaded from here.
	@[ -n "$(DESTDIR)" ] || ldconfig 2>/dev/null || \
	    echo 'run ldconfig as root, so that programs find $(PREFIX)/lib/libmoert.so.0'

uninstall:
	rm -rf $(ROOT)/share/doc/moec
	rm -f $(addprefix $(ROOT)/,bin/moec bin/moec-run lib/libmoert.a lib/libmoert.so lib/libmoert.so.0 lib/libmoert-cuda.so lib/libmoec-mpi.so \
	    include/moert.h lib/pkgconfig/moert.pc share/man/man1/moec.1 $(VERBS:%=share/man/man1/moec-%.1) \
	    share/bash-completion/completions/moec share/bash-completion/completions/moec-run \
	    share/zsh/site-functions/_moec share/zsh/site-functions/_moec-run share/fish/vendor_completions.d/moec.fish \
	    share/fish/vendor_completions.d/moec-run.fish)

# ---- packages ----

.PHONY: static deb dist test-deb
static: $(BUILD)/moec-run-static

deb: all
	@packaging/deb.sh $(VERSION) $(BUILD)/deb

dist:
	@mkdir -p $(BUILD)
	@git archive --format=tar.gz --prefix=moec-$(VERSION)/ -o $(BUILD)/moec-$(VERSION).tar.gz HEAD
	@echo $(BUILD)/moec-$(VERSION).tar.gz

test-deb: deb
	@packaging/test_deb.sh $(BUILD)/deb

help:
	@echo 'make                 build moec, moec-run, libmoert.a, libmoert.so'
	@echo 'make demo            install what is missing, make native, run the main job on the sample (build/demo/)'
	@echo 'make native          build/native/moec, with the kernels of this processor alone: a third of the time'
	@echo 'make test            install what is missing, build, run every test'
	@echo "make test T='route test_evict'   these alone: of tests/cli/ and tests/unit/; fuzz: all fuzz targets, briefly"
	@echo 'make SANITIZE=address|undefined|thread test   the same under a sanitizer'
	@echo 'make test-arm        the runtime built for 64-bit ARM, under qemu: its tests, and its words beside those of here'
	@echo 'make check           format, comments, rooms, commits, shellcheck, what clang says: two minutes'
	@echo 'make check-all       that, clang-tidy, every test built by clang and under each sanitizer,'
	@echo '                     make test-experiments, planted, test-distributions: hours'
	@echo 'make test-distributions   as root: builds, demo and a short suite in bare roots of Debian 12, 13 and Ubuntu 24.04'
	@echo 'make test-experiments   the tests of the three experiments, measured anew and not from what is kept: minutes'
	@echo 'make planted         faults planted into a copy of the tree, one at a time: does the test for it fail?'
	@echo 'make format          rewrite sources with clang-format'
	@echo 'make live            compare with transformers, tokenizers, rouge-score; PYTHON=python3 that has them'
	@echo 'make large           a random checkpoint of 13.8 GB from end to end: times, peaks, bytes read'
	@echo 'make bandwidth       reads random records of BUNDLE=model.moec through the runtime and through fio: MB/s, ratio'
	@echo 'make experiment-edgemoe   the evaluation of EdgeMoE on the samples, as one HTML page and tables'
	@echo 'make experiment-decisions   cache-conditional routing, HOBBIT and Fate on the sample; MODEL= CALIBRATION= TEST= on another'
	@echo 'make experiment-floe   sparsity inside experts on the sample; MODEL= CALIBRATION= TEST= on another'
	@echo 'make kill-test       end moec profile at KILLS=N random moments ($(KILLS)) and compare what it resumes to'
	@echo 'make gpu-programs    build/gpu-programs: what tests/gpu/all.sh takes along to a machine with a GPU; needs nvcc'
	@echo 'make fuzz            fuzz every parser; FUZZ_RUNS=N executions each ($(FUZZ_RUNS))'
	@echo 'make deps            install the Debian packages that building needs; without apt-get, name what lacks'
	@echo 'make install         into PREFIX ($(PREFIX)), under DESTDIR; STRIP= keeps symbols; make uninstall takes it away'
	@echo 'make static          build/moec-run-static, which needs no library beside it'
	@echo 'make dist-aarch64    the same for 64-bit ARM: build/moec-run-$(VERSION)-aarch64'
	@echo 'make deb             Debian packages, into build/deb; make test-deb tries them in a bare Debian (root)'
	@echo 'make dist            the source of the last commit, as a tar file'
	@echo 'make clean           remove build/'
	@echo 'settings: BUILD=FOLDER (in place of build) CC=gcc|clang CFLAGS= DEV=1 (warnings are errors)'
	@echo '          V=1 (show commands) JOBS=N CUDA=auto|0|1 MPI=auto|0|1'

clean:
	rm -rf $(TOP)

.SECONDARY:
-include $(shell find $(BUILD)/obj $(BUILD)/cuda -name '*.d' 2>/dev/null)
